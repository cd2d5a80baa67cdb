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

from gpuwatchd.collect.host import Host, by_psutil, processes, program
from gpuwatchd.collect.host.procfs import absent, probe
from tests.children import Child
from tests.conftest import ROOT, only_where, present, ran
from tests.host.world import STARTED, TORCH_MAPS, Clock, FakeProc, host_of, linux


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("watch", [None, "psutil"])
def test_a_child_is_known(child: subprocess.Popen[bytes], watch: str | None) -> None:
    host = Host(watch=watch, contained=False)
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
    assert descriptors() == before + 2  # its own, and the one that tells of all ends
    host.processes([])
    clock.now_s += processes.FORGET_S + 1
    host.processes([])
    assert descriptors() == before
    assert host.gone(child.pid) is not None
    assert child.pid in host.processes([child.pid])
    assert host.gone(child.pid) is None


@linux
@only_where(os.geteuid() == 0, "only root can become another user")
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
    monkeypatch.setattr(processes, "stat_of", lambda pid, proc: None)
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
    fallback = Host(watch="psutil", contained=False)
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


def test_nothing_but_stat_is_still_an_identity(proc: FakeProc) -> None:
    proc.process(7)
    for name in ("cmdline", "status", "cgroup"):
        (proc.folder / "7" / name).unlink()
    info = host_of(proc).processes([7])[7]
    assert (info.name, info.user, info.argv) == ("python3", None, ())


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


def test_who_runs_a_process_and_its_environment_are_read_once_more(
    proc: FakeProc, clock: Clock
) -> None:
    for pid in (7, 8):
        proc.process(pid, maps=TORCH_MAPS, environ=b"A=1\0")
    host = Host(proc.folder, contained=False, maps_per_look=2, monotonic=clock)
    host.processes([7, 8])
    ranked = b"RANK=1\0WORLD_SIZE=2\0MASTER_ADDR=node1\0MASTER_PORT=29500\0"
    proc.process(7, maps=TORCH_MAPS, environ=b"A=1\0", uid=1)
    proc.process(8, maps=TORCH_MAPS, environ=ranked)
    clock.now_s += processes.MAPS_AGAIN_S + 1
    found = host.processes([7, 8])
    assert [(found[pid].uid, found[pid].rank) for pid in (7, 8)] == [(1, None), (0, 1)]


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


@linux
@pytest.mark.usefixtures("not_the_first")
def test_a_real_childs_parent_is_us(child: subprocess.Popen[bytes], host: Host) -> None:
    found = host.processes([child.pid])[child.pid].parents
    assert found[0].endswith(f"[{os.getpid()}]")
    assert len(found) <= program.MOST


@pytest.mark.usefixtures("not_the_first")
def test_a_child_of_this_program_is_known_with_its_ancestors() -> None:
    with Child([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        try:
            info = by_psutil.identify(child.pid)
        finally:
            child.kill()
    assert info is not None
    assert (info.key.pid, info.uid, info.parent_pid) == (child.pid, os.getuid(), os.getpid())
    assert info.parents[0].endswith(f"[{os.getpid()}]")
    assert "[1]" not in "".join(info.parents)


@pytest.mark.parametrize(
    ("argv", "framework"),
    [
        (("/usr/local/bin/mlx_lm.server", "--model", "m"), "MLX"),
        (("/opt/homebrew/bin/llama-server", "-m", "x.gguf"), "llama.cpp"),
        (("/x/ollama", "runner", "--mlx-engine", "--model", "m"), "Ollama"),
    ],
)
def test_a_macs_engines_are_recognised_without_a_map_of_their_memory(
    argv: tuple[str, ...], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(_: psutil.Process, names: list[str]) -> dict[str, object]:
        known = {"name": argv[0].rpartition("/")[2], "cmdline": list(argv)}
        return {name: known.get(name) for name in names}

    monkeypatch.setattr(psutil.Process, "as_dict", facts)
    info = present(by_psutil.identify(os.getpid()))
    assert (info.framework, info.framework_sure) == (framework, False)
    assert (info.user, info.uid, info.state) == (None, None, None)


def test_a_pid_that_is_nobodys_is_none() -> None:
    assert by_psutil.identify(2**22 + 1) is None
    assert by_psutil.started_at_s(2**22 + 1) is None


def test_an_ancestor_that_ends_meanwhile_costs_the_ancestors_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = psutil.Process.as_dict

    def as_dict(process: psutil.Process, names: list[str]) -> dict[str, object]:
        if process.pid != os.getpid():
            raise psutil.NoSuchProcess(process.pid)
        return really(process, names)

    monkeypatch.setattr(psutil.Process, "as_dict", as_dict)
    info = present(by_psutil.identify(os.getpid()))
    assert (info.key.pid, info.parents) == (os.getpid(), ())


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("0A1B2C3D-0000-1111-2222-333344445555", "0A1B2C3D-0000-1111-2222-333344445555"),
        ("", "boot-1700000000"),
        ("garbage", "boot-1700000000"),
    ],
)
def test_a_boot_is_known_by_its_name_rather_than_by_its_time(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    monkeypatch.setattr(by_psutil, "_boot_session", lambda: named)
    monkeypatch.setattr(psutil, "boot_time", lambda: 1_700_000_000.9)
    assert by_psutil.boot_id() == expected
