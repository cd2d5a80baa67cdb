"""The path of a tick is no longer than it was; the figures are those of ``make shape``."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import need
from tests.fakenvml import FakeNvml
from tests.shape import path
from tests.shape.figures import read_limits

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kinds() -> path.Kinds:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    return path.incident()


def test_the_path_of_a_tick_is_within_its_limits(kinds: path.Kinds) -> None:
    limits = {key: limit * (1 + path.TOLERANCE) for key, limit in read_limits().items()}
    figures = path.figures_of(kinds)
    assert all(figure.key in limits for figure in figures)
    above = {one.key: (one.value, limits[one.key]) for one in figures if one.exceeds(limits)}
    assert above == {}


def test_the_incident_is_whole(kinds: path.Kinds) -> None:
    """It reads the card, judges, writes the history and hands a message over."""
    every = {name for ticks in kinds.values() for modules, _ in ticks for name in modules}
    for package in ("collect", "collect.host", "analysis.verdict", "alerts", "store", "notify"):
        assert any(name.startswith(f"gpuwatchd.{package}.") for name in every), package
    assert len(kinds["judging"]) > 10
    assert len(kinds["quiet"]) > 10
    assert len(kinds["sending"]) == 1


def test_steps_count_modules_and_changes_of_ours_only() -> None:
    from gpuwatchd.core import text, units

    steps = path.Steps()
    sys.setprofile(steps)
    try:
        text.clean("a")
        text.clean("b")
        units.duration(60.0)
        text.clean("c")
    finally:
        sys.setprofile(None)
    modules, changes = steps.taken()
    assert modules == ["gpuwatchd.core.text", "gpuwatchd.core.units"]
    assert changes == 2
    assert steps.taken() == ([], 0)


def test_figures_are_the_low_median_of_each_kind() -> None:
    ticks = [(["a"], 1), (["a", "b"], 5), (["a", "c"], 3), (["a", "b", "c", "d"], 9)]
    found = {
        one.key: one.value
        for one in path.figures_of({"judging": ticks, "sending": ticks[:1], "quiet": ticks[1:2]})
    }
    assert found["path, modules in all"] == 4
    assert found["path, modules of a judging tick"] == 2
    assert found["path, changes of module in a judging tick"] == 3
    assert found["path, changes of module in a quiet tick"] == 5
