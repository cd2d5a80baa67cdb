"""Small faults put into a module, one at a time, and the tests that should notice each.

Text, annotations and what is logged are left alone: no test has to pin them.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from tests.shape.tree import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.shape.imports import Graph

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_UNTOUCHED_FIELDS = frozenset({"annotation", "returns", "type_params"})
_LOGS = frozenset({"log", "logger", "logging"})
_SAME = {"sources": "collect", "policy": "alerts", "detect": "detectors", "zombies": "idle"}
"""Folder of tests -> what the package that it tests is called."""


class Mutant(NamedTuple):
    """One fault: the bytes of the source that it takes the place of."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        """Return where it is and what it changes, in one line."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {self.kind}: {old[:70]} -> {new[:70]}"


def _untouched(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True  # text; Python 3.11 does not know where the parts of an f-string are
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=test) if dotted(test).endswith("TYPE_CHECKING"):
            return True
        case ast.Expr(value=ast.Call(func=func)):
            place = dotted(func).split(".")
            return bool(_LOGS & set(place[:-1]))
        case _:
            return False


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        if field not in _UNTOUCHED_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _untouched(child):
                    yield from _nodes(child)


def _is_text(*nodes: ast.AST) -> bool:
    return any(
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


def _expressions(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield (kind, what goes, what comes) of a value."""
    match node:
        case ast.Compare():
            for place, op in enumerate(node.ops):
                ops = [*node.ops]
                ops[place] = _COMPARISONS[type(op)]()
                yield "comparison", node, ast.Compare(node.left, ops, node.comparators)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right) if not _is_text(left, right):
            turned = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield "arithmetic", node, ast.BinOp(left, turned, right)
        case ast.BoolOp():
            turned_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, ast.BoolOp(turned_op, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, node.operand
        case ast.Constant(value=int() | float() as value):
            if value + 1 != value and not isinstance(value, bool):
                yield "constant", node, ast.Constant(value + 1)
        case _:
            pass


def _statements(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield (kind, what goes, what comes) of a statement, and of what a branch depends on."""
    match node:
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield "return", value, ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            yield "call", node, ast.Pass()
        case ast.If() | ast.IfExp():
            yield "condition", node.test, ast.Constant(True)
            yield "condition", node.test, ast.Constant(False)
        case _:
            pass


def mutants(path: str, text: str) -> list[Mutant]:
    """Return every fault that can be put into a module."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    source, found = b"".join(lines), []
    for node in _nodes(ast.parse(text)):
        for kind, old, new in (*_expressions(node), *_statements(node)):
            assert isinstance(old, ast.expr | ast.stmt)
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            written = ast.unparse(new)
            if not isinstance(new, ast.Pass | ast.Constant):
                written = f"({written})"
            was = source[start:end].decode()
            found.append(Mutant(path, old.lineno, kind, start, end, was, written))
    return found


def drawn(found: Iterable[Mutant], seed: str) -> Iterator[Mutant]:
    """Yield faults in the order of the seed, each kind as often as any other while it lasts.

    Without this most would be constants.
    """
    chance = random.Random(seed)
    kinds: defaultdict[str, list[Mutant]] = defaultdict(list)
    for one in sorted(found):
        kinds[one.kind].append(one)
    for each in kinds.values():
        chance.shuffle(each)
    while kinds:
        kind = chance.choice(sorted(kinds))
        yield kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]


def _words(name: str) -> set[str]:
    return {_SAME.get(word, word) for word in re.split(r"[._]", name)}


def tests_of(name: str, edges: Graph, most: int) -> list[str]:
    """Return the modules of tests nearest to a module, the nearest first.

    Near is who imports it over few others, and whose name and folder are like its own; of equals,
    who imports least goes first.
    """
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for importer, imported in edges.items():
        for one in imported:
            importers[one].add(importer)
    distance, waiting = {name: 0}, deque([name])
    while waiting:
        here = waiting.popleft()
        for importer in importers[here] - distance.keys():
            distance[importer] = distance[here] + 1
            waiting.append(importer)
    files = [one for one in distance if one.rpartition(".")[2].startswith("test_")]
    own = _words(name)
    return sorted(
        files, key=lambda one: (distance[one] - len(own & _words(one)), len(edges[one]), one)
    )[:most]
