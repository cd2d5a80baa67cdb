"""Growth over days, in logs and live; logs of few samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.codes import Reason
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.core.model import Device, Finding, ProcessInfo, ProcessKey, Subject
from gpuwatchd.pipeline import replay
from tests import making
from tests.making import present
from tests.pipeline.test_run_baselines import Lab

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Array = npt.NDArray[np.float64]
GB = 1e9
DAY = 86400.0
CARD = Device(uid="GPU-24", vendor="nvidia", index=0, name="L4", memory_total_bytes=int(24 * GB))
WORK = ProcessInfo(key=ProcessKey(pid=7, started_at_s=1e9), name="python", user="alice")
SETTINGS = DetectionSection()


def clock(days: float, every_s: float = 30.0) -> Array:
    return np.arange(0.0, days * DAY, every_s)


def office(t: Array) -> Array:
    hour = t / 3600.0 % 24.0
    return np.where((hour > 9.0) & (hour < 18.0), 4 * GB, 0.0)


def night(t: Array) -> Array:
    return 2 * GB * (1.0 - np.cos(2 * np.pi * t / DAY))


def nothing(t: Array) -> Array:
    return np.zeros_like(t)


def used(t: Array, load: Callable[[Array], Array], gb_per_day: float, seed: int = 1) -> Array:
    noise = np.random.default_rng(seed).normal(0.0, 0.05 * GB, t.size)
    return 6 * GB + gb_per_day * GB * t / DAY + load(t) + noise


def played(t: Array, values: Array, *, process: bool = False) -> replay.SubjectResult:
    """Return what the replay of a log says of its device, or of the one process on it."""
    who = WORK if process else None
    series = LogSeries(
        subject=Subject(device_uid=CARD.uid, process=None if who is None else who.key),
        device=CARD,
        process=who,
        t_s=t + 1e9,
        used_bytes=values,
        limit_bytes=24 * GB,
        total_bytes=24 * GB,
    )
    log = LogFile(path="x", format="test", devices=[CARD], series=[series])
    (result,) = replay.analyze(log, Config())
    return result


def opened_days(result: replay.SubjectResult) -> list[float]:
    return [(event.at_s - 1e9) / DAY for event in result.watches if event.state == "opened"]


@pytest.mark.parametrize("process", [False, True])
def test_a_log_is_judged_over_its_days_as_they_go_by(process: bool) -> None:
    t = clock(5, 900.0)
    result = played(t, used(t, office, 1.0), process=process)
    assert opened_days(result)[0] <= 3.0
    assert not result.alerts, "it needs more than 72 hours to fill the device"
    found = present(result.finding)
    assert (found.pattern, found.tier, found.severity) == ("gradual", "watch", "info")
    assert found.rate_bytes_per_s == pytest.approx(GB / DAY, rel=0.1)
    flat = played(t, used(t, office, 0.0), process=process)
    assert not flat.alerts
    assert present(flat.finding).tier == "none"


def findings(t: Array, values: Array, limit: float | None = 24 * GB) -> dict[float, Finding]:
    """Return what is said at the end of each hour, by days since the start."""
    hours = verdict.hours_of(t, values)
    out = {}
    series = making.series(t[:9], values[:9], limit_bytes=limit, total_bytes=limit)
    for count in range(1, len(hours) + 1):
        found = verdict.judge_days(series, hours[:count], SETTINGS)
        if found is not None:
            out[float(hours[count - 1, 0]) / DAY] = found
    return out


@pytest.fixture(scope="module", params=[nothing, office, night])
def load(request: pytest.FixtureRequest) -> Callable[[Array], Array]:
    """What comes and goes with the hour of the day."""
    chosen: Callable[[Array], Array] = request.param
    return chosen


def test_a_gigabyte_a_day_is_watched_by_the_end_of_the_third_day(
    load: Callable[[Array], Array],
) -> None:
    t = clock(5)
    found = findings(t, used(t, load, 1.0))
    assert 2.0 < min(found) <= 3.0
    assert {one.tier for one in found.values()} == {"watch"}, "more than 72 hours are left"
    assert {one.severity for one in found.values()} == {"info"}
    last = found[max(found)]
    assert max(found) > 4.9
    assert last.rate_bytes_per_s == pytest.approx(GB / DAY, rel=0.1)
    assert last.judged_at_s - present(last.onset_at_s) == pytest.approx(5 * DAY, abs=0.8 * DAY)
    # At the peak of its load it is full when the rest of 18 GB has gone.
    left_s = (24.0 - 6.0 - 5.0 - float(load(t).max()) / GB) * DAY
    eta = present(last.eta)
    assert eta.low_s <= left_s <= present(eta.high_s)


def test_the_same_load_without_growth_is_silent_for_two_weeks(
    load: Callable[[Array], Array],
) -> None:
    t = clock(14)
    assert not findings(t, used(t, load, 0.0))


def test_three_gigabytes_a_day_are_told_of_before_half_of_the_time(
    load: Callable[[Array], Array],
) -> None:
    t = clock(4.4)
    found = findings(t, used(t, load, 3.0))
    assert min(found) < 3.0
    assert found[max(found)].tier == "alert", "less than 72 hours are left"


def jobs(t: Array, hours: float, seed: int) -> Array:
    """Return the memory of jobs that take turns, each as much as it likes."""
    rng = np.random.default_rng(seed)
    levels: Array = 2 * GB + rng.uniform(0.0, 15 * GB, 1000)
    out: Array = levels[(t / 3600.0 / hours).astype(int)]
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hours", [1, 8, 24, 30])
def test_jobs_that_take_turns_are_no_growth(hours: float, seed: int) -> None:
    t = clock(21, 300.0)
    assert not findings(t, jobs(t, hours, seed))


@pytest.mark.parametrize("begins", range(7))
def test_working_weeks_are_no_growth(begins: int) -> None:
    t = clock(21, 300.0)
    week = np.where((t / DAY + begins) % 7 < 5, 6 * GB, 0.0)
    assert not findings(t, used(t, office, 0.0) + week)


def test_growth_that_has_ended_is_forgotten_within_a_day_and_a_half() -> None:
    t = clock(12, 300.0)
    ramp = np.minimum(t, 4 * DAY) / DAY
    found = findings(t, used(t, office, 0.0) + GB * ramp)
    assert 2.4 < min(found) < 3.0
    assert max(found) < 5.5
    plateau = 8 * GB * (1.0 - np.exp(-t / DAY))
    assert all(day < 4.0 for day in findings(t, used(t, nothing, 0.0) + plateau))


def test_a_restart_begins_anew() -> None:
    t = clock(9, 300.0)
    sawtooth = used(t, nothing, 0.0) + GB * (t / DAY % 4.5)
    found = findings(t, sawtooth)
    assert found
    assert not [day for day in found if 4.6 < day < 6.5]


def test_a_leak_that_comes_in_steps_needs_more_days() -> None:
    t = clock(12, 300.0)
    found = findings(t, used(t, nothing, 0.0) + GB * np.floor(t / DAY))
    assert 5.0 < min(found) < 7.5


def test_without_a_limit_it_is_never_more_than_a_watch() -> None:
    t = clock(6, 300.0)
    found = findings(t, used(t, office, 3.0), None)
    assert found
    assert {(one.tier, one.eta) for one in found.values()} == {("watch", None)}


@pytest.mark.parametrize("days", [0.0, 0.9, 2.4])
def test_a_short_record_says_nothing(days: float) -> None:
    t = clock(days, 300.0)
    assert not findings(t, used(t, nothing, 3.0))
    empty = verdict.hours_of(np.empty(0), np.empty(0))
    assert verdict.judge_days(making.series(t, t), empty, SETTINGS) is None


@pytest.mark.slow
def test_a_record_that_goes_on_after_days_without_one_says_nothing() -> None:
    t = np.append(np.arange(108.0), 170.0) * 3600.0
    low = 4e9 + 5e3 * t
    series = making.series(t[-5:], low[-5:], limit_bytes=24 * GB)
    assert verdict.judge_days(series, np.column_stack((t, low, low)), DetectionSection()) is None


def test_an_hour_may_begin_before_the_clock_does() -> None:
    hours = verdict.hours_of(np.array([-5.0, -4.0, 4.0]), np.array([2.0, 1.0, 3.0]))
    assert hours.tolist() == [[-4.0, 1.0, 2.0], [4.0, 3.0, 3.0]]


def test_live_the_history_tells_of_days_also_after_a_restart(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    try:
        lab.step_s = 300.0

        def grows(age_s: float) -> float:
            load = 3 * GB if 9.0 < age_s / 3600.0 % 24.0 < 18.0 else 0.0
            return 6 * GB + 1.5 * GB * age_s / DAY + load

        leaks = lab.begin(grows, program=None)
        flat = lab.begin(lambda age_s: grows(age_s) - 1.5 * GB * age_s / DAY, program=None)
        lab.pass_minutes(2.5 * 1440 + 90)
        assert present(lab.track(leaks).run_baseline.days).tier == "watch"
        alert = present(lab.track(leaks).alert)
        assert (alert.state, alert.severity) == ("watch", "info")
        assert lab.track(flat).run_baseline.days is None
        assert lab.track(flat).alert is None
        lab.restart()
        lab.pass_minutes(60)
        again = lab.track(leaks)
        assert present(again.alert).opened_at_s == alert.opened_at_s
        found = present(again.finding)
        assert found.rate_bytes_per_s == pytest.approx(1.5 * GB / DAY, rel=0.1)
    finally:
        lab.stop()


def short(values: list[float], every_s: float) -> tuple[Finding, replay.SubjectResult]:
    """Return the judgement on a few values in GB, and what the replay says."""
    t, x = every_s * np.arange(float(len(values))), GB * np.array(values)
    series = making.series(t, x, limit_bytes=24 * GB, total_bytes=24 * GB)
    return verdict.judge(series, SETTINGS), played(t, x)


RISING = [
    [6.0 + 0.5 * k for k in range(15)],
    [4.0, 4.5, 5.1, 5.5, 6.0, 6.6, 7.0],
    [4.0, 4.5, 5.1, 5.0, 5.5, 6.0, 6.6, 7.0, 7.4],
    [3.1, 3.5, 3.6, 4.4, 4.9, 5.2],
    [2.0, 2.2, 2.4, 2.6, 2.8],
]


@pytest.mark.parametrize("every_s", [60.0, 600.0, 7200.0])
@pytest.mark.parametrize("values", RISING)
def test_a_few_values_that_rise_are_growing_not_confirmed(
    values: list[float], every_s: float
) -> None:
    found, result = short(values, every_s)
    assert (found.pattern, found.code) == ("gradual", Reason.UNCONFIRMED)
    assert found.tier in {"none", "watch"}
    assert 0.0 < found.confidence < 1.0
    pace = (values[-1] - values[0]) * GB / (every_s * (len(values) - 1))
    assert found.rate_bytes_per_s == pytest.approx(pace, rel=0.3)
    assert not result.alerts
    assert present(result.finding).code is Reason.UNCONFIRMED


@pytest.mark.parametrize("every_s", [600.0, 3600.0, 7200.0])
@pytest.mark.parametrize("count", [8, 15])
def test_a_straight_rise_of_a_few_samples_is_watched(count: int, every_s: float) -> None:
    found, result = short([6.0 + 0.5 * k for k in range(count)], every_s)
    assert found.tier == "watch"
    assert found.eta is not None
    assert len([one for one in result.watches if one.state == "opened"]) == 1


def test_slow_growth_of_a_sparse_log_is_no_less_likely_the_longer_it_lasts() -> None:
    sure = [short([6.0 + 0.1 * k for k in range(n)], 7200.0)[0].confidence for n in (16, 40)]
    assert sure[0] > 0.2
    assert sure[1] > sure[0]
    found, result = short([6.0 + 0.1 * k for k in range(60)], 7200.0)
    assert (found.tier, found.severity) == ("watch", "info")
    assert not result.alerts


@pytest.mark.parametrize("every_s", [60.0, 7200.0])
@pytest.mark.parametrize(
    "values",
    [
        [4.0] * 9,
        [4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4],
        [4.0] * 4 + [8.0] * 5,
        [4.0, 4.4, 4.0, 4.5, 4.1, 4.4, 4.0, 4.5],
        [2.0, 4.0, 6.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0],
        [4.0, 5.0, 6.0],
    ],
)
def test_a_few_values_that_do_not_rise_are_not_growing(values: list[float], every_s: float) -> None:
    found, result = short(values, every_s)
    assert found.tier == "none"
    assert found.code is not Reason.UNCONFIRMED
    assert not result.watches


def test_noise_in_a_few_values_is_rarely_called_growing() -> None:
    rng = np.random.default_rng(3)
    called = sum(
        short(list(6.0 + rng.normal(0.0, 0.3, n)), 600.0)[0].code is Reason.UNCONFIRMED
        for n in rng.integers(5, 20, 300)
    )
    assert called <= 6
