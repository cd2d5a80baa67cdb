"""What acts freed: never more than was held, or than the period; unknown stays so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis.cost import Act, Price, acts_summed, totals

PRICE = Price(usd_per_hour=4.0, whole_usd_per_hour=4.0, basis="yours")
amounts = st.one_of(st.none(), st.floats(-1e3, 1e6))


@given(held=amounts, total=amounts, idle_s=amounts, at_s=st.floats(0.0, 1e6))
def test_never_less_than_nothing_nor_more_than_the_device_until_the_end(
    held: float | None, total: float | None, idle_s: float | None, at_s: float
) -> None:
    until_s = 5e5
    part = totals.Held("GPU-0", held, total, idle_s, PRICE)
    found = totals.freed([part], at_s, until_s)
    assert found.held_bytes is None or found.held_bytes >= 0.0
    if found.gpu_hours is not None:
        most_s = max(0.0, min(until_s - at_s, idle_s or 0.0))
        assert 0.0 <= found.gpu_hours <= most_s / 3600.0
        assert found.usd == pytest.approx(found.gpu_hours * 4.0)
    elif idle_s is not None and idle_s > 0.0:
        assert held is None or held < 0.0 or not total or total < 0.0


def test_several_devices_add_up_and_one_that_is_unknown_makes_the_sum_so() -> None:
    half = totals.Held("GPU-0", 40.0, 80.0, 7200.0, PRICE)
    assert totals.freed([half, half], 0.0, 1e6) == (80.0, 2.0, 8.0)
    found = totals.freed([half, half._replace(idle_s=None, held_bytes=None)], 0.0, 1e6)
    assert found == (None, None, None)
    assert totals.freed([half._replace(price=None)], 0.0, 1e6) == (40.0, 1.0, None)


@pytest.mark.parametrize(
    ("rows", "since_s"),
    [
        ([(0.0, 0.0), (60.0, 0.0), (120.0, 0.0)], 0.0),
        ([(0.0, 0.0), (60.0, 1.0), (120.0, 0.0)], 120.0),
        ([(0.0, 0.0), (60.0, 0.0), (120.0, 1.0)], None),
        ([(0.0, 0.0), (60.0, 0.0), (120.0, None)], None),
        ([(-600.0, 0.0), (60.0, 0.0), (120.0, 0.0)], 60.0),
        ([(-600.0, 0.0), (-540.0, 0.0)], None),
        ([(60.0, 0.0), (120.0, 0.0), (180.0, 90.0)], 60.0),
        ([], None),
    ],
    ids=["all", "since-work", "at-work", "unknown", "after-a-gap", "long-ago", "later", "none"],
)
def test_a_device_is_idle_since_it_last_worked_or_was_not_read(
    rows: list[tuple[float, float | None]], since_s: float | None
) -> None:
    assert totals.idle_since([(at_s, 60.0, util) for at_s, util in rows], 181.0) == since_s


def test_a_sum_tells_what_is_known_of_it() -> None:
    known = Act(
        at_s=0.0, step="requeue", who="", kind="idle", process=None, title="t", freed_bytes=2.0,
        freed_gpu_hours=1.0, lost_gpu_hours=0.5, went_on=True,
    )  # fmt: skip
    other = Act(at_s=0.0, step="end", who="", kind="idle", process=None, title="t")
    found = acts_summed([known, other])
    assert (found.acts, found.by_step) == (2, {"end": 1, "requeue": 1})
    assert (found.freed_gpu_hours, found.known_freed_gpu_hours) == (None, 1.0)
    assert (found.freed_bytes, found.known_freed_bytes, found.lost_gpu_hours) == (None, 2.0, None)
    assert (found.begun_again, found.went_on, found.undecided) == (1, 1, 0)
