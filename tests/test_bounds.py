"""Sizes that are known beside the curve bound its growth, as far as they are believed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import forecast, numerics
from gpuwatchd.analysis.verdict import judge
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Finding, GrowthFact
from tests.making import GIB, series

if TYPE_CHECKING:
    import numpy.typing as npt

T = np.arange(0.0, 5400.0, 10.0)
FILL = 6.0 * GIB + T * 2e6
"""6 GiB, and 10 GiB more in an hour and a half, of 24."""
T_LONG = np.arange(0.0, 9000.0, 10.0)


def judged(*facts: GrowthFact, base_gib: float | None = 6.0) -> Finding:
    base = None if base_gib is None else base_gib * GIB
    one = series(T, FILL, limit_bytes=24.0 * GIB, total_bytes=24.0 * GIB)
    return judge(msgspec.structs.replace(one, facts=facts, base_bytes=base), DetectionSection())


def part(gib: float, weight: float = 0.9, source: str = "command line") -> GrowthFact:
    name = FactName.DECLARED_SIZE
    return GrowthFact(name=name, source=source, weight=weight, part_bytes=gib * GIB)


def level(gib: float, weight: float = 0.9, source: str = "command line") -> GrowthFact:
    name = FactName.DECLARED_SHARE
    return GrowthFact(name=name, source=source, weight=weight, level_bytes=gib * GIB)


def bounds(*facts: GrowthFact, now_gib: float, limit_gib: float = 24.0) -> forecast.Bounds | None:
    """What facts say of a process of 6 GiB at first that has grown to a level."""
    used = np.linspace(6.0, now_gib, T.size) * GIB
    one = series(T, used, limit_bytes=limit_gib * GIB, total_bytes=24.0 * GIB)
    one = msgspec.structs.replace(one, facts=facts, base_bytes=6.0 * GIB)
    return forecast.bounds(one, numerics.prepare(one, math.inf))


def explains(*facts: GrowthFact, now_gib: float) -> float:
    said = bounds(*facts, now_gib=now_gib)
    return 0.0 if said is None else said.explains


def first_alert_s(
    curve: npt.NDArray[np.float64], *facts: GrowthFact, base_gib: float = 4.0
) -> float | None:
    """When a process that began with so much on a card of 24 GiB alerts."""
    for count in range(60, T_LONG.size, 12):
        one = series(T_LONG[:count], curve[:count], limit_bytes=24.0 * GIB, total_bytes=24.0 * GIB)
        one = msgspec.structs.replace(one, facts=facts, base_bytes=base_gib * GIB)
        if judge(one, DetectionSection()).tier == "alert":
            return float(T_LONG[count])
    return None


def test_growth_within_a_declared_size_is_expected() -> None:
    found = judged(part(14.0))
    assert found.tier == "none"
    assert found.facts == (part(14.0),)
    assert found.confidence < judged().confidence


def test_growth_beyond_it_is_judged_as_if_nothing_were_known() -> None:
    plain, beyond = judged(), judged(part(3.0))
    assert (beyond.tier, beyond.confidence) == (plain.tier, plain.confidence)
    assert plain.tier == "alert"


@pytest.mark.parametrize("gib", [20.0, 21.6])
def test_a_share_of_the_card_bounds_the_whole(gib: float) -> None:
    assert judged(level(gib)).tier == "none"


def test_a_size_that_does_not_fit_calms_nothing() -> None:
    assert judged(part(60.0)).confidence >= judged().confidence - 0.02


def test_parts_fill_side_by_side() -> None:
    assert judged(part(7.0), part(7.0)).tier == "none"


def test_without_its_beginning_a_part_counts_for_nothing() -> None:
    assert judged(part(14.0), base_gib=None).tier == judged().tier


def test_what_is_hardly_believed_changes_little() -> None:
    assert judged(part(14.0, weight=0.1)).confidence > 0.8 * judged().confidence


@pytest.mark.parametrize("weight", [0.3, 0.5, 0.8])
def test_of_a_bound_that_lies_well_ahead_the_weight_is_the_chance(weight: float) -> None:
    assert explains(part(12.0, weight), now_gib=8.0) == pytest.approx(weight, abs=0.01)
    assert explains(level(20.0, weight), now_gib=8.0) == pytest.approx(weight, abs=0.01)


@pytest.mark.parametrize(
    ("fact", "now_gib", "least", "most"),
    [
        # At the bound half of what it explains has ended: 0.35 / (0.35 + 0.3).
        (part(6.0, 0.7), 12.0, 0.50, 0.56),
        (part(6.0, 0.7), 13.0, 0.15, 0.40),
        (part(6.0, 0.7), 14.5, 0.0, 0.08),
        (level(16.0, 0.8), 16.0, 0.62, 0.68),
        (level(16.0, 0.8), 16.2, 0.40, 0.60),
        (level(16.0, 0.8), 16.6, 0.0, 0.10),
        # Nothing is certain.
        (level(16.0, 1.0), 17.0, 0.0, 0.1),
    ],
)
def test_growth_beyond_a_bound_is_explained_less_and_less(
    fact: GrowthFact, now_gib: float, least: float, most: float
) -> None:
    assert least <= explains(fact, now_gib=now_gib) <= most


def test_a_bound_beyond_the_limit_is_reached() -> None:
    said = bounds(part(40.0, 0.7), now_gib=8.0)
    assert said is not None
    assert said.further == pytest.approx(said.explains)
    assert not said.expected


def test_what_says_the_same_counts_once() -> None:
    once = judged(level(20.0, 0.8))
    twice = judged(level(20.0, 0.8), level(20.3, 0.6, "vLLM"))
    assert (twice.confidence, twice.facts) == (once.confidence, once.facts)
    alone = explains(part(4.0, 0.5), now_gib=8.0)
    assert explains(part(4.0, 0.5), part(4.1, 0.4, "a.yaml"), now_gib=8.0) == alone
    # Two buffers of one command line are two, and so are two levels.
    assert explains(part(4.0, 0.5), part(4.0, 0.5), now_gib=12.0) > 0.45
    assert explains(level(20.0, 0.5), level(22.0, 0.5), now_gib=8.0) == pytest.approx(
        0.75, abs=0.01
    )


def test_a_sure_part_is_not_lost_beside_a_large_one_that_is_hardly_believed() -> None:
    both = part(2.0, 0.9), part(60.0, 0.3)
    assert explains(*both, now_gib=7.0) > 0.9
    assert explains(*both, now_gib=12.0) == pytest.approx(0.3, abs=0.01)
    said = bounds(*both, now_gib=12.0)
    assert said is not None
    assert said.further == pytest.approx(said.explains)


BUFFER = 4.0 * GIB + np.minimum(T_LONG / 3600.0, 1.0) * 6.0 * GIB


def test_a_leak_after_a_filled_buffer_or_beside_it_is_found() -> None:
    buffer, after = part(6.0, 0.7), np.maximum(T_LONG - 3600.0, 0.0) * 1e6
    assert first_alert_s(BUFFER) is not None
    assert first_alert_s(BUFFER, buffer) is None
    alert_s = first_alert_s(BUFFER + after, buffer)
    assert alert_s is not None
    assert 3600.0 < alert_s < 6000.0
    plain_s, beside_s = (first_alert_s(BUFFER + T_LONG * 1e6, *facts) for facts in ((), (buffer,)))
    assert plain_s is not None
    assert beside_s is not None
    assert beside_s < plain_s + 900.0


def test_a_leak_beside_a_pool_that_is_full_is_found() -> None:
    pool, curve = level(21.6), 21.6 * GIB + np.maximum(T_LONG - 600.0, 0.0) * 3e5
    plain_s = first_alert_s(curve, base_gib=21.6)
    assert plain_s is not None
    # Taken at once, the pool explains nothing of it.
    assert first_alert_s(curve, pool, base_gib=21.6) == plain_s
    filled_s = first_alert_s(curve, pool, base_gib=8.0)
    assert filled_s is not None
    assert filled_s <= plain_s + 300.0
