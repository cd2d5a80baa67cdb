"""One line of the log for each change of a GPU's state, and none for a tick."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.config import Config
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import Fault
from gpuwatchd.core.state_log import MOST_LINES
from gpuwatchd.pipeline import Pipeline
from tests.making import CARD, sample
from tests.pipeline.play import Script, run

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState, Sample

TROUBLE: tuple[DeviceState, ...] = ("lost", "hung", "no-permission", "reset-required")
ON_PURPOSE: tuple[DeviceState, ...] = ("released", "asleep")
OTHER = msgspec.structs.replace(CARD, uid="GPU-other", index=1)


class Machine:
    """One source whose GPUs are in the states that are set."""

    def __init__(self, *uids: str) -> None:
        self.states: dict[str, DeviceState] = dict.fromkeys(uids or (CARD.uid,), "ok")
        self.unread: set[str] = set()
        self.answers = True
        self.source = Script(self._play, name="nvml", devices=())
        self.now_s = 0.0
        self.pipeline = Pipeline(config=Config(), sources=[self.source], mono=lambda: self.now_s)

    def _play(self, tick: int) -> Sample:
        if not self.answers:
            raise SourceError("the driver says no")
        whole = sample(1000.0 + 5.0 * tick, [])
        readings = [
            msgspec.structs.replace(whole.readings[0], device_uid=uid, state=state, uses=())
            for uid, state in self.states.items()
            if uid not in self.unread
        ]
        faults = [
            Fault(where="nvml", why="Xid 79 has fallen off", device_uid=uid)
            for uid, state in self.states.items()
            if state == "lost"
        ]
        return msgspec.structs.replace(whole, readings=tuple(readings), faults=tuple(faults))

    def ticks(self, count: int = 3) -> None:
        self.source.known = tuple(card for card in (CARD, OTHER) if card.uid in self.states)
        for _ in range(count):
            self.now_s += 5.0
            run(self.pipeline, 1)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, dict[str, str]]]:
    """Return level, what happened and the keys of every line about a GPU since the last call."""
    found = []
    for record in caplog.records:
        first, *words = shlex.split(record.getMessage())
        if first == "gpu":
            keys: dict[str, Any] = dict(word.split("=", 1) for word in words[1:])
            found.append((record.levelno, words[0], keys))
    caplog.clear()
    return found


def known(caplog: pytest.LogCaptureFixture) -> Machine:
    """Return a machine of two GPUs that are known already."""
    machine = Machine(CARD.uid, OTHER.uid)
    machine.ticks()
    caplog.clear()
    return machine


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gpuwatchd")


def test_a_new_gpu_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert (level, what) == (logging.INFO, "found")
    assert keys == {
        "gpu": CARD.label, "uid": CARD.uid, "source": "nvml", "state": "ok", "name": CARD.name,
    }  # fmt: skip


@pytest.mark.parametrize("state", [*TROUBLE, *ON_PURPOSE])
def test_each_state_and_its_end_is_one_line(
    state: DeviceState, caplog: pytest.LogCaptureFixture
) -> None:
    machine = known(caplog)
    machine.states[CARD.uid] = state
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert level == (logging.WARNING if state in TROUBLE else logging.INFO)
    assert (what, keys["state"], keys["was"], keys["uid"]) == ("changed", state, "ok", CARD.uid)
    assert keys.get("why") == ("nvml: Xid 79 has fallen off" if state == "lost" else None)
    machine.states[CARD.uid] = "ok"
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert (level, what, keys["state"], keys["was"]) == (logging.INFO, "changed", "ok", state)
    assert keys["after_s"] == "100"


def test_one_that_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    machine = known(caplog)
    del machine.states[OTHER.uid]
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert (level, what, keys["uid"], keys["was"]) == (logging.WARNING, "gone", OTHER.uid, "ok")
    machine.states[OTHER.uid] = "lost"
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert (level, what, keys["uid"], keys["state"]) == (
        logging.WARNING, "found", OTHER.uid, "lost",
    )  # fmt: skip


def test_one_that_is_listed_and_not_read(caplog: pytest.LogCaptureFixture) -> None:
    machine = known(caplog)
    machine.unread = {OTHER.uid}
    machine.ticks(20)
    ((level, what, keys),) = lines(caplog)
    assert (level, what, keys["state"], keys["uid"]) == (
        logging.WARNING, "changed", "unread", OTHER.uid,
    )  # fmt: skip


def test_a_source_that_does_not_answer_says_nothing_of_its_gpus(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    machine.ticks()
    lines(caplog)
    machine.answers = False
    machine.ticks(20)
    machine.answers = True
    machine.ticks(20)
    assert lines(caplog) == []


def test_one_that_goes_to_and_fro_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.ticks()
    lines(caplog)
    for _ in range(200):
        machine.states[CARD.uid] = "lost"
        machine.ticks(1)
        machine.states[CARD.uid] = "ok"
        machine.ticks(1)
    assert 0 < len(lines(caplog)) <= MOST_LINES
    machine.now_s += 4000.0
    machine.ticks(2)
    ((_, what, keys),) = lines(caplog)
    assert (what, keys["state"], keys["was"]) == ("changed", "ok", "lost")
    assert int(keys["unlogged"]) > 300
