"""The short story of ``test_machine.py`` on a Debian 13, whose systemd is 257 instead of 252."""

from __future__ import annotations

import signal

import pytest

from tests.real.machine.machine import until
from tests.real.machine.world import QUICK, UNIT, World

SUITE = "trixie"
pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(900)]


def test_it_is_installed_and_switched_on(debian: World) -> None:
    machine = debian.machine
    assert debian.apt("update").returncode == 0
    install = debian.apt("install", "-y", UNIT)
    assert install.returncode == 0, install.stderr
    assert debian.version().endswith("~deb13")
    version = machine.run("systemctl", "--version", ok=True).stdout.split()[1]
    print(f"systemd {version}")
    assert int(version) >= 257
    for scope in (["--system"], ["--global"]):
        assert machine.run("systemctl", *scope, "is-enabled", UNIT).stdout == "disabled\n"

    debian.linger("mleng")
    machine.write("/home/mleng/.config/gpuwatchd/config.toml", QUICK, mode=0o600, owner="mleng")
    debian.serve_notifications()
    debian.leak("mleng")
    done = debian.ctl("service", "install")
    assert done.returncode == 0, done.stderr + machine.journal()
    debian.running()
    until(lambda: debian.counts()["segment"], "a history where it is on Debian 12")
    assert not (machine.files / "home/mleng/.config/systemd/user/gpuwatchd.service").exists()
    assert debian.service_is_well()


def test_after_a_kill_it_is_back_and_knows_everything(debian: World) -> None:
    before, pid = debian.counts(), debian.pid()
    alerts = {one["id"] for one in debian.data("alerts")}
    debian.send(pid, signal.SIGKILL)
    debian.running(other_than=pid)
    after = debian.counts()
    assert {table: n for table, n in after.items() if n < before[table]} == {}
    assert {one["id"] for one in debian.data("alerts")} >= alerts


def test_a_purge_leaves_nothing(debian: World) -> None:
    machine = debian.machine
    done = debian.apt("purge", "-y", UNIT)
    assert done.returncode == 0, done.stderr
    until(lambda: not machine.run("pidof", "-x", UNIT).stdout, "no daemon runs on")
    kept = ("/home", "/srv", "/var/log", "/var/lib/apt", "/var/cache")
    added = machine.root.files() - debian.before
    assert [path for path in added if UNIT in path and not path.startswith(kept)] == []
    assert debian.accounts_now() == debian.accounts
    assert machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
