"""Epochs of a job, seen in the activity of its device, and growth that is counted by them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.numerics import MIB
from gpuwatchd.analysis.period import period_of
from gpuwatchd.analysis.verdict import judge
from gpuwatchd.analysis.verdict.epochs import begun_since
from gpuwatchd.collect.logs.log_types import LogOptions
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.core.model import Period
from gpuwatchd.pipeline.device_rings import Activity, RecentActivity
from gpuwatchd.pipeline.replay import analyze
from tests.conftest import present
from tests.pipeline.restarts import Machine
from tests.scenarios.documented import series
from tests.scenarios.replay import replay as live

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from gpuwatchd.core.model import Alert, Sample, Series
    from tests.scenarios.replay import Life

    Array = npt.NDArray[np.float64]

MB, SPAN_S = 1e6, 6.4 * 3600.0
BEGUN_S = 1.7e9


def begins(period_s: float, span_s: float, *, jitter: float = 0.05, seed: int = 1) -> Array:
    """Return when each epoch ends, none quite on time."""
    rng = np.random.default_rng(seed)
    lengths = period_s * (1.0 + jitter * rng.standard_normal(int(span_s / period_s) + 8))
    ends: Array = np.cumsum(lengths)
    return ends[ends < span_s]


def activity(t: Array, ends: Array, fall_s: float, *, busy: float = 96.0, seed: int = 1) -> Array:
    """Return per cent: busy, but for the time after each end of an epoch."""
    rng = np.random.default_rng(seed)
    last = np.searchsorted(ends, t, side="right") - 1
    since = np.where(last >= 0, t - ends[np.maximum(last, 0)], np.inf)
    figures: Array = np.where(since < fall_s, 8.0, busy) + 3.0 * rng.standard_normal(t.size)
    return np.clip(figures, 0.0, 100.0)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("step_s", [5.0, 30.0])
@pytest.mark.parametrize("period_s", [300.0, 720.0, 1200.0])
def test_epochs_are_found(period_s: float, step_s: float, gaps: bool) -> None:
    rng = np.random.default_rng(2)
    t = np.arange(0.0, min(SPAN_S, 14 * period_s), step_s)
    t += rng.uniform(-0.2, 0.2, t.size) * step_s
    ends = begins(period_s, float(t[-1]))
    figures = activity(t, ends, 60.0)
    figures[rng.random(t.size) < 0.02] = np.nan
    if gaps:
        kept = (t < 4.2 * period_s) | (t > 4.8 * period_s)
        t, figures = t[kept], figures[kept]
    found = present(period_of([("utilisation", t, figures)], float(t[-1])))
    assert found.period_s == pytest.approx(period_s, rel=0.08)
    assert found.weight > 0.7
    off_s = [float(np.abs(ends - at_s).min()) for at_s in found.boundaries_s]
    assert np.median(off_s) <= max(10.0, step_s)


def test_power_stands_in_and_a_period_ends_with_its_job() -> None:
    t = np.arange(0.0, 9000.0, 5.0)
    watts = 3.5 * activity(t, begins(720.0, 9000.0), 60.0)
    curves = [("utilisation", t, np.full(t.size, np.nan)), ("power", t, watts)]
    assert present(period_of(curves, 9000.0)).source == "power"
    later = np.arange(0.0, 13000.0, 5.0)
    watts = np.append(watts, np.full(later.size - t.size, 340.0))
    assert period_of([("power", later, watts)], 13000.0) is None


def test_three_periods_are_too_few() -> None:
    t = np.arange(0.0, 4 * 720.0 + 200.0, 5.0)
    ends = begins(720.0, float(t[-1]), jitter=0.0)
    curves = [("utilisation", t, activity(t, ends, 60.0))]
    assert ends.size == 4
    assert period_of(curves, float(t[-1])) is None


def _bursts(rng: np.random.Generator, t: Array, on_s: float, off_s: float) -> Array:
    edges = np.cumsum(rng.exponential(np.tile([on_s, off_s], 4000)))
    busy = np.searchsorted(edges, t) % 2 == 0
    return np.clip(np.where(busy, 95.0, 8.0) + 3.0 * rng.standard_normal(t.size), 0.0, 100.0)


@pytest.mark.parametrize("kind", ["busy", "idle", "jobs", "bursts", "requests", "noise", "day"])
def test_what_has_no_epochs_has_none(kind: str) -> None:
    t, found = np.arange(0.0, SPAN_S, 8.0), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        day = 50.0 + 40.0 * np.sin(2 * np.pi * t / 86400.0 + rng.uniform(0.0, 6.0))
        noise = rng.standard_normal(t.size)
        figures = {
            "busy": 97.0 + 1.5 * noise,
            "idle": np.where(t % 600.0 < 20.0, 60.0, 0.0),
            "jobs": _bursts(rng, t, 3600.0, 300.0),
            "bursts": _bursts(rng, t, 600.0, 60.0),
            "requests": _bursts(rng, t, 60.0, 30.0),
            "noise": rng.uniform(0.0, 100.0, t.size),
            "day": day + 8.0 * noise,
        }[kind]
        curves = [("utilisation", t, np.clip(figures, 0.0, 100.0))]
        found += period_of(curves, SPAN_S) is not None
    assert found <= 1


def test_it_costs_little() -> None:
    t = np.arange(2880.0) * 8.0
    curves = [("utilisation", t, activity(t, begins(720.0, SPAN_S), 60.0))]
    spent = []
    for _ in range(50):
        began = time.perf_counter()
        period_of(curves, SPAN_S)
        spent.append(time.perf_counter() - began)
    assert min(spent) < 0.003  # 0.6 ms on a quiet core


PERIOD_S, QUIET = 720.0, 5
"""Length of an epoch, and how many there are before anything grows."""


def _lives(memory: Series, ends: Array) -> tuple[Life, Life]:
    """Return the life of a series' alert without and with what its device does."""
    t = memory.t_s - BEGUN_S
    known = Activity({"utilisation": (memory.t_s, activity(t, ends, 60.0))})

    def beside(so_far: Series, _: Alert | None) -> Series:
        return replace(so_far, activity=known.period)

    plain = live(memory, stop_at_alert=True)
    return plain, live(memory, stop_at_alert=True, beside=beside)


