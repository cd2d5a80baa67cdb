"""Who imports whom: cycles, arrows between faces, imports that wait until they are needed.

An import counts wherever it stands, under ``TYPE_CHECKING`` and inside functions too.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.shape.tree import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shape.tree import Module, Tree

Import = ast.Import | ast.ImportFrom
Graph = dict[str, set[str]]

FACES = frozenset({"cli", "tui", "web", "daemon", "fleet", "integrations"})
"""Programs: strangers to each other, as a contract of import-linter holds too."""
LAZY_PLACES = (f"{PACKAGE}.registry", f"{PACKAGE}.core.registry", f"{PACKAGE}.cli.main")
"""Where imports inside functions belong."""
_MEASURED = re.compile(r"#.*\d ?(ms|s|MiB|MB)\b")
"""What a measured reason beside an import looks like: "# 40 ms at every start"."""


def names(statement: Import) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name in it or "", name here) of an import statement."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name, "", alias.asname or alias.name
    else:
        for alias in statement.names:
            yield statement.module or "", alias.name, alias.asname or alias.name


def graph(tree: Tree) -> Graph:
    """Return module -> modules of ours that it imports."""
    edges: Graph = {}
    for module in tree.values():
        targets = edges[module.name] = set()
        for statement in module.nodes:
            if isinstance(statement, Import):
                for source, name, _ in names(statement):
                    inner = f"{source}.{name}"
                    targets.add(inner if inner in tree else source)
        targets &= tree.keys() - {module.name}
    return edges


def cycles(edges: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan), largest first."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            place = stack.index(name)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for name in sorted(edges):
        if name not in order:
            visit(name)
    return sorted((one for one in found if len(one) > 1), key=lambda one: (-len(one), one))


def between_faces(edges: Graph) -> list[tuple[str, str]]:
    """Return (module, module) where one face imports another; a pair counts once."""

    def face(name: str) -> str:
        first = [*name.split("."), ""][1]
        return first if first in FACES else ""

    return [
        (name, other)
        for name in sorted(edges)
        for other in sorted(edges[name])
        if face(name) and face(other) and face(name) != face(other)
    ]


def lazy(module: Module) -> list[int]:
    """Return the lines of imports inside functions that have no measured reason beside them."""
    if module.within(*LAZY_PLACES):
        return []
    lines = module.text.splitlines()
    found = {
        node.lineno
        for function in module.functions
        for node in ast.walk(function)
        if isinstance(node, Import)
    }
    return sorted(n for n in found if not any(map(_MEASURED.search, lines[max(0, n - 2) : n])))


def bindings(module: Module) -> dict[str, tuple[str, str]]:
    """Return name here -> (module, name in it or "") of everything that a module imports."""
    return {
        here: (source, name)
        for node in module.nodes
        if isinstance(node, Import)
        for source, name, here in names(node)
    }
