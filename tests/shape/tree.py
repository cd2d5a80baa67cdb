"""The source of the package as parsed modules: what every measure walks over."""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "gpuwatchd"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """One file of the package: its source, and its path relative to the checkout.

    With forward slashes: no figure depends on where that lies.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.name = ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")
        self.is_package = path.endswith("/__init__.py")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node, parents first."""
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def within(self, *places: str) -> bool:
        """Return whether this is one of the modules, or lies in one of the packages.

        Places are full dotted names, so that a script that moves modules moves these too.
        """
        return any(f"{self.name}.".startswith(f"{place}.") for place in places)


Tree = dict[str, Module]
"""Module name -> module."""


def parsed(sources: dict[str, str]) -> Tree:
    """Return modules of source text: path -> text."""
    found = (Module(path, text) for path, text in sorted(sources.items()))
    return {module.name: module for module in found}


def package(root: Path = ROOT) -> Tree:
    """Return the modules of the checkout."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    return parsed({f.relative_to(root).as_posix(): f.read_text(encoding="utf-8") for f in files})


def inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, but not in a function or class within it."""
    todo: list[ast.AST] = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of names and attributes; "" in place of what is neither."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
