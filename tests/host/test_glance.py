"""One process at one instant, on the real /proc and on none."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from gpuwatchd.collect.host.liveness import absent, probe
from tests.conftest import present
from tests.host.world import linux

if TYPE_CHECKING:
    from pathlib import Path


@linux
def test_of_this_process() -> None:
    now = present(probe(os.getpid()))
    assert (now.state, now.parent_pid) == ("R", os.getppid())
    begin = time.process_time()
    while time.process_time() - begin < 0.05:
        pass
    later = present(probe(os.getpid()))
    assert 0.03 <= later.cpu_s - now.cpu_s < 5.0
    assert 0.0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - now.started_s < 3600


@linux
def test_a_zombie_exists_until_it_is_collected() -> None:
    child = subprocess.Popen(["true"])
    until = time.monotonic() + 60
    while (now := probe(child.pid)) is None or now.state != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not absent(child.pid)
    child.wait()
    assert probe(child.pid) is None
    assert absent(child.pid)


def test_a_number_that_no_process_has() -> None:
    assert absent(2**31 - 1)
    assert absent(2**70)
    assert not absent(0)
    assert not absent(-1)
    assert not absent(1)  # of root: it exists, though it may not be asked


def test_where_there_is_no_proc(tmp_path: Path) -> None:
    assert probe(7, tmp_path) is None
    assert absent(7, tmp_path)


def test_what_is_cut_short_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_bytes(b"7 (a) S 1 2")
    assert probe(7, tmp_path) is None
    line = b"7 (a) b) D 31 7 7 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 4200 0 0"
    (tmp_path / "7/stat").write_bytes(line)
    now = present(probe(7, tmp_path))
    assert (now.name, now.state, now.parent_pid) == ("a) b", "D", 31)
    ticks = os.sysconf("SC_CLK_TCK")
    assert (now.cpu_s, now.started_s) == (300 / ticks, 4200 / ticks)
