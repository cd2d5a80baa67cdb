"""Who the processes are: real children, and a fake /proc where reality cannot be arranged."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpuwatchd.collect.host import Host, processes
from gpuwatchd.collect.host.liveness import Watch
from tests.children import Child
from tests.conftest import ROOT, present, ran
from tests.host.world import STARTED, TORCH_MAPS, Clock, FakeProc, host_of, linux


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("use_psutil", [False, True])
def test_a_child_is_known(child: subprocess.Popen[bytes], *, use_psutil: bool) -> None:
    if not use_psutil and not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    host = Host(use_psutil=use_psutil, contained=False)
    info = host.processes([child.pid])[child.pid]
    assert info.key.pid == child.pid
    assert abs(present(info.key.started_at_s) - time.time()) < 60
    assert info.name == "sleep"
    assert info.argv == ("sleep", "600")
    assert info.parent_pid == os.getpid()
    assert info.user == psutil.Process().username()
    host.close()


@linux
@pytest.mark.parametrize("watch", ["pidfd", "stat", "read", "psutil"])
def test_the_end_of_a_process_is_noticed(child: subprocess.Popen[bytes], watch: str) -> None:
    clock = Clock()
    if watch == "psutil":
        host = Host(use_psutil=True, contained=False, monotonic=clock)
    else:
        host = Host(watch=watch, contained=False, monotonic=clock)
    first = host.processes([child.pid])[child.pid]
    assert host.processes([child.pid])[child.pid].key == first.key
    assert host.gone(child.pid) is None
    child.kill()
    child.wait()
    assert host.processes([child.pid]) == {}
    last = present(host.gone(child.pid))
    assert (last.key, last.name, last.argv) == (first.key, "sleep", ("sleep", "600"))
    assert host.processes([child.pid]) == {}
    host.close()


@linux
@pytest.mark.parametrize("watch", ["pidfd", "stat", "read"])
def test_a_zombie_keeps_its_name(child: subprocess.Popen[bytes], watch: str) -> None:
    host = Host(watch=watch, contained=False)
    first = host.processes([child.pid])[child.pid]
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(2):
        zombie = host.processes([child.pid])[child.pid]
        assert zombie.state == "Z"
        assert (zombie.key, zombie.argv) == (first.key, ("sleep", "600"))
    child.wait()
    assert host.processes([child.pid]) == {}
    host.close()


@linux
def test_what_a_process_becomes_is_read_again(host: Host, clock: Clock) -> None:
    with Child[bytes](["sh", "-c", "read x; exec sleep 600"], stdin=subprocess.PIPE) as process:
        before = host.processes([process.pid])[process.pid]
        assert before.name == "sh"
        present(process.stdin).write(b"\n")
        present(process.stdin).flush()
        deadline = time.monotonic() + 60
        while psutil.Process(process.pid).name() != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        clock.now_s += processes.MAPS_AGAIN_S + 1
        after = host.processes([process.pid])[process.pid]
        assert (after.name, after.key) == ("sleep", before.key)
        process.kill()


@linux
def test_descriptors_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(14)]
    pids = [process.pid for process in children]
    try:
        before = descriptors()
        host = Host(contained=False)
        assert set(host.processes(pids)) == set(pids)
        assert before < descriptors() <= before + 40 // 4
        children[-1].kill()
        children[-1].wait()
        assert set(host.processes(pids)) == set(pids[:-1])
        host.close()
        host.close()
        assert descriptors() == before
    finally:
        for process in children:
            process.kill()
            process.wait()


@linux
def test_what_nobody_asks_about_is_let_go(
    child: subprocess.Popen[bytes], host: Host, clock: Clock
) -> None:
    before = descriptors()
    host.processes([child.pid])
    assert descriptors() == before + 1
    clock.now_s += processes.FORGET_S + 1
    host.processes([])
    assert descriptors() == before
    assert host.gone(child.pid) is not None
    assert child.pid in host.processes([child.pid])
    assert host.gone(child.pid) is None


@linux
def test_the_same_question_has_the_same_answer_until_something_happens(
    child: subprocess.Popen[bytes], host: Host, clock: Clock
) -> None:
    if not Watch.best().startswith("pidfd"):
        pytest.skip("this kernel has no pidfd")
    pids = frozenset({child.pid, os.getpid()})
    for _ in range(3):
        host.processes(pids)  # their libraries are looked at one by one
    kept = host.processes(pids)
    assert host.processes(pids) is kept
    assert host.processes(set(pids)) == kept
    host.processes(pids)
    clock.now_s += processes.MAPS_AGAIN_S  # time to look at a library map once more
    assert host.processes(pids) is not kept
    host.processes(pids)
    child.kill()
    child.wait()
    assert set(host.processes(pids)) == {os.getpid()}


@linux
def test_who_was_asked_about_until_now_is_not_let_go(
    child: subprocess.Popen[bytes], host: Host, clock: Clock
) -> None:
    pids = frozenset({child.pid})
    for _ in range(50):
        clock.now_s += processes.FORGET_S / 2
        host.processes(pids)
    host.processes(frozenset({os.getpid()}))
    assert host.gone(child.pid) is None
    clock.now_s += processes.FORGET_S + 1
    host.processes(frozenset({os.getpid()}))
    assert host.gone(child.pid) is not None


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_known_by_what_everybody_may_read() -> None:
    script = """
