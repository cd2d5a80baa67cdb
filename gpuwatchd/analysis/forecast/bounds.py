"""Where growth ends, as far as something beside the curve says so: declared sizes, pools, bounds.

A fact names what the subject holds at most, or how much a part of it adds once it is full. As with
earlier runs of a program, it gives a chance that a growth which it explains gets to the present
level, and a chance that it goes on to the limit; the weight of the fact is how often growth of this
size is what the fact is about. Growth beyond all facts is judged as if nothing were known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, GrowthFact, Series

PART_SPREAD: Final = 0.2
"""How much more a part takes than was declared (overheads, alignment), as a standard deviation of
the logarithm."""
LEVEL_SPREAD: Final = 0.05
"""The same of a share of the device: contexts and graphs come on top."""
EXPECTED: Final = 0.6
"""What a fact explains with this chance is not even watched."""
_SMALL_SHARE: Final = 0.01


class Bounds(NamedTuple):
    """What the facts say of one subject at one instant."""

    facts: tuple[GrowthFact, ...]
    """Those that count: growth is still below them."""
    explains: float
    """0-1: chance that growth is what they are about."""
    further: float
    """0-1: chance that it is, and goes on to the limit: they are too large for it."""
    level_bytes: float
    """Where the subject is when the lowest of them is full."""

    @property
    def expected(self) -> bool:
        """Whether growth is explained by them, and ends before the limit."""
        return self.explains - self.further >= EXPECTED

    def chance(self, chance: FloatArray) -> FloatArray:
        """Return the chance (k, laws) to reach the limit, given that without facts."""
        return (1.0 - self.explains) * chance + self.further

    def words(self) -> str:
        """Return what explains the growth, for people."""
        return "; ".join(f"{fact.text} ({fact.source})" for fact in self.facts if fact.text)


def bounds(series: Series, view: SeriesWindow) -> Bounds | None:
    """Return what the facts of a series say of it now; None where none of them counts.

    Facts of parts are added up: buffers fill side by side. They count from what the process held
    when it had started (``base_bytes``), and only where that was seen.
    """
    if not series.facts or not view.t_s.size:
        return None
    scale = series.total_bytes or series.limit_bytes or float(view.high.max())
    limit = series.limit_bytes or scale
    now, small = float(view.floor[-1]), _SMALL_SHARE * scale
    counted: list[tuple[tuple[GrowthFact, ...], float, float, float]] = []
    for fact in series.facts:
        if fact.level_bytes is not None and fact.level_bytes > 0.0:
            here = _tail(math.log((now + small) / (fact.level_bytes + small)) / LEVEL_SPREAD)
            there = _tail(math.log((limit + small) / (fact.level_bytes + small)) / LEVEL_SPREAD)
            counted.append(((fact,), fact.level_bytes, fact.weight * here, fact.weight * there))
    parts = tuple(fact for fact in series.facts if fact.part_bytes)
    base = series.base_bytes
    if parts and base is not None:
        size = sum(fact.part_bytes or 0.0 for fact in parts)
        weight = sum(fact.weight * (fact.part_bytes or 0.0) for fact in parts) / size
        here = _tail(math.log((max(now - base, 0.0) + small) / (size + small)) / PART_SPREAD)
        there = _tail(math.log((max(limit - base, 0.0) + small) / (size + small)) / PART_SPREAD)
        counted.append((parts, base + size, weight * here, weight * there))
    counted = [row for row in counted if row[2] >= 0.05]
    if not counted:
        return None
    # The first that is full ends the growth, where it is what the growth is about.
    missed, further = 1.0, 0.0
    for _, _, here, there in sorted(counted, key=lambda row: row[1]):
        further += missed * min(here, there)
        missed *= 1.0 - here
    facts = tuple(fact for row in counted for fact in row[0])
    return Bounds(facts, 1.0 - missed, further, min(row[1] for row in counted))


def _tail(z: float) -> float:
    """Return the upper tail of the normal law."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))
