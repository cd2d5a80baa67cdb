"""A user's systemd service: what is asked of systemctl."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.service.systemd import HOMEBREW_UNIT, Systemd
from gpuwatchd.service.unit_files import MARK, UNIT
from gpuwatchd.store import live
from tests.service.conftest import RUNNING, USER, Tools, changes, refused, unit_file

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_directories_of_the_user_s_choice(tools: Tools) -> None:
    environ = tools.environ | {
        "GPUWATCHD_RUNTIME_DIR": "/data/100%/run",
        "GPUWATCHD_STATE_DIR": '/data/"odd"',
        "GPUWATCHD_CONFIG": "/etc/my.toml",
    }
    unit = Systemd(environ=environ).render()
    assert 'Environment="GPUWATCHD_RUNTIME_DIR=/data/100%%/run"' in unit
    assert 'Environment="GPUWATCHD_STATE_DIR=/data/\\"odd\\""' in unit
    assert 'Environment="GPUWATCHD_CONFIG=/etc/my.toml"' in unit
    assert "RuntimeDirectory=" not in unit


def test_the_script_beside_python_is_preferred(tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "a venv" / "bin"
    folder.mkdir(parents=True)
    script = folder / "gpuwatchd"
    script.write_text("#!/bin/sh\n")
    manager = Systemd(environ=tools.environ, executable=str(folder / "python3"))
    assert f'ExecStart="{folder}/python3" "-m" "gpuwatchd"\n' in manager.render()
    script.chmod(0o755)
    assert f'ExecStart="{script}"\n' in manager.render()


def test_install_writes_enables_and_starts(manager: Systemd, tools: Tools) -> None:
    said = manager.install(dry_run=False)
    assert unit_file(tools).read_text() == manager.render()
    assert unit_file(tools).stat().st_mode & 0o777 == 0o644
    assert changes(tools) == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable {UNIT}",
        f"systemctl --user restart {UNIT}",
    ]
    assert said[0] == f"wrote {unit_file(tools)}"
    assert f"loginctl enable-linger {USER}" in said[-1]
    assert [path.name for path in unit_file(tools).parent.iterdir()] == [UNIT]


def test_a_second_install_changes_nothing(manager: Systemd, tools: Tools) -> None:
    manager.install(dry_run=False)
    tools.answer(f"systemctl --user show {UNIT}", RUNNING)
    tools.forget()
    said = manager.install(dry_run=False)
    assert not [call for call in tools.calls if "restart" in call or "reload" in call]
    assert "already running" in said
    unit_file(tools).write_text(f"# {MARK}\n[Service]\n# an older one\n")
    tools.forget()
    said = manager.install(dry_run=False)
    assert re.fullmatch(r"it was of another version: \d+ lines differ", said[1])
    assert f"systemctl --user restart {UNIT}" in tools.calls
    assert unit_file(tools).read_text() == manager.render()


def test_a_dry_run_only_speaks(manager: Systemd, tools: Tools) -> None:
    said = manager.install(dry_run=True, linger=True)
    assert said == [
        f"would write {unit_file(tools)}",
        "would run systemctl --user daemon-reload",
        f"would run systemctl --user enable {UNIT}",
        f"would run systemctl --user restart {UNIT}",
        f"would run loginctl enable-linger {USER}",
    ]
    assert not unit_file(tools).exists()
    assert all("show" in call or "is-active" in call for call in tools.calls)


def test_a_dry_run_needs_no_manager(manager: Systemd, tools: Tools) -> None:
    tools.answer("systemctl", "Failed to connect to bus", code=1)
    assert manager.install(dry_run=True)[0] == f"would write {unit_file(tools)}"


def test_linger(manager: Systemd, tools: Tools) -> None:
    said = manager.install(dry_run=False, linger=True)
    assert f"loginctl enable-linger {USER}" in tools.calls
    assert said[-1].startswith("linger enabled")
    tools.answer("loginctl enable-linger", "Access denied", code=1)
    assert "Access denied" in manager.install(dry_run=False, linger=True)[-1]
    tools.answer("loginctl show-user", "yes")
    tools.forget()
    assert "logged out (linger)" in manager.install(dry_run=False)[-1]
    assert f"loginctl enable-linger {USER}" not in tools.calls


def test_the_manager_decides_where_units_lie(manager: Systemd, tools: Tools) -> None:
    elsewhere = tools.folder / "elsewhere"
    tools.answer("systemctl --user show-environment", f"LANG=C\nXDG_CONFIG_HOME={elsewhere}\n")
    manager.install(dry_run=False)
    assert (elsewhere / "systemd" / "user" / UNIT).exists()


def test_without_a_user_manager_there_is_a_clear_error(manager: Systemd, tools: Tools) -> None:
    tools.answer("systemctl", "Failed to connect to bus: No medium found\n", code=1)
    available = manager.probe()
    assert not available.ok
    assert available.reason == "no user manager: Failed to connect to bus: No medium found"
    caught = refused("no user manager: Failed to connect", manager.install, dry_run=False)
    assert "enable-linger" in caught.hint
    assert not unit_file(tools).exists()
    assert not manager.status().running
    refused("no user manager", manager.uninstall, dry_run=False)


def test_a_machine_without_systemd(tools: Tools, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    manager = Systemd(environ=tools.environ | {"PATH": str(empty)})
    assert manager.probe().reason == "systemctl is not installed"


def test_homebrew_s_service_is_not_doubled(manager: Systemd, tools: Tools) -> None:
    tools.answer(f"systemctl --user is-active {HOMEBREW_UNIT}", "active")
    caught = refused("Homebrew", manager.install, dry_run=False)
    assert caught.hint == "brew services stop gpuwatchd"
    assert not unit_file(tools).exists()


def test_a_daemon_that_does_not_come_up_is_told(manager: Systemd, tools: Tools) -> None:
    tools.answer("systemctl --user restart", "Job for gpuwatchd.service failed.\n", code=1)
    caught = refused(r"Job for gpuwatchd\.service failed", manager.install, dry_run=False)
    assert caught.hint == "gpuwatchctl service logs"


def test_uninstall(manager: Systemd, tools: Tools) -> None:
    assert manager.uninstall(dry_run=False) == ["not installed"]
    manager.install(dry_run=False)
    tools.forget()
    planned = manager.uninstall(dry_run=True)
    assert f"would remove {unit_file(tools)}" in planned
    assert unit_file(tools).exists()
    said = manager.uninstall(dry_run=False)
    assert not unit_file(tools).exists()
    assert f"systemctl --user disable --now {UNIT}" in tools.calls
    assert tools.calls.index("systemctl --user daemon-reload") > tools.calls.index(
        f"systemctl --user disable --now {UNIT}"
    )
    assert "history and configuration are kept" in said[-1]
    assert manager.uninstall(dry_run=False) == ["not installed"]


def test_start_stop_restart(manager: Systemd, tools: Tools) -> None:
    manager.start()
    manager.stop()
    manager.restart()
    assert tools.calls == [
        f"systemctl --user {verb} {UNIT}" for verb in ("start", "stop", "restart")
    ]
    tools.answer("systemctl --user stop", "Unit not loaded.", code=5)
    refused("Unit not loaded", manager.stop)


def test_a_service_of_an_older_program_is_started_anew(
    manager: Systemd, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.install(dry_run=False)
    tools.answer(f"systemctl --user show {UNIT}", RUNNING)
    seen = live.LiveState(
        version="0.0.1", pid=4711, started_at_s=1.0, taken_at_s=2.0, interval_s=5.0, devices=()
    )
    monkeypatch.setattr(live, "read", lambda _: seen)
    tools.forget()
    assert "started" in manager.install(dry_run=False)
    assert f"systemctl --user restart {UNIT}" in tools.calls


def test_why_it_does_not_come_up_is_said_in_the_daemon_s_words(
    manager: Systemd, tools: Tools
) -> None:
    tools.answer(
        f"systemctl --user show {UNIT}",
        "LoadState=loaded\nActiveState=failed\nMainPID=0\nResult=exit-code\nExecMainStatus=78",
    )
    tools.answer(
        "systemctl --user start",
        "Job for gpuwatchd.service failed because the control process exited.\nSee systemctl\n",
        code=1,
    )
    caught = refused(r"Job for gpuwatchd.service failed", manager.start)
    assert caught.hint == "its configuration is wrong: gpuwatchctl config validate"
    tools.answer("journalctl", "Starting\ngpuwatchd: config.toml: [nokey]: unknown key\nhint: x\n")
    refused(r"failed: gpuwatchd: config.toml: \[nokey\]", manager.start)
