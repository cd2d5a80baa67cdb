"""No second instance, and what is said of the first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatchd.service.other_instances import lock_holder
from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import UNIT
from gpuwatchd.store.private_files import hold_lock
from tests.service.conftest import NOT_FOUND, RUNNING, STOPPED, USER, Tools, refused, unit_file


@pytest.mark.slow
def test_the_machine_s_service_is_enough(manager: Systemd, tools: Tools) -> None:
    tools.answer(f"systemctl --system is-active {UNIT}", "active")
    caught = refused("watches every GPU already", manager.install, dry_run=False)
    assert f"usermod -aG gpuwatchd {USER}" in caught.hint
    assert not unit_file(tools).exists()
    manager.install(dry_run=False, anyway=True)
    assert unit_file(tools).exists()


@pytest.mark.parametrize(
    ("seen", "is_refused"),
    [
        (f"{STOPPED}\nUnitFileState=disabled", True),
        (f"{STOPPED}\nUnitFileState=enabled", False),
        (f"{RUNNING}\nUnitFileState=disabled", False),
    ],
)
def test_the_unit_of_a_package_is_no_instance_before_it_is_used(
    manager: Systemd, tools: Tools, seen: str, *, is_refused: bool
) -> None:
    tools.answer(f"systemctl --system is-active {UNIT}", "active")
    tools.answer(f"systemctl --user show {UNIT}", seen)
    if not is_refused:
        assert manager.install(dry_run=False)
        return
    refused("watches every GPU already", manager.install, dry_run=False)


def test_a_daemon_of_ones_own_that_runs_already(manager: Systemd, tools: Tools) -> None:
    runtime = Path(tools.environ["XDG_RUNTIME_DIR"]) / "gpuwatchd"
    runtime.mkdir(parents=True)
    lock = hold_lock(runtime)
    try:
        by_hand = rf"by hand is already running \(pid {os.getpid()}\)"
        caught = refused(by_hand, manager.install, dry_run=False, anyway=True)
        assert caught.hint == f"kill {os.getpid()}, then gpuwatchctl service install"
        tools.answer(f"systemctl --user show {UNIT}", STOPPED)
        assert str(os.getpid()) in manager.status().hints[0]
        refused("by hand", manager.uninstall, dry_run=False, purge=True)
        # The service's own daemon holds it as well, of course.
        tools.answer(f"systemctl --user show {UNIT}", RUNNING)
        manager.install(dry_run=False)
    finally:
        os.close(lock)
    assert lock_holder(runtime) is None


def test_homebrew_s_program_is_homebrew_s_to_start(tools: Tools) -> None:
    tools.answer(f"systemctl --user show {UNIT}", NOT_FOUND)
    keg = "/home/linuxbrew/.linuxbrew/Cellar/gpuwatchd/1.0.0/libexec/bin/python3"
    manager = Systemd(environ=tools.environ, executable=keg)
    caught = refused("Homebrew installed", manager.install, dry_run=False)
    assert caught.hint.startswith("brew services start gpuwatchd")
    manager.install(dry_run=False, anyway=True)
    assert unit_file(tools).exists()
