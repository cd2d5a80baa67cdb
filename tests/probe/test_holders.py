"""Names of holders; read in a child, as in a job."""

from __future__ import annotations

import collections
import sys
from typing import Any

import pytest
from _gpuwatchd_probe import attributes, heap, holders, inspection

from tests.probe import planted
from tests.probe.leaks import CLEAN, LEAKS, Blob
from tests.probe.test_census import CALLED, Hostile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Buffer:
    def __init__(self) -> None:
        self.capacity = 5000
        self.items = [Blob() for _ in range(20)]


def holder(members: list[Any]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        attributes.remember_dicts()
        frame: Any = sys._getframe()
        own = [frame]
        while frame.f_code.co_name != "holder":
            own.append(frame := frame.f_back)
        return {"found": holders.walk(members, (Blob,), own, 5.0)}

    found: list[dict[str, Any]] = heap.in_child(work)["found"]
    return found[0] if found else {}


def test_a_list_of_a_running_function() -> None:
    losses = [Blob() for _ in range(30)]
    found = holder(losses[-6:])
    assert found["name"] == "losses in test_a_list_of_a_running_function()"
    assert (found["kind"], found["len"], found["bound"]) == ("list", 30, None)
    assert found["file"] == __file__


def test_what_bounds_a_holder_is_read() -> None:
    recent = collections.deque((Blob() for _ in range(20)), maxlen=100)
    assert holder(list(recent)[-6:])["bound"] == 100
    buffer = Buffer()
    found = holder(buffer.items[-6:])
    assert found["name"] == "buffer.items in test_what_bounds_a_holder_is_read()"
    assert found["bound"] == 5000


def test_hostile_objects_on_the_way_are_not_called() -> None:
    hostile = Hostile()
    mixed = {0: hostile, 1: [Blob() for _ in range(20)], 2: [hostile]}
    CALLED.clear()
    members: Any = mixed[1]
    holder(members[-6:])
    assert CALLED == []


def test_values_of_keys_are_not_shown() -> None:
    secrets = {"password": [Blob() for _ in range(20)]}
    assert holder(secrets["password"][-6:])["name"].startswith("secrets[...]")


def test_an_error_is_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> dict[str, Any]:
        raise heap.HeapError("memory")

    monkeypatch.setattr(heap, "in_child", refuse)
    seen = inspection.inspect((Blob,), wait=lambda _: None)
    assert (seen["error"], seen["groups"]) == ("memory", [])


@pytest.mark.parametrize("name", ["list of losses", "closure", "lru_cache", "linked list", "ring"])
def test_planted(name: str) -> None:
    seen = planted.inspected(name, "plain", sys.executable, 0.2)
    assert planted.verdict(name, seen) == ("silent" if name in CLEAN else "right"), seen


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEAKS, *CLEAN])
def test_all_planted(name: str) -> None:
    seen = planted.inspected(name, "plain", sys.executable, 0.3)
    assert planted.verdict(name, seen) in {"right", "silent", "unnamed"}, seen
