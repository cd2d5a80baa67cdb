"""The rules of others say what their documents promise, on series where that is plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import present
from tests.scenarios import rivals
from tests.scenarios.replay import make
from tests.scenarios.rival_rules import Seen, trends

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray, Series

GB = 1e9
TABLE = {rival.name: rival for rival in rivals.RIVALS}


def clock(hours: float) -> FloatArray:
    return np.arange(0.0, hours * 3600.0, 10.0)


def documented(series: Series) -> dict[str, float | None]:
    """First alarm of each rule under its documented thresholds."""
    return {name: times[0] for name, times in rivals.first_alarms(series).items()}


def test_a_fast_straight_leak_is_found_by_all_but_the_spike_rule() -> None:
    t = clock(3.0)
    found = documented(make(t, 10 * GB + 1.5e6 * t, 80 * GB))
    missed = {name for name, at in found.items() if at is None}
    # At 1.5 MB/s 80 GB last for 13 hours: beyond the four of predict_linear until they are near.
    assert missed <= {"gpulse: spike", "Prometheus: predict_linear", "PrecogMF"}
    assert found["gpulse: slope and R²"] == pytest.approx(300.0, abs=60.0)


def test_fifty_megabytes_a_minute_stay_below_the_slope_rule() -> None:
    t = clock(3.5)
    found = documented(make(t, 12 * GB + 50e6 / 60 * t, 24 * GB))
    assert found["gpulse: slope and R²"] is None
    assert found["Prometheus: predict_linear"] is not None


def test_a_jump_is_a_spike_and_no_slope() -> None:
    t = clock(1.0)
    found = documented(make(t, 4 * GB + 4 * GB * (t > 1800.0), 24 * GB))
    assert found["gpulse: spike"] == pytest.approx(1860.0, abs=61.0)
    assert found["gpulse: composite"] == found["gpulse: spike"]


def test_nothing_alarms_on_a_flat_series() -> None:
    t = clock(4.0)
    assert set(documented(make(t, np.full(t.size, 6 * GB), 24 * GB)).values()) == {None}


def test_precog_waits_for_a_trend_that_is_long_enough() -> None:
    t = clock(4.0)
    series = make(t, 11 * GB + 0.8e6 * t, 24 * GB)
    at = present(documented(series)["PrecogMF"])
    assert at >= 72 * 60.0
    short = TABLE["PrecogMF"].pairs.index((0.8, 12.0))
    early = present(rivals.first_alarms(series)["PrecogMF"][short])
    assert early < at


def test_lbr_sees_through_a_season() -> None:
    t = clock(6.0)
    series = make(t, 10 * GB + 0.3e6 * t + 1.5 * GB * np.sin(t / 600.0), 24 * GB)
    assert documented(series)["LBR"] is not None


def test_mann_kendall_counts_rising_pairs() -> None:
    t = clock(2.0)
    seen = Seen(t, 5 * GB + 1e6 * t, 24 * GB)
    found = trends(seen)
    # 60 points that all rise: S = 1770, z = 1769 / sqrt(60 * 59 * 125 / 18).
    assert found.z[-1] == pytest.approx(1769.0 / np.sqrt(60 * 59 * 125 / 18.0))
    assert found.slope[-1] == pytest.approx(1e6, rel=1e-6)
    flat = trends(Seen(t, np.full(t.size, 5 * GB), 24 * GB))
    assert not flat.z.any()


def test_rules_never_look_ahead() -> None:
    t = clock(5.0)
    rng = np.random.default_rng(3)
    x = 6 * GB + np.cumsum(rng.normal(1e6, 2e7, t.size))
    whole = rivals.first_alarms(make(t, x, 24 * GB))
    part = rivals.first_alarms(make(t[:900], x[:900], 24 * GB))
    for name, times in part.items():
        for early, late in zip(times, whole[name], strict=True):
            if early is not None:
                assert late == early, name


def test_the_best_pair_is_the_one_with_the_best_f1() -> None:
    rival = TABLE["gpulse: spike"]
    never: list[float | None] = [None] * len(rival.pairs)
    found = [*never]
    found[3] = 500.0
    rows = [(True, 0.0, {rival.name: found}), (False, 0.0, {rival.name: never})]
    assert rivals.best_pair(rival, rows) == 3


def test_an_alarm_before_the_onset_is_a_false_one() -> None:
    found = rivals.score([(True, 1000.0, 200.0), (True, 1000.0, 1500.0), (False, 0.0, None)])
    assert found[:2] == (0.5, 0.5)
