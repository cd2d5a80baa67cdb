"""The documentation says what the program does."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import directories, errors
from gpuwatchd.core.config import loading
from gpuwatchd.service import own_process
from gpuwatchd.store import live, schema
from gpuwatchd.store import private_files as place
from tests.conftest import ROOT
from tests.docs import database, facts, generate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("name", list(generate.PAGES))
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert (generate.DOCS / name).read_text(encoding="utf-8") == generate.PAGES[name]()


TREES = {
    file: ast.parse(file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "gpuwatchd").rglob("*.py"))
}
VARIABLES = {
    name for rows in facts.ENVIRONMENT.values() for row in rows for name in row[0].split(", ")
}
PATHS = {row[0] for rows in facts.FILES.values() for row in rows}


def _asked(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are read from something called environ."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            where, first = node.func.value, node.args[0]
            if node.func.attr not in {"get", "pop", "setdefault"}:
                continue
        elif isinstance(node, ast.Subscript):
            where, first = node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            where, first = node.comparators[0], node.left
        else:
            continue
        named = ast.unparse(where)
        if named.endswith("environ") and isinstance(first, ast.Constant):
            yield str(first.value)


def test_every_variable_that_is_read_is_described() -> None:
    asked = {name for tree in TREES.values() for name in _asked(tree)}
    assert {"NO_COLOR", "WATCHDOG_USEC", "XDG_STATE_HOME"} <= asked
    assert asked - VARIABLES == set()


def test_own_variables_are_described() -> None:
    own = set(loading.SECRET_VARIABLES) | {
        "GPUWATCHD_CONFIG", "GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR",
    }  # fmt: skip
    assert own <= VARIABLES


def test_every_exit_code_is_described() -> None:
    codes = {row[0] for row in facts.EXIT_CODES}
    ours = (errors.OK, errors.FAILED, errors.USAGE, errors.FINDINGS, errors.BAD_INPUT,
            errors.INTERRUPTED, errors.PIPE_CLOSED)  # fmt: skip
    # 4: `service status` answers as systemctl does; 126 and 127: `run` as a shell.
    assert codes == {str(code) for code in ours} | {"0-3", "4", "126, 127"}
    daemon = {row[0] for row in facts.DAEMON_CODES}
    assert str(own_process.EXIT_AGAIN) in daemon
    assert "78" in daemon


def test_every_file_is_described() -> None:
    names = {
        live.FILE_NAME,
        place.LOCK_NAME,
        live.RELEASE_FILE,
        schema.FILE_NAME,
        own_process.BELL_FILE,
    }
    assert names <= PATHS
    assert str(directories.SYSTEM_FILE) in PATHS
    written = {
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[a-z-]+\.(json|lock|db)", node.value)
    }
    assert written - PATHS == set()


def test_every_signal_with_a_handler_is_described() -> None:
    text = (ROOT / "gpuwatchd" / "daemon" / "main.py").read_text(encoding="utf-8")
    handled = set(re.findall(r"signal\.signal\(signal\.(SIG\w+)", text))
    assert handled
    assert handled <= {row[0] for row in facts.SIGNALS}


def test_every_table_and_view_is_described() -> None:
    assert database.names("table") == sorted(database.TABLES)
    assert database.names("view") == sorted(database.VIEWS)
    assert "| `used_bytes` | INTEGER |  |" in "\n".join(database.page())
