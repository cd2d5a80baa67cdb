"""Hours of a device, shared by memory-time; what an alert costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis import cost
from gpuwatchd.analysis.cost import MemoryBucket, Part, Price
from gpuwatchd.core.config import CostSection
from tests.making import present

MINUTE = 60.0
Rows = list[MemoryBucket]


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Return what up to four processes held in some of an hour's minutes."""
    found = []
    for minute in draw(st.sets(st.integers(0, 59), max_size=12)):
        for who in draw(st.sets(st.sampled_from("abcd"), max_size=4)):
            held = draw(st.floats(0.0, 1e11))
            found.append(MemoryBucket(minute * MINUTE, who, held))
    return found


def hours(found: dict[object, cost.DeviceUsage]) -> float:
    return sum(one.hours or 0.0 for one in found.values())


def test_two_share_it_by_what_they_hold_and_the_whole_figure_is_beside_it() -> None:
    found = cost.usage_by_process(
        [MemoryBucket(0.0, "a", 3e9), MemoryBucket(0.0, "b", 1e9)], 0.0, 60.0
    )
    assert found["a"].hours == pytest.approx(0.75 / 60)
    assert found["b"].hours == pytest.approx(0.25 / 60)
    assert found["b"].whole_hours == pytest.approx(1 / 60)


def test_time_that_nobody_watched_is_not_counted() -> None:
    found = cost.usage_by_process(
        [MemoryBucket(0.0, "a", 1.0), MemoryBucket(36_000.0, "a", 1.0)], 0.0, 40_000.0
    )
    assert found["a"].hours == pytest.approx(2 / 60)
    assert (found["a"].first_at_s, found["a"].last_at_s) == (0.0, 36_060.0)


def test_a_share_that_is_unknown_makes_the_sum_unknown() -> None:
    both = [
        MemoryBucket(0.0, "a", 1.0),
        MemoryBucket(60.0, "a", None),
        MemoryBucket(60.0, "b", 1.0),
    ]
    assert cost.usage_by_process(both, 0.0, 120.0)["a"].hours is None
    assert cost.usage_by_process([MemoryBucket(0.0, "a", None)], 0.0, 60.0)[
        "a"
    ].hours == pytest.approx(1 / 60)


@given(rows(), st.floats(0.0, 3600.0), st.floats(0.0, 3600.0), st.floats(0.0, 3600.0))
def test_spans_that_meet_add_up(held: Rows, one: float, two: float, three: float) -> None:
    begin_s, middle_s, end_s = sorted((one, two, three))
    whole = cost.usage_by_process(held, begin_s, end_s)
    parts = (
        cost.usage_by_process(held, begin_s, middle_s),
        cost.usage_by_process(held, middle_s, end_s),
    )
    for who, found in whole.items():
        split = sum(part[who].hours or 0.0 for part in parts if who in part)
        assert found.hours == pytest.approx(split, abs=1e-9)


@pytest.mark.slow
@given(rows())
def test_processes_add_up_to_the_time_that_it_was_held(held: Rows) -> None:
    minutes = {row.at_s for row in held}
    assert hours(cost.usage_by_process(held, 0.0, 3600.0)) == pytest.approx(
        len(minutes) / 60, abs=1e-9
    )


BOOK = cost.Prices(CostSection(), ())
amounts = st.one_of(st.none(), st.floats(0.0, 1e4))


def price(usd: float) -> Price:
    return Price(usd_per_hour=usd, whole_usd_per_hour=usd, basis="yours")


def test_so_far_and_until_it_is_full() -> None:
    found = cost.charge(
        [Part(6.0, 1.0, price(4.0))], BOOK, since_at_s=0.0, since="start", left_s=1800.0
    )
    assert found is not None
    assert (found.spent_usd, found.at_risk_usd) == (24.0, 2.0)
    assert (found.gpu_hours, found.at_risk_gpu_hours) == (6.0, 0.5)


@given(st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=5))
def test_unknown_stays_unknown_and_nothing_is_negative(
    drawn: list[tuple[float | None, float | None, float | None]],
) -> None:
    parts = [Part(hours, share, None if usd is None else price(usd)) for hours, share, usd in drawn]
    found = present(cost.charge(parts, BOOK, since_at_s=0.0, since="start", left_s=60.0))
    lacking = any(one.hours is None or one.price is None for one in parts)
    assert (found.spent_usd is None) == lacking
    assert found.spent_usd is None or found.spent_usd >= 0.0
    assert found.at_risk_usd is None or found.at_risk_usd >= 0.0


GIB = 2**30


def test_memory_times_time() -> None:
    assert cost.gib_hours(24 * GIB, 7200.0) == 48.0
    assert cost.gib_hours(0, 7200.0) == 0.0
    assert cost.gib_hours(24 * GIB, -5.0) == 0.0


@pytest.mark.parametrize(("held", "time"), [(None, 1.0), (1.0, None)])
def test_unknown_stays_unknown(held: float | None, time: float | None) -> None:
    assert cost.gib_hours(held, time) is None
    assert cost.usd(held, time, total_bytes=GIB, usd_per_gpu_hour=1.0) is None


def test_dollars_are_its_share_of_the_device() -> None:
    price = {"total_bytes": 80.0 * GIB, "usd_per_gpu_hour": 4.0}
    assert cost.usd(20 * GIB, 3600.0, **price) == 1.0
    assert cost.usd(90 * GIB, 3600.0, **price) == 4.0
    assert cost.usd(-1, 3600.0, **price) == 0.0


@pytest.mark.parametrize(("total", "price"), [(None, 4.0), (0, 4.0), (80 * GIB, None)])
def test_without_a_price_or_a_total_there_is_no_amount(
    total: float | None, price: float | None
) -> None:
    assert cost.usd(GIB, 60.0, total_bytes=total, usd_per_gpu_hour=price) is None