def _clock(hours: float) -> tuple[Array, Array]:
    t = np.arange(0.0, hours * 3600.0, 5.0)
    return t, begins(PERIOD_S, float(t[-1]), jitter=0.02)


def _stairs(t: Array, ends: Array, mb: float, *, risers: int = 1) -> Series:
    """Return memory that rises by so much at these ends of epochs."""
    used = np.full(t.size, 6e9)
    for end in ends:
        for k in range(risers):
            used += (t >= end + 70.0 * k) * mb * MB / risers
    return series(t, used, sd_mib=4.0)


@pytest.mark.parametrize(("risers", "mb"), [(1, 1200.0), (3, 1200.0), (1, 2500.0)])
def test_a_leak_per_epoch_is_alerted_at_most_an_epoch_later(risers: int, mb: float) -> None:
    t, ends = _clock(3.0)
    plain, counted = _lives(_stairs(t, ends[QUIET:], mb, risers=risers), ends)
    wait_s = present(counted.alert_s) - present(plain.alert_s)
    assert 0.0 <= wait_s <= PERIOD_S + 60.0
    facts = {fact.name: fact for fact in present(counted.alert).facts or ()}
    assert facts[FactName.PERIOD].source == "utilisation"
    assert facts[FactName.PERIOD].weight > 0.7


def test_a_curriculum_of_four_stairs_stays_a_watch() -> None:
    t, ends = _clock(3.0)
    _, counted = _lives(_stairs(t, ends[QUIET : QUIET + 4], 1200.0), ends)
    assert counted.watch_s is not None
    assert counted.alert_s is None


def _ramp(t: Array, begin_s: float, mb_per_min: float, fill_s: float) -> Series:
    return series(t, 6e9 + mb_per_min * MB / 60.0 * np.clip(t - begin_s, 0.0, fill_s), sd_mib=1.0)


def test_what_fills_in_less_than_three_epochs_is_no_alert() -> None:
    t, ends = _clock(2.2)
    plain, counted = _lives(_ramp(t, ends[QUIET] + 100.0, 260.0, 1900.0), ends)
    assert plain.alert_s is not None
    assert counted.alert_s is None


