"""A daemon whose program is upgraded under it goes on as the new one, in the same process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import live
from tests.children import Child
from tests.test_daemon import SIMULATED, environ, wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# The real program, told apart by a file of the test and trusted sooner to be complete.
PROGRAM = """
import sys
from pathlib import Path
from gpuwatchd.service import installed
installed.SETTLED_S = 0.5
real, told_by = installed.Installed, Path(sys.argv.pop(1))
installed.Installed = lambda: real([told_by])
from gpuwatchd.daemon.main import main
main()
"""


def test_after_an_upgrade_it_starts_anew_once(tmp_path: Path) -> None:
    version, log = tmp_path / "version", tmp_path / "log"
    version.write_text("1.0.0\n")
    argv = [sys.executable, "-c", PROGRAM, str(version), *SIMULATED]
    with log.open("w") as stream:
        process = subprocess.Popen(argv, env=environ(tmp_path), stderr=stream)
    try:
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > 2)
        assert "starting anew" not in log.read_text()
        version.write_text("2.0.0\n")
        wait_for(lambda: log.read_text().count("start version=") == 2)
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > 2)
        assert log.read_text().count("another version of gpuwatchd has been installed") == 1
        assert process.poll() is None, "the same process, so that its manager keeps it"
        assert (tmp_path / "run/gpuwatchd.lock").read_text() == f"{process.pid}\n"
        # Another one so soon would be a loop.
        version.write_text("3.0.0\n")
        state = live.read(tmp_path / "run")
        assert state is not None
        ticks = state.ticks
        wait_for(lambda: (state := live.read(tmp_path / "run")) and state.ticks > ticks + 6)
        assert log.read_text().count("starting anew") == 1
    finally:
        process.kill()
        process.wait(10)


def test_it_goes_on_as_the_program_that_its_path_leads_to_now(tmp_path: Path) -> None:
    fresh = tmp_path / "gpuwatchd"
    fresh.write_text('#!/bin/sh\necho "pid $$ as $0: $* ($WORD)"\n')
    fresh.chmod(0o755)
    start = "process.start_anew({'WORD': 'kept'}, sys.argv.pop(1))"
    code = f"import sys; from gpuwatchd.service import process; {start}"
    argv = [sys.executable, "-c", code, str(fresh), "--interval", "2"]
    with Child(argv, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=30)
    assert said == f"pid {process.pid} as {fresh}: --interval 2 (kept)\n"
