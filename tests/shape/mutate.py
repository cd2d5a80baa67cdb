"""Say which faults no test notices: ``python -m tests.shape.mutate --count 64 --seed 1``.

Draws small faults at random, as many in each package and each kind as often as any other, puts each
into a copy of the checkout and runs the tests nearest to its module. Real parts are left out, slow
tests too unless asked for, and files that fail or take long without any fault. Text, annotations
and what is logged stay as they are: no test has to pin them. It takes some ten seconds per fault.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.shape import imports, tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PACKAGES = ("analysis", "alerts", "notify", "store", "collect/nvml", "web")
TRAINED = ("analysis/forecast/eta_coefficients.py", "analysis/forecast/score_weights.py")
"""Figures that training wrote: reports of whole scenarios judge them, no test."""
OUTCOMES = ("killed", "survived", "timed out")
_SLOW = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)
_FOLDERS_LEFT_OUT = ("tests/real/", "tests/scenarios/", "tests/promises/", "tests/browser/")
_OTHER_FILES = (".*", "build", "site", "dist", "__pycache__", "*.pyc")
_UNTOUCHED_FIELDS = frozenset({"annotation", "returns", "type_params"})
_SAME = {"sources": "collect", "policy": "alerts", "detect": "detectors", "zombies": "idle"}
"""Folder of tests -> what the package that it tests is called."""
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


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
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(part.split())[:70] for part in (self.old, self.new))
        return f"{self.path}:{self.line}: {self.kind}: {old} -> {new}"


def _is_text(node: ast.AST) -> bool:
    return isinstance(getattr(node, "value", None), str) or isinstance(node, ast.JoinedStr)


def _untouched(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=test):
            return tree.dotted(test).endswith("TYPE_CHECKING")
        case ast.Expr(value=ast.Call(func=func)):
            return bool({"log", "logger", "logging"} & set(tree.dotted(func).split(".")[:-1]))
        case _:  # Python 3.11 does not know where the parts of an f-string are
            return isinstance(node, ast.JoinedStr)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in _UNTOUCHED_FIELDS:
                yield from () if _untouched(child) else _nodes(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield (kind, what goes, what comes)."""
    match node:
        case ast.Compare():
            for place, op in enumerate(node.ops):
                ops = [*node.ops[:place], _COMPARISONS[type(op)](), *node.ops[place + 1 :]]
                yield "comparison", node, ast.Compare(node.left, ops, node.comparators)
        case ast.BinOp(a, ast.Add() | ast.Sub() as op, b) if not (_is_text(a) or _is_text(b)):
            turned = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield "arithmetic", node, ast.BinOp(a, turned, b)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and/or", node, ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, node.operand
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as value) if value + 1 != value:
            yield "constant", node, ast.Constant(value + 1)
        case _:
            yield from _statement_changes(node)


def _statement_changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    match node:
        case ast.Return(value=ast.expr() as old) if ast.unparse(old) != "None":
            yield "return", old, ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            yield "call", node, ast.Pass()
        case ast.If() | ast.IfExp():
            for truth in (True, False):
                yield "condition", node.test, ast.Constant(truth)
        case _:
            pass


def mutants(path: str, text: str) -> Iterator[Mutant]:
    """Yield every fault that can be put into a module."""
    source, starts = text.encode(), [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(text)):
        for kind, old, new in _changes(node):
            assert isinstance(old, ast.expr | ast.stmt)
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            written = ast.unparse(new)
            if not isinstance(new, ast.Pass | ast.Constant):
                written = f"({written})"
            was = source[start:end].decode()
            yield Mutant(path, old.lineno, kind, start, end, was, written)


def drawn(found: Iterable[Mutant], seed: str) -> Iterator[Mutant]:
    """Yield faults in the order of the seed; without kinds in turn most would be constants."""
    chance, kinds = random.Random(seed), defaultdict[str, list[Mutant]](list)
    for one in sorted(found):
        kinds[one.kind].append(one)
    for each in kinds.values():
        chance.shuffle(each)
    while kinds:
        kind = chance.choice(sorted(kinds))
        yield kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]


def tests_of(module: tree.Module, files: tree.Tree, edges: imports.Graph) -> list[str]:
    """Return the paths of tests that reach a module, the nearest first.

    Near is who imports it over few others, who calls what it defines by name, and whose name and
    folder are like its own; of equals, who imports least goes first.
    """
    distance, waiting = {module.name: 0}, deque([module.name])
    while waiting:
        here = waiting.popleft()
        new = [one for one, imported in edges.items() if here in imported and one not in distance]
        distance |= dict.fromkeys(new, distance[here] + 1)
        waiting.extend(new)
    defined = {node.name for node in (*module.functions, *module.classes)}

    def words(name: str) -> set[str]:
        return {_SAME.get(word, word) for word in re.split(r"[._]", name)}

    def rank(name: str) -> tuple[int, int, str]:
        called = len(defined & set(re.findall(r"\w+", files[name].text)))
        like = len(words(module.name) & words(name))
        return distance[name] - like - called, len(edges[name]), name

    near = sorted((name for name in distance if ".test_" in name), key=rank)
    paths = [files[name].path for name in near]
    return [path for path in paths if not path.startswith(_FOLDERS_LEFT_OUT)]


