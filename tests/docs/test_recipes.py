"""What the pages for those who extend the program tell to write is written, and keeps the laws."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = {"write-a-detector": "burst", "write-a-notifier": "logfile", "write-a-source": "textfile"}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"# in (\S+), (in|above) (\w+)\n")


def blocks(page: str, kind: str) -> list[str]:
    """Return the blocks of one language of a page."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    return [body for language, body in _BLOCK.findall(text) if language == kind]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a copy of the program with what a page tells to write, once a page."""
    return functools.cache(lambda page: planted(page, tmp_path_factory.mktemp("copy")))


def planted(page: str, copy: Path) -> Path:
    """Write such a copy."""
    leave = shutil.ignore_patterns("__pycache__", "data")
    for name in ("gpuwatchd", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    for name in ("tests/data", "docs"):
        (copy / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for block in blocks(page, "python"):
        found = _PLACE.match(block)
        if found is None:
            named = re.match(r"# (\S+\.py)\n", block)
            assert named, block
            (copy / named[1]).write_text(block[named.end() :], encoding="utf-8")
            continue
        file, how, where = found.groups()
        words = block[found.end() :]
        text = (copy / file).read_text(encoding="utf-8")
        changed = above(text, where, words) if how == "above" else inside(text, where, words)
        (copy / file).write_text(changed, encoding="utf-8")
    return copy


def above(text: str, name: str, words: str) -> str:
    """Return the text with the words before the definition of a name."""
    at = re.search(rf"^(class {name}\b|{name}\b.*=)", text, re.MULTILINE)
    assert at, name
    return f"{text[: at.start()]}{words}\n\n{text[at.start() :]}"


def inside(text: str, name: str, words: str) -> str:
    """Return the text with the words at the end of a dictionary or of a class."""
    table = re.search(rf"^ *{name}: [^\n]*= \{{\n", text, re.MULTILINE)
    if table:
        return text[: table.end()] + words + text[table.end() :]
    kind = re.search(rf"^class {name}\b.*?(?=\n\n\n)", text, re.MULTILINE | re.DOTALL)
    assert kind, name
    return text[: kind.end()] + "\n" + words.rstrip("\n") + text[kind.end() :]


@pytest.mark.parametrize("page", list(NAMES))
def test_what_a_page_imports_is_there(page: str) -> None:
    """Also names that only a type checker reads."""
    for block in blocks(page, "python"):
        for module, names in re.findall(r"^ *from (\S+) import (.+)$", block, re.MULTILINE):
            if not module.endswith(NAMES[page]):
                for name in names.split(", "):
                    there = hasattr(importlib.import_module(module), name)
                    assert there or importlib.util.find_spec(f"{module}.{name}"), (module, name)


def test_the_tables_that_the_recipe_names_are_there() -> None:
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)` (?:in|of) `(\S+\.py)`", recipe)
    assert len(named) > 8
    for name, file in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *((class|def) )?{name}\b.*[=:]", text, re.MULTILINE), (
            f"{name} in {file}"
        )


def run(copy: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy; the copy's package goes before the installed one."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "CI") if name in os.environ}
    return subprocess.run(
        [sys.executable, *argv], check=False, cwd=copy, capture_output=True, text=True, timeout=110,
        env={**kept, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1",
             "GPUWATCHD_STATE_DIR": str(copy / "state"), "GPUWATCHD_RUNTIME_DIR": str(copy / "run"),
             "LC_ALL": "C.UTF-8", **more},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", list(NAMES))
@pytest.mark.requirement("G2")
def test_the_recipe_keeps_the_laws(page: str, plant: Callable[[str], Path]) -> None:
    copy = plant(page)
    told = next(one for one in blocks(page, "sh") if "pytest" in one).split()
    assert told[:3] == ["python", "-m", "pytest"]
    done = run(
        copy, *told[1:], "-v", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert NAMES[page] in done.stdout
    checked = [sys.executable, "-m", "ruff", "check", "gpuwatchd"]
    found = subprocess.run(checked, check=False, cwd=copy, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


CALL = "import sys; from gpuwatchd.{} import main; sys.exit(main(sys.argv[1:]))"


def test_the_notifier_writes_its_line(plant: Callable[[str], Path]) -> None:
    copy = plant("write-a-notifier")
    more = {"GPUWATCHD_NOTIFY_LOGFILE_FILE": "alerts.log"}
    done = run(copy, "-c", CALL.format("cli"), "notify", "test", "logfile", **more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy / "alerts.log").read_text().startswith("info test ")


@pytest.mark.slow
def test_the_source_is_shown(plant: Callable[[str], Path]) -> None:
    copy = plant("write-a-source")
    (copy / "gpus.txt").write_text("board-a Accelerator-X1 8123 16384\nboard-b X1 - 16384\nbad\n")
    more = {"GPUWATCHD_SOURCES_TEXTFILE_FILE": "gpus.txt"}
    done = run(copy, "-c", CALL.format("daemon.main"), "--source", "textfile", "--once", **more)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = run(copy, "-c", CALL.format("cli"), "status", **more).stdout
    assert "Accelerator-X1" in shown
    assert "7.9" in shown
