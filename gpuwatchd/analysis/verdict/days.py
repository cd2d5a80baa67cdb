"""Growth over days, which no window of hours can tell from load that comes and goes.

The lowest value of each hour, up to three weeks back, is judged as a sample of every minute is: by
the same judge, at a clock that runs :data:`PACE` times slower, with all its horizons. Each hour
stands for the mean of the day up to it, in which what comes and goes with the hour of the day is
the same at any time; that the growth is not more load, the lowest values of the days must say.
"""

from __future__ import annotations

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
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, FloatArray, Series

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
BACK_S: Final = 21 * DAY_S
"""How far back is looked."""
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


class Hours(NamedTuple):
    """What a subject held in each hour of its record, (n,) each; hours without samples are absent.

    ``t_s`` is the last instant of each that is known.
    """

    t_s: FloatArray
    low: FloatArray
    high: FloatArray


class _Rise(NamedTuple):
    per_day: float
    days: int
    risen: int


def judge_days(series: Series, hours: Hours, settings: DetectionSection) -> Finding | None:
    """Return the finding of growth over days; None where there is none, or too little is known.

    ``series`` is the subject as it is now, ``hours`` its record. Flat ones cost some microseconds,
    others about as much as an ordinary judgement.
    """
    scale = series.total_bytes or series.limit_bytes or 0.0
    # As for hours, but by the day: what is less is lost in what comes and goes.
    least = max(settings.minimum_growth_mib * numerics.MIB, LEAST_SHARE * scale)
    first = int(hours.t_s.searchsorted(hours.t_s[-1] - BACK_S)) if hours.t_s.size else 0
    t_s, low, high = (column[first:] for column in hours)
    if t_s.size < LEAST_HOURS or t_s[-1] - t_s[0] < LEAST_S:
        return None
    floors = _floors(t_s, low)
    rise = _rise(floors, least)
    if rise is None or not _above_yesterday(t_s, low):
        return None
    if rise.days < (JUMPY_DAYS if _jumps(t_s, low) else SMOOTH_DAYS):
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
    view = numerics.prepare(slow, BACK_S / PACE)
    growth = find(slow, view, least) if view.samples > 1 else None
    found = None if growth is None else leak(slow, view, own, growth)
    if found is None or found.pattern not in LEAK_PATTERNS or not found.rate_bytes_per_s:
        return None
    per_day = found.rate_bytes_per_s / PACE * DAY_S
    if not rise.per_day / ALIKE <= per_day <= rise.per_day * ALIKE:
        return None
    return _at_own_pace(series, found, rise, settings, (t_s, peak))


def hours_of(t_s: FloatArray, used_bytes: FloatArray) -> Hours:
    """Return what was held in each hour of a series (n,)."""
    if not t_s.size:
        return Hours(t_s, used_bytes, used_bytes)
    first = np.flatnonzero(np.diff(np.floor(t_s / HOUR_S), prepend=-1.0))
    last = np.append(first[1:], t_s.size) - 1
    low, high = np.minimum.reduceat(used_bytes, first), np.maximum.reduceat(used_bytes, first)
    return Hours(t_s[last], low, high)


def _floors(t_s: FloatArray, low: FloatArray) -> FloatArray:
    """Return the lowest value of each day before now, oldest first, since the lowest of all.

    The first of them is left out where less than half of that day is known.
    """
    back = np.floor((t_s[-1] - t_s) / DAY_S)
    floors = np.minimum.reduceat(low, np.flatnonzero(np.diff(back, prepend=-1.0)))
    if t_s[-1] - t_s[0] < (back[0] + 0.5) * DAY_S:
        floors = floors[1:]
    out: FloatArray = floors[floors.size - 1 - int(floors[::-1].argmin()) :]
    return out


def _rise(floors: FloatArray, least: float) -> _Rise | None:
    """Return how the floors rose; None unless on most days, and on the last one."""
    if floors.size < 3 or floors[-1] - floors[0] < least:
        return None
    rises = floors[1:] - floors[:-1]
    mean = float(rises.mean())
    risen = rises >= EVEN * mean
    if not risen[-1] or risen.mean() < MOST:
        return None
    return _Rise(mean, int(rises.size), int(risen.sum()))


def _above_yesterday(t_s: FloatArray, low: FloatArray) -> bool:
    """Say whether in most hours of the last two days it held more than a day before."""
    first = int(t_s.searchsorted(max(float(t_s[0]) + DAY_S, float(t_s[-1]) - 2.0 * DAY_S)))
    before = np.interp(t_s[first:] - DAY_S, t_s, low)
    return float((low[first:] > before).mean()) >= MOST


def _jumps(t_s: FloatArray, low: FloatArray) -> bool:
    """Say whether much of what the floor of a day rose by within two days came at once."""
    first = int(t_s.searchsorted(t_s[-1] - 2.0 * DAY_S))
    since = t_s.searchsorted(t_s[first:] - DAY_S, side="right").tolist()
    floor = np.array([low[a : first + k + 1].min() for k, a in enumerate(since)])
    rises = np.maximum(floor[1:] - floor[:-1], 0.0)
    return float(rises.max()) > JUMP * float(rises.sum())


def _at_own_pace(
    series: Series,
    found: Finding,
    rise: _Rise,
    settings: DetectionSection,
    known: tuple[FloatArray, float],
) -> Finding:
    """Return a finding that was judged at the slow clock, in the subject's own time."""
    t_s, peak = known
    now_s, rate = float(t_s[-1]), (found.rate_bytes_per_s or 0.0) / PACE
    # The mean of a day is that of its middle.
    onset_s = (found.onset_at_s or found.judged_at_s) * PACE - 0.5 * DAY_S
    onset_s = min(max(onset_s, float(t_s[0])), now_s - 2.0 * DAY_S)
    tier = found.tier if rise.days >= ALERT_DAYS and found.eta is not None else "watch"
    eta, severity = found.eta, found.severity if found.eta is not None else "info"
    if eta is not None:
        high_s = None if eta.high_s is None else eta.high_s * PACE
        eta = EtaRange(low_s=eta.low_s * PACE, mid_s=eta.mid_s * PACE, high_s=high_s)
        severity = "info" if eta.mid_s > settings.eta_horizon else "warning"
    grown = rate * (now_s - onset_s)
    days = f"its lowest value of the day rose on {rise.risen} of {rise.days} days"
    how = f"{units.size(rate * DAY_S)} a day"
    text = f"grows by {how} for {units.duration(now_s - onset_s)}, {units.size(grown)} so far"
    reason = [Clause(text=f"{text}, {days}", short=f"grows by {how}, {days}", verb=True)]
    if eta is not None:
        full = f"full in {units.band(eta.low_s, eta.mid_s, eta.high_s)}"
        reason.append(Clause(text=full, short="", forecast=True))
    return msgspec.structs.replace(
        found,
        judged_at_s=now_s,
        pattern="gradual",  # the mean of a day smooths stairs and swings
        tier=tier,
        rate_bytes_per_s=rate,
        eta=eta,
        severity=severity,
        onset_at_s=onset_s,
        growth_bytes=grown,
        limit_bytes=series.limit_bytes,
        levels_off_bytes=None if found.levels_off_bytes is None else found.levels_off_bytes + peak,
        signals=(),
        **reason_fields(*reason),
    )
