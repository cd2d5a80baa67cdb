"""The launchd agent: its property list, and what is asked of launchctl. Not run on macOS."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.launchd import HOMEBREW_LABEL, LABEL, Launchd
from gpuwatchd.store.private_files import hold_lock
from tests.service.conftest import refused

if TYPE_CHECKING:
    from pathlib import Path

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


DISABLED = f"""\tdisabled services = {{{{
\t\t"com.apple.Siri.agent" => enabled
\t\t"{LABEL}" => {{}}
\t}}}}
"""


@pytest.fixture
def manager(tools: Tools) -> Launchd:
    tools.answer(f"launchctl print {TARGET}", "Could not find service", code=113)
    for domain in (DOMAIN, "system"):
        missing = f"launchctl print {domain}/{HOMEBREW_LABEL}"
        tools.answer(missing, "Could not find service", code=113)
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


def test_install(manager: Launchd, tools: Tools) -> None:
    # Before, and after it was booted out.
    tools.answer(f"launchctl print {TARGET}", "Could not find service", code=113, times=2)
    said = manager.install(dry_run=False, linger=True)
    assert agent_file(tools).read_text() == manager.render()
    assert agent_file(tools).stat().st_mode & 0o777 == 0o644
    logs = tools.home / "Library" / "Logs" / "gpuwatchd"
    assert logs.stat().st_mode & 0o777 == 0o700
    assert tools.calls == [
        f"launchctl print {DOMAIN}",
        f"launchctl print {TARGET}",
        f"launchctl print {DOMAIN}/{HOMEBREW_LABEL}",
        f"launchctl print system/{HOMEBREW_LABEL}",
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
    refused("still loaded", manager.install, dry_run=False)
    assert len(slept) == 50
    assert not any("bootstrap" in call for call in tools.calls)


def test_a_second_install_changes_nothing(manager: Launchd, tools: Tools) -> None:
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).write_text(manager.render())
    loaded(tools)
    said = manager.install(dry_run=False)
    assert said == [f"{agent_file(tools)} is up to date", "already running"]
    assert not any("boot" in call for call in tools.calls)


def test_a_dry_run_only_speaks(manager: Launchd, tools: Tools) -> None:
    said = manager.install(dry_run=True)
    assert said[0] == f"would write {agent_file(tools)}"
    assert f"would run launchctl bootstrap {DOMAIN} {agent_file(tools)}" in said
    assert tools.calls == []
    assert not agent_file(tools).exists()


def test_without_a_graphical_session(manager: Launchd, tools: Tools) -> None:
    tools.answer(f"launchctl print {DOMAIN}", "Could not find domain", code=125)
    assert not manager.probe().ok
    caught = refused("no graphical session", manager.install, dry_run=False)
    assert "ssh" in caught.hint
    assert not agent_file(tools).exists()


@pytest.mark.parametrize(
    ("domain", "more", "hint"),
    [
        (DOMAIN, {}, "brew services stop gpuwatchd"),
        ("system", {"anyway": True}, "sudo brew services stop gpuwatchd"),
    ],
)
def test_homebrew_s_service_is_not_doubled(
    manager: Launchd, tools: Tools, domain: str, more: dict[str, bool], hint: str
) -> None:
    tools.answer(f"launchctl print {domain}/{HOMEBREW_LABEL}", "loaded")
    assert refused("Homebrew", manager.install, dry_run=False, **more).hint == hint
    assert not agent_file(tools).exists()


def test_a_refusal_is_told(manager: Launchd, tools: Tools) -> None:
    tools.answer("launchctl bootstrap", "Bootstrap failed: 5: Input/output error", code=5)
    refused("Bootstrap failed: 5", manager.install, dry_run=False)


def test_uninstall(manager: Launchd, tools: Tools) -> None:
    assert manager.uninstall(dry_run=False) == ["not installed"]
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).write_text(manager.render())
    tools.answer(f"launchctl print {TARGET}", RUNNING, times=1)
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
    assert (manager.status().state, manager.status().code) == ("not-installed", 4)
    agent_file(tools).parent.mkdir(parents=True)
    agent_file(tools).touch()
    assert (manager.status().text, manager.status().code) == ("not loaded", 3)
    loaded(tools)
    tools.answer(f"launchctl print-disabled {DOMAIN}", DISABLED.format("enabled"))
    found = manager.status()
    assert (found.text, found.code) == ("running, pid 4711, last exit code: 1", 0)
    assert (found.pid, found.enabled, found.file) == (4711, True, str(agent_file(tools)))


@pytest.mark.parametrize(
    ("word", "enabled"),
    [("enabled", True), ("disabled", False), ("false", True), ("true", False)],
)
def test_whether_it_starts_by_itself_in_the_words_of_each_version(
    manager: Launchd, tools: Tools, word: str, enabled: bool
) -> None:
    loaded(tools)
    tools.answer(f"launchctl print-disabled {DOMAIN}", DISABLED.format(word))
    assert manager.status().enabled is enabled
    tools.answer(f"launchctl print-disabled {DOMAIN}", "\tdisabled services = {\n\t}\n")
    assert manager.status().enabled is True
    tools.answer(f"launchctl print-disabled {DOMAIN}", code=113)
    assert manager.status().enabled is None


def test_an_agent_that_failed_shows_its_last_lines(manager: Launchd, tools: Tools) -> None:
    tools.answer(f"launchctl print {TARGET}", RUNNING.replace("= running", "= not running"))
    log = tools.home / "Library" / "Logs" / "gpuwatchd" / "gpuwatchd.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(9)) + "\x1b[2Jend\n")
    found = manager.status()
    assert (found.state, found.code, found.exit_code) == ("failed", 3, 1)
    assert len(found.log) == 5
    assert found.log[-1].endswith("end")
    assert found.log[-1].isprintable()


def test_logs_from_an_instant_and_a_level_on(
    manager: Launchd, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("No such file", manager.logs, lines=5, follow=False, level="error")
    log = tools.home / "Library" / "Logs" / "gpuwatchd" / "gpuwatchd.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "2026-11-22 01:20:16,000 WARNING early\n"
        "2026-11-22 01:20:17,123 INFO small\n"
        "2026-11-22 01:20:18,000 ERROR great\n"
        "Traceback of it\n"
        "2026-11-22 01:20:19,000 INFO small again\n"
    )
    since = time.mktime((2026, 11, 22, 1, 20, 17, 0, 0, -1))
    assert manager.logs(lines=50, follow=False, since_at_s=since, level="warning") == 0
    assert capsys.readouterr().out == "2026-11-22 01:20:18,000 ERROR great\nTraceback of it\n"
    manager.logs(lines=1, follow=False, since_at_s=since)
    assert capsys.readouterr().out == "2026-11-22 01:20:19,000 INFO small again\n"


def test_a_service_of_the_whole_machine_is_refused_with_the_reason() -> None:
    caught = refused("per user: outside of a graphical session", Launchd, system=True)
    assert caught.hint == "gpuwatchctl service install"


def test_what_launchd_does_not_have(manager: Launchd) -> None:
    caught = refused(
        "launchd has none", manager.install, dry_run=True, credentials=[("smtp-password", "/s")]
    )
    assert "password-keyring" in caught.hint
    refused("directories of its user", manager.render, "/opt/homebrew/bin/gpuwatchd")


def test_a_daemon_of_ones_own_that_runs_already(manager: Launchd, tools: Tools) -> None:
    runtime = tools.home / "Library/Caches/TemporaryItems/gpuwatchd"
    runtime.mkdir(parents=True)
    lock = hold_lock(runtime)
    try:
        refused(
            rf"by hand is already running \(pid {os.getpid()}\)", manager.install, dry_run=False
        )
        refused("by hand", manager.uninstall, dry_run=False, purge=True)
    finally:
        os.close(lock)


def test_a_purge_removes_logs_and_history(manager: Launchd, tools: Tools) -> None:
    library = tools.home / "Library"
    folders = [
        library / "Application Support/gpuwatchd",
        library / "Caches/TemporaryItems/gpuwatchd",
        library / "Logs/gpuwatchd",
    ]
    for folder in folders:
        folder.mkdir(parents=True)
    said = manager.uninstall(dry_run=True, purge=True)
    assert said == [f"would remove {folder} with all that is in it" for folder in folders]
    manager.uninstall(dry_run=False, purge=True)
    assert not [folder for folder in folders if folder.exists()]
    assert manager.uninstall(dry_run=False, purge=True) == ["not installed"]
