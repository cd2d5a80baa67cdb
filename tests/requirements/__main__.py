"""``make requirements``: each row of the checklist with its state and the tests that name it.

A test names a row by ``@pytest.mark.requirement("B1")``. The exit code is 1 where a row has no test
or a test names a row that is not there.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parent.parent
ROWS = 120


def rows() -> dict[str, dict[str, str]]:
    """Return id -> ``asks``, and ``state`` where it is not met as asked."""
    table: dict[str, dict[str, str]] = tomllib.loads(
        Path(__file__).with_name("rows.toml").read_text("utf-8")
    )
    return table


def named(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return id -> tests that name it, in order."""
    tests: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        text = file.read_text("utf-8")
        if "mark.requirement(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for row in _of(node):
                    tests.setdefault(row, []).append(
                        f"{file.relative_to(folder.parent)}::{node.name}"
                    )
    return tests


def _of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        for mark in ast.walk(decorator):  # of one case: inside its parametrization
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.requirement":
                yield from (str(ast.literal_eval(word)) for word in mark.args)


def main() -> int:
    """Print the table and what is wrong with it."""
    table, tests = rows(), named()
    for row, says in table.items():
        state = says.get("state", "met") if row in tests else "no test"
        print(f"{row:4} {state:9} {says['asks']}")
        for test in tests.get(row, ()):
            print(f"{'':15}{test}")
    missing, unknown = sorted(table.keys() - tests.keys()), sorted(tests.keys() - table.keys())
    print(f"{len(table)} rows, {len(table) - len(missing)} named by a test")
    if missing:
        print(f"without a test: {', '.join(missing)}", file=sys.stderr)
    if unknown:
        print(f"no such row: {', '.join(unknown)}", file=sys.stderr)
    return 1 if missing or unknown or len(table) != ROWS else 0


if __name__ == "__main__":
    sys.exit(main())
