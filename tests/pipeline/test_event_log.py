"""Events of devices: kept a while, and said beside an alert that they explain."""

from __future__ import annotations

import logging
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.config import Config
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import Alert, Device, Event, Fault, ProcessInfo, ProcessKey, Sample
from gpuwatchd.core.state_log import MOST_LINES
from gpuwatchd.pipeline.event_log import MOST_PER_DEVICE, EventLog, with_process_names
from tests import making
from tests.making import CARD, finding, sample
from tests.pipeline.play import EAGER, Script, leaking, run
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import DeviceState
    from gpuwatchd.pipeline.tick import Tick

NOW_S = 1_700_000_000.0


def event(ago_s: float, *, hardware: bool | None = True, uid: str = "GPU-1") -> Event:
    text = "XID 79: the GPU has fallen off the bus" if hardware else "XID 31"
    return Event(at_s=NOW_S - ago_s, kind="xid", device_uid=uid, text=text, hardware=hardware)


def noted(*events: Event) -> Sample:
    return Sample(taken_at_s=NOW_S, taken_mono_s=1.0, boot_id="b", readings=(), events=events)


def alert() -> Alert:
    judged = finding(judged_at_s=NOW_S, onset_at_s=NOW_S - 3600, advice=("restart it",))
    return making.alert(finding=judged, opened_at_s=NOW_S, changed_at_s=NOW_S)


class Book:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str | None]] = []

    def event(self, kind: str, text: str, uid: str | None) -> None:
        self.rows.append((kind, text, uid))


def told(happenings: EventLog, where: Device, tracks: dict[str, Any] | None = None) -> Any:
    return happenings.with_hardware_advice(alert(), where, tracks or {}).finding.advice


def test_each_event_is_written_down_once_and_remembered_in_order() -> None:
    book: Any = Book()
    happenings = EventLog(book)
    happenings.take("nvml", noted(event(60), event(90, hardware=None)), {}, {})
    happenings.take("nvml", noted(), {}, {})
    assert [row[2] for row in book.rows] == ["GPU-1", "GPU-1"]
    assert [e.at_s for e in happenings.shown["GPU-1"]] == [NOW_S - 90, NOW_S - 60]
    assert "GPU-2" not in happenings.shown


FAILED = event(6000, hardware=False)
ENDED = msgspec.structs.replace(event(6000, hardware=None), kind="process-peak")


@pytest.mark.parametrize(
    ("first", "after"), [(event(9000), FAILED), (event(9000, hardware=False), ENDED)]
)
def test_many_that_fail_or_end_do_not_push_out_what_broke_or_failed(
    first: Event, after: Event
) -> None:
    happenings = EventLog(None)
    happenings.take("nvml", noted(first), {}, {})
    for second in range(100):
        happenings.take(
            "nvml", noted(msgspec.structs.replace(after, at_s=after.at_s + second)), {}, {}
        )
    recent = happenings.shown["GPU-1"]
    assert len(recent) <= MOST_PER_DEVICE
    assert recent[0] == first


def test_what_broke_while_memory_grew_is_said_first() -> None:
    happenings = EventLog(None)
    happenings.take("nvml", noted(event(1800)), {}, {})
    lines = told(happenings, CARD)
    assert lines[0].startswith("check the hardware first: XID 79: the GPU has fallen off the bus")
    assert lines[1:] == ("restart it",)


def test_it_is_said_of_an_instance_when_its_card_broke() -> None:
    happenings = EventLog(None)
    happenings.take("nvml", noted(event(1800, uid="GPU-0")), {}, {})
    assert told(happenings, CARD) == ("restart it",)
    assert len(told(happenings, msgspec.structs.replace(CARD, parent_uid="GPU-0"))) == 2


def test_what_a_program_did_or_what_was_long_ago_is_not_said() -> None:
    happenings = EventLog(None)
    happenings.take("nvml", noted(event(1800, hardware=False), event(50_000)), {}, {})
    assert told(happenings, CARD) == ("restart it",)


