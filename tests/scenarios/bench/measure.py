"""One item, one evaluation -> its outcome. Everything that the workers of the benchmark run."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
import numpy as np

from gpuwatchd.analysis.forecast.eta import SCORE
from tests.scenarios import rivals, worlds
from tests.scenarios.bench import ramps, sweep
from tests.scenarios.bench.limit import limit
from tests.scenarios.bench.outcome import EARLY_S, Forecast, Outcome, ProcessView
from tests.scenarios.replay_processes import replay_processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.core.model import Series
    from tests.scenarios.replay import Life
    from tests.scenarios.replay_processes import Course
    from tests.scenarios.world import Truth
    from tests.scenarios.worlds import Item

FORECASTS = 24
"""Forecasts kept of one item, evenly over the life of its alert."""
LEAST_LEFT_S = 60.0
"""A forecast is not judged within the last minute."""


class Corpus(Protocol):
    """A module of families."""

    FAMILIES: Mapping[str, Any]
    LEAKS: Mapping[str, Any]
    BENIGN: Mapping[str, Any]

    def build(self, family: str, seed: int) -> Item:
        """Return one item."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One item to evaluate, and with which weights."""

    group: str
    corpus: str
    """Module of its family."""
    family: str
    seed: int
    weights: dict[str, float] | None = None
    """Weights of the score; None for those that are shipped."""
    rivals: bool = True
    processes: bool = True
    sweep: bool = True
    """Whether other thresholds are tried too."""


def corpus_of(name: str) -> Corpus:
    """Return the corpus in a module."""
    return cast("Corpus", importlib.import_module(name))


@contextmanager
def weighing(weights: Mapping[str, float] | None) -> Iterator[None]:
    """Use these weights of the score for a while."""
    if weights is None:
        yield
        return
    shipped = SCORE.coefficients
    SCORE.use(weights)
    try:
        yield
    finally:
        SCORE.use(shipped)


def run(task: Task) -> Outcome:
    """Evaluate one item."""
    item = corpus_of(task.corpus).build(task.family, task.seed)
    truth = item.truth
    with weighing(task.weights):
        levels = sweep.LEVELS if task.sweep else ()
        life, first_alerts = sweep.lives(item.series, levels=levels)
        courses = replay_processes(item) if task.processes and _several(item) else None
    return Outcome(
        group=task.group,
        family=task.family,
        seed=task.seed,
        tuned=task.family in worlds.TUNING,
        leak=truth.leak,
        patterns=tuple(sorted(truth.patterns)),
        length_s=item.length_s,
        onset_s=float(truth.onset_s or 0.0),
        oom_s=_float(truth.oom_s),
        t_star_s=_float(limit(item.series, truth)),
        watch_s=life.watch_s,
        alert_s=life.alert_s,
        watches=life.watches,
        alerts=life.alerts,
        pattern=called(life, leak=truth.leak),
        **harmless_shape(item.series, truth),
        first_alerts=tuple(first_alerts),
        forecasts=forecasts(life, truth.oom_s) if truth.leak else (),
        evaluations=life.evaluations,
        judged_us=1e6 * float(np.median(life.spent_s)) if life.spent_s else 0.0,
        processes=None if courses is None else by_process(courses),
        rivals=rivals.first_alarms(item.series) if task.rivals else {},
    )


def harmless_shape(series: Series, truth: Truth) -> dict[str, Any]:
    """Return what its record looks like while it is harmless: ``ramps`` and ``moving``."""
    end = series.t_s.size
    if truth.leak:
        end = int(series.t_s.searchsorted(series.t_s[0] + (truth.onset_s or 0.0)))
    t_s, used = series.t_s[:end], series.used_bytes[:end]
    total = series.total_bytes or float(series.used_bytes.max())
    return {
        "ramps": ramps.ramps(t_s, used, total),
        "moving": ramps.is_moving(t_s, used),
    }


def _several(item: Item) -> bool:
    """Say whether the processes of a run tell more than its device: one alone is the device."""
    whole = item.series
    if len(item.processes) != 1:
        return bool(item.processes)
    (only,) = item.processes.values()
    return only.series.t_s.size < whole.t_s.size


def called(life: Life, *, leak: bool) -> str:
    """Return the name that a user reads: of the alert or watch on a leak, else the last one."""
    final = life.alert or life.watch
    return final.pattern if leak and final is not None else life.pattern


def _float(value: float | None) -> float | None:
    # A number of numpy is no number to those who write JSON.
    return None if value is None else float(value)


def forecasts(life: Life, oom_s: float | None) -> tuple[Forecast, ...]:
    """Return at most :data:`FORECASTS` forecasts beside the truth, evenly over the alert's life."""
    if oom_s is None:
        return ()
    rows = [row for row in life.etas if oom_s - row[0] > LEAST_LEFT_S]
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), FORECASTS)).round().astype(int))
    return tuple(
        Forecast(real_s=float(oom_s - at), low_s=low, mid_s=mid, high_s=high)
        for at, low, mid, high in (rows[k] for k in keep.tolist())
    )


def by_process(courses: list[Course]) -> ProcessView:
    """Return the outcome of a run that was judged process by process."""
    right: list[Course] = []
    false: list[float] = []
    for course in courses:
        for at in course.alerts:
            if course.truth.leak and at >= course.onset_s - EARLY_S:
                right.append(course)
            else:
                false.append(at)
    hits = sorted(right, key=lambda course: course.alert_s or 0.0)
    watched = [
        c.watch_s
        for c in courses
        if c.truth.leak and c.watch_s is not None and c.watch_s >= c.onset_s - EARLY_S
    ]
    return ProcessView(
        count=len(courses),
        alert_s=hits[0].alert_s if hits else None,
        watch_s=min(watched, default=None),
        false_s=min(false, default=None),
        false_alerts=len(false),
        pattern=hits[0].pattern if hits else None,
    )
