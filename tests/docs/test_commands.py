"""Every command that a page tells to type is there, with its flags; the README is short."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from gpuwatchd.cli import COMMANDS, command_line, options
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.daemon.main import command as daemon_command
from gpuwatchd.fleet.main import command as fleet_command
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "README.md"
PAGES = [
    README,
    *sorted(file for file in (ROOT / "docs").rglob("*.md") if file.name != "cli.md"),
    *sorted((ROOT / "contrib").rglob("*.md")),
]
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCED = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_CALL = re.compile(
    r"(?:^\s*|[|;&(]\s*|\$ |\bsudo (?:-\w \S+ )?)(?:[A-Z_]+=\S+ )*(?:[^\s=]*/)?"
    r"(gpuwatchctl|gpuwatchd)(?= |$)([^#|&;><()\n]*)",
    re.MULTILINE,
)
_OPEN = re.compile(r"[A-Z…]|\.\.\.|\[|latest|/")
_BLANK = re.compile(r"^[A-Z]{2,}$|[…$\[]|\.\.\.")
OWN = frozenset(name for one in options.global_options() for name in one.opts) | {"-h", "--help"}


def told(page: Path) -> str:
    """Return what stands in code on a page, one piece a line."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for kind, body in _FENCED.findall(text) if kind in {"", "sh", "console"}]
    spans = _SPAN.findall(_FENCED.sub("", text))
    return "\n".join([*blocks, *spans]).replace("\\|", " ").replace("\\\n", " ")


def calls(page: Path) -> list[list[str]]:
    """Return the calls of both programs on a page, as words."""
    found = []
    for name, rest in _CALL.findall(told(page)):
        try:
            words = shlex.split(rest)
        except ValueError:  # a quotation that goes on
            words = rest.split()
        found.append([name, *words])
    return found


def refused(command: click.Command, words: list[str]) -> str:
    """Return why a command does not take its words; what only names it lacks some of them."""
    try:
        command.make_context(command.name, list(words))
    except click.NoSuchOption as error:
        return error.format_message()
    except click.BadParameter as error:
        lacks = isinstance(error, click.MissingParameter) or any(map(_BLANK.search, words))
        return "" if lacks else error.format_message()
    except (click.UsageError, click.exceptions.Exit, GpuwatchdError):  # only named, or on nobody
        return ""
    return ""


def wrong(call: list[str]) -> str:
    """Return what is wrong with a call, also with the values of its flags; "" where nothing is."""
    name, *words = call
    words = words[: words.index("--")] if "--" in words else words  # the rest is another program's
    if name == "gpuwatchd":
        of_fleet = words[:1] == ["fleet"]
        return refused(fleet_command if of_fleet else daemon_command, words[of_fleet:])
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is None:
        return next((f"no flag {one}" for one in words if one not in OWN | {"--version"}), "")
    if verb not in COMMANDS:
        return "" if _OPEN.search(verb) else f"no verb {verb}"
    command, words = command_line.load(verb), words[words.index(verb) + 1 :]
    if isinstance(command, click.Group):
        below = next((word for word in words if word in command.commands), None)
        if below is not None:
            command, words = command.commands[below], words[words.index(below) + 1 :]
    return refused(command, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_call_is_of_a_verb_and_its_flags(page: Path) -> None:
    found = {" ".join(call): why for call in calls(page) if (why := wrong(call))}
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_target_module_and_script_is_there(page: Path) -> None:
    text = told(page)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for named in re.findall(r"(?:^|&& |; )make ([a-z-]+)", text, re.MULTILINE):
        assert named in targets, named
    for named in re.findall(r"python3? -m ((?:tests|gpuwatchd)[\w.]*)", text):
        assert importlib.util.find_spec(named) is not None, named
    for named in re.findall(r"(?:python3? )((?:contrib|tests|packaging)/[\w./-]+\.py)", text):
        assert (ROOT / named).is_file(), named


def test_the_readme_is_short_and_names_no_host_of_ours() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert set(re.findall(r"https?://([\w.-]+)", text)) <= {"github.com"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_for_a_shell_are_such(page: Path) -> None:
    found = _FENCED.findall(page.read_text(encoding="utf-8"))
    for body in (body for kind, body in found if kind == "sh"):
        done = subprocess.run(
            ["bash", "-n"], check=False, input=body, capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 0, f"{body}\n{done.stderr}"
