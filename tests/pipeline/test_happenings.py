"""Events of devices: kept a while, and said beside an alert that they explain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core.model import Alert, Device, Event, Sample
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.pipeline.event_log import MOST_PER_DEVICE, EventLog
from tests import making
from tests.making import CARD, finding
from tests.pipeline.play import EAGER, Script, leaking, run

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.pipeline import Tick

NOW_S = 1_700_000_000.0


def event(ago_s: float, *, hardware: bool | None = True, uid: str = "GPU-1") -> Event:
    text = "XID 79: the GPU has fallen off the bus" if hardware else "XID 31"
    return Event(at_s=NOW_S - ago_s, kind="xid", device_uid=uid, text=text, hardware=hardware)


def sample(*events: Event) -> Sample:
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
    return happenings.advised(alert(), where, tracks or {}).finding.advice


def test_each_event_is_written_down_once_and_remembered_in_order() -> None:
    book: Any = Book()
    happenings = EventLog(book)
    happenings.take(sample(event(60), event(90, hardware=None)))
    happenings.take(sample())
    assert [row[2] for row in book.rows] == ["GPU-1", "GPU-1"]
    assert [e.at_s for e in happenings.recent("GPU-1")] == [NOW_S - 90, NOW_S - 60]
    assert happenings.recent("GPU-2") == ()


def test_a_program_that_fails_each_minute_does_not_push_out_what_broke() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(9000)))
    for minute in range(100):
        happenings.take(sample(event(6000 - 60 * minute, hardware=False)))
    recent = happenings.recent("GPU-1")
    assert len(recent) <= MOST_PER_DEVICE
    assert recent[0].hardware is True


def test_many_that_end_do_not_push_out_that_one_failed() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(9000, hardware=False)))
    for second in range(100):
        ended = event(6000 - second, hardware=None)
        happenings.take(sample(msgspec.structs.replace(ended, kind="process-peak")))
    recent = happenings.recent("GPU-1")
    assert len(recent) <= MOST_PER_DEVICE
    assert recent[0].text == "XID 31"


def test_what_broke_while_memory_grew_is_said_first() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(1800)))
    lines = told(happenings, CARD)
    assert lines[0].startswith("look at the hardware first: XID 79: the GPU has fallen off the bus")
    assert lines[1:] == ("restart it",)


def test_it_is_said_of_an_instance_when_its_card_broke() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(1800, uid="GPU-0")))
    assert told(happenings, CARD) == ("restart it",)
    assert len(told(happenings, msgspec.structs.replace(CARD, parent_uid="GPU-0"))) == 2


def test_what_a_program_did_or_what_was_long_ago_is_not_said() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(1800, hardware=False), event(50_000)))
    assert told(happenings, CARD) == ("restart it",)


def test_the_track_keeps_what_was_said_and_it_is_said_once() -> None:
    happenings = EventLog(None)
    happenings.take(sample(event(1800)))
    first = alert()
    track = SimpleNamespace(alert=first, finding=first.finding)
    tracks: Any = {first.subject.id: track}
    second = happenings.advised(first, CARD, tracks)
    assert track.alert is second
    assert track.finding.advice == second.finding.advice
    assert happenings.advised(second, CARD, tracks) is second


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
    """Return whether alerts, and what is shown of them, tell to look at the hardware first."""
    findings = [alert.finding for alert in tick.alerts]
    findings += [d.finding for d in tick.state.devices if d.finding is not None]
    return {one.advice[0].startswith("look at the hardware first: XID 48") for one in findings}


def test_it_is_said_as_long_as_the_alert_lasts_and_after_a_restart(tmp_path: Path) -> None:
    first = Pipeline(config=EAGER, sources=[Script(broken)], runtime_dir=tmp_path)
    ticks = run(first, 240)
    assert [a.state for a in ticks[149].alerts] == ["firing"]
    assert [said(tick) for tick in ticks[200:]] == [{True}] * 40
    first.close()
    later = Script(lambda tick: broken(tick + 240))
    again = Pipeline(config=EAGER, sources=[later], runtime_dir=tmp_path)
    again.intake.adopt(ticks[-1].alerts[0])
    again.resume()
    assert [said(tick) for tick in run(again, 150)[100:]] == [{True}] * 50
