"""Growth over days, which no window of hours can tell from load that comes and goes.

The lowest value of each hour, up to three weeks back, is judged as a sample of every minute is: by
the same judge, at a clock that runs :data:`PACE` times slower, with all its horizons. Each hour
stands for the mean of the day up to it, in which what comes and goes with the hour of the day is
the same at any time; that the growth is not more load, the lowest values of the days must say.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.verdict.growth import find
from gpuwatchd.analysis.verdict.leak import leak
from gpuwatchd.core import units
from gpuwatchd.core.config import Seconds
from gpuwatchd.core.model import LEAK_PATTERNS, EtaRange
from gpuwatchd.core.model.findings import Clause, reason_fields

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, FloatArray, Series

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
PACE: Final = 60.0
"""An hour is judged as a minute is, and a day of growth as 24 minutes."""
LEAST_S: Final = 2.5 * DAY_S
"""A shorter record says nothing: floors of three days, the first of them of half a day."""
LEAST_HOURS: Final = 24
LEAST_SHARE: Final = 0.005
"""Growth below this share of the device is no candidate."""
MOST: Final = 0.75
"""On this share of days the floor must have risen, and in this share of hours the lowest value
must be above that of the same hour of the day before."""
EVEN: Final = 0.4
"""A day has risen that brought this share of the mean rise."""
JUMP: Final = 0.3
"""Floors that rise at once by this share of what two days bring may be those of other jobs."""
SMOOTH_DAYS, JUMPY_DAYS, ALERT_DAYS = 2, 5, 3
"""Rises from one day to the next that a watch asks for, the same where they jump, and an alert."""
ALIKE: Final = 2.0
"""Growth is that of the floors where its rate is theirs, up to this factor."""


class _Rise(NamedTuple):
    per_day: float
    days: int
    risen: int


def judge_days(series: Series, hours: ArrayLike, settings: DetectionSection) -> Finding | None:
    """Return the finding of growth over days; None where there is none, or too little is known.

    ``series`` is the subject as it is now; ``hours`` (n, 3) its record: of each hour with samples
    the last instant in seconds, the lowest and the highest value in bytes (:func:`hours_of`). Flat
    ones cost some microseconds, others about as much as an ordinary judgement.
    """
    t_s, low, high = np.asarray(hours, dtype=np.float64).reshape(-1, 3).T
    scale = series.total_bytes or series.limit_bytes or 0.0
    # As for hours, but by the day: what is less is lost in what comes and goes.
    least = max(settings.minimum_growth_mib * numerics.MIB, LEAST_SHARE * scale)
    if t_s.size < LEAST_HOURS or t_s[-1] - t_s[0] < LEAST_S:
        return None
    rise = _rise(t_s, low, least)
    if rise is None or not _above_yesterday(t_s, low):
        return None
    begun = int(t_s.searchsorted(t_s[0] + DAY_S))
    since = t_s.searchsorted(t_s - DAY_S, side="right")
    total = np.concatenate(([0.0], low.cumsum()))
    mean = ((total[1:] - total[since]) / (np.arange(t_s.size) + 1 - since))[begun:]
    # What it needs at the peak of its day, it will need again.
    peak = float(high[since[-1] :].max()) - float(mean[-1])
    slow = msgspec.structs.replace(
        series,
        t_s=t_s[begun:] / PACE,
        used_bytes=mean,
        limit_bytes=None if series.limit_bytes is None else series.limit_bytes - peak,
        neighbours_bytes_per_s=tuple([rate * PACE for rate in series.neighbours_bytes_per_s]),
        history=(),  # tells of hours
        alerted=None,
        allocator=None,
    )
    own = msgspec.structs.replace(
        settings,
        min_slope_mb_per_sec=settings.min_slope_mb_per_sec * PACE,
        eta_horizon=Seconds(settings.eta_horizon / PACE),
    )
    view = numerics.prepare(slow, math.inf)
    growth = find(slow, view, least) if view.samples > 1 else None
    found = None if growth is None else leak(slow, view, own, growth)
    if found is None or found.pattern not in LEAK_PATTERNS or not found.rate_bytes_per_s:
        return None
    per_day = found.rate_bytes_per_s / PACE * DAY_S
    if not rise.per_day / ALIKE <= per_day <= rise.per_day * ALIKE:
        return None
    own_pace = _at_own_pace(found, rise, t_s, float(settings.eta_horizon))
    levels_off = found.levels_off_bytes
    return msgspec.structs.replace(
        own_pace,
        limit_bytes=series.limit_bytes,
        levels_off_bytes=None if levels_off is None else levels_off + peak,
    )


def hours_of(t_s: FloatArray, used_bytes: FloatArray) -> FloatArray:
    """Return what was held in each hour of a series (n,), as :func:`judge_days` takes it."""
    if not t_s.size:
        return np.empty((0, 3))
    first = np.flatnonzero(np.diff(np.floor(t_s / HOUR_S), prepend=math.nan))
    last = np.append(first[1:], t_s.size) - 1
    low, high = np.minimum.reduceat(used_bytes, first), np.maximum.reduceat(used_bytes, first)
    return np.column_stack((t_s[last], low, high))


def _rise(t_s: FloatArray, low: FloatArray, least: float) -> _Rise | None:
    """Return how the floors of the days before now rose, since the lowest of them.

    None unless they did on most days, and on the last one. A first day of which less than half is
    known is left out.
    """
    back = np.floor((t_s[-1] - t_s) / DAY_S)
    floors = np.minimum.reduceat(low, np.flatnonzero(np.diff(back, prepend=-1.0)))
    floors = floors[int(t_s[-1] - t_s[0] < (back[0] + 0.5) * DAY_S) :]
    rises = np.diff(floors[floors.size - 1 - int(floors[::-1].argmin()) :])
    if rises.size < SMOOTH_DAYS or rises.sum() < least:
        return None
    risen = rises >= EVEN * rises.mean()
    needed = JUMPY_DAYS if _jumps(t_s, low) else SMOOTH_DAYS
    if not risen[-1] or risen.mean() < MOST or rises.size < needed:
        return None
    return _Rise(float(rises.mean()), int(rises.size), int(risen.sum()))


def _above_yesterday(t_s: FloatArray, low: FloatArray) -> bool:
    """Say whether in most hours of the last two days it held more than a day before."""
    first = int(t_s.searchsorted(max(float(t_s[0]) + DAY_S, float(t_s[-1]) - 2.0 * DAY_S)))
    before = np.interp(t_s[first:] - DAY_S, t_s, low)
    return float((low[first:] > before).mean()) >= MOST


def _jumps(t_s: FloatArray, low: FloatArray) -> bool:
    """Say whether much of what the floor of a day rose by within two days came at once.

    It may have where only one hour of them is known.
    """
    first = int(t_s.searchsorted(t_s[-1] - 2.0 * DAY_S))
    since = t_s.searchsorted(t_s[first:] - DAY_S, side="right").tolist()
    floor = np.array([low[a : first + k + 1].min() for k, a in enumerate(since)])
    rises = np.maximum(floor[1:] - floor[:-1], 0.0)
    return not rises.size or float(rises.max()) > JUMP * float(rises.sum())


def _at_own_pace(found: Finding, rise: _Rise, t_s: FloatArray, horizon_s: float) -> Finding:
    """Return a finding that was judged at the slow clock, in the subject's own time."""
    now_s, rate = float(t_s[-1]), (found.rate_bytes_per_s or 0.0) / PACE
    # The mean of a day is that of its middle.
    onset_s = (found.onset_at_s or found.judged_at_s) * PACE - 0.5 * DAY_S
    onset_s = min(max(onset_s, float(t_s[0])), now_s - 2.0 * DAY_S)
    tier = found.tier if rise.days >= ALERT_DAYS and found.eta is not None else "watch"
    eta = found.eta
    if eta is not None:
        high_s = None if eta.high_s is None else eta.high_s * PACE
        eta = EtaRange(low_s=eta.low_s * PACE, mid_s=eta.mid_s * PACE, high_s=high_s)
    grown = rate * (now_s - onset_s)
    days = f"its lowest value of the day rose on {rise.risen} of {rise.days} days"
    how = f"grows by {units.size(rate * DAY_S)} a day"
    text = f"{how} for {units.duration(now_s - onset_s)}, {units.size(grown)} so far, {days}"
    full = "" if eta is None else f"full in {units.band(eta.low_s, eta.mid_s, eta.high_s)}"
    reason = (
        Clause(text=text, short=f"{how}, {days}", verb=True),
        full and Clause(text=full, short="", forecast=True),
    )
    return msgspec.structs.replace(
        found,
        judged_at_s=now_s,
        pattern="gradual",  # the mean of a day smooths stairs and swings
        tier=tier,
        rate_bytes_per_s=rate,
        eta=eta,
        severity="info" if eta is None or eta.mid_s > horizon_s else "warning",
        onset_at_s=onset_s,
        growth_bytes=grown,
        signals=(),
        **reason_fields(*reason),
    )
