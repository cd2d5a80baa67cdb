"""How much there is: lines, statements, entries, comments, documentation, package data."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.shape.tree import PACKAGE, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.shape.tree import Module, Tree

LONG, SHORT = 600, 60
FAMILIES = (
    "gpuwatchd.analysis.detectors",
    "gpuwatchd.analysis.frameworks",
    "gpuwatchd.collect.logs.formats",
    "gpuwatchd.collect.engines",
    "gpuwatchd.collect.nvml",
    "gpuwatchd.collect.metal",
    "gpuwatchd.collect.drm",
    "gpuwatchd.collect.scenarios",
    "gpuwatchd.notify.channels",
    "gpuwatchd.view.queries",
    "gpuwatchd.cli.verbs",
    "gpuwatchd.cli.doctor",
    "gpuwatchd.integrations",
    "gpuwatchd.tui.screens",
    "gpuwatchd.tui.widgets",
)
"""Folders whose modules are rows of a table, today's and those to come: a file may be small."""
BUDGETS = {
    "core": 4000,
    "analysis": 9500,
    "alerts": 4500,
    "charts": 3200,
    "collect": 14300,
    "store": 4800,
    "notify": 3500,
    "act": 700,
    "service": 2300,
    "pipeline": 5500,
    "daemon": 900,
    "view": 9500,
    "cli": 5600,
    "tui": 3800,
    "web": 1900,
}
"""Lines of Python of each folder at the top, when the house is done."""
DATA = frozenset({".json", ".js", ".html", ".j2", ".css", ".toml"})
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_PRAGMA = re.compile(r"fmt: ?\w+|noqa(:? ?[A-Z]+[0-9]+,?)*|type: ?ignore(\[[\w, -]*\])?|pragma: .*")


def lines(text: str) -> int:
    """Return the physical lines, as ``wc -l`` counts them."""
    return text.count("\n")


def statements(module: Module) -> int:
    """Return how many statements there are: every ``ast.stmt``, docstrings with them."""
    return sum(isinstance(node, ast.stmt) for node in module.nodes)


def by_folder(tree: Tree) -> dict[str, int]:
    """Return entry at the top -> its lines of Python."""
    found: dict[str, int] = {}
    for module in tree.values():
        entry = module.path.split("/")[1].removesuffix(".py")
        found[entry] = found.get(entry, 0) + lines(module.text)
    return found


def entries(root: Path = ROOT) -> list[str]:
    """Return the folders and the Python files at the top of the package."""
    found = (p for p in (root / PACKAGE).iterdir() if p.is_dir() or p.suffix == ".py")
    return sorted(p.name for p in found if not p.name.startswith((".", "__pycache__")))


def small(module: Module) -> bool:
    """Return whether a file is too small to hold an idea of its own."""
    alone = not module.is_package and not module.within(*FAMILIES)
    return alone and lines(module.text) < SHORT


def comments(module: Module) -> tuple[int, int]:
    """Return how many comments there are that say something, and lines of code.

    A bare ``noqa`` says nothing. Lines of code are those that are not blank, not part of a
    docstring and not a comment alone.
    """
    text = module.text.splitlines()
    within: set[int] = set()
    for node in module.nodes:
        if isinstance(node, ast.Constant) and '"""' in text[node.lineno - 1]:
            within |= set(range(node.lineno, node.end_lineno or 0))
    found = 0
    for number, line in enumerate(text, 1):
        if "#" in line and number not in within:
            found += bool(re.search(r"[A-Za-z]", _PRAGMA.sub("", _comment(line))))
    documents = {
        number
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = sum(
        bool(line.strip()) and (number in within or not line.lstrip().startswith("#"))
        for number, line in enumerate(text, 1)
        if number not in documents
    )
    return found, code


def _comment(line: str) -> str:
    return _STRING.sub("", line.rpartition('"""')[2]).partition("#")[2]


def documented(tree: Tree) -> tuple[int, int]:
    """Return how many public functions and methods have a docstring, and how many there are."""
    public = [f for m in tree.values() for f in m.functions if not f.name.startswith("_")]
    return sum(ast.get_docstring(one) is not None for one in public), len(public)


def files(folder: Path, suffixes: Iterable[str]) -> Iterator[str]:
    """Yield the text of each file below a folder, caches left out."""
    wanted = set(suffixes)
    for path in sorted(folder.rglob("*")):
        if path.suffix in wanted and "__pycache__" not in path.parts:
            yield path.read_text(encoding="utf-8")
