"""The documentation says what the program does."""

from __future__ import annotations

import ast
import re
import shlex
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import config_text, main
from gpuwatchd.cli.verbs import check
from gpuwatchd.core import config, directories, errors
from gpuwatchd.core.config import loading
from gpuwatchd.fleet import config as fleet
from gpuwatchd.service import own_process
from gpuwatchd.store import live, schema
from gpuwatchd.store import private_files as place
from gpuwatchd.view import manual
from tests.conftest import ROOT
from tests.docs import database, errors_page, facts, generate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize("name", list(generate.PAGES))
def test_the_reference_is_what_the_code_says(name: str) -> None:
    there = (generate.DOCS / name).read_text(encoding="utf-8")
    assert there == generate.PAGES[name](), "run make docs"


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


SECTIONS = errors_page.sections()


def test_what_is_named_is_documented_and_what_is_documented_is_named() -> None:
    assert set(errors_page.raised()) == set(SECTIONS)


def test_the_root_of_the_tree_is_raised_with_a_section_of_its_own_only() -> None:
    assert errors_page.unnamed() == []


def test_every_class_has_a_page_and_they_differ() -> None:
    found = {name: kind.default_page for name, kind in errors_page.classes().items()}
    assert len(set(found.values())) == len(found)
    assert all(page.startswith("errors#") for page in found.values())


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_what_to_do(name: str) -> None:
    text = SECTIONS[name]
    form = (
        r"\n\n\*\*[^*]+\.\*\* .+\.\n"
        r"\nUsual causes:\n\n(\* .+\n)+\nWhat to do:\n\n(\* .+\n)+\n`kind`: "
    )
    assert re.match(form, text)
    # The verbs and flags that it names are looked at with those of every page: test_commands.
    pages = re.findall(r"`gpuwatchctl docs ([^`]+)`", text)
    assert set(pages) <= manual.files(generate.DOCS).keys()


PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(
            r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
]
_MISSING_HERE = ("No such file", "empty, and the channel")
"""A page shows one section at a time, and files that are the reader's."""


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_a_configuration_is_valid(block: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block, encoding="utf-8")
    if block.startswith("# fleet.toml"):
        # The certificates of one distribution are not everywhere.
        words = re.sub(r"^ca-file = .*$", "", block, flags=re.MULTILINE)
        file.write_text(words.replace("/run/secrets/gpuwatchd/", ""), encoding="utf-8")
        (tmp_path / "prometheus-token").touch(0o600)
        (tmp_path / "prometheus-token").write_text("s3cret")
        assert fleet.load(file).section.map in msgspec.toml.decode(fleet.MAPS.read_bytes())
        return
    if block.startswith("# vram.toml"):
        assert fleet.metric_map(str(file), "fleet.toml").used == "vram_used"
        return
    loaded = config.load(file, environ={})
    found = config_text.problems(loaded.config)
    assert [words for words in found if not any(part in words for part in _MISSING_HERE)] == []


def test_the_table_of_presets_is_what_the_presets_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "rules.md").read_text(encoding="utf-8")
    for name in ("shared", "ci"):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'[policy]\npreset = "{name}"\n', encoding="utf-8")
        origin = config.load(file, environ={}).origin
        changed = {key.partition(".")[2] for key, source in origin.items() if "preset " in source}
        for key in changed - {"digest-channels"}:
            assert f"| `{key}` |" in page, key


def _calls() -> list[str]:
    folder = ROOT / "contrib" / "nagios"
    words = (folder / "nrpe.cfg").read_text() + (folder / "sudoers").read_text()
    return re.findall(r"gpuwatchctl (check.*)$", words, re.MULTILINE)


@pytest.mark.parametrize("call", _calls())
def test_monitoring_snippets_use_what_there_is(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(call)) in {2, 3}  # no daemon runs here
    answer = capsys.readouterr().out
    assert "no daemon has written" in answer, answer


def test_the_icinga_command_names_every_mode_and_flag() -> None:
    words = (ROOT / "contrib" / "nagios" / "icinga2.conf").read_text()
    assert f"{', '.join(list(check.MODES)[:-1])} or {list(check.MODES)[-1]}" in words
    for flag in ("--mode", "-w", "-c", "-t", "--gpu"):
        assert f'"{flag}"' in words
    assert words.count("{") == words.count("}")
