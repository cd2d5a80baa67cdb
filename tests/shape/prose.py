"""Code that decides by text for people: comparing, splitting or searching sentences.

A heuristic in two halves. A string that holds a blank and a lower-case word is a sentence, written
there or in a constant that the name leads to, through imports; comparing with one or searching for
one counts. And some attributes hold sentences (``alert.ended``, ``finding.reason``): comparing or
searching those counts whatever with, except with None, "" and words that are plainly codes.
``make shape ARGS=--verbose`` names each place, for a person to judge.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.shape.imports import bindings
from tests.shape.tree import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shape.tree import Module, Tree

FOREIGN = {
    "gpuwatchd.collect": "what drivers, kernels, recorders and logs write",
    "gpuwatchd.collect.engines": "what engines answer",
    "gpuwatchd.act": "process titles and command lines",
    "gpuwatchd.collect.host.program": "links of /proc",
    "gpuwatchd.collect.host.process_identity": "process titles of Slurm",
    "gpuwatchd.analysis.program_key": "command lines of processes",
    "gpuwatchd.analysis.frameworks.recognition": "process titles",
    "gpuwatchd.core.config.loading": "errors of msgspec and of the TOML parser",
    "gpuwatchd.cli.command_line": "errors of click",
    "gpuwatchd.view.manual": "Markdown of the manual, and what a person looks for in it",
    "gpuwatchd.view.queries.names": "what a person types",
    "gpuwatchd.cli.doctor.places": "lines of /proc",
    "gpuwatchd.cli.doctor.gpus": "lines of /proc",
    "gpuwatchd.cli.doctor.running": "unit files",
    "gpuwatchd.service": "unit files, and what systemctl, journalctl and launchctl print",
    "gpuwatchd.notify.channels.email.channel": "replies of SMTP servers",
    "gpuwatchd.charts.matplotlib_renderer": "SVG that Matplotlib made",
    "gpuwatchd.store.schema": "SQL",
    "gpuwatchd.store.curves": "SQL",
    "gpuwatchd.store.retention": "SQL",
}
"""Modules and packages whose text is not ours, and whose it is."""
PERMITTED = "gpuwatchd.store.legacy_text"
"""What maps old sentences to codes."""
NO_SENTENCES = frozenset({"TensorFlow or JAX", "[policy] channels"})
"""Names that look like sentences."""

COMPARED = frozenset({"ended", "reason", "why", "held_back", "title", "text", "words", "sentence"})
"""Attributes that hold sentences; comparing them counts."""
SEARCHED = COMPARED | {"label", "subject", "hint", "message", "said", "error", "result", "evidence"}
"""Attributes that hold text; searching or splitting them counts."""
NAMES = frozenset(
    {"why", "reason", "said", "problem", "sentence", "title", "words", "hint", "todo"}
)
"""Variables that hold sentences: searching them for text counts."""
_SEARCHES = frozenset(
    {
        "startswith",
        "endswith",
        "split",
        "rsplit",
        "partition",
        "rpartition",
        "find",
        "rfind",
        "index",
        "rindex",
        "replace",
        "removeprefix",
        "removesuffix",
    }
)
_REGEX = frozenset({"match", "search", "fullmatch", "findall", "finditer", "sub", "split"})
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot)
_CODE = re.compile(r"[A-Za-z0-9_.-]*")
_SEPARATORS = frozenset({": ", "; ", ";"})
"""Who splits at these takes a sentence apart."""
_LAYOUT = frozenset({" ", "\n"})
"""Who splits at these lays text out, or makes an identifier of a label."""


class Constants:
    """Strings that an expression can be, followed through names, tables and imports."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._bindings = {module.name: bindings(module) for module in tree.values()}
        self._values: dict[tuple[str, str], ast.expr] = {}
        for module in tree.values():
            for node in module.tree.body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        self._values[module.name, dotted(target)] = node.value

    def of(self, node: ast.expr, where: str, depth: int = 0) -> list[str]:
        """Return the strings that an expression in a module stands for; [] when unknown."""
        if depth > 6:
            return []
        match node:
            case ast.Constant(value=str() as text):
                return [text]
            case ast.JoinedStr():
                parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
                return ["".join(map(str, parts))]
            case ast.Tuple() | ast.List() | ast.Set():
                inner = node.elts
            case ast.Dict():
                inner = [key for key in node.keys if key is not None]
            case ast.Starred():
                inner = [node.value]
            case ast.BinOp():
                inner = [node.left, node.right]
            case ast.Call() if dotted(node.func) in {"re.compile", "frozenset", "set", "tuple"}:
                inner = node.args[:1]
            case ast.Name() | ast.Attribute():
                return self._named(dotted(node), where, depth)
            case _:
                return []
        return [text for one in inner for text in self.of(one, where, depth + 1)]

    def _named(self, name: str, where: str, depth: int) -> list[str]:
        value = self._values.get((where, name))
        if value is not None:
            return self.of(value, where, depth + 1)
        first, _, rest = name.partition(".")
        source, inner = self._bindings.get(where, {}).get(first, ("", ""))
        if rest and inner:
            source, inner = f"{source}.{inner}", rest
        elif rest:
            inner = rest
        return self._named(inner, source, depth + 1) if source in self._tree and depth < 6 else []


