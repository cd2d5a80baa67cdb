"""What the rules of others see and say, minute by minute, for a whole series at once.

Written anew from their documents. A rule is two functions: one gathers what it looks at, once for
each series; the other says at which looks it would alarm under two thresholds, so that the best
thresholds can be looked for at next to no cost. Times are seconds since the first sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

Alarms = npt.NDArray[np.bool_]
MINUTE_S = 60.0
HOUR_S = 3600.0
MB = 1e6


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """Least squares over one window for each look; all (looks,)."""

    count: FloatArray
    span_s: FloatArray
    slope: FloatArray
    """Bytes/s; 0 where it cannot be told."""
    level: FloatArray
    """Bytes: the line at the time of the look."""
    r_squared: FloatArray
    growth: FloatArray
    """Last value less first value, bytes."""


class Seen:
    """A series as the rules of others see it: (n,) seconds since the first sample, and bytes."""

    def __init__(self, t_s: FloatArray, used: FloatArray, total: float) -> None:
        self.t, self.x, self.total = t_s, used, total
        last = int(t_s[-1] // MINUTE_S) if t_s.size else 0
        self.at: FloatArray = np.arange(1.0, last + 1.0) * MINUTE_S
        """(looks,) one a minute."""
        self.end: npt.NDArray[np.intp] = np.searchsorted(t_s, self.at, side="right")
        """(looks,) how many samples are known by then."""

    @cached_property
    def minutes(self) -> FloatArray:
        """Median of each minute (looks,); a minute without samples repeats the one before."""
        out = np.empty(self.at.size)
        begin = np.searchsorted(self.t, self.at - MINUTE_S, side="right")
        value = float(self.x[0]) if self.x.size else 0.0
        for k, (a, b) in enumerate(zip(begin.tolist(), self.end.tolist(), strict=True)):
            if b > a:
                value = float(np.median(self.x[a:b]))
            out[k] = value
        return out

    @cached_property
    def _sums(self) -> FloatArray:
        t, x = self.t - self.t.mean(), self.x - self.x.mean()
        rows = np.stack([np.ones_like(t), t, x, t * t, t * x, x * x])
        return np.concatenate([np.zeros((6, 1)), np.cumsum(rows, axis=1)], axis=1)

    def lines(self, window_s: float) -> Lines:
        """Return the lines through the last ``window_s`` seconds (infinite: all there is)."""
        begin = np.searchsorted(self.t, self.at - window_s)
        n, t, x, tt, tx, xx = self._sums[:, self.end] - self._sums[:, begin]
        n = np.maximum(n, 1.0)
        spread, both, height = tt - t * t / n, tx - t * x / n, xx - x * x / n
        slope = np.divide(both, spread, out=np.zeros_like(both), where=spread > 1e-9)
        fit = np.divide(
            both * both, spread * height, out=np.zeros_like(both), where=spread * height > 1e-3
        )
        now = self.at - self.t.mean()
        last = np.maximum(self.end - 1, 0)
        begin = np.minimum(begin, last)
        return Lines(
            count=n,
            span_s=self.t[last] - self.t[begin],
            slope=slope,
            level=self.x.mean() + x / n + slope * (now - t / n),
            r_squared=np.clip(fit, 0.0, 1.0),
            growth=self.x[last] - self.x[begin],
        )

    @cached_property
    def hour(self) -> Lines:
        """Lines through the last hour."""
        return self.lines(HOUR_S)

    @cached_property
    def whole(self) -> Lines:
        """Lines through everything since the first sample."""
        return self.lines(np.inf)


def held(alarms: Alarms, looks: int) -> Alarms:
    """Return where an alarm has lasted for this many looks."""
    if looks <= 1 or alarms.size < looks:
        return alarms if looks <= 1 else np.zeros_like(alarms)
    out = np.zeros_like(alarms)
    out[looks - 1 :] = np.lib.stride_tricks.sliding_window_view(alarms, looks).all(axis=1)
    return out


# gpulse: a slope, a spike, and the better of the two.


def slope_alarms(seen: Seen, r_squared: float, mb_per_s: float) -> Alarms:
    """R² and slope over the analysis window of an hour, from 5 minutes and 20 samples on."""
    line = seen.hour
    enough = (line.count >= 20) & (line.span_s >= 5 * MINUTE_S)
    return enough & (line.r_squared >= r_squared) & (line.slope >= mb_per_s * MB)


def spike_alarms(seen: Seen, percent: float, window_s: float) -> Alarms:
    """Growth from the start of a short window to its end, at any sample of the last minute."""
    first = np.searchsorted(seen.t, seen.t - window_s)
    # Never fewer than three samples, however slowly they come.
    first = np.maximum(np.minimum(first, np.arange(seen.t.size) - 2), 0)
    rise = seen.x > (1.0 + percent / 100.0) * np.maximum(seen.x[first], 1.0)
    counts = np.concatenate([[0], np.cumsum(rise)])
    begin = np.concatenate([[0], seen.end[:-1]])
    return np.asarray(counts[seen.end] > counts[begin])


def composite_alarms(seen: Seen, mb_per_s: float, percent: float) -> Alarms:
    """Either of them, the highest confidence wins."""
    return slope_alarms(seen, 0.7, mb_per_s) | spike_alarms(seen, percent, 30.0)


# gpumemprof (Stormlog): a share of calls that grow, and a regression over the session.


def growing_alarms(seen: Seen, share: float, growth_mb: float) -> Alarms:
    """Mean change > 0, more than this share of the changes positive, growth beyond this many MB."""
    rises = np.concatenate([[0], np.cumsum(np.diff(seen.x, prepend=seen.x[:1]) > 0)])
    count = np.maximum(seen.end - 1, 1)
    whole = seen.whole
    return (seen.end >= 10) & (rises[seen.end] > share * count) & (whole.growth > growth_mb * MB)


def regression_alarms(seen: Seen, correlation: float, growth_mb: float) -> Alarms:
    """p < 0.05, a correlation beyond this, and growth of at least this many MB."""
    line = seen.whole
    freedom = np.maximum(line.count - 2.0, 1.0)
    fit = np.minimum(line.r_squared, 1.0 - 1e-12)
    statistic = np.sqrt(fit * freedom / (1.0 - fit))
    good = (line.slope > 0) & (statistic > 1.96) & (line.r_squared > correlation**2)
    return (line.count >= 10) & good & (line.growth >= growth_mb * MB)


# Prometheus: predict_linear(used[1h], hours) > total, for some minutes.


def predict_alarms(seen: Seen, hours: float, for_minutes: float) -> Alarms:
    """The line through the last hour crosses the limit within these hours, and goes on doing so."""
    line = seen.hour
    over = line.level + line.slope * hours * HOUR_S > seen.total
    return held((line.count >= 2) & over, int(for_minutes) + 1)


# Mann-Kendall test for a trend, and Sen's slope (the usual pair of the software-aging literature).


@dataclass(frozen=True, kw_only=True, eq=False)
class Trends:
    """Mann-Kendall and Sen over the last 60 minutes; both (looks,)."""

    z: FloatArray
    slope: FloatArray
    """Bytes/s."""


def trends(seen: Seen, points: int = 60) -> Trends:
    """Return the test of the last ``points`` minute values (fewer at the start) at each look."""
    y = seen.minutes
    score = np.zeros(y.size)
    slope = np.zeros(y.size)
    ends = np.arange(1, y.size + 1)
    begins = np.maximum(ends - points, 0)
    slopes: list[FloatArray] = []
    for lag in range(1, min(points, y.size)):
        difference = y[lag:] - y[:-lag]
        sums = np.concatenate([[0.0], np.cumsum(np.sign(difference))])
        last = np.maximum(ends - lag, begins)
        score += np.where(
            ends - begins > lag, sums[np.maximum(last, 0)] - sums[np.minimum(begins, last)], 0.0
        )
        slopes.append(difference / (lag * MINUTE_S))
    size = (ends - begins).astype(np.float64)
    ties = np.zeros(y.size)
    for k, (a, b) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        part = np.sort(y[a:b])
        edge = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1], [True]]))
        run = np.diff(edge).astype(np.float64)
        ties[k] = float((run * (run - 1.0) * (2.0 * run + 5.0)).sum())
        if b - a >= 5 and k % 5 == 4:
            # Every fifth minute: the median of 1770 slopes hardly moves within five.
            pairs = [one[a : b - lag] for lag, one in enumerate(slopes, 1) if b - a > lag]
            slope[k : k + 5] = np.median(np.concatenate(pairs))
    variance = (size * (size - 1.0) * (2.0 * size + 5.0) - ties) / 18.0
    z = np.divide(
        score - np.sign(score), np.sqrt(np.maximum(variance, 1e-9)),
        out=np.zeros_like(score), where=variance > 0.5,
    )  # fmt: skip
    return Trends(z=z, slope=slope)


def mann_kendall_alarms(seen: Seen, found: Trends, z: float, growth_pct: float) -> Alarms:
    """Significant, and Sen's slope would take this share of the device within an hour."""
    enough = seen.at >= 10 * MINUTE_S
    return enough & (found.z > z) & (found.slope * HOUR_S > growth_pct / 100.0 * seen.total)


def first(at: FloatArray, alarms: Alarms) -> float | None:
    """Return when it first alarms."""
    where = np.flatnonzero(alarms)
    return float(at[where[0]]) if where.size else None


def fits(y: npt.NDArray[np.floating[Any]]) -> tuple[FloatArray, FloatArray]:
    """Return slope per point and R² of the lines through the rows of y (rows, points)."""
    points = y.shape[1]
    u = np.arange(points) - (points - 1) / 2.0
    spread = float(u @ u)
    mean = y.mean(axis=1, keepdims=True)
    both = (y - mean) @ u
    height = np.square(y - mean).sum(axis=1)
    fit = np.divide(both * both, spread * height, out=np.zeros_like(both), where=height > 1e-3)
    return both / max(spread, 1e-9), fit
