"""The harness itself: what it gives, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.children import Child
from tests.conftest import ROOT, need, present
from tests.real.machine import booted, root, why_not
from tests.real.machine.machine import until
from tests.real.machine.roots import CACHE, mounted

pytestmark = [pytest.mark.real_machine, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _bootable() -> None:
    need(not why_not(), why_not())


@pytest.mark.parametrize("unplugged", [False, True])
def test_after_a_crash_of_the_tests_nothing_runs_on(*, unplugged: bool) -> None:
    """Also where systemd-nspawn is killed with them: then the next run ends what is left."""
    script = """
        import time
        from tests.real.machine import booted, root
        with root("bookworm") as tree, booted(tree) as machine:
            print("pids:", tree.keeper.pid, machine.leader, flush=True)
            time.sleep(600)
    """
    with Child(
        [sys.executable, "-u", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUWATCHD_TEST_CACHE": str(CACHE)},
    ) as crashed:  # fmt: skip
        said = next(line for line in present(crashed.stdout) if line.startswith("pids:"))
        pids = [int(pid) for pid in said.split()[1:]]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        if unplugged:
            parent = next(
                line.split()[1]
                for line in Path(f"/proc/{pids[1]}/status").read_text().splitlines()
                if line.startswith("PPid:")
            )
            os.kill(int(parent), signal.SIGKILL)
        crashed.send_signal(signal.SIGKILL)
    if not unplugged:
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both ended")
    assert mounted() == []
    with root("bookworm") as tree, booted(tree) as machine:
        assert machine.run("true").returncode == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both ended")
