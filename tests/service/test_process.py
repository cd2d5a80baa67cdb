"""Starting anew: rarely, and with everything that makes the process what it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from gpuwatchd.service import own_process
from tests.conftest import ROOT, ran

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOW = 1_000_000.0


def test_it_may_start_anew_once_in_a_while(tmp_path: Path) -> None:
    assert own_process.may_start_anew(tmp_path, NOW)
    assert not own_process.may_start_anew(tmp_path, NOW + 1)
    assert not own_process.may_start_anew(tmp_path, NOW + own_process.AGAIN_AFTER_S - 1)
    assert own_process.may_start_anew(tmp_path, NOW + own_process.AGAIN_AFTER_S)


def test_a_note_of_the_future_says_nothing(tmp_path: Path) -> None:
    assert own_process.may_start_anew(tmp_path, NOW)
    assert own_process.may_start_anew(tmp_path, NOW - 1e5)


def test_where_it_cannot_be_noted_it_does_not_happen(tmp_path: Path) -> None:
    assert not own_process.may_start_anew(tmp_path / "gone", NOW)


SCRIPT = """
import os, sys
from gpuwatchd.service import own_process
print(os.getpid(), sys.argv[1:], os.environ.get("TURN"), len(os.listdir("/dev/fd")), flush=True)
if "TURN" not in os.environ:
    own_process.start_anew({**os.environ, "TURN": "2"})
"""


def test_it_becomes_itself_again_with_pid_and_arguments() -> None:
    done = ran(
        [sys.executable, "-c", SCRIPT, "--interval", "1s"],
        check=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TURN"},
    )
    first, second = (line.split(" ", 1) for line in done.stdout.splitlines())
    assert first[0] == second[0]
    assert first[1].startswith("['--interval', '1s'] None")
    assert second[1].startswith("['--interval', '1s'] 2")
    assert first[1].split()[-1] == second[1].split()[-1]


def test_when_it_cannot_the_exit_code_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert own_process.start_anew({}) == own_process.EXIT_AGAIN == 75


LOG = """
import logging
from gpuwatchd.service import own_process
own_process.set_up_logging("info")
log = logging.getLogger("gpuwatchd")
log.warning("not reloaded: %s", "\\x1b[31m\\x1b]0;t\\x07red\\nERROR invented\\u202e")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed part=x")
"""


def _said(stream: str, file: Path) -> list[str]:
    """Return what goes to standard error, which is the file."""
    with file.open("w") as errors:
        status = os.fstat(errors.fileno())
        journal = f"{status.st_dev}:{status.st_ino}" if stream == "ours" else stream
        subprocess.run(
            [sys.executable, "-c", LOG],
            stderr=errors, check=True, cwd=ROOT, env=os.environ | {"JOURNAL_STREAM": journal},
        )  # fmt: skip
    return file.read_text().splitlines()


def test_the_log_has_one_line_each_and_no_escape_sequence(tmp_path: Path) -> None:
    first, second, *trace = _said("ours", tmp_path / "log")
    assert first == "<4>WARNING not reloaded: red ERROR invented"
    assert second == "<3>ERROR failed part=x"
    assert trace[0].startswith("<3>Traceback")
    assert all(line.startswith("<3>") for line in trace)


def test_what_only_inherits_the_journal_s_variable_has_the_time_itself(tmp_path: Path) -> None:
    first = _said("1:2", tmp_path / "log")[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8},\d{3} WARNING not reloaded: .*", first)
