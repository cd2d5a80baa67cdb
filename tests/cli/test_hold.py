"""``hold``: of one's own processes, until a time, on record, and never of a later process."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.collect.host import Host
from gpuwatchd.core import config
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.act.children import job
from tests.store.world import actions, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.calls import Ctl

PID = str(os.getpid())
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _history() -> None:
    opened(config.state_dir()).close()


def holds() -> dict[ProcessKey, float]:
    with Reader.open(config.state_dir()) as reader:
        return reader.holds(time.time())


@pytest.mark.parametrize(("words", "length_s"), [((), 4 * HOUR_S), (("7d",), 168 * HOUR_S)])
def test_it_is_kept_until_then_and_on_record(
    ctl: Ctl, words: tuple[str, ...], length_s: float
) -> None:
    (held,) = ctl.data("hold", PID, *words)
    ((key, until_s),) = holds().items()
    assert held["process"]["pid"] == key.pid == os.getpid()
    assert not held["cleared"]
    assert tables.same_process(key, Host().processes([key.pid])[key.pid].key, 0.01)
    assert until_s == pytest.approx(time.time() + length_s, abs=30.0)
    assert [(row.verb, row.phase) for row in actions(config.state_dir())] == [("hold", "done")]


def test_a_later_one_replaces_it_and_clear_takes_it_back(ctl: Ctl) -> None:
    ctl("hold", PID, "7d")
    ctl("hold", PID, "1h")
    (held,) = ctl.data("hold")
    assert list(holds().values()) == [pytest.approx(time.time() + HOUR_S, abs=30.0)]
    (cleared,) = ctl.data("hold clear", PID)
    assert cleared == held | {"cleared": True}
    assert (holds(), ctl.data("hold")) == ({}, [])
    assert ctl.json("hold clear", PID, code=1)["error"]["page"] == "errors#not-held"
    assert [row.verb for row in actions(config.state_dir())] == ["hold", "hold", "clear-hold"]


def test_it_is_shown_with_the_name_of_its_process(ctl: Ctl) -> None:
    assert ctl("hold").count("\n") == 1
    with job() as process:
        shown = ctl("hold", str(process.pid))
        (held,) = ctl.data("hold")
        assert held["name"] in shown
        assert f"{process.pid}" in ctl("hold")
    (ended,) = ctl.data("hold")
    assert (ended["process"], ended["name"]) == (held["process"], None)
    (cleared,) = ctl.data("hold clear", str(process.pid))  # also of one that has ended
    assert cleared["cleared"]


def test_a_later_process_with_its_pid_is_another_one(ctl: Ctl) -> None:
    earlier = ProcessKey(pid=int(PID), started_at_s=1000.0)
    transaction(config.state_dir(), tables.save_hold, earlier, time.time() + HOUR_S)
    (held,) = ctl.data("hold")
    assert held["name"] is None
    ctl("hold", PID)
    assert len(holds()) == 2


@pytest.mark.parametrize("pid", ["1", "2"])
def test_the_first_processes_are_the_systems(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    error = ctl.json("hold", pid, code=1)["error"]
    assert error["page"] == "errors#never-ended"
    assert error["hint"]
    assert holds() == {}


def test_only_the_owner_or_root_may_hold_it(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Host, pids: list[int]) -> dict[int, ProcessInfo]:
        key = ProcessKey(pid=pids[0], started_at_s=1.0)
        return {pids[0]: ProcessInfo(key=key, name="p", user="bob", uid=os.getuid() + 1)}

    monkeypatch.setattr(Host, "processes", look)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ctl.json("hold", PID, code=1)["error"]["page"] == "errors#not-yours"
    assert holds() == {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["hold", PID]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("0",), 2),
        (("-1",), 2),
        (("nobody",), 1),
        (("4194304",), 1),
        ((str(10**30),), 1),
        ((PID, "0"), 2),
        ((PID, "0h"), 2),
        ((PID, "-1h"), 2),
        ((PID, "4"), 2),
        ((PID, "8d"), 2),
        ((PID, "soon"), 2),
        ((PID, "nan"), 2),
        ((PID, "4h", "5h"), 2),
        (("clear",), 2),
        (("clear", "0"), 2),
        (("clear", "4194304"), 1),
    ],
    ids=lambda words: None if isinstance(words, int) else "-".join(words).replace(PID, "own"),
)
def test_bad_input_is_refused_and_nothing_is_kept(
    ctl: Ctl, words: tuple[str, ...], code: int
) -> None:
    assert ctl.err("hold", *words, code=code).count("\n") >= 2
    assert holds() == {}
    assert actions(config.state_dir()) == []


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Lose root's rights for a while; whoever has none keeps what he has."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("words", [(), (PID,), ("clear", PID)], ids=["list", "set", "clear"])
def test_a_state_folder_that_cannot_be_read(ctl: Ctl, words: tuple[str, ...]) -> None:
    ctl("hold", PID)
    config.state_dir().chmod(0)
    with _as_nobody():
        answer = ctl.json("hold", *words, code=1)
    config.state_dir().chmod(0o700)
    assert answer["error"]["kind"] in {"StoreError", "NotAllowed"}
    assert len(holds()) == 1
