"""Where growth ends, as far as something beside the curve says so: declared sizes, pools, bounds.

A fact names what the subject holds at most, or how much a part of it adds once it is full. Its
weight is the chance, before anything is seen of the growth, that growth ends at that bound, where
it has not ended at a lower one. What is seen weighs it anew: growth that ends there seldom gets
above the bound, other growth is not kept from it. So a fact that lies well ahead counts by its
weight, and growth beyond all facts is judged as if nothing were known.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, GrowthFact, Series

PART_SPREAD: Final = 0.15
"""How much more a part takes than was declared (overheads, alignment), as a standard deviation of
the logarithm."""
LEVEL_SPREAD: Final = 0.015
"""The same of a share of the device: contexts and graphs come on top."""
FULL_SHARE: Final = 0.95
"""A pool that was taken by so much when its process had started is none that still fills."""
EXPECTED: Final = 0.55
"""What a fact explains with this chance is not even watched."""
CERTAIN: Final = 0.95
"""No fact weighs more: else nothing beyond it could be news."""
_COUNTS: Final = 0.05
_SAME: Final = 0.03
_SMALL_SHARE: Final = 0.01


class _Bound(NamedTuple):
    """One level at which growth may end."""

    facts: tuple[GrowthFact, ...]
    level_bytes: float
    weight: float
    """Chance that it does, where it does not end at a lower one."""
    base_bytes: float
    """What the subject held before."""
    spread: float

    def tail(self, at_bytes: float, small: float) -> float:
        """Return the chance that growth which ends there gets to a level."""
        size = self.level_bytes - self.base_bytes
        ratio = (max(at_bytes - self.base_bytes, 0.0) + small) / (size + small)
        return 0.5 * math.erfc(math.log(ratio) / self.spread / math.sqrt(2.0))


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

    Notes
    -----
    Of bounds b in ascending order, with weights w and the chances h and l of growth that ends there
    to get here and to the limit: p_b = w_b Π (1 - w_a) over a < b, p_0 = Π (1 - w_b) for none of
    them; explains = Σ p h / (p_0 + Σ p h), further = Σ p min(h, l) / (p_0 + Σ p h).
    """
    if not series.facts or not view.t_s.size:
        return None
    scale = series.total_bytes or series.limit_bytes or float(view.high.max())
    limit = series.limit_bytes or scale
    now, small = float(view.floor[-1]), _SMALL_SHARE * scale
    counted: list[_Bound] = []
    none, explains, further = 1.0, 0.0, 0.0
    for bound in sorted(_bounds(series), key=lambda bound: bound.level_bytes):
        here, there = bound.tail(now, small), bound.tail(limit, small)
        if bound.weight * here < _COUNTS:
            continue
        counted.append(bound)
        explains += none * bound.weight * here
        further += none * bound.weight * min(here, there)
        none *= 1.0 - bound.weight
    if not counted:
        return None
    facts = tuple(dict.fromkeys(fact for bound in counted for fact in bound.facts))
    seen = none + explains
    return Bounds(facts, explains / seen, further / seen, counted[0].level_bytes)


def _bounds(series: Series) -> Iterator[_Bound]:
    """Yield the levels of all facts.

    Parts that are equally sure are added up: buffers fill side by side. Those that are less sure
    come on top. They count from what the process held when it had started, and only where that was
    seen.
    """
    base = series.base_bytes
    for fact in _distinct([fact for fact in series.facts if (fact.level_bytes or 0.0) > 0.0]):
        level = fact.level_bytes or 0.0
        if base is None or base < FULL_SHARE * level:
            yield _Bound((fact,), level, _weight(fact), 0.0, LEVEL_SPREAD)
    if base is None:
        return
    parts: tuple[GrowthFact, ...] = ()
    told = _distinct([fact for fact in series.facts if (fact.part_bytes or 0.0) > 0.0])
    for weight, alike in groupby(told, key=_weight):
        parts += tuple(alike)
        level = base + sum(fact.part_bytes or 0.0 for fact in parts)
        yield _Bound(parts, level, weight, base, PART_SPREAD)


def _distinct(facts: Sequence[GrowthFact]) -> list[GrowthFact]:
    """Return facts, the heaviest first, and only that one of those that say the same.

    Two parts of one source are two parts, though they are alike.
    """
    kept: list[GrowthFact] = []
    for fact in sorted(facts, key=_weight, reverse=True):
        alike = (other for other in kept if fact.part_bytes is None or other.source != fact.source)
        size = fact.level_bytes or fact.part_bytes or 0.0
        sizes = (other.level_bytes or other.part_bytes or 0.0 for other in alike)
        if not any(abs(math.log(size / other)) <= _SAME for other in sizes):
            kept.append(fact)
    return kept


def _weight(fact: GrowthFact) -> float:
    return min(fact.weight, CERTAIN)
