"""What systemd says of the unit, in our words, with the code of systemctl and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service import systemctl
from tests.service.conftest import NOT_FOUND, RUNNING, STOPPED

if TYPE_CHECKING:
    from gpuwatchd.service.systemd import Systemd
    from tests.service.conftest import Tools

SHOW = "systemctl --user show gpuwatchd.service"
FULL = (
    RUNNING
    + """UnitFileState=enabled
ActiveEnterTimestamp=@1760000000
InactiveEnterTimestamp=@1750000000
ExecMainStatus=0
MemoryCurrent=92274688
MemoryMax=268435456
WatchdogUSec=1min
FragmentPath=/home/mleng/.config/systemd/user/gpuwatchd.service
DropInPaths=/home/mleng/.config/systemd/user/gpuwatchd.service.d/override.conf
NeedDaemonReload=no
"""
)


def failed(result: str, code: int = 0) -> str:
    return (
        f"LoadState=loaded\nActiveState=failed\nMainPID=0\nNRestarts=0\nResult={result}\n"
        f"ExecMainStatus={code}"
    )


@pytest.mark.parametrize(
    ("answer", "code", "words", "hint"),
    [
        (NOT_FOUND, 4, "not installed", "gpuwatchctl service install"),
        (RUNNING, 0, "running, pid 4711, restarts: 2, 2 GPUs, 1 alert", ""),
        (STOPPED, 3, "stopped", "gpuwatchctl service start"),
        ("LoadState=loaded\nActiveState=activating\nMainPID=7", 3, "starting, pid 7", ""),
        ("LoadState=loaded\nActiveState=reloading\nMainPID=7", 0, "running, pid 7", ""),
        (failed("watchdog"), 3, "failed, last result: watchdog", "it hung"),
        (failed("oom-kill"), 3, "failed, last result: oom-kill", "MemoryMax"),
        (failed("start-limit-hit"), 3, "failed, last result: start-limit-hit", "ten times"),
        (failed("exit-code", 78), 3, "failed, last result: exit-code 78", "config validate"),
        (failed("exit-code", 203), 3, "failed, last result: exit-code 203", "program is missing"),
        (failed("exit-code", 243), 3, "failed, last result: exit-code 243", "--credential"),
        (failed("exit-code", 217), 3, "failed, last result: exit-code 217", "user is missing"),
        (failed("exit-code", 1), 3, "failed, last result: exit-code 1", "service logs"),
        ("LoadState=masked\nActiveState=inactive", 3, "masked, stopped", "--user unmask"),
        ("LoadState=bad-setting\nActiveState=inactive", 3, "stopped", "service install"),
    ],
)
def test_states(
    manager: Systemd, tools: Tools, answer: str, code: int, words: str, hint: str
) -> None:
    tools.answer(SHOW, answer)
    found = manager.status()
    assert (found.code, found.text) == (code, words)
    assert hint in " ".join(found.hints)
    assert bool(found.hints) == bool(hint)


def test_everything_that_is_known(manager: Systemd, tools: Tools) -> None:
    tools.answer(SHOW, FULL)
    found = manager.status()
    assert (found.state, found.pid, found.restarts, found.enabled) == ("running", 4711, 2, True)
    assert found.since_at_s == 1_760_000_000.0
    assert (found.memory_bytes, found.memory_max_bytes) == (88 * 2**20, 256 * 2**20)
    assert found.watchdog_s == 60.0
    assert found.file == "/home/mleng/.config/systemd/user/gpuwatchd.service"
    assert found.beside == (f"{found.file}.d/override.conf",)
    assert found.hints == ()
    assert "--timestamp=unix" in tools.calls[-1]
    assert all(name in tools.calls[-1] for name in systemctl.PROPERTIES)


@pytest.mark.parametrize("word", ["[not set]", "18446744073709551615", "infinity", ""])
def test_unknown_is_not_a_number(manager: Systemd, tools: Tools, word: str) -> None:
    known = FULL.replace("92274688", word).replace("268435456", word)
    tools.answer(SHOW, known.replace("=1min", "=infinity").replace("@1760000000", ""))
    found = manager.status()
    assert (found.memory_bytes, found.memory_max_bytes) == (None, None)
    assert (found.watchdog_s, found.since_at_s) == (None, None)


def test_a_changed_unit_and_one_that_is_not_enabled(manager: Systemd, tools: Tools) -> None:
    changed = FULL.replace("NeedDaemonReload=no", "NeedDaemonReload=yes")
    tools.answer(SHOW, changed.replace("UnitFileState=enabled", "UnitFileState=disabled"))
    found = manager.status()
    assert found.enabled is False
    assert ["daemon-reload" in hint for hint in found.hints] == [True, False]
    assert found.hints[1] == "it does not start by itself: gpuwatchctl service install"


def test_what_failed_shows_its_last_lines(manager: Systemd, tools: Tools) -> None:
    tools.answer(SHOW, failed("exit-code", 1))
    tools.answer("journalctl", "WARNING a\nERROR \x1b[31mb\x1b[0m\n")
    assert manager.status().log == ("WARNING a", "ERROR b")
    tools.answer(
        "journalctl", "No journal files were opened due to insufficient permissions.", code=1
    )
    assert manager.status().log == ()
    tools.answer(SHOW, STOPPED)
    tools.answer("journalctl", "ERROR old\n")
    assert manager.status().log == ()


def test_words_of_the_daemon_are_foreign_text(manager: Systemd, tools: Tools) -> None:
    tools.answer(SHOW, FULL.replace("2 GPUs", "2 GPUs\x1b[2J"))
    assert manager.status().text.isprintable()