import os, sys
from gpuwatchd.collect.host import Host
os.setuid(65534)
host, pid = Host(contained=False, maps_per_look=9), int(sys.argv[1])
info = host.processes([pid])[pid]
print(info.user, info.name, info.framework, info.framework_sure)
"""
    with Child[bytes](["VLLM::EngineCore_DP0", "600"], executable="/bin/sleep") as process:
        done = ran([sys.executable, "-c", script, str(process.pid)], check=True, cwd=ROOT)
        process.kill()
    assert done.stdout.split() == ["root", "sleep", "vLLM", "False"]


@linux
def test_pids_that_cannot_be(child: subprocess.Popen[bytes], host: Host) -> None:
    assert set(host.processes([0, -1, 2**31 - 1, 2**40, child.pid])) == {child.pid}


@linux
@pytest.mark.parametrize("watch", ["pidfd", "read"])
def test_a_hidden_process_is_watched_all_the_same(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, watch: str
) -> None:
    monkeypatch.setattr(processes, "exists", lambda pid: True)
    host = Host(watch=watch, contained=False)
    monkeypatch.setattr(host._registry, "stat", lambda pid: None)
    hidden = host.processes([child.pid])[child.pid]
    assert hidden.name == f"pid {child.pid} (hidden by system policy)"
    assert (hidden.foreign, hidden.user, hidden.key.started_at_s) == (False, None, None)
    assert host.processes([child.pid])[child.pid] is hidden
    assert host.memory([child.pid]) == {child.pid: None}
    assert host.states([child.pid]) == {}
    child.kill()
    child.wait()
    monkeypatch.setattr(processes, "exists", lambda pid: False)
    assert host.processes([child.pid]) == {}
    host.close()


def test_own_memory_and_boot() -> None:
    host = Host()
    rss_bytes = present(host.own_rss_bytes())
    assert 4 * 1024**2 < rss_bytes < 4 * 1024**3
    assert host.boot_id
    assert host.boot_id == Host().boot_id
    fallback = Host(use_psutil=True, contained=False)
    assert fallback.boot_id
    assert fallback.own_rss_bytes() == pytest.approx(rss_bytes, rel=0.5)


def test_a_reused_pid_is_another_process(proc: FakeProc) -> None:
    proc.process(7, argv=b"python3\0old.py\0")
    host = host_of(proc)
    old = host.processes([7])[7]
    proc.process(7, argv=b"python3\0new.py\0", starttime=STARTED + 300, uid=1)
    new = host.processes([7])[7]
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert present(old.key.started_at_s) == 1700000000 + STARTED / ticks_per_s
    assert new.key.started_at_s == 1700000000 + (STARTED + 300) / ticks_per_s
    assert new.argv == ("python3", "new.py")
    assert host.gone(7) is None


def test_hostile_text_is_made_safe(proc: FakeProc) -> None:
    proc.process(7, name=b"a) S (\x1b[2J\xff\n", argv=b"x\x1b]0;t\x07y\0<b>\xe2\x80\xae\0")
    info = host_of(proc).processes([7])[7]
    assert info.name == "a) S (\ufffd "
    assert info.argv == ("xy", "<b>")
    assert info.state == "S"


def test_secrets_are_masked(proc: FakeProc) -> None:
    proc.process(7, argv=b"python3\0train.py\0--hf-token\0abc\0--lr=0.1\0WANDB_API_KEY=xyz\0")
    argv = host_of(proc).processes([7])[7].argv
    assert argv == ("python3", "train.py", "--hf-token", "****", "--lr=0.1", "WANDB_API_KEY=****")


def test_a_title_is_masked_too(proc: FakeProc) -> None:
    proc.process(7, name=b"serve --api-key", argv=b"serve --api-key planted --port 80\0")
    proc.process(8, name=b"token=planted", parent=7)
    found = host_of(proc).processes([7, 8])
    assert found[7].name == "serve --api-key **** --port 80"
    assert found[8].name == "token=****"
    assert "planted" not in repr(found)


def test_a_user_without_a_name_is_a_number(proc: FakeProc) -> None:
    proc.process(7, uid=4_000_000_123)
    info = host_of(proc).processes([7])[7]
    assert (info.user, info.uid) == ("4000000123", 4_000_000_123)


def test_nothing_but_stat_is_still_an_identity(proc: FakeProc) -> None:
    proc.process(7)
    for name in ("cmdline", "status", "cgroup"):
        (proc.folder / "7" / name).unlink()
    info = host_of(proc).processes([7])[7]
    assert (info.name, info.user, info.argv) == ("python3", None, ())


def test_a_broken_stat_is_no_process(proc: FakeProc) -> None:
    proc.put("7/stat", "garbage")
    assert host_of(proc).processes([7]) == {}


@pytest.mark.parametrize(("per_look", "expected"), [(1, [1, 2, 3, 3]), (64, [3, 3, 3, 3])])
def test_so_many_memory_maps_are_read_per_look(
    proc: FakeProc, per_look: int, expected: list[int]
) -> None:
    for pid in (7, 8, 9):
        proc.process(pid, maps=TORCH_MAPS)
    host = Host(proc.folder, contained=False, maps_per_look=per_look)
    known = [
        sum(info.framework == "PyTorch" for info in host.processes([7, 8, 9]).values())
        for _ in range(4)
    ]
    assert known == expected
    assert all(info.framework_sure for info in host.processes([7, 8, 9]).values())
    assert {info.frameworks for info in host.processes([7, 8, 9]).values()} == {("PyTorch",)}


def test_libraries_may_load_late_but_only_once_more(proc: FakeProc, clock: Clock) -> None:
    proc.process(7, maps="")
    host = host_of(proc, clock)
    assert host.processes([7])[7].framework is None
    proc.process(7, maps=TORCH_MAPS)
    clock.now_s += processes.MAPS_AGAIN_S - 1
    assert host.processes([7])[7].framework is None
    clock.now_s += 2
    assert host.processes([7])[7].framework == "PyTorch"
    proc.process(7, maps="")
    clock.now_s += 1000
    assert host.processes([7])[7].framework == "PyTorch"


def test_without_a_readable_map_it_is_a_guess(proc: FakeProc) -> None:
    proc.process(7, argv=b"python3\0-m\0vllm.entrypoints.openai.api_server\0")
    proc.process(8)
    proc.put("8/task/8/comm", "python3\n")
    proc.put("8/task/9/comm", "pt_data_worker\n")
    host = host_of(proc)
    host.processes([7, 8])
    found = host.processes([7, 8])
    assert (found[7].framework, found[7].framework_sure) == ("vLLM", False)
    assert (found[8].framework, found[8].framework_sure) == ("PyTorch", False)


@linux
def test_processes_that_come_and_go_leave_no_descriptor_open(host: Host) -> None:
    with Child[bytes](["sleep", "600"]) as stays:
        host.processes([stays.pid])
        before = descriptors()
        for _ in range(10):
            with Child[bytes](["sleep", "600"]) as child:
                host.processes([stays.pid, child.pid])
                child.kill()
            host.processes([stays.pid])
        assert descriptors() == before
        stays.kill()