class Copy:
    """A copy of a checkout, whose modules come before the installed ones."""

    def __init__(self, root: Path, folder: Path, *, slow: bool = False) -> None:
        self.root = folder / "copy"
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(*_OTHER_FILES))
        settings = (root / "pyproject.toml").read_text(encoding="utf-8")
        marks = {"laboratory", *re.findall(r'"(real_\w+):', settings), *([] if slow else ["slow"])}
        self._marks = " and ".join(f"not {name}" for name in sorted(marks))

    def run(self, *words: str, limit_s: float) -> int | None:
        """Return the exit code of Python with these words; None where the limit was reached."""
        child = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what its tests left running, too
            child.wait()

    def tests(self, files: Sequence[str], *options: str, limit_s: float) -> int | None:
        """Run files of tests, always in the same order; as ``run``."""
        fixed = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-profile=ci")
        words = ("-m", "pytest", *fixed, "-m", self._marks, *options, *files)
        return self.run(*words, limit_s=limit_s)

    def write(self, path: str, source: bytes) -> None:
        """Write a module, and forget what was compiled of it."""
        (self.root / path).write_bytes(source)
        Path(importlib.util.cache_from_source(str(self.root / path))).unlink(missing_ok=True)

    def seconds(self, files: Sequence[str]) -> dict[str, float]:
        """Return how long each file takes without any fault; those that fail are left out."""
        report, taken_s = self.root / "report.xml", defaultdict[str, float](float)
        self.tests(files, "-o", "junit_family=xunit1", f"--junitxml={report}", limit_s=3600)
        for case in ET.parse(report).getroot().iter("testcase"):
            failed = case.find("failure") is not None or case.find("error") is not None
            taken_s[case.get("file", "")] += float("inf" if failed else case.get("time", 0))
        return taken_s

    def outcome(self, mutant: Mutant, files: Sequence[str], limit_s: float) -> str:
        """Put a fault in, run the tests, take it out; return one of ``OUTCOMES`` or invalid."""
        source = (self.root / mutant.path).read_bytes()
        module = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.write(mutant.path, mutant.applied(source))
        try:
            if self.run("-c", f"import {module}", limit_s=60) != 0:
                return "invalid"
            code = self.tests(files, "-x", limit_s=limit_s)
        finally:
            self.write(mutant.path, source)
        return {None: "timed out", 0: "survived", 5: "survived"}.get(code, "killed")


def sample(root: Path, chosen: argparse.Namespace) -> dict[str, Counter[str]]:
    """Print each fault that survives; return package -> how often each outcome came."""
    package, paths = tree.package(root), (root / "tests").rglob("*.py")
    texts = {one.relative_to(root).as_posix(): one.read_text(encoding="utf-8") for one in paths}
    quick = {path: text for path, text in texts.items() if chosen.slow or not _SLOW.search(text)}
    files_of_tests = tree.parsed(quick)
    modules = package | files_of_tests
    edges = imports.graph(modules)
    for name, one in modules.items():  # by a string: in a table, in the script of a child
        edges[name] |= package.keys() & {*re.findall(r"gpuwatchd(?:\.\w+)+", one.text)} - {name}
    queues, names = {}, chosen.package or PACKAGES
    for place, name in enumerate(names):
        inside = [one for one in package.values() if one.path.startswith(f"gpuwatchd/{name}/")]
        faults = [m for one in inside for m in mutants(one.path, one.text)]
        kept = [one for one in faults if not one.path.endswith(TRAINED)]
        wanted = chosen.count // len(names) + (place < chosen.count % len(names))
        # Some more than are wanted: those that cannot be imported are drawn again.
        queues[name] = wanted, [*drawn(kept, f"{chosen.seed}:{name}")][: 2 * wanted + 5]
    near = {m.path: list[str]() for _, queue in queues.values() for m in queue}
    for module in (one for one in package.values() if one.path in near):
        near[module.path] = tests_of(module, files_of_tests, edges)[: chosen.files]
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-mutants-") as folder:
        copy = Copy(root, Path(folder), slow=chosen.slow)
        taken_s = copy.seconds(sorted({file for files in near.values() for file in files}))
        for name, (wanted, queue) in queues.items():
            for mutant in queue:
                if found[name].total() - found[name]["invalid"] == wanted:
                    break
                files, left_s = list[str](), chosen.seconds
                for file in near[mutant.path]:
                    if taken_s.get(file, left_s) < left_s:
                        files.append(file)
                        left_s -= taken_s[file]
                files.sort(key=taken_s.__getitem__)
                # Its own doctests first.
                outcome = copy.outcome(mutant, [mutant.path, *files], 30 + 3 * chosen.seconds)
                found[name][outcome] += 1
                if outcome == "survived" or chosen.verbose:
                    print(f"{outcome}: {mutant}", *files, flush=True)
    return found


def main(argv: Sequence[str] | None = None, root: Path = tree.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shape.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=64, help="faults in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", action="append", help=f"instead of {', '.join(PACKAGES)}")
    parser.add_argument("--files", type=int, default=8, help="files of tests per module, at most")
    parser.add_argument("--seconds", type=float, default=40, help="what they may take together")
    parser.add_argument("--at-least", type=float, default=0, help="share to be noticed, 0 to 1")
    parser.add_argument("--slow", action="store_true", help="run slow tests, too")
    parser.add_argument("--verbose", action="store_true", help="name those that are killed, too")
    chosen = parser.parse_args(argv)
    for name in chosen.package or ():
        if not (root / "gpuwatchd" / name).is_dir():
            parser.error(f"there is no package gpuwatchd/{name}")
    found = sample(root, chosen)
    whole = found["all"] = sum(found.values(), Counter())
    print("".join(f"{word:>13}" for word in ("package", "drawn", *OUTCOMES)))
    for name, counted in found.items():
        drawn_of = counted.total() - counted["invalid"]
        figures = (name, drawn_of, *(counted[one] for one in OUTCOMES))
        print("".join(f"{figure:>13}" for figure in figures))
    share = 1 - whole["survived"] / max(1, whole.total() - whole["invalid"])
    print(f"noticed: {share:.0%}; not importable, drawn again: {whole['invalid']}")
    return int(share < chosen.at_least)


if __name__ == "__main__":
    sys.exit(main())
