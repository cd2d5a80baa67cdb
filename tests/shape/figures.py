"""The figures of the package as it stands, each with what it is to become, and their limits.

A limit is what was measured when it was last written (limits.json); it only ever gets better, until
the target of layout.md is reached: from there on the target is the limit.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.shape import classes, imports, names, prose, sizes, tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.shape.tree import Tree

LIMITS = Path(__file__).with_name("limits.json")
_SKIP = "# fmt: " + "skip"


class Figure(NamedTuple):
    """One row of the table.

    ``places`` says where, where that helps; ``at_least`` turns the limit round: the share of
    documented functions and the comments may only grow.
    """

    key: str
    value: float
    target: float | None
    places: tuple[str, ...] = ()
    at_least: bool = False

    def bound(self, limits: dict[str, float]) -> float | None:
        """Return what the value may be at most (at least); None where there is no limit yet."""
        limit = limits.get(self.key)
        if limit is None or self.target is None:
            return limit
        return min(limit, self.target) if self.at_least else max(limit, self.target)

    def exceeds(self, limits: dict[str, float]) -> bool:
        """Return whether the value is worse than it may be."""
        bound = self.bound(limits)
        if bound is None:
            return False
        return self.value < bound if self.at_least else self.value > bound


def measured(modules: Tree | None = None, root: Path = tree.ROOT) -> list[Figure]:
    """Return every figure that the source text alone gives, in the order of the table."""
    modules = tree.package(root) if modules is None else modules
    every = list(modules.values())
    found = classes.exempt(modules)
    own = [(m, c) for m in every for c in m.classes if (m.name, c.name) not in found]
    edges = imports.graph(modules)
    loops = imports.cycles(edges)
    spoken = [sizes.comments(module) for module in every]
    documented, public = sizes.documented(modules)
    data = list(sizes.files(root / tree.PACKAGE, sizes.DATA))
    tests = sizes.files(root / "tests", {".py"})
    return [
        Figure("modules", len(every), 330),
        Figure("lines", sum(sizes.lines(m.text) for m in every), 74_000),
        Figure("statements", sum(map(sizes.statements, every)), 44_000),
        Figure("entries at the top", len(sizes.entries(root)), 20),
        Figure("lines of tests", sum(map(sizes.lines, tests)), 75_000),
        Figure("lines of data", sum(map(sizes.lines, data)), None),
        Figure("bytes of data", sum(len(text.encode()) for text in data), None),
        Figure("import cycles", len(loops), 0, tuple(", ".join(loop) for loop in loops)),
        Figure("modules in the largest cycle", max(map(len, loops), default=0), 0),
        _places(
            "imports between faces",
            (f"{one} imports {other}" for one, other in imports.between_faces(edges)),
        ),
        _places(
            f"classes with more than {classes.MOST_PARAMETERS} parameters",
            (
                f"{m.path}:{c.lineno} {c.name}: {classes.parameters(c)}"
                for m, c in own
                if classes.parameters(c) > classes.MOST_PARAMETERS
            ),
        ),
        _places(
            f"classes with more than {classes.MOST_ATTRIBUTES} attributes",
            (
                f"{m.path}:{c.lineno} {c.name}: {len(classes.attributes(c))}"
                for m, c in own
                if len(classes.attributes(c)) > classes.MOST_ATTRIBUTES
            ),
        ),
        _places(
            "assignments to other objects",
            (f"{m.path}:{line}" for m in every for line in classes.assigned_outside(m)),
        ),
        _places(
            "lazy imports without a measured reason",
            (f"{m.path}:{line}" for m in every for line in imports.lazy(m)),
        ),
        Figure("fmt: skip", sum(m.text.count(_SKIP) for m in every), 20),
        _places(
            f"files above {sizes.LONG} lines",
            (m.path for m in every if sizes.lines(m.text) > sizes.LONG),
        ),
        _places(
            f"files below {sizes.SHORT} lines", (m.path for m in every if sizes.small(m)), target=15
        ),
        Figure(
            "comments per 100 lines of code",
            _tenths(100 * sum(said for said, _ in spoken), sum(code for _, code in spoken)),
            5.0,
            at_least=True,
        ),
        Figure("documented functions, %", _tenths(100 * documented, public), 97.0, at_least=True),
        _places("decisions by text", (f"{m.path}:{n} {e}" for m, n, e in prose.decided(modules))),
        _places("forbidden names", (f"{m.path}:{n} {e}" for m, n, e in names.forbidden(modules))),
    ]


def _places(key: str, places: Iterable[str], target: float = 0) -> Figure:
    found = tuple(places)
    return Figure(key, len(found), target, found)


def _tenths(part: float, whole: int) -> float:
    """Return a quotient in tenths, rounded down: what is asked for is never rounded into reach."""
    return math.floor(10 * part / max(1, whole)) / 10


def read_limits(file: Path = LIMITS) -> dict[str, float]:
    """Return key -> limit; nothing where none were written yet."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def lowered(figures: Iterable[Figure], limits: dict[str, float]) -> dict[str, float]:
    """Return the limits with every figure that got better, or has none yet, taken over."""
    fresh = dict(limits)
    for figure in figures:
        limit = limits.get(figure.key, figure.value)
        fresh[figure.key] = (max if figure.at_least else min)(limit, figure.value)
    return fresh


def write_limits(limits: dict[str, float], file: Path = LIMITS) -> None:
    """Write the limits, one a line."""
    file.write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")


def table(figures: Iterable[Figure], limits: dict[str, float]) -> list[str]:
    """Return the table as lines; a figure that is worse than its limit is marked."""
    rows = [f"{'figure':45}{'today':>10}{'limit':>10}{'target':>10}"]
    for one in figures:
        cells = (f"{_shown(value):>10}" for value in (one.value, limits.get(one.key), one.target))
        rows.append(f"{one.key:45}{''.join(cells)}{'  !' if one.exceeds(limits) else ''}")
    return rows


def folders(modules: Tree) -> list[str]:
    """Return the lines of each folder at the top beside its budget; nothing is limited here.

    Files move between folders during the move of the house; what binds is the sum.
    """
    rows = [f"{'lines of folder':45}{'today':>10}{'budget':>20}"]
    for folder, count in sorted(sizes.by_folder(modules).items()):
        rows.append(f"{folder:45}{_shown(count):>10}{_shown(sizes.BUDGETS.get(folder)):>20}")
    return rows


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
