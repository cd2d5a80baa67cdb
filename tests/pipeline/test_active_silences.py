"""A silence holds at once, ends when it must, and never lasts longer than it was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Matcher, Silence, Subject
from gpuwatchd.pipeline.active_silences import STEP_S, ActiveSilences
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from tests.making import CARD, KEY, alert
from tests.store.world import T0, Time, opened

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3600.0
IT = Matcher(key="leak:x")


class Paper:
    """A shelf without a disk."""

    def __init__(self, *rows: Silence) -> None:
        self.rows = {one.row or 0: one for one in rows}
        self.outside = 1
        self.reads = 0

    def silences(self, now_s: float) -> list[Silence]:
        self.reads += 1
        return [
            one for one in self.rows.values() if one.until_at_s > now_s and one.cleared_at_s is None
        ]

    def write_now(self, work: object, *args: object) -> object:
        return work(self, *args)  # type: ignore[operator]

    def executemany(self, query: str, rows: list[tuple[int, ...]]) -> Paper:
        for *values, row in rows:
            names = ("cleared_at_s",) if "cleared" in query else ("from_at_s", "until_at_s")
            changes = dict(zip(names, (value / 1000 for value in values), strict=True))
            self.rows[row] = msgspec.structs.replace(self.rows[row], **changes)
        self.rowcount = len(rows)
        return self


def silence(from_s: float = T0, for_s: float = HOUR_S, **changes: object) -> Silence:
    values: dict[str, object] = {
        "matcher": IT, "from_at_s": from_s, "until_at_s": from_s + for_s, "row": 1
    }  # fmt: skip
    return Silence(**{**values, **changes})  # type: ignore[arg-type]


def on(paper: Paper | None, time: Time) -> ActiveSilences:
    """Return what has looked once."""
    silencing = ActiveSilences(paper, time.monotonic)  # type: ignore[arg-type]
    silencing.refresh(time.now_s)
    return silencing


def test_one_set_by_another_program_holds_at_the_next_look(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    silencing = ActiveSilences(history.shelf, time.monotonic)
    silencing.refresh(time.now_s)
    assert not silencing.active
    kept = transaction(tmp_path, tables.write_silence, silence())
    history.shelf.changed_elsewhere()
    silencing.refresh(time.now_s)
    assert list(silencing.active) == [kept]
    assert kept.row is not None
    transaction(tmp_path, tables.end_silences, (kept.row,), T0)
    history.shelf.changed_elsewhere()
    silencing.refresh(time.now_s)
    assert not silencing.active
    history.close()


def test_it_ends_on_time_and_stays_over(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    transaction(tmp_path, tables.write_silence, silence())
    history.shelf.changed_elsewhere()
    silencing = ActiveSilences(history.shelf, time.monotonic)
    silencing.refresh(time.now_s)
    time.pass_s(HOUR_S - 1)
    silencing.refresh(time.now_s)
    assert len(silencing.active) == 1
    time.pass_s(1)
    silencing.refresh(time.now_s)
    assert not silencing.active
    # The clock is set back, and the daemon starts anew: what is over stays over.
    time.now_s -= 2 * HOUR_S
    again = ActiveSilences(history.shelf, time.monotonic)
    again.refresh(time.now_s)
    assert not again.active
    history.close()


def test_until_resolved_ends_with_its_alert() -> None:
    time, paper = Time(), Paper(silence(until_resolved=True))
    silencing = on(paper, time)
    silencing.take_changes([alert(state="resolved", key="leak:y"), alert()], time.now_s)
    assert len(silencing.active) == 1
    silencing.take_changes([alert(state="resolved")], time.now_s)
    assert not silencing.active
    assert paper.rows[1].cleared_at_s == T0


def test_other_silences_outlive_the_alert() -> None:
    time, paper = Time(), Paper(silence())
    silencing = on(paper, time)
    silencing.take_changes([alert(state="resolved")], time.now_s)
    assert len(silencing.active) == 1


@pytest.mark.parametrize("why", [Ending.HOLDER_KNOWN, Ending.HOLDER_UNKNOWN, Ending.OTHER_RANK])
@pytest.mark.parametrize("last", [True, False])
def test_an_alert_that_goes_on_under_another_key_stays_silenced(why: Ending, *, last: bool) -> None:
    time = Time()
    silencing = on(None, time)
    silencing.add(silence(row=None, until_resolved=True, why="known"), time.now_s)
    over = alert(state="resolved", **wording.ending(why))
    heir = alert(key="leak:heir")
    silencing.take_changes([over, heir] if last else [heir, over], time.now_s)
    (one,) = silencing.active
    assert one.matcher == Matcher(key="leak:heir")
    assert (one.until_at_s, one.until_resolved, one.why) == (T0 + HOUR_S, True, "known")
    silencing.take_changes([alert(key="leak:heir", state="resolved", ended="it ended")], time.now_s)
    assert not silencing.active


@pytest.mark.parametrize("state", ["watch", "firing"])
def test_a_silence_goes_to_no_alert_that_only_came_at_the_same_time(state: str) -> None:
    time = Time()
    silencing = on(None, time)
    silencing.add(silence(row=None, until_resolved=True), time.now_s)
    over = alert(state="resolved", **wording.ending(Ending.OTHER_RANK))
    another = alert(key="leak:another", opened_at_s=over.opened_at_s + 100.0)
    heir = alert(key="leak:heir", state=state)
    silencing.take_changes([another, over, heir], time.now_s)
    assert [one.matcher.key for one in silencing.active] == ["leak:heir"]


def test_a_silence_of_a_device_goes_to_no_memory_of_the_host() -> None:
    time = Time()
    silencing = on(None, time)
    silencing.add(silence(row=None, until_resolved=True), time.now_s)
    host = Subject(device_uid=CARD.uid, process=KEY, host=True)
    over = alert(state="resolved", **wording.ending(Ending.HOLDER_KNOWN))
    silencing.take_changes([alert(key="leak:host", subject=host), over], time.now_s)
    assert not silencing.active


def test_moved_to_another_key_it_is_kept_and_the_old_one_struck(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    transaction(tmp_path, tables.write_silence, silence(row=None))
    history.shelf.changed_elsewhere()
    silencing = ActiveSilences(history.shelf, time.monotonic)
    silencing.refresh(time.now_s)
    heir = alert(key="leak:heir")
    silencing.take_changes(
        [alert(state="resolved", **wording.ending(Ending.HOLDER_KNOWN)), heir], time.now_s
    )
    again = ActiveSilences(history.shelf, time.monotonic)
    again.refresh(time.now_s)
    assert [one.matcher.key for one in again.active] == ["leak:heir"]
    assert again.active == silencing.active
    history.close()


def test_what_cannot_be_kept_holds_all_the_same() -> None:
    time = Time()
    silencing = on(None, time)
    made = silencing.add(silence(row=None), time.now_s)
    assert list(silencing.active) == [made]
    silencing.add(silence(row=None, for_s=60.0), time.now_s)
    assert [one.until_at_s for one in silencing.active] == [T0 + 60]
    time.pass_s(60)
    silencing.refresh(time.now_s)
    assert not silencing.active


def test_a_clock_that_is_right_only_later_costs_no_silence() -> None:
    # A machine without a battery starts in 1970 until its time is set.
    time, paper = Time(0.0), Paper(silence())
    silencing = on(paper, time)
    assert len(silencing.active) == 1
    time.now_s = T0 + 600
    silencing.refresh(time.now_s)
    assert len(silencing.active) == 1
    time.pass_s(HOUR_S - 600)
    silencing.refresh(time.now_s)
    assert not silencing.active


def test_after_a_step_back_people_read_the_new_end() -> None:
    time, paper = Time(), Paper(silence())
    silencing = on(paper, time)
    time.pass_s(600)
    time.now_s -= 5 * HOUR_S
    silencing.refresh(time.now_s)
    assert silencing.active[0].until_at_s == time.now_s + HOUR_S - 600
    assert paper.rows[1].until_at_s == time.now_s + HOUR_S - 600


def test_it_is_read_again_only_when_somebody_has_written() -> None:
    time, paper = Time(), Paper(silence())
    silencing = on(paper, time)
    for _ in range(100):
        time.pass_s(5)
        silencing.refresh(time.now_s)
    assert paper.reads == 1
    paper.outside += 1
    silencing.refresh(time.now_s)
    assert paper.reads == 2


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pass", "set", "restart", "written"]),
        st.floats(-20_000, 20_000, allow_nan=False),
    ),
    max_size=60,
)


@given(steps=_STEPS, for_s=st.floats(1, 10_000))
@settings(max_examples=200, deadline=None)
def test_it_never_lasts_longer_than_it_was_meant(
    steps: list[tuple[str, float]], for_s: float
) -> None:
    """Whatever the clock does while the daemon runs, and however often that starts anew."""
    time, paper = Time(), Paper(silence(for_s=for_s))
    silencing = on(paper, time)
    begun_s, ended = time.mono_s, False
    starts = 0
    for what, number in steps:
        if what == "pass":
            time.pass_s(abs(number) / 20)
        elif what == "set":
            time.now_s += number
            silencing.refresh(time.now_s)  # a tick sees it before anything else happens
        elif what == "restart":
            silencing, starts = on(paper, time), starts + 1
        else:
            paper.outside += 1
        silencing.refresh(time.now_s)
        # Whole milliseconds are kept, and drift below a step is not seen.
        allowed_s = for_s + (starts + 1) * (STEP_S + 0.01)
        if silencing.active:
            assert not ended, "it came back"
            assert time.mono_s - begun_s <= allowed_s
        ended = ended or not silencing.active
