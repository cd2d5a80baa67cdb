"""The launchd agent: its property list, and what is asked of launchctl. Not run on macOS."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.errors import ServiceError
from gpuwatchd.service.launchd import HOMEBREW_LABEL, LABEL, Launchd

if TYPE_CHECKING:
    from tests.service.conftest import Tools

DOMAIN = f"gui/{os.getuid()}"
TARGET = f"{DOMAIN}/{LABEL}"
RUNNING = f"""{TARGET} = {{
\tactive count = 1
\tpath = /x.plist
\tstate = running
\tprogram = /opt/venv/bin/python3
\tpid = 4711
\tlast exit code = 1
\tspawn type = daemon (3)
\tendpoints = {{
\t\tstate = other
\t}}
}}
"""


@pytest.fixture
def manager(tools: Tools) -> Launchd:
    tools.answer(f"launchctl print {TARGET}", "Could not find service", code=113)
    tools.answer(f"launchctl print {DOMAIN}/{HOMEBREW_LABEL}", "Could not find service", code=113)
    environ = tools.environ | {
        "GPUWATCHD_STATE_DIR": str(tools.home / "Library/Application Support/gpuwatchd"),
        "GPUWATCHD_RUNTIME_DIR": str(tools.home / "Library/Caches/TemporaryItems/gpuwatchd"),
    }
    return Launchd(environ=environ, executable="/opt/venv/bin/python3", sleep=lambda _: None)


def agent_file(tools: Tools) -> Path:
    return tools.home / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def loaded(tools: Tools) -> None:
    """From now on the agent is loaded, until it is booted out."""
    tools.answer(f"launchctl print {TARGET}", RUNNING)


def test_the_property_list(manager: Launchd, tools: Tools) -> None:
    wanted: dict[str, Any] = plistlib.loads(manager.render().encode())
    assert wanted["Label"] == agent_file(tools).stem
    assert wanted["ProgramArguments"] == ["/opt/venv/bin/python3", "-m", "gpuwatchd"]
    assert wanted["RunAtLoad"] is True
    assert wanted["KeepAlive"] == {"SuccessfulExit": False}
    assert type(wanted["ThrottleInterval"]) is int
    assert wanted["ThrottleInterval"] == 30
    assert wanted["ProcessType"] == "Background"
    assert wanted["LimitLoadToSessionType"] == "Aqua"
    assert wanted["Umask"] == 0o077
    for key in ("StandardOutPath", "StandardErrorPath"):
        assert Path(wanted[key]).is_absolute()
        assert not set(wanted[key]) & set("~$")
    variables = wanted["EnvironmentVariables"]
    assert variables["PATH"] == "/usr/bin:/bin:/usr/sbin:/sbin"
    assert variables["GPUWATCHD_STATE_DIR"].endswith("Application Support/gpuwatchd")
    assert set(variables) == {
        "PATH", "GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR", "OPENBLAS_NUM_THREADS"
    }  # fmt: skip
    assert all(isinstance(value, str) for value in variables.values())


def test_install(manager: Launchd, tools: Tools) -> None:
    tools.answer(f"launchctl print {TARGET}", "Could not find service", code=113, once=True)
    said = manager.install(dry_run=False, linger=True)
    assert agent_file(tools).read_text() == manager.render()
    assert agent_file(tools).stat().st_mode & 0o777 == 0o644
    logs = tools.home / "Library" / "Logs" / "gpuwatchd"
    assert logs.stat().st_mode & 0o777 == 0o700
    assert tools.calls == [
        f"launchctl print {DOMAIN}",
        f"launchctl print {DOMAIN}/{HOMEBREW_LABEL}",
        f"launchctl bootout {TARGET}",
        f"launchctl print {TARGET}",
        f"launchctl enable {TARGET}",
        f"launchctl bootstrap {DOMAIN} {agent_file(tools)}",
        f"launchctl kickstart {TARGET}",
        f"launchctl print {TARGET}",
    ]
    assert "started" in said
    assert "no linger" in said[-1]


def test_loading_waits_until_the_old_one_is_gone(manager: Launchd, tools: Tools) -> None:
    slept: list[float] = []
    manager._sleep = slept.append
    loaded(tools)
    with pytest.raises(ServiceError, match="still loaded"):
        manager.install(dry_run=False, linger=False)
    assert len(slept) == 50
    assert not any("bootstrap" in call for call in tools.calls)


def test_a_second_install_changes_nothing(manager: Launchd, tools: Tools) -> None:
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).write_text(manager.render())
    loaded(tools)
    said = manager.install(dry_run=False, linger=False)
    assert said == [f"{agent_file(tools)} is up to date", "already running"]
    assert not any("boot" in call for call in tools.calls)


def test_a_dry_run_only_speaks(manager: Launchd, tools: Tools) -> None:
    said = manager.install(dry_run=True, linger=False)
    assert said[0] == f"would write {agent_file(tools)}"
    assert f"would run launchctl bootstrap {DOMAIN} {agent_file(tools)}" in said
    assert tools.calls == []
    assert not agent_file(tools).exists()


def test_without_a_graphical_session(manager: Launchd, tools: Tools) -> None:
    tools.answer(f"launchctl print {DOMAIN}", "Could not find domain", code=125)
    assert not manager.probe().ok
    with pytest.raises(ServiceError, match="no graphical session") as caught:
        manager.install(dry_run=False, linger=False)
    assert "ssh" in caught.value.hint
    assert not agent_file(tools).exists()


def test_homebrew_s_service_is_not_doubled(manager: Launchd, tools: Tools) -> None:
    tools.answer(f"launchctl print {DOMAIN}/{HOMEBREW_LABEL}", "loaded")
    with pytest.raises(ServiceError, match="Homebrew"):
        manager.install(dry_run=False, linger=False)
    assert not agent_file(tools).exists()


def test_a_refusal_is_told(manager: Launchd, tools: Tools) -> None:
    tools.answer("launchctl bootstrap", "Bootstrap failed: 5: Input/output error", code=5)
    with pytest.raises(ServiceError, match="Bootstrap failed: 5"):
        manager.install(dry_run=False, linger=False)


def test_uninstall(manager: Launchd, tools: Tools) -> None:
    assert manager.uninstall(dry_run=False) == ["not installed"]
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).write_text(manager.render())
    tools.answer(f"launchctl print {TARGET}", RUNNING, once=True)
    assert manager.uninstall(dry_run=True) == [
        f"would run launchctl bootout {TARGET}",
        f"would remove {agent_file(tools)}",
    ]
    tools.answer(f"launchctl print {TARGET}", "Could not find service", code=113)
    said = manager.uninstall(dry_run=False)
    assert said[0] == f"removed {agent_file(tools)}"
    assert not agent_file(tools).exists()


def test_start_stop_restart_and_logs(manager: Launchd, tools: Tools) -> None:
    manager.start()
    manager.restart()
    manager.stop()
    assert tools.calls == [
        f"launchctl kickstart {TARGET}",
        f"launchctl kickstart -k {TARGET}",
        f"launchctl kill SIGTERM {TARGET}",
    ]
    assert manager.logs(lines=5, follow=False) != 0


def test_status(manager: Launchd, tools: Tools) -> None:
    assert manager.status() == (False, "not installed")
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).touch()
    assert manager.status() == (False, "not loaded")
    loaded(tools)
    assert manager.status() == (True, "running, pid 4711, last exit code: 1")
