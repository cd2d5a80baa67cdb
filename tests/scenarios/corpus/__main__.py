"""Prints base rates of the harmless families: how often something rises straight, and how soon
jobs are at their level."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.scenarios import corpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Series
    from tests.scenarios.world import Array

DAY_S = 86400.0
RAMP_S, RISES, PART, STRAIGHT = 1200.0, 4, 0.05, 0.95
"""A straight ramp: so long at least, so many rises, such a part of the card, such an R²."""
POINTS = 20
"""Points of a window of :data:`RAMP_S`."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Base rates of some items."""

    items: int
    days: float
    ramps: int
    settle_s: Array
    """Seconds to 95 % of the maximum, of each process that was seen from its start."""

    @property
    def ramps_per_day(self) -> float:
        """Straight ramps per GPU-day."""
        return self.ramps / self.days


def straight_ramps(series: Series) -> int:
    """Return how many separate straight ramps of 20 min or more there are in a series.

    Windows of 20 min to 6 h are laid over it, the shortest first; those that overlap are one.
    """
    t, used, total = series.t_s, series.used_bytes, float(series.total_bytes or 1.0)
    found: list[tuple[float, float]] = []
    x = np.arange(POINTS + 1) - POINTS / 2
    length = RAMP_S
    while length <= min(6 * 3600.0, float(t[-1] - t[0])):
        grid = np.arange(t[0], t[-1] + 1e-9, length / POINTS)
        parts = sliding_window_view(np.interp(grid, t, used), POINTS + 1)[:: POINTS // 4]
        rises = np.count_nonzero(np.diff(parts, axis=1) > 1e-4 * total, axis=1)
        away = parts - parts.mean(axis=1, keepdims=True)
        slope = away @ x
        straight = slope * np.abs(slope) > STRAIGHT * (x @ x) * np.square(away).sum(axis=1)
        grown = parts[:, -1] - parts[:, 0] >= PART * total
        starts = t[0] + np.flatnonzero(straight & grown & (rises >= RISES)) * (length / 4)
        found += [(float(at), float(at) + length) for at in starts]
        length *= 1.5
    count, end = 0, -np.inf
    for low, high in sorted(found):
        count += low > end
        end = max(end, high)
    return count


def settle_times(item: corpus.Item) -> list[float]:
    """Return how long each process took to 95 % of its maximum, if it was seen from its start."""
    return [
        float(view.t_s[np.argmax(view.used_bytes >= 0.95 * view.used_bytes.max())] - view.t_s[0])
        for view in item.views
        if view.begin_s > -60.0
    ]


def rates(families: Iterable[str], seeds: Sequence[int]) -> Rates:
    """Return base rates of some families."""
    items = [corpus.build(family, seed) for family in families for seed in seeds]
    return Rates(
        items=len(items),
        days=sum(item.length_s for item in items) / DAY_S,
        ramps=sum(straight_ramps(item.series) for item in items),
        settle_s=np.array([one for item in items for one in settle_times(item)]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the base rates of all harmless families, and of those that are like the field."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.corpus", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="items of each family")
    seeds = range(parser.parse_args(argv).seeds)
    field = set(corpus.BENIGN) - corpus.HARD
    print(f"{len(corpus.LEAKS)} families leak, {len(corpus.BENIGN)} are harmless.")
    print("harmless  families  items  GPU-days  ramps  a day  95 % of its maximum (median, 90 %)")
    for name, families in (("all", corpus.BENIGN), ("field", field), ("hard", corpus.HARD)):
        one = rates(sorted(families), seeds)
        half, most = np.quantile(one.settle_s, (0.5, 0.9))
        print(
            f"{name:8}  {len(families):8}  {one.items:5}  {one.days:8.1f}  {one.ramps:5}"
            f"  {one.ramps_per_day:5.2f}  {half:.0f} s, {most / 60:.1f} min"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
