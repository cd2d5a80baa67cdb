"""Sizes that are known beside the curve bound its growth, as far as they are believed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis.verdict import judge
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Finding, GrowthFact
from tests.making import GIB, series

T = np.arange(0.0, 5400.0, 10.0)
FILL = 6.0 * GIB + T * 2e6
"""6 GiB, and 10 GiB more in an hour and a half, of 24."""


def judged(*facts: GrowthFact, base_gib: float | None = 6.0) -> Finding:
    base = None if base_gib is None else base_gib * GIB
    one = series(T, FILL, limit_bytes=24.0 * GIB, total_bytes=24.0 * GIB)
    return judge(msgspec.structs.replace(one, facts=facts, base_bytes=base), DetectionSection())


def part(gib: float, weight: float = 0.9) -> GrowthFact:
    name = FactName.DECLARED_SIZE
    return GrowthFact(name=name, source="command line", weight=weight, part_bytes=gib * GIB)


def level(gib: float) -> GrowthFact:
    name = FactName.DECLARED_SHARE
    return GrowthFact(name=name, source="command line", weight=0.9, level_bytes=gib * GIB)


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
