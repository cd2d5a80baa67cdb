"""Say which faults no test notices: ``python -m tests.shape.mutate --count 64 --seed 1``.

Draws faults at random (``mutants.py``), as many from each package, puts each into a copy of the
checkout and runs the tests nearest to its module. Slow tests and real parts are left out, and so
are files that fail or take long without any fault. It takes some ten seconds per fault.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.shape import imports, mutants, tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.shape.mutants import Mutant
    from tests.shape.tree import Tree

PACKAGES = ("analysis", "alerts", "notify", "store", "collect/nvml", "web")
TRAINED = ("analysis/forecast/eta_coefficients.py", "analysis/forecast/score_weights.py")
"""Figures that training wrote: reports of whole scenarios judge them, no test."""
OUTCOMES = ("killed", "survived", "timed out")
_OTHER_FILES = (".*", "build", "site", "dist", "__pycache__", "*.pyc")
_LEFT_OUT = re.compile(r"laboratory|slow|real_\w+")


class Copy:
    """A copy of a checkout, whose modules come before the installed ones."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "copy"
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(*_OTHER_FILES))
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        marks = settings["tool"]["pytest"]["ini_options"].get("markers", [])
        names = [match[0] for mark in marks if (match := _LEFT_OUT.match(mark))]
        self._marks = " and ".join(f"not {name}" for name in names) or "not slow"

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
        fixed = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", self._marks)
        return self.run("-m", "pytest", *fixed, *options, *files, limit_s=limit_s)

    def write(self, path: str, source: bytes) -> None:
        """Write a module, and forget what was compiled of it."""
        (self.root / path).write_bytes(source)
        Path(importlib.util.cache_from_source(str(self.root / path))).unlink(missing_ok=True)

    def seconds(self, files: Sequence[str]) -> dict[str, float]:
        """Return how long each file takes without any fault; those that fail are left out."""
        report = self.root / "report.xml"
        form = ("-o", "junit_family=xunit1", f"--junitxml={report}")
        self.tests(files, *form, limit_s=3600)
        found: defaultdict[str, float] = defaultdict(float)
        failed = set()
        for case in ET.parse(report).getroot().iter("testcase"):
            file = case.get("file", "")
            found[file] += float(case.get("time", 0))
            if case.find("failure") is not None or case.find("error") is not None:
                failed.add(file)
        if failed:
            print(f"fail without any fault, left out: {', '.join(sorted(failed))}")
        return {file: taken_s for file, taken_s in found.items() if file not in failed}

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


def _parse(root: Path) -> tuple[Tree, imports.Graph]:
    """Return the package, and who imports whom in it and its tests."""
    package = tree.package(root)
    paths = sorted((root / "tests").rglob("*.py"))
    texts = {one.relative_to(root).as_posix(): one.read_text(encoding="utf-8") for one in paths}
    return package, imports.graph(package | tree.parsed(texts))


def sample(root: Path, chosen: argparse.Namespace) -> dict[str, Counter[str]]:
    """Print each fault that survives; return package -> how often each outcome came."""
    package, edges = _parse(root)
    queues = {}
    for name in chosen.package or PACKAGES:
        inner = [one for one in package.values() if one.path.startswith(f"gpuwatchd/{name}/")]
        faults = (
            fault
            for one in inner
            if not one.path.endswith(TRAINED)
            for fault in mutants.mutants(one.path, one.text)
        )
        queues[name] = list(mutants.drawn(faults, f"{chosen.seed}:{name}"))
    share, rest = divmod(chosen.count, len(queues))
    wanted = {name: share + (place < rest) for place, name in enumerate(queues)}
    modules = {one.path: one.name for one in package.values()}
    # some more than are wanted: those that cannot be imported are drawn again
    paths = {m.path for name, queue in queues.items() for m in queue[: 2 * wanted[name] + 5]}
    near = {
        path: [
            f"{n.replace('.', '/')}.py"
            for n in mutants.tests_of(modules[path], edges, chosen.files)
        ]
        for path in sorted(paths)
    }
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-mutants-") as folder:
        copy = Copy(root, Path(folder))
        taken_s = copy.seconds(sorted({file for files in near.values() for file in files}))
        tests: dict[str, list[str]] = {}
        for path, files in near.items():
            tests[path], left_s = [path], chosen.seconds  # its own doctests first
            for file in files:
                if taken_s.get(file, chosen.seconds + 1) <= left_s:
                    tests[path].append(file)
                    left_s -= taken_s[file]
        found: dict[str, Counter[str]] = {}
        for name, queue in queues.items():
            counted = found[name] = Counter()
            for mutant in queue:
                if (
                    sum(counted[one] for one in OUTCOMES) == wanted[name]
                    or mutant.path not in tests
                ):
                    break
                outcome = copy.outcome(mutant, tests[mutant.path], 30 + 3 * chosen.seconds)
                counted[outcome] += 1
                if outcome == "survived" or chosen.verbose:
                    print(f"{outcome}: {mutant}", *tests[mutant.path][1:], flush=True)
    return found


def table(found: dict[str, Counter[str]]) -> tuple[list[str], float]:
    """Return lines by package, and the share of all that was noticed."""
    whole = sum(found.values(), Counter())
    lines = [f"{'package':<14}{'drawn':>7}" + "".join(f"{one:>11}" for one in OUTCOMES)]
    for name, counted in [*found.items(), ("all", whole)]:
        drawn = sum(counted[one] for one in OUTCOMES)
        lines.append(f"{name:<14}{drawn:>7}" + "".join(f"{counted[one]:>11}" for one in OUTCOMES))
    drawn = sum(whole[one] for one in OUTCOMES)
    share = 1 - whole["survived"] / drawn if drawn else 0.0
    return [*lines, f"noticed: {share:.0%}; not importable, drawn again: {whole['invalid']}"], share


def main(argv: Sequence[str] | None = None, root: Path = tree.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shape.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=64, help="faults in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", action="append", help=f"one of gpuwatchd's: {PACKAGES}")
    parser.add_argument("--files", type=int, default=8, help="files of tests per module, at most")
    parser.add_argument("--seconds", type=float, default=20, help="what they may take together")
    parser.add_argument("--at-least", type=float, default=0, help="1 if a smaller share is noticed")
    parser.add_argument("--verbose", action="store_true", help="name those that are killed, too")
    chosen = parser.parse_args(argv)
    lines, share = table(sample(root, chosen))
    print(*lines, sep="\n")
    return int(share < chosen.at_least)


if __name__ == "__main__":
    sys.exit(main())
