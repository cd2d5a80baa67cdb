"""The man pages are sound, and name everything that there is."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from gpuwatchd.cli import COMMANDS, command_line
from gpuwatchd.core import config
from gpuwatchd.daemon.main import command as daemon_command
from tests.conftest import need
from tests.docs import generate, manpages

TEXT = {name: page() for name, page in manpages.PAGES.items()}


def _commands(name: str) -> list[click.Command]:
    command = command_line.load(name)
    below = list(command.commands.values()) if isinstance(command, click.Group) else []
    return [command, *below]


def _flags(command: click.Command) -> list[str]:
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return [name for one in shown for name in [*one.opts, *one.secondary_opts]]


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_and_flag_has_its_place(verb: str) -> None:
    page = TEXT["gpuwatchctl.1"]
    for command in _commands(verb):
        assert re.search(
            rf"^\.SS {re.escape(manpages.escaped(verb))}( .*)?$", page, re.MULTILINE
        ), command.name
        for flag in _flags(command):
            assert manpages.escaped(flag) in page, flag


def test_every_flag_of_the_daemon_has_its_place() -> None:
    for flag in [*_flags(daemon_command), "--version", "--help"]:
        assert f"{manpages.escaped(flag)}" in TEXT["gpuwatchd.8"], flag


def test_every_key_has_its_place_and_a_meaning() -> None:
    page = TEXT["gpuwatchd.toml.5"]
    for key, _ in list(config.keys()):
        section, _, name = key.rpartition(".")
        start = page.index(f".SS {manpages.escaped(f'[{section}]')}\n")
        part = page[start:].split("\n.SS ", 1)[0]
        row = re.search(
            rf"^\\fB{re.escape(manpages.escaped(name))} = .*\n(.+)$", part, re.MULTILINE
        )
        assert row, key
        assert not row[1].startswith("."), key
    assert ".SS [[override]]\n" in page


@pytest.mark.parametrize("name", manpages.PAGES)
def test_formatters_have_nothing_to_say(name: str) -> None:
    file = str(generate.DOCS / "man" / name)
    need(shutil.which("mandoc") is not None, "mandoc is not installed")
    done = subprocess.run(  # noqa: PLW1510 - its code is looked at
        ["mandoc", "-T", "lint", "-W", "warning", file], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    shown = subprocess.run(
        ["mandoc", "-T", "utf8", file], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    plain = re.sub(".\b", "", shown)
    assert "NAME" in plain
    assert "\\" not in plain.replace("\\d", "")
    # Its own formatter of Debian is there with man-db only.
    if shutil.which("man") is not None and shutil.which("groff") is not None:
        done = subprocess.run(  # noqa: PLW1510 - its code is looked at
            ["man", "--warnings", "-l", file], capture_output=True, text=True, timeout=30,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "80"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
