"""The figures of the code base are within their limits (``make shape``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.shape import figures, prose, tree
from tests.shape.figures import Figure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def measured() -> list[Figure]:
    return figures.measured()


def test_no_figure_is_above_its_limit(measured: list[Figure]) -> None:
    limits = figures.read_limits()
    assert all(figure.key in limits for figure in measured)
    above = {one.key: (one.value, one.bound(limits)) for one in measured if one.exceeds(limits)}
    assert above == {}, (
        "see: make shape ARGS=--verbose; a new feature raises tests/shape/limits.json"
    )


def test_foreign_texts_are_those_of_modules_that_exist() -> None:
    assert prose.FOREIGN.keys() - tree.package().keys() == set()


@pytest.mark.parametrize(
    ("value", "limit", "target", "exceeds"),
    [
        (10, 10, 5, False),
        (11, 10, 5, True),
        (5, 4, 5, False),  # the target is reached: it counts
        (6, 4, 5, True),
        (11, 10, None, True),
        (11, None, 5, False),
    ],
)
def test_a_figure_may_be_at_most_its_limit_or_its_target(
    value: float, limit: float | None, target: float | None, exceeds: bool
) -> None:
    limits = {} if limit is None else {"x": limit}
    assert Figure("x", value, target).exceeds(limits) is exceeds


@pytest.mark.parametrize(
    ("value", "limit", "exceeds"), [(1.7, 1.7, False), (1.6, 1.7, True), (5.0, 6.0, False)]
)
def test_what_is_to_grow_may_be_at_least_its_limit(
    value: float, limit: float, exceeds: bool
) -> None:
    assert Figure("x", value, 5.0, at_least=True).exceeds({"x": limit}) is exceeds


def test_limits_only_get_better() -> None:
    found = [Figure("a", 3, 0), Figure("b", 9, 0), Figure("c", 2, 5, at_least=True)]
    assert figures.lowered(found, {"a": 5, "b": 7, "c": 1, "d": 4}) == {
        "a": 3,
        "b": 7,
        "c": 2,
        "d": 4,
    }
    assert figures.lowered([Figure("new", 8, 0)], {}) == {"new": 8}


def test_limits_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    assert figures.read_limits(file) == {}
    figures.write_limits({"a": 1, "b": 2.5}, file)
    assert figures.read_limits(file) == {"a": 1, "b": 2.5}
    assert json.loads(file.read_text()) == {"a": 1, "b": 2.5}


def test_the_table_marks_what_is_worse_than_it_may_be() -> None:
    rows = figures.table([Figure("a", 1200, 5), Figure("b", 1, None)], {"a": 1100})
    assert rows[1].split() == ["a", "1,200", "1,100", "5", "!"]
    assert rows[2].split() == ["b", "1", "-", "-"]


def test_every_figure_of_invented_source(tmp_path: Path) -> None:
    package = tmp_path / "gpuwatchd"
    (package / "cli").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (package / "__init__.py").write_text('"""Ours."""\n')
    (package / "cli" / "herald.py").write_text(
        "from gpuwatchd.web import x\n\n\ndef f():\n    pass\n"
    )
    (package / "web.py").write_text("x = 1\n")
    (package / "prices.toml").write_text("a = 1\nb = 2\n")
    (tmp_path / "tests" / "test_a.py").write_text("1\n2\n3\n")
    found = {one.key: one.value for one in figures.measured(tree.package(tmp_path), tmp_path)}
    assert found["modules"] == 3
    assert found["lines"] == 7
    assert found["statements"] == 5
    assert found["entries at the top"] == 3
    assert found["lines of tests"] == 3
    assert (found["lines of data"], found["bytes of data"]) == (2, 12)
    assert found["imports between faces"] == 1
    assert found["documented functions, %"] == 0.0
    assert found["forbidden names"] == 1
    assert found["files below 60 lines"] == 2
