"""What processes hold on the host, and their states, asked again and again."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

from gpuwatchd.collect.host import Host, processes
from tests.children import Child
from tests.conftest import present
from tests.host.world import STARTED, Clock, FakeProc, host_of, linux


def test_memory_on_the_host_is_read_in_turns(proc: FakeProc) -> None:
    pids = range(7, 7 + 30)
    for pid in pids:
        proc.process(pid, anonymous_kib=100)
    host = host_of(proc)
    host.processes(pids)
    assert set(host.memory(pids).values()) == {100 * 1024}  # read at first sight
    for pid in pids:
        proc.process(pid, anonymous_kib=300, swapped_kib=50)
    counts = [sum(v == 350 * 1024 for v in host.memory(pids).values()) for _ in range(9)]
    assert counts[0] <= processes.MEMORY_READS
    assert all(after - before <= processes.MEMORY_READS for before, after in pairwise(counts))
    assert counts[-1] == 30


def test_only_what_is_read_now_is_told_to_one_who_knows_the_others(proc: FakeProc) -> None:
    pids = range(7, 7 + 30)
    for pid in pids:
        proc.process(pid, anonymous_kib=100)
    host = host_of(proc)
    host.processes(pids)
    known = host.memory(pids)
    for pid in pids:
        proc.process(pid, anonymous_kib=300)
    for _ in range(9):
        told = host.memory(pids, newest=True)
        assert 0 < len(told) <= processes.MEMORY_READS
        known |= told
    assert set(known.values()) == {300 * 1024}
    assert host.memory(pids) == known


def test_unknown_memory_is_none(proc: FakeProc) -> None:
    proc.process(7, anonymous_kib=None)
    proc.process(8, anonymous_kib=5)
    host = host_of(proc)
    host.processes([7])
    for _ in range(5):
        assert host.memory([7, 8, 9]) == {7: None, 8: None, 9: None}
    contained = Host(proc.folder, contained=True, monotonic=Clock())
    contained.processes([8])
    assert contained.memory([8]) == {8: None}


@linux
def test_a_childs_memory_grows_as_it_takes_some() -> None:
    script = "input(); x = b'a' * 64_000_000; print(1, flush=True); input()"
    host = Host(contained=False)
    with Child[bytes](
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        host.processes([child.pid])
        before = host.memory([child.pid])[child.pid]
        present(child.stdin).write(b"\n")
        present(child.stdin).flush()
        present(child.stdout).readline()
        after = host.memory([child.pid])[child.pid]
        child.kill()
    assert before is not None
    assert after is not None
    assert 60_000_000 < after - before < 100_000_000
    host.close()


def test_states_are_of_now_and_what_matters_is_kept(proc: FakeProc) -> None:
    proc.process(7)
    proc.process(8)
    host = host_of(proc)
    first = host.processes([7, 8])
    proc.process(7, state="R")
    proc.process(8, state="D")
    assert host.states([7, 8, 9]) == {7: "R", 8: "D"}
    seen = host.processes([7, 8])
    assert seen[7] is first[7]
    assert (seen[8].state, seen[8].key, seen[8].argv) == ("D", first[8].key, first[8].argv)
    proc.process(2, name=b"sh", argv=b"sh\0")
    proc.process(8, state="S", parent=2)
    assert host.states([8]) == {8: "S"}
    moved = host.processes([8])[8]
    assert (moved.state, moved.parent_pid, moved.parents) == ("S", 2, ("sh[2]",))
    proc.process(8, parent=1)
    host.states([8])
    assert host.processes([8])[8].parents == ()
    proc.process(8, starttime=STARTED + 1)
    assert host.states([8]) == {}
