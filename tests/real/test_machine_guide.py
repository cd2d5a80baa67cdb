"""The page that tells how to install, word by word, on a Debian that was really booted.

It begins with the release that people run, whose daemon has an alert open when the present one is
installed over it: by apt, then by pip. The second test goes on with the machine of the first.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

import indexfiles
import project
from tests.conftest import ROOT
from tests.packaging import built, debs
from tests.real.machine.machine import until
from tests.real.machine.roots import mirror
from tests.real.machine.world import CONF, MANY_S, QUICK, SOURCES, UNIT, World, publish

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(900)]

BEFORE = debs.released
CONFIG = "/home/mleng/.config/gpuwatchd/config.toml"
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


class Incident:
    """An alert of the release that people run: told, and still open when it is replaced."""

    def __init__(self, debian: World) -> None:
        self.debian = debian
        (alert,) = until(debian.firing, f"an alert\n{debian.machine.journal()}", MANY_S, 1.0)
        until(lambda: debian.counts()["sent"], "noted as told")
        self.alert = {name: alert[name] for name in ("id", "key", "opened_at", "firing_at")}
        self.pid, self.counts = debian.running(), debian.counts()
        self.settings, self.told = debian.machine.read(CONFIG), len(debian.notes())

    def goes_on(self, anew: str) -> None:
        """Look what is lost by the present release a minute later, and by a service made anew."""
        debian, began = self.debian, time.monotonic()
        start = f"start version={project.version()} "
        until(lambda: start in self._log(), f"it starts anew\n{debian.machine.journal()}", MANY_S)
        print(f"goes on as {project.version()} after {time.monotonic() - began:.0f} s")
        self.is_whole()
        assert debian.running() == self.pid
        assert len(debian.notes()) == self.told, "nobody is told twice"
        assert "Traceback" not in self._log()
        assert " ERROR " not in self._log()
        assert debian.ctl("config", "validate").returncode == 0
        assert debian.machine.read(CONFIG) == self.settings
        assert debian.ctl("service", anew).returncode == 0
        debian.running(other_than=self.pid)
        self.is_whole()

    def is_whole(self) -> None:
        """Ask for the alert, the state and the history."""
        debian = self.debian
        found = until(debian.firing, "the alert is there")
        assert [{name: one[name] for name in self.alert} for one in found] == [self.alert]
        (status,) = debian.data("status")
        assert status["verdict"]["tier"] == "alert"
        counts = debian.counts()
        assert {table: n for table, n in counts.items() if n < self.counts[table]} == {}
        (recorded,) = debian.data("history")
        assert recorded["rows"][0]["at"] <= self.alert["firing_at"]

    def _log(self) -> str:
        return self.debian.machine.journal(f"_PID={self.pid}", "--lines=all")


def begin(debian: World) -> None:
    """Write every setting that the program there knows, and let a job leak."""
    assert debian.ctl("config", "init").returncode == 0
    text = re.sub(r"(?m)^#(?=[a-z-]+ = .)", "", debian.machine.read(CONFIG))
    for key, value in re.findall(r"(?m)^([a-z-]+) = (.*)$", QUICK):
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    debian.machine.write(CONFIG, text, mode=0o600, owner="mleng")
    debian.leak("mleng", "100M")


def follow(debian: World, user: str | None, script: str, **env: str) -> str:
    """Do what the page says, and return what was said."""
    begun = time.monotonic()
    words = ("bash", "-euo", "pipefail", "-c", script)
    done = debian.machine.run(*words, user=user, timeout=300, env={"FAKE_NVML_CONF": CONF, **env})
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}{debian.machine.journal()}"
    count, took_s = len(script.strip().splitlines()), time.monotonic() - begun
    print(f"{debian.suite}: {count} commands of the page, {took_s:.0f} s")
    return done.stdout


def test_the_page_from_install_to_removal(debian: World) -> None:
    machine = debian.machine
    install, use, upgrade, *remove = blocks()
    assert len(remove) == 2
    machine.write("/usr/bin/sudo", AS_ROOT, mode=0o755)
    (machine.files / SOURCES[1:]).unlink()
    name = f"/root/{debian.suite}.sources"
    machine.write(name, machine.read(f"/srv/repo{name.removeprefix('/root')}"))
    debian.linger("mleng")
    follow(debian, *install)
    assert debian.version().startswith("0.1.0-")
    debian.serve_notifications()
    begin(debian)
    assert "A100" in follow(debian, *use)
    incident = Incident(debian)
    key = machine.read(SOURCES)
    publish(machine.root, debian.builds[1])
    assert key != machine.read(f"/srv/repo/{debian.suite}.sources")
    machine.write(SOURCES, machine.read(f"/srv/repo/{debian.suite}.sources"))
    follow(debian, *upgrade)
    assert debian.version() == debian.builds[1].name.split("_")[1]
    incident.goes_on("restart")
    for script in remove:
        follow(debian, *script)
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
    before, wheel = built.released() / "dist/gpuwatchd-0.1.0-py3-none-any.whl", debs.wheel()
    machine.write(f"/srv/wheels/{before.name}", before.read_bytes())
    certificates = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
    machine.write("/srv/certificates", certificates.read_bytes())
    env = {
        "PIP_INDEX_URL": indexfiles.configured_index(), "PIP_FIND_LINKS": "/srv/wheels",
        "PIP_CERT": "/srv/certificates",
    }  # fmt: skip
    follow(debian, "mleng", install, **env)
    begin(debian)
    assert "A100" in follow(debian, "mleng", f"set +e\n{use}", **env)
    incident = Incident(debian)
    machine.write(f"/srv/wheels/{wheel.name}", wheel.read_bytes())
    (upgrade,) = re.findall(r"To upgrade that, `(.*)`;", PAGE.read_text(encoding="utf-8"))
    # Named, as the page says: it may be a candidate, which pip takes in no other way.
    follow(debian, "mleng", f"{upgrade}=={project.version()}", **env)
    incident.goes_on("install")
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
