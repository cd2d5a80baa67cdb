"""Only the process that is meant is ever hit."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from gpuwatchd.act import target as module
from gpuwatchd.act.target import Target
from gpuwatchd.core.errors import NotAllowed, TargetChanged, TargetGone
from gpuwatchd.core.model import ProcessKey
from tests.act.children import booted_at_s, job, key_of
from tests.conftest import ON_LINUX

pytestmark = ON_LINUX


def known(key: ProcessKey, *, proc: Path = Path("/proc")) -> Target:
    """Return a target of a system that says when it was booted."""
    return Target(key, booted_at_s=booted_at_s(), proc=proc)


def copied(pid: int, folder: Path, *names: str) -> Path:
    """Return a copy of what the kernel says of a process."""
    (folder / str(pid)).mkdir(parents=True)
    for name in ("stat", *(f"{pid}/{name}" for name in names)):
        (folder / name).write_bytes(Path(f"/proc/{name}").read_bytes())
    return folder


def test_a_handler_is_seen(tmp_path: Path) -> None:
    with job(tmp_path / "saved") as heeds, known(key_of(heeds.pid)) as target:
        assert target.handles(signal.SIGUSR1) is True
        assert target.handles(signal.SIGUSR2) is False
        assert target.held
        assert target.name.endswith(f"[{heeds.pid}]")


@pytest.mark.parametrize("pid", [1, 2])
def test_the_systems_own_are_refused(pid: int) -> None:
    with pytest.raises(NotAllowed) as error, known(ProcessKey(pid=pid, started_at_s=0.0)):
        pass
    assert error.value.page == "errors#never-ended"
    assert error.value.hint


@pytest.mark.usefixtures("not_the_first")
def test_we_and_our_parents_are_refused() -> None:
    for pid in (os.getpid(), os.getppid()):
        if pid <= 2:
            continue
        with pytest.raises(NotAllowed) as error, known(key_of(pid)):
            pass
        assert error.value.page == "errors#never-ended"
        assert error.value.hint


def test_one_that_has_ended_is_gone() -> None:
    with job() as process:
        key = key_of(process.pid)
    with pytest.raises(TargetGone), known(key):
        pass


def test_one_that_nobody_waited_for_is_gone() -> None:
    process = subprocess.Popen(["sleep", "60"])
    key = key_of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(TargetGone), known(key):
            pass
    finally:
        process.wait()


@pytest.mark.parametrize("by_s", [-30.0, 30.0, -3.0, 3.0])
def test_another_start_time_is_another_process(by_s: float) -> None:
    with job() as process:
        key = key_of(process.pid)
        other = msgspec.structs.replace(key, started_at_s=(key.started_at_s or 0.0) + by_s)
        with pytest.raises(TargetChanged), known(other):
            pass
        with known(key):
            pass
        assert process.poll() is None


def test_a_process_without_a_start_time_is_nobody() -> None:
    with (
        job() as process,
        pytest.raises(TargetChanged),
        known(ProcessKey(pid=process.pid, started_at_s=None)),
    ):
        pass


def test_the_pid_is_given_anew_between_the_look_and_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files tell of a process that is there; the descriptor is of the one that was."""
    with job() as process:
        proc = copied(process.pid, tmp_path / "proc", "stat", "status")
        target = known(key_of(process.pid), proc=proc)
        target.__enter__()
    # It has ended; its files are as if another one of the same name and time had the pid.
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
    try:
        with pytest.raises(TargetGone):
            target.send(signal.SIGUSR1)
    finally:
        target.__exit__(None, None, None)
    assert sent == []


def test_what_the_pid_is_when_the_signal_is_sent_decides(tmp_path: Path) -> None:
    with job() as process:
        proc = copied(process.pid, tmp_path / "proc", "stat", "status")
        folder = proc / str(process.pid)
        with known(key_of(process.pid), proc=proc) as target:
            head, _, rest = (folder / "stat").read_bytes().rpartition(b")")
            words = rest.split()
            words[19] = b"%d" % (int(words[19]) + 100_000)
            (folder / "stat").write_bytes(head + b") " + b" ".join(words))
            with pytest.raises(TargetChanged):
                target.send(signal.SIGTERM)
        assert process.poll() is None


def test_another_users_process_is_refused(tmp_path: Path) -> None:
    with job() as process:
        proc = copied(process.pid, tmp_path / "proc", "stat")
        status = b"Name:\tpython\nUid:\t64321\t64321\t64321\t64321\n"
        (proc / str(process.pid) / "status").write_bytes(status)
        with pytest.raises(NotAllowed, match="another user's"):
            known(key_of(process.pid), proc=proc).__enter__()


def test_without_descriptors_it_is_compared_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_open", lambda pid: None)
    saved = tmp_path / "saved"
    with job(saved) as process:
        key = key_of(process.pid)
        with known(key) as target:
            assert not target.held
            target.send(signal.SIGUSR1)
        other = msgspec.structs.replace(key, started_at_s=(key.started_at_s or 0.0) - 100)
        with pytest.raises(TargetChanged), known(other):
            pass


def test_descriptors_are_given_back() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with job() as process:
        key = key_of(process.pid)
        before = count()
        for _ in range(20):
            with known(key):
                pass
            with pytest.raises(TargetChanged), known(ProcessKey(pid=key.pid, started_at_s=5.0)):
                pass
        assert count() == before


def test_psutil_tells_the_same_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_without_proc", lambda proc: True)
    with job() as process:
        key = key_of(process.pid)
        with known(key) as target:
            assert f"[{process.pid}]" in target.name
        other = msgspec.structs.replace(key, started_at_s=(key.started_at_s or 0.0) - 100)
        with pytest.raises(TargetChanged), known(other):
            pass
    with pytest.raises(TargetGone), known(key):
        pass


@pytest.mark.parametrize("pid", [2**31, 2**40, 2**80])
def test_a_number_that_no_process_can_have_is_gone(pid: int) -> None:
    with pytest.raises(TargetGone), known(ProcessKey(pid=pid, started_at_s=1.0)):
        pass


def test_a_start_that_is_no_number_is_nobodys() -> None:
    with job() as process:
        key = ProcessKey(pid=process.pid, started_at_s=float("nan"))
        with pytest.raises(TargetChanged), known(key):
            pass


def test_without_a_time_of_boot_nobody_is_meant(tmp_path: Path) -> None:
    """The pid and the ticks since the boot are right, but of which boot is unknown."""
    saved = tmp_path / "saved"
    with job(saved) as process:
        key = key_of(process.pid)
        with pytest.raises(TargetChanged) as refused, Target(key, booted_at_s=None) as target:
            target.send(signal.SIGUSR1)
        assert refused.value.page == "errors#process-changed"
        with known(key) as target:
            assert target.held
        assert not saved.exists()
