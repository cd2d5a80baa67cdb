"""Whose memory it is, tick after tick: ledgers, odd kinds of memory, and how things ended."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.alerts import Rules, ended
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import LEAK_PATTERNS, Event
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.pipeline.live_state import RecentDeaths
from gpuwatchd.pipeline.track_evaluation import KEPT
from gpuwatchd.store import tables
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, present, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, leaking, leaking_until, run
from tests.pipelines import make_pipeline
from tests.store import runs
from tests.store.world import opened

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Sample

COHERENT = msgspec.structs.replace(CARD, memory_kind="coherent")
UNIFIED = msgspec.structs.replace(CARD, memory_kind="unified")


def grown(tick: int, mib: int = 200) -> int:
    return max(0, tick - 60) * mib * MIB


def changed(taken: Sample, **changes: object) -> Sample:
    reading = msgspec.structs.replace(taken.readings[0], **changes)
    return msgspec.structs.replace(taken, readings=(reading,))


def test_pages_that_the_kernel_keeps_are_no_leak() -> None:
    def play(tick: int) -> Sample:
        used = 10 * GIB + grown(tick)
        return sample(1000.0 + 5 * tick, [(LEAKER, 8 * GIB)], used_bytes=used, device=COHERENT)

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play, devices=(COHERENT,))]), 250)
    assert [a for t in ticks for a in t.changes] == []
    shown = ticks[-1].state.devices[0]
    assert shown.ledger is not None
    assert (shown.ledger.owned_bytes, shown.ledger.unattributed_bytes) == (8 * GIB, None)
    assert ticks[-1].findings[CARD.uid].reason == KEPT
    assert ticks[-1].findings[f"{CARD.uid}/unattributed"].reason == KEPT
    assert shown.finding is not None
    assert shown.finding.pattern == "stable"


def test_without_a_process_list_such_a_device_is_judged_as_a_whole() -> None:
    def play(tick: int) -> Sample:
        used = 10 * GIB + grown(tick)
        processes = [(LEAKER, 8 * GIB)] if tick >= 400 else None
        return sample(1000.0 + 5 * tick, processes, used_bytes=used, device=COHERENT)

    pipeline = make_pipeline(config=EAGER, sources=[Script(play, devices=(COHERENT,))])
    ticks = run(pipeline, 250)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert (fired.subject.process, fired.subject.unattributed) == (None, False)
    shown = ticks[-1].state.devices[0]
    assert present(shown.finding).pattern in LEAK_PATTERNS
    # As soon as there is one, its series is no evidence any more.
    ticks = run(pipeline, 160)
    assert ticks[-1].alerts == ()
    assert ticks[-1].findings[CARD.uid].reason == KEPT


def test_what_processes_hold_stands_in_for_a_device_without_a_figure() -> None:
    def play(tick: int) -> Sample:
        return changed(leaking(tick), used_bytes=None, free_bytes=60 * GIB)

    pipeline = make_pipeline(config=EAGER, sources=[Script(play, devices=(UNIFIED,))])
    ticks = run(pipeline, 180)
    last = present(pipeline.state.tracks[CARD.uid].window.last)
    assert last[1] == pytest.approx(20 * GIB + 119 * 200 * MIB + 100 * MIB)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.process == KEY
    assert pipeline.state.tracks[f"{CARD.uid}/unattributed"].window.last is None


def test_what_is_only_an_upper_bound_is_not_judged() -> None:
    """One process's memory is not known: the growth may be its own."""

    def play(tick: int) -> Sample:
        used = 10 * GIB + grown(tick)
        return sample(1000.0 + 5 * tick, [(LEAKER, GIB), (QUIET, None)], used_bytes=used)

    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    ticks = run(pipeline, 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert (fired.subject.process, fired.subject.unattributed) == (None, False)
    assert fired.finding.blame == ()
    ledger = present(ticks[-1].state.devices[0].ledger)
    assert (ledger.state, ledger.unattributed_bytes) == ("partial", 9 * GIB + grown(179))
    assert ticks[-1].state.devices[0].unattributed_bytes is None
    assert pipeline.state.tracks[f"{CARD.uid}/unattributed"].window.last is None


@pytest.mark.requirement("M35")
def test_the_idle_baseline_is_kept_and_growth_up_to_it_is_none(tmp_path: Path) -> None:
    def idle(tick: int) -> Sample:
        return sample(1000.0 + 5 * tick, [], used_bytes=9 * GIB)

    history = opened(tmp_path)
    first = make_pipeline(config=EAGER, sources=[Script(idle)], history=history)
    first.resume()
    ledgers = [t.state.devices[0].ledger for t in run(first, 5)]
    assert [one.baseline_bytes for one in ledgers if one] == [None] * 3 + [9 * GIB] * 2
    first.close()

    def back(tick: int) -> Sample:
        """Shared memory hid most of what nobody owns, and comes to light bit by bit."""
        rest = min(9 * GIB, 2 * GIB + grown(tick, 50))
        return sample(5000.0 + 5 * tick, [(QUIET, 20 * GIB)], used_bytes=20 * GIB + rest)

    again = make_pipeline(config=EAGER, sources=[Script(back)], history=opened(tmp_path))
    again.resume()
    ticks = run(again, 200)
    assert [a for t in ticks for a in t.changes] == []
    ledger = present(ticks[-1].state.devices[0].ledger)
    assert ledger.baseline_bytes == 9 * GIB
    again.close()


def test_growth_over_the_baseline_is_told() -> None:
    def play(tick: int) -> Sample:
        if tick < 10:
            return sample(1000.0 + 5 * tick, [], used_bytes=GIB)
        used = 21 * GIB + grown(tick)
        return sample(1000.0 + 5 * tick, [(QUIET, 20 * GIB)], used_bytes=used)

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 200)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.unattributed
    assert [(one.process, one.share) for one in fired.finding.blame] == [(None, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"), [(340, Ending.PROCESS_ENDED), (360, Ending.ENDED_NEAR_LIMIT)]
)
@pytest.mark.requirement("M38")
def test_how_a_process_ended(end: int, expected: str) -> None:
    """At 200 MiB a tick from 20 GiB on, 80 GiB are full at tick 367."""

    post = Postbox()
    source = Script(leaking_until(end))
    ticks = run(make_pipeline(config=EAGER, sources=[source], message_dispatcher=post), end + 10)
    assert [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"] == [expected]
    assert post.taken[-1].message.notice == "resolved"
    died = (expected,) if expected is Ending.ENDED_NEAR_LIMIT else ()
    assert tuple(alert.ended_code for alert in ticks[-1].state.deaths) == died


def test_a_death_is_named_for_a_day_over_restarts_until_there_is_feedback(tmp_path: Path) -> None:
    now_s = 1000.0 + 5 * 360
    firing = alert(opened_at_s=900.0)
    death, fell = (
        present(ended(firing, why, Rules(), now_s=now_s - 60.0).alert)
        for why in (Ending.ENDED_NEAR_LIMIT, Ending.FELL_NEAR_LIMIT)
    )
    assert (death.severity, fell.severity) == ("critical", firing.severity)
    with closing(opened(tmp_path)) as history:
        history.apply([death], [])
        again = RecentDeaths(history)
        again.note(history.over_since(0.0))
        # What only gave memory back may go on: it is no death.
        again.note([msgspec.structs.replace(fell, key="leak:fell")])
        assert [one.key for one in again.to_show(now_s)] == [death.key]
        assert again.to_show(now_s + SAID_FOR_S) == ()
        again.note([death])
        said = runs.word(runs.run(), "leak", alert_key=death.key, opened_at_s=900.0)
        history.shelf.write_now(tables.LABELS.insert, said)
        history.shelf.outside += 1
        assert again.to_show(now_s) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peak_gib", "expected"),
    [
        (79.5, Ending.ENDED_NEAR_LIMIT),
        (81.0, Ending.ENDED_NEAR_LIMIT),
        (75.0, Ending.PROCESS_ENDED),
        (1.0, Ending.PROCESS_ENDED),
    ],
)
def test_what_the_driver_says_that_it_held_counts_at_its_end(
    peak_gib: float, expected: str
) -> None:
    """Seen at 74.5 of 80 GiB last; it may have taken the rest before the next sample."""

    def play(tick: int) -> Sample:
        taken = leaking_until(340)(tick)
        pid = KEY.pid
        said = Event(
            at_s=taken.taken_at_s,
            kind="process-peak",
            device_uid=CARD.uid,
            text=f"pid {pid} has ended; its peak was {peak_gib} GiB (driver accounting)",
            pid=pid,
            peak_bytes=int(peak_gib * GIB),
        )
        return msgspec.structs.replace(taken, events=(said,)) if tick == 340 else taken

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 350)
    assert [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"] == [expected]
    (event,) = ticks[-1].state.devices[0].events
    name = f"{LEAKER.label}[{KEY.pid}] of {LEAKER.user}"
    assert event.text == (f"{name} has ended; its peak was {peak_gib} GiB (driver accounting)")


@pytest.mark.slow
def test_how_a_device_fell_whose_processes_are_not_known() -> None:
    def play(tick: int) -> Sample:
        used = leaking(tick).readings[0].used_bytes if tick < 364 else 100 * MIB
        return sample(1000.0 + 5 * tick, None, used_bytes=used)

    ticks = run(
        make_pipeline(config=EAGER, sources=[Script(play)], message_dispatcher=Postbox()), 800
    )
    assert [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"] == [
        Ending.FELL_NEAR_LIMIT
    ]


def test_an_alert_that_nobody_can_check_ends_after_a_day() -> None:
    def play(tick: int) -> Sample:
        if tick < 200:
            return leaking(tick)
        # One look an hour, and no list any more: the device stands still.
        return sample(2000.0 + 3600.0 * (tick - 199), None, used_bytes=40 * GIB)

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 230)
    assert [a.subject.process for a in ticks[199].alerts] == [KEY]
    ended = [
        (n, a.ended_code) for n, t in enumerate(ticks) for a in t.changes if a.state == "resolved"
    ]
    assert [why for _, why in ended] == [Ending.NOT_SEEN]
    assert 222 <= ended[0][0] <= 224
    assert ticks[-1].alerts == ()
