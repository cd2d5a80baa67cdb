"""What one run did with its memory: where it provably stopped, how fast it grew harmlessly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis.forecast import (
    PROFILE_AGES_S,
    PROFILE_LOOKBACKS_S,
    profile,
    profile_of_yesterday,
)
from tests import making
from tests.making import present

if TYPE_CHECKING:
    from gpuwatchd.core.model import Profile, Series

Array = npt.NDArray[np.float64]
GB, HOUR, DAY = 1e9, 3600.0, 86400.0
CARD = 24 * GB


def series(t: Array, x: Array, *, age_s: float | None = None) -> Series:
    return making.series(t, x, limit_bytes=CARD, total_bytes=CARD, age_s=age_s)


def clock(hours: float, step: float = 10.0) -> Array:
    return np.arange(0.0, hours * HOUR, step)


def of(t: Array, x: Array, *, busy: Array | None = None) -> Profile:
    return present(profile(series(t, x), busy=busy, ended_at_s=float(t[-1])))


def ramp(t: Array, length_s: float = HOUR) -> Array:
    return 4 * GB + 8 * GB * np.clip(t / length_s, 0.0, 1.0)


def test_a_ramp_that_stood_afterwards_is_proven_to_its_top() -> None:
    t = clock(3)
    found = of(t, ramp(t))
    assert found.proven_bytes == pytest.approx(12 * GB, rel=0.01)
    assert found.top_bytes == pytest.approx(12 * GB, rel=0.01)
    assert found.base_bytes == pytest.approx(4 * GB + 8 * GB * 120 / HOUR, rel=0.02)
    assert not found.near_limit


def test_a_run_cut_off_while_it_climbs_is_proven_only_where_it_stood() -> None:
    t = clock(1)
    found = of(t, 4 * GB + 8 * GB * np.clip((t - 0.5 * HOUR) / HOUR, 0.0, 1.0))
    assert found.top_bytes == pytest.approx(8 * GB, rel=0.02)
    assert found.proven_bytes == pytest.approx(4 * GB, rel=0.02)


def test_swings_do_not_count_as_retained_however_long_ago_the_last_one_was() -> None:
    """An evaluation of six minutes takes more every 25, and gives it back."""
    for hours in (2.0, 2.3, 2.4, 3.0, 5.0):
        t = clock(hours)
        found = of(t, np.where(t % 1500.0 > 1140.0, 12 * GB, 4 * GB))
        assert found.hold_s >= 350.0
        assert found.proven_bytes == pytest.approx(4 * GB, rel=0.01)
        assert max(found.grown_bytes) == pytest.approx(8 * GB, rel=0.01)


def test_a_level_that_was_given_back_is_proven_though_nothing_stood_there() -> None:
    t = clock(4)
    hill = 4 * GB + 8 * GB * np.clip(1.0 - np.abs(t / HOUR - 1.5), 0.0, 1.0)
    found = of(t, hill)
    assert found.proven_bytes > 10 * GB
    assert max(found.grown_bytes) == pytest.approx(8 * GB, rel=0.02)


def test_memory_that_comes_back_because_the_process_ends_proves_nothing() -> None:
    t = clock(2)
    x = 4 * GB + 8 * GB * t / t[-1]
    x[t > t[-1] - 30.0] = 0.0
    found = of(t, x)
    assert found.proven_bytes < 6 * GB
    assert max(found.grown_bytes) < 2 * GB


def test_standing_still_proves_a_stop_only_while_work_is_done() -> None:
    """A leak whose process then idles must not make its level normal."""
    t = clock(4)
    leaked = 4 * GB + 8 * GB * np.clip(t / (2 * HOUR), 0.0, 1.0)
    busy = np.where(t < 2 * HOUR, 80.0, 0.0)
    assert of(t, leaked).proven_bytes == pytest.approx(12 * GB, rel=0.01)
    assert of(t, leaked, busy=busy).proven_bytes < 6 * GB
    assert of(t, leaked, busy=np.full(t.size, 80.0)).proven_bytes > 11 * GB
    assert of(t, leaked, busy=np.full(t.size, np.nan)).proven_bytes > 11 * GB


def test_standing_at_the_limit_proves_nothing() -> None:
    t = clock(4)
    found = of(t, np.minimum(4 * GB + 20 * GB * t / HOUR, 23.8 * GB))
    assert found.near_limit
    assert found.proven_bytes < 12 * GB


def test_growth_per_look_back_never_falls_and_knows_the_rate() -> None:
    t = clock(3)
    found = of(t, ramp(t))
    grown = np.array(found.grown_bytes)
    assert grown.size == PROFILE_LOOKBACKS_S.size
    assert np.all(np.diff(grown) >= 0.0)
    within = float(np.interp(1800.0, PROFILE_LOOKBACKS_S, grown))
    assert within == pytest.approx(4 * GB, rel=0.05)
    assert grown[-1] == pytest.approx(8 * GB, rel=0.01)


def test_a_leak_is_no_harmless_growth_but_growth() -> None:
    t = clock(3)
    leak = 4 * GB + 8 * GB * t / t[-1]
    found = of(t, leak)
    assert max(found.grown_bytes) < 2 * GB
    assert max(found.rose_bytes) == pytest.approx(8 * GB, rel=0.01)


def test_teeth_are_harmless_growth_and_what_is_held_is_their_period() -> None:
    t = clock(3)
    found = of(t, 4 * GB + 6 * GB * ((t / 600.0) % 1.0))
    assert max(found.grown_bytes) > 5.5 * GB
    assert 400.0 < found.hold_s < 700.0
    assert found.top_bytes < 5 * GB


def test_growth_after_an_age_fades_once_the_run_has_settled() -> None:
    t = clock(5)
    late = np.array(of(t, ramp(t)).late_bytes)
    ages = PROFILE_AGES_S[: late.size]
    assert late[0] > 6 * GB
    assert np.all(late[ages > 1.1 * HOUR] < 0.01 * GB)
    assert ages[-1] < 5 * HOUR


@pytest.mark.parametrize("size", [0, 1, 5, 20])
def test_a_run_that_is_too_short_has_no_profile(size: int) -> None:
    t = clock(1)[:size]
    assert profile(series(t, ramp(t)), ended_at_s=0.0) is None


def test_a_run_whose_beginning_was_not_seen_keeps_its_age() -> None:
    t = clock(2)
    found = present(profile(series(t, ramp(t), age_s=10 * HOUR), ended_at_s=0.0))
    assert found.run_s == pytest.approx(10 * HOUR, rel=0.01)


def test_gaps_and_other_intervals_are_borne_and_the_arrays_untouched() -> None:
    t = clock(3, 7.0)
    t = np.concatenate((t[t < HOUR], t[t > 1.2 * HOUR]))
    x = ramp(t)
    kept = t.copy(), x.copy()
    found = of(t, x)
    assert np.array_equal(t, kept[0])
    assert np.array_equal(x, kept[1])
    assert found.proven_bytes == pytest.approx(12 * GB, rel=0.01)
    assert of(t + 1e6, x) == type(found)(
        **{**{f: getattr(found, f) for f in found.__struct_fields__}, "ended_at_s": t[-1] + 1e6}
    )


def test_a_series_without_a_limit_has_a_profile() -> None:
    t = clock(2)
    assert profile(making.series(t, ramp(t)), ended_at_s=0.0) is not None


def day(t: Array, *, back: bool = True) -> Array:
    """Two days with a rise from 6 to 10 h, and a fall from 14 to 18 h if ``back``."""
    hour = (t % DAY) / HOUR
    rise = np.clip((hour - 6.0) / 4.0, 0.0, 1.0)
    fall = np.clip((hour - 14.0) / 4.0, 0.0, 1.0) if back else 0.0
    return 4 * GB + 8 * GB * (rise - fall)


def test_yesterdays_rise_at_the_same_hour_is_known_once_it_was_given_back() -> None:
    t = np.arange(0.0, 32 * HOUR, 60.0)
    found = present(profile_of_yesterday(series(t, day(t)), now_s=float(t[-1])))
    assert found.kind == "yesterday"
    assert found.proven_bytes == pytest.approx(12 * GB, rel=0.02)
    assert max(found.grown_bytes) == pytest.approx(8 * GB, rel=0.02)


def test_yesterdays_growth_that_was_kept_is_not_normal() -> None:
    t = np.arange(0.0, 32 * HOUR, 60.0)
    x = 4 * GB + 8 * GB * np.clip((t / HOUR - 6.0) / 4.0, 0.0, 1.0)
    found = present(profile_of_yesterday(series(t, x), now_s=float(t[-1])))
    assert found.proven_bytes < 5 * GB
    assert max(found.grown_bytes) < GB


def test_without_a_yesterday_nothing_is_said() -> None:
    t = np.arange(0.0, 20 * HOUR, 60.0)
    assert profile_of_yesterday(series(t, day(t)), now_s=float(t[-1])) is None
    assert profile_of_yesterday(series(t[:3], day(t)[:3]), now_s=100.0) is None