def sentence(text: str) -> bool:
    """Return whether a string is text for people: a blank and a lower-case word."""
    if text in NO_SENTENCES:
        return False
    return " " in text and re.search(r"\b[a-z]{2,}\b", text) is not None


def decided(tree: Tree) -> Iterator[tuple[Module, int, str]]:
    """Yield (module, line, expression) of each place that decides by text for people."""
    constants = Constants(tree)
    for module in tree.values():
        if module.within(*FOREIGN, PERMITTED):
            continue
        found: dict[tuple[int, int], str] = {}
        for node in module.nodes:
            if isinstance(node, ast.expr | ast.pattern) and _decides(node, module.name, constants):
                # Searches one after the other begin at the same place and are one.
                found.setdefault((node.lineno, node.col_offset), ast.unparse(node))
        for (line, _), expression in sorted(found.items()):
            yield module, line, " ".join(expression.split())[:120]


def _decides(node: ast.expr | ast.pattern, where: str, constants: Constants) -> bool:
    match node:
        case ast.Compare():
            return _compares(node, where, constants)
        case ast.MatchValue():
            return any(map(sentence, constants.of(node.value, where)))
        case ast.Subscript(value=table, slice=key, ctx=ast.Load()):
            return _looks_up(table, key, where, constants)
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]):
            return _looks_up(table, key, where, constants)
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[first, *others]):
            if dotted(owner) == "re" and method in _REGEX:
                return _finds(first, others, where, constants)
            if method in _SEARCHES and _searches(owner, method, first, where, constants):
                return True
            return method in _REGEX and _finds(owner, [first, *others], where, constants)
        case _:
            pass
    return False


def _compares(node: ast.Compare, where: str, constants: Constants) -> bool:
    if any(isinstance(op, _ORDER) for op in node.ops):
        return False
    sides = [node.left, *node.comparators]
    texts = [text for side in sides for text in constants.of(side, where)]
    if any(map(sentence, texts)):
        return True
    if not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        if _holds(sides[1], SEARCHED):
            return True
        if dotted(sides[1]) in NAMES:
            return any(" " in text for text in texts)
    codes = texts and all(map(_CODE.fullmatch, texts))
    nothing = any(isinstance(side, ast.Constant) and not side.value for side in sides)
    return not codes and not nothing and any(_holds(side, COMPARED) for side in sides)


def _searches(
    owner: ast.expr, method: str, first: ast.expr, where: str, constants: Constants
) -> bool:
    texts = constants.of(first, where)
    if method in {"split", "rsplit", "replace", "startswith"} and set(texts) & _LAYOUT:
        return False
    parts = method.endswith(("split", "partition"))
    if any(map(sentence, texts)) or (parts and set(texts) & {": ", "; "}):
        return True
    if dotted(owner) in NAMES:
        return any(" " in text or text in _SEPARATORS or text.isalpha() for text in texts)
    return _holds(owner, SEARCHED)


def _finds(pattern: ast.expr, others: list[ast.expr], where: str, constants: Constants) -> bool:
    texts = constants.of(pattern, where)
    if any(map(sentence, texts)):
        return True
    return any(_holds(one, SEARCHED) or dotted(one) in NAMES - {"said", "words"} for one in others)


def _looks_up(table: ast.expr, key: ast.expr, where: str, constants: Constants) -> bool:
    return _holds(key, COMPARED) and any(map(sentence, constants.of(table, where)))


def _holds(node: ast.expr, attributes: frozenset[str]) -> bool:
    """Return whether an expression is one of the attributes, cleaned or with a default or not."""
    match node:
        case ast.Attribute(attr=name):
            return name in attributes
        case ast.BoolOp(values=values):
            return any(_holds(value, attributes) for value in values)
        case ast.Call(func=ast.Attribute(value=owner, attr="lower" | "strip" | "texts" as name)):
            return name == "texts" or _holds(owner, attributes)
        case ast.Call(func=ast.Attribute(attr="join" | "clean"), args=[first, *_]):
            return _holds(first, attributes)
        case _:
            return False
