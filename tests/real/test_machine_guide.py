"""The page that tells how to install, word by word, on a Debian that was really booted.

The second test goes on with the machine of the first.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

import indexfiles
from tests.conftest import ROOT
from tests.packaging import debs
from tests.real.machine.machine import until
from tests.real.machine.roots import mirror
from tests.real.machine.world import CONF, SOURCES, UNIT, World, publish

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "how-to" / "install.md"
BLOCK = re.compile(r"<!-- run: bookworm(, user)? -->\n```sh\n(.*?)```", re.DOTALL)
PIP = re.compile(r"<!-- run: bookworm with pip, user -->\n```sh\n(.*?)```", re.DOTALL)
AFTER_ALL = re.compile(r"Whatever the way, the end is the same:\n\n```\n(.*?)```", re.DOTALL)
AS_ROOT = '#!/bin/sh\nexec "$@"\n'
"""In place of sudo, which a small Debian does not have: who runs it is root already."""


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
    (machine.files / "usr/bin/sudo").unlink()
    kept = ("/srv", "/var/log", "/var/lib/apt", "/var/cache")
    found = [path for path in machine.root.files() if UNIT in path]
    assert [path for path in found if not path.startswith(kept)] == []


@pytest.mark.requirement("B21")
def test_with_pip_alone_by_an_ordinary_user(debian: World) -> None:
    """On the machine that the test before has left as it was."""
    machine = debian.machine
    assert debian.version() == ""
    (install,) = PIP.findall(PAGE.read_text(encoding="utf-8"))
    (use,) = AFTER_ALL.findall(PAGE.read_text(encoding="utf-8"))
    (needed,) = re.findall(r"sudo apt install (.*)$", install, re.MULTILINE)
    machine.write("/etc/apt/sources.list.d/debian.list", f"deb {mirror()} {debian.suite} main\n")
    assert debian.apt("update").returncode == 0
    done = debian.apt("install", "-y", "--no-install-recommends", needed, timeout=300)
    assert done.returncode == 0, done.stderr
    # No index has it before its first release: pip takes our own wheel from here, the rest there.
    wheel = debs.wheel()
    machine.write(f"/srv/wheels/{wheel.name}", wheel.read_bytes())
    certificates = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
    machine.write("/srv/certificates", certificates.read_bytes())
    env = {
        "PIP_INDEX_URL": indexfiles.configured_index(), "PIP_FIND_LINKS": "/srv/wheels",
        "PIP_CERT": "/srv/certificates", "FAKE_NVML_CONF": CONF,
        "PATH": "/home/mleng/.local/bin:/usr/bin:/bin",
    }  # fmt: skip
    began = time.monotonic()
    for script in (install, use):
        done = machine.run(
            "bash", "-uo", "pipefail", "-c", script, user="mleng", env=env, timeout=300
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}{machine.journal()}"
    taken = time.monotonic() - began
    count = len(f"{install}{use}".strip().splitlines())
    print(f"pip on {debian.suite}: {count} commands, {taken:.0f} s until it watches")
    assert debian.running() > 0
    assert "A100" in done.stdout
    told = machine.run("sh", "-c", "gpuwatchctl doctor --json", user="mleng", env=env).stdout
    checks = [one for one in json.loads(told)["data"] if one["name"] == "service"]
    assert checks
    assert [one for one in checks if one["level"] != "ok"] == []
    left = "gpuwatchctl service uninstall --purge --yes"
    remove = "rm -r ~/.local/share/gpuwatchd ~/.local/bin/gpuwatch*"
    assert remove in PAGE.read_text(encoding="utf-8")
    machine.run("bash", "-euc", f"{left}\n{remove}", user="mleng", env=env, ok=True)
    assert debian.state() == "inactive"
    home = machine.files / "home/mleng"
    assert [path for path in home.rglob("*") if UNIT in path.name] == []
