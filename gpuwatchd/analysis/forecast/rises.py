"""The earlier rises of a subject itself: what was given back each time is likely to be again.

A rise that has got no further than those before it, each of which ended in a release, is most
likely one more of them: where they ended is known from the second on, while a period needs three.
Growth that has left them behind is judged as if there had been none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.analysis import numerics

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray

LEAST_RELEASE = 32.0 * numerics.MIB
SIZE_SHARE = 0.25
"""Releases smaller than this share of the largest growth say nothing about it."""
NEW = 0.25
"""κ: for how many earlier rises the chance counts that this one is of another kind."""
SPREAD = 0.4
"""σ: how much the rises of one subject differ, as a standard deviation of the logarithm."""
PACES = 4.0
"""What rose more than so many times as fast, or as slowly, was of another kind."""
OWN_SHARE = 0.75
"""A window shows the present rise when that brought this share of its growth."""
NEAR = 0.92
"""What ended this near to the limit, as a share of the way there, may have ended in a crash."""


class EarlierRises(NamedTuple):
    """The present rise, and those (r,) before it that were like it and were given back."""

    since_s: float
    """When the present one began, seconds before now (< 0)."""
    level: float
    """How far it has got by now, bytes; positive."""
    heights: FloatArray
    """What was given back at the end of each earlier one, bytes."""

    def chance(self, windows: Windows, headroom: FloatArray, chance: FloatArray) -> FloatArray:
        """Return the chance (k, laws) to reach the limit, given that without these rises.

        ``headroom`` (k,) is bytes from the recent peak to the limit.

        Notes
        -----
        With v the chance of each rise to get here, and l to get to the limit:
        κ / (κ + Σ v) of the chance as it was, and Σ min(v, l) / (κ + Σ v); no more than it was.
        """
        limit = (self.level + np.maximum(headroom, 0.0))[:, None]
        here = upper_tail(np.log(self.level / self.heights) / SPREAD)
        there = upper_tail(np.log(limit / self.heights) / SPREAD)
        here = np.where(self.heights < NEAR * limit, here, 0.0) * self._own(windows)[:, None]
        further = np.add.reduce(np.minimum(here, there), axis=1)
        seen = NEW + np.add.reduce(here, axis=1)
        out: FloatArray = np.minimum((NEW * chance + further[:, None]) / seen[:, None], chance)
        return out

    def _own(self, windows: Windows) -> npt.NDArray[np.bool_]:
        """Say of each window (k,) whether the present rise has brought most of its growth."""
        bins = windows.shares.shape[1]
        before = bins * (self.since_s - windows.begin_s) / windows.age_s
        part = np.minimum(np.maximum(before[:, None] - np.arange(bins), 0.0), 1.0)
        own: npt.NDArray[np.bool_] = (windows.shares * part).sum(axis=1) <= 1.0 - OWN_SHARE
        return own


def earlier_rises(view: SeriesWindow, windows: Windows) -> EarlierRises | None:
    """Return the present rise with those before it that were like it; None without any.

    Cost: a zigzag over at most 720 points, where anything was given back.
    """
    largest = float(np.maximum.reduce(windows.growth))
    size = max(LEAST_RELEASE, 8.0 * view.noise_bytes, SIZE_SHARE * largest)
    if numerics.drawdown(view.mean) < size:
        return None
    fell = (view.mean[:-1] - view.mean[1:] >= size).nonzero()[0]
    if fell.size and float(np.maximum.reduce(windows.end_s)) <= view.t_s[fell[-1]]:
        return None  # All windows ended before the present rise began.
    points = numerics.zigzag(*numerics.extremes(view.t_s, view.mean), size)
    while points and points[-1][2] > 0:
        points.pop()  # The release that has just begun may be none of this rise.
    if not points:
        return None
    since_s, base, _ = points.pop()
    level = float(view.low[-1]) - base
    if level <= 0.0 or since_s >= 0.0:
        return None
    slowest, fastest = level / -since_s / PACES, level / -since_s * PACES
    begun_s, low = float(view.t_s[0]), float(view.mean[0])
    heights = []
    for k, (at_s, value, kind) in enumerate(points):
        if kind < 0:
            begun_s, low = at_s, value
        elif slowest <= (value - low) / max(at_s - begun_s, view.step_s) <= fastest:
            heights.append(value - (points[k + 1][1] if k + 1 < len(points) else base))
    return EarlierRises(since_s, level, np.array(heights)) if heights else None


def upper_tail(z: FloatArray) -> FloatArray:
    """Return the upper tail of the normal law, to 2e-4 (Bowling and others, 2009)."""
    bounded = np.minimum(np.maximum(z, -8.0), 8.0)
    out: FloatArray = 1.0 / (1.0 + np.exp(bounded * (1.5976 + 0.07056 * bounded * bounded)))
    return out
