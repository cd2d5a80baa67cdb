"""Who started a process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.host import Host, program
from tests.host.world import STARTED, FakeProc, host_of, linux

if TYPE_CHECKING:
    import subprocess


def _parents(proc: FakeProc, pid: int = 50) -> tuple[str, ...]:
    return host_of(proc).processes([pid])[pid].parents


def test_nearest_first_with_what_they_run(proc: FakeProc) -> None:
    proc.process(30, name=b"bash", argv=b"-bash\0", session=30, terminal=34816, parent=20)
    proc.process(20, name=b"tmux: server", argv=b"tmux\0")
    proc.process(40, argv=b"python3\0-m\0launch\0--token\0planted\0", parent=30)
    proc.process(45, argv=b"python3\0/srv/sweep.py\0", parent=40)
    proc.process(50, parent=45)
    assert _parents(proc) == ("python3 sweep.py[45]", "python3 -m launch[40]", "bash[30]")


def test_a_shell_of_a_terminal_has_no_parents(proc: FakeProc) -> None:
    proc.process(20, name=b"tmux: server", argv=b"tmux\0")
    proc.process(50, session=50, terminal=34816, parent=20)
    assert _parents(proc) == ()


@pytest.mark.parametrize("name", [b"systemd", b"sshd", b"containerd-shim"])
def test_what_starts_everything_is_not_told(proc: FakeProc, name: bytes) -> None:
    proc.process(30, name=name)
    proc.process(40, name=b"sh", argv=b"sh\0", parent=30)
    proc.process(50, parent=40)
    assert _parents(proc) == ("sh[40]",)


def test_a_reused_number_is_no_parent(proc: FakeProc) -> None:
    proc.process(40, name=b"firefox", starttime=STARTED + 1)
    proc.process(50, parent=40)
    assert _parents(proc) == ()


def test_loops_and_long_chains_end(proc: FakeProc) -> None:
    proc.process(50, parent=51)
    proc.process(51, parent=50)
    assert len(_parents(proc)) == 1
    for pid in range(100, 140):
        proc.process(pid, parent=pid + 1)
    assert len(_parents(proc, 100)) == program.MOST
    proc.process(60, parent=60)
    assert _parents(proc, 60) == ()


def test_hostile_names_are_made_safe(proc: FakeProc) -> None:
    proc.process(40, name=b"\x1b[2J) S (", argv=b"\x1b[2J\0")
    proc.process(50, parent=40)
    assert _parents(proc) == (") S ([40]",)


@linux
@pytest.mark.usefixtures("not_the_first")
def test_a_real_childs_parent_is_us(child: subprocess.Popen[bytes], host: Host) -> None:
    found = host.processes([child.pid])[child.pid].parents
    assert found[0].endswith(f"[{os.getpid()}]")
    assert len(found) <= program.MOST