@pytest.mark.parametrize("mb_per_min", [260.0, 400.0, 900.0])
def test_a_ramp_waits_an_epoch_at_most_and_not_without_time(mb_per_min: float) -> None:
    t, ends = _clock(2.2)
    plain, counted = _lives(_ramp(t, ends[QUIET] + 100.0, mb_per_min, np.inf), ends)
    wait_s = present(counted.alert_s) - present(plain.alert_s)
    assert (0.0 < wait_s <= PERIOD_S + 60.0) if mb_per_min == 260.0 else wait_s == 0.0


def test_several_stairs_of_an_epoch_are_one_event() -> None:
    t, ends = _clock(3.0)
    memory = _stairs(t, ends[QUIET:], 1200.0, risers=3)
    view, settings = numerics.prepare(memory), DetectionSection()
    period = Period(
        source="power", period_s=PERIOD_S, weight=1.0, boundaries_s=tuple(ends + BEGUN_S)
    )
    plain = judge(memory, settings)
    begun = begun_since(present(plain.onset_at_s), period, view)
    assert not begun.between_too
    assert begun.rose == begun.over >= 6
    counted = judge(replace(memory, activity=lambda _: period), settings)
    steps = [signal.n for signal in counted.signals if signal.detector == "step"]
    assert steps[0] <= begun.seen < max(signal.n for signal in plain.signals)


def test_who_is_flat_is_not_asked_for_epochs() -> None:
    asked: list[float] = []
    t, _ = _clock(1.0)
    for slope in (0.0, 2e6):
        memory = series(t, 6e9 + slope * t, sd_mib=2.0)
        judge(replace(memory, activity=asked.append), DetectionSection())
        assert len(asked) == (slope > 0.0)


class Busy(Machine):
    """A machine whose device has epochs."""

    ends = begins(PERIOD_S, SPAN_S, jitter=0.02)

    def _look(self) -> Sample:
        one = super()._look()
        at = np.array([self.age_s])
        util = float(activity(at, self.ends, 60.0)[0])
        (reading,) = one.readings
        return replace(one, readings=(replace(reading, util_pct=util, power_w=3.0 * util),))


def test_the_daemon_knows_epochs_also_after_a_restart(tmp_path: Path) -> None:
    machine = Busy(tmp_path, lambda age_s: 12e9 + 1e9 * np.sum(Busy.ends[4:] < age_s), 24)
    machine.live(6.5 * PERIOD_S)
    known = present(machine.track.headroom.activity)
    before = present(known.period(machine.time.now_s))
    assert before.period_s == pytest.approx(PERIOD_S, rel=0.05)
    machine.history.chores(machine.time.now_s)
    machine.restart(clean=True)
    machine.live(machine.age_s + 60.0)
    again = present(machine.track.headroom.activity)
    assert again is not known
    after = present(present(again).period(machine.time.now_s))
    assert after.period_s == pytest.approx(before.period_s, rel=0.02)
    assert len(after.boundaries_s) >= len(before.boundaries_s)
    moved = RecentActivity([(5.0 * k, 50.0, None) for k in range(9)])
    moved.move(100.0)
    assert [list(curve[0][[0, -1]]) for curve in moved.curves().values()] == [[100.0, 140.0]]


@pytest.mark.parametrize(
    ("column", "source"),
    [
        ("utilization.gpu [%]", "utilisation"),
        ("power.draw [W]", "power"),
        ("fan.speed [%]", ""),
    ],
)
def test_a_log_with_utilisation_or_power_tells_epochs(
    tmp_path: Path, column: str, source: str
) -> None:
    t, ends = _clock(3.0)
    memory = _stairs(t, ends[QUIET:], 1200.0)
    busy, unit = activity(t, ends, 60.0), column[-2]
    rows = [f"timestamp, index, memory.used [MiB], memory.total [MiB], {column}"]
    rows += [
        f"{datetime.fromtimestamp(at, UTC):%Y/%m/%d %H:%M:%S.000}, 0, {used / MIB:.0f} MiB, "
        + (f"24576 MiB, {figure:.0f} {unit}" if k % 50 else "24576 MiB, [N/A]")
        for k, (at, used, figure) in enumerate(
            zip(memory.t_s, memory.used_bytes, busy, strict=True)
        )
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows) + "\n")
    log = read_log(str(path), LogOptions())
    (result,) = analyze(log, Config())
    alert = next(event for event in result.alerts if event.state == "firing").alert
    sources = {f.source for f in alert.finding.facts or () if f.name is FactName.PERIOD}
    assert sources == ({source} if source else set())
