"""The page that tells how to install, word by word, on a Debian that was really booted."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, need
from tests.real.machine import why_not
from tests.real.machine.machine import until
from tests.real.machine.world import SOURCES, UNIT, World, publish, world

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "how-to" / "install.md"
BLOCK = re.compile(r"<!-- run: bookworm(, user)? -->\n```sh\n(.*?)```", re.DOTALL)
AS_ROOT = '#!/bin/sh\nexec "$@"\n'
"""In place of sudo, which a small Debian does not have: who runs it is root already."""


@pytest.fixture(scope="module")
def debian() -> Iterator[World]:
    need(not why_not(), why_not())
    yield from world("bookworm")


def blocks() -> list[tuple[str | None, str]]:
    """Return who runs it, None for an administrator, and the commands, of each marked block."""
    text = PAGE.read_text(encoding="utf-8")
    return [("mleng" if user else None, script) for user, script in BLOCK.findall(text)]


def test_the_page_from_install_to_removal(debian: World) -> None:
    machine = debian.machine
    marked = blocks()
    assert len(marked) == 5, "install, use, upgrade, and two to remove"
    machine.write("/usr/bin/sudo", AS_ROOT, mode=0o755)
    (machine.files / SOURCES[1:]).unlink()
    name = f"/root/{debian.suite}.sources"
    machine.write(name, machine.read(f"/srv/repo{name.removeprefix('/root')}"))
    debian.linger("mleng")
    taken, commands = 0.0, 0
    for number, (user, script) in enumerate(marked):
        if number == 2:
            key = machine.read(SOURCES)
            publish(machine.root, debian.builds[1])
            assert key != machine.read(f"/srv/repo/{debian.suite}.sources")
            machine.write(SOURCES, machine.read(f"/srv/repo/{debian.suite}.sources"))
        began = time.monotonic()
        done = machine.run("bash", "-euo", "pipefail", "-c", script, user=user, timeout=300)
        taken += time.monotonic() - began
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}{machine.journal()}"
        commands += len(script.strip().splitlines())
        if number == 1:
            assert debian.running() > 0
            assert "A100" in done.stdout
        if number == 2:
            assert "-1~" in debian.version()
            assert debian.ctl("service", "status").returncode == 0
    print(f"{debian.suite}: {commands} commands, {taken:.0f} s from nothing to nothing")
    assert debian.version() == ""
    until(lambda: not machine.run("pidof", "-x", UNIT).stdout, "no daemon runs on")
    kept = ("/srv", "/var/log", "/var/lib/apt", "/var/cache")
    found = [path for path in machine.root.files() if UNIT in path]
    assert [path for path in found if not path.startswith(kept)] == []
