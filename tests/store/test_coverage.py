"""When devices were read, and who held how much of them for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import config
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.store import occupancy
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests import making
from tests.making import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.store.occupancy import Coverage, Stretch

HOUR_S = 3600.0
BEGIN_S = 1_700_000_400.0
"""A whole minute, in the middle of an hour."""
DAY_S = 24 * HOUR_S


def info(pid: int) -> ProcessInfo:
    """Return a process."""
    return ProcessInfo(key=ProcessKey(pid=pid, started_at_s=5.0), name="python", user="alice")


ONE, TWO = info(1), info(2)


def record(
    minutes: int, held: Callable[[int], list[tuple[ProcessInfo, int | None]] | None]
) -> float:
    """Have recorded so many minutes; None is a minute that nobody watched. Return the end."""
    now = [BEGIN_S]
    history = History.open(
        config.state_dir(), StoreSection(min_free_mib=0), boot_id="b",
        clock=lambda: now[0], monotonic=lambda: now[0],
    )  # fmt: skip
    for minute in range(minutes):
        now[0] = BEGIN_S + minute * 60.0
        found = held(minute)
        if found is not None:
            one = making.sample(now[0], found)
            history.record(one, (making.CARD,), {who.key: who for who, _ in found})
        if minute % 15 == 14:
            history.flush(now[0])
            history.chores(now[0])
    history.flush(now[0])
    history.close()
    return BEGIN_S + minutes * 60.0


def stretches(since_s: float, until_s: float) -> list[Stretch]:
    """Return when the card was read."""
    with Reader.open(config.state_dir()) as history:
        return history.ask(lambda c: occupancy.stretches(c, making.CARD.uid, since_s, until_s))


def holders(since_s: float, until_s: float) -> dict[int, Coverage]:
    """Return who held what, by pid."""
    with Reader.open(config.state_dir()) as history:
        found = history.ask(lambda c: occupancy.holders(c, since_s, until_s))
    return {one.process.pid: one for one in found}


def test_a_gap_parts_what_was_read() -> None:
    end_s = record(180, lambda m: None if 60 <= m < 90 else [(ONE, GIB)])
    assert stretches(BEGIN_S, end_s) == [
        (BEGIN_S, BEGIN_S + HOUR_S), (BEGIN_S + 1.5 * HOUR_S, end_s),
    ]  # fmt: skip


def test_a_short_silence_is_no_gap_and_a_span_is_cut() -> None:
    end_s = record(60, lambda m: None if m in {20, 21} else [(ONE, GIB)])
    assert stretches(BEGIN_S - DAY_S, end_s + DAY_S) == [(BEGIN_S, end_s)]
    assert stretches(BEGIN_S + 600, BEGIN_S + 1200) == [(BEGIN_S + 600, BEGIN_S + 1200)]
    assert stretches(end_s + 600, end_s + 1200) == []


def test_an_unknown_card_was_never_read() -> None:
    end_s = record(5, lambda _: [(ONE, GIB)])
    with Reader.open(config.state_dir()) as history:
        assert history.ask(lambda c: occupancy.stretches(c, "GPU-none", BEGIN_S, end_s)) == []
    assert stretches(end_s, BEGIN_S) == []
    assert holders(end_s, BEGIN_S) == {}


@pytest.mark.parametrize("back_s", [0.0, 3 * DAY_S])
def test_the_time_of_a_card_is_shared_by_what_each_held(back_s: float) -> None:
    """The same from hours that are rolled up and from minutes."""
    both: list[tuple[ProcessInfo, int | None]] = [(ONE, 10 * GIB), (TWO, 30 * GIB)]
    end_s = record(240, lambda m: both if 114 <= m < 234 else both[:1])
    found = holders(BEGIN_S - back_s, end_s)
    assert found[1].gib_hours == pytest.approx(40.0)
    assert found[2].gib_hours == pytest.approx(60.0)
    assert found[1].gpu_hours == pytest.approx(2.0 + 2.0 / 4)
    assert found[2].gpu_hours == pytest.approx(2.0 * 3 / 4)
    assert found[1].whole_hours == pytest.approx(4.0)
    assert found[2].peak_bytes == 30 * GIB
    assert (found[2].first_at_s, found[2].last_at_s) == (
        BEGIN_S + 114 * 60, BEGIN_S + 234 * 60,
    )  # fmt: skip


def test_memory_that_is_unknown_leaves_the_shares_unknown() -> None:
    end_s = record(60, lambda m: [(ONE, GIB), (TWO, None)] if m < 30 else [(ONE, GIB)])
    found = holders(BEGIN_S, end_s)
    assert found[1].gib_hours == pytest.approx(1.0)
    assert (found[1].gpu_hours, found[2].gpu_hours) == (None, None)
    assert (found[2].gib_hours, found[2].peak_bytes) == (None, None)