def test_the_track_keeps_what_was_said_and_it_is_said_once() -> None:
    happenings = EventLog(None)
    happenings.take("nvml", noted(event(1800)), {}, {})
    first = alert()
    track = SimpleNamespace(alert=first, finding=first.finding, mark_changed=list)
    tracks: Any = {first.subject.id: track}
    second = happenings.with_hardware_advice(first, CARD, tracks)
    assert track.alert is second
    assert track.finding.advice == second.finding.advice
    assert happenings.with_hardware_advice(second, CARD, tracks) is second


def broken(tick: int) -> Sample:
    """Return a tick of a leak; the card reports an error at the 150th."""
    taken = leaking(tick)
    if tick != 150:
        return taken
    found = Event(
        at_s=taken.taken_at_s, kind="xid", device_uid=CARD.uid, text="XID 48", hardware=True
    )
    return msgspec.structs.replace(taken, events=(found,))


def said(tick: Tick) -> set[bool]:
    """Return whether alerts, and what is shown of them, tell to check the hardware first."""
    findings = [alert.finding for alert in tick.alerts]
    findings += [d.finding for d in tick.state.devices if d.finding is not None]
    return {one.advice[0].startswith("check the hardware first: XID 48") for one in findings}


@pytest.mark.slow
def test_it_is_said_as_long_as_the_alert_lasts_and_after_a_restart(tmp_path: Path) -> None:
    first = make_pipeline(config=EAGER, sources=[Script(broken)], runtime_dir=tmp_path)
    ticks = run(first, 240)
    assert [a.state for a in ticks[149].alerts] == ["firing"]
    assert [said(tick) for tick in ticks[200:]] == [{True}] * 40
    first.close()
    later = Script(lambda tick: broken(tick + 240))
    again = make_pipeline(config=EAGER, sources=[later], runtime_dir=tmp_path)
    again.state.restored.adopt(ticks[-1].alerts[0])
    again.resume()
    assert [said(tick) for tick in run(again, 150)[100:]] == [{True}] * 50


OLD = ProcessInfo(key=ProcessKey(pid=7, started_at_s=1.0), name="python", user="bob")
NEW = ProcessInfo(
    key=ProcessKey(pid=7, started_at_s=9.0), name="python3", argv=("python3", "train.py")
)
SAID = "pid 7 has ended; its peak was 2.0 GiB (driver accounting)"


class NoProcesses:
    """A device none of whose processes is watched any more."""

    processes: dict[ProcessKey, Any] = {}  # noqa: RUF012 - empty for all


def text_of(*infos: ProcessInfo, uid: str = "GPU-1", pid: int | None = 7) -> str:
    event = Event(
        at_s=1.0, kind="process-peak", device_uid="GPU-1", text=SAID, pid=pid, peak_bytes=2**31
    )
    sample = Sample(taken_at_s=1.0, taken_mono_s=1.0, boot_id="b", readings=(), events=(event,))
    devices: Any = {uid: NoProcesses()}
    return with_process_names(sample, devices, {info.key: info for info in infos}).events[0].text


def test_it_is_that_of_the_newest_process_with_the_number() -> None:
    rest = SAID.removeprefix("pid 7")
    assert text_of(OLD) == f"python[7] of bob{rest}"
    assert text_of(NEW, OLD) == f"python3 train.py[7]{rest}"


def test_nobody_is_named_who_is_not_known() -> None:
    assert text_of() == SAID
    assert text_of(OLD, uid="GPU-2") == SAID
    assert text_of(OLD, pid=None) == SAID
    assert text_of(msgspec.structs.replace(OLD, foreign=True)) == SAID
    assert text_of(msgspec.structs.replace(OLD, name="")) == SAID


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
        self.pipeline = make_pipeline(
            config=Config(), sources=[self.source], mono=lambda: self.now_s
        )

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
