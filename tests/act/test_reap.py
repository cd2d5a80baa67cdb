"""``reap``: who is never ended, what ends a process with the least loss, and never another one."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.act import reap
from gpuwatchd.core.codes import ReapResult
from gpuwatchd.core.errors import NotAllowed, TargetChanged, TargetGone
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from tests.act.children import booted_at_s, key_of
from tests.act.reuse import View, races
from tests.children import Child
from tests.conftest import ON_LINUX, need
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gpuwatchd.core.model import HoldingKind

pytestmark = ON_LINUX

NOTES = """
import ctypes, os, signal, sys, time
name, path, *handled = sys.argv[1:]
def note(number, _):
    with open(path, "a") as file:
        file.write(signal.Signals(number).name + "\\n")
    if "stay" not in handled:
        sys.exit(0)
for word in handled:
    if word == "ignore":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    elif word == "traced":
        ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    elif word.startswith("SIG"):
        signal.signal(signal.Signals[word], note)
open("/proc/self/comm", "w").write(name)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


OUTSIDE: dict[str, Any] = {"self/cgroup": b"0::/\n"}


@contextlib.contextmanager
def noting(path: Path, *handled: str, name: str = "python", **more: Any) -> Iterator[int]:
    """Run a job that notes the signals that it handles; "ignore", "stay" and "traced" besides."""
    argv = [sys.executable, "-c", NOTES, name, str(path), *handled]
    with Child[bytes](argv, stdout=subprocess.PIPE, **more) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def subject(pid: int, *kinds: HoldingKind, **changes: Any) -> reap.Subject:
    info = ProcessInfo(key=key_of(pid), name="python", **changes.pop("info", {}))
    return reap.Subject(info, frozenset(kinds or ("idle",)), **changes)


def held(pid: int, *kinds: HoldingKind, files: Any = None, seen: Any = None, **changes: Any) -> Any:
    """Hold a process that is listed so, wherever the tests themselves run."""
    proc: Any = View(OUTSIDE | (files or {}))
    return reap.hold(
        key_of(pid),
        lambda: seen or subject(pid, *kinds, **changes),
        booted_at_s=booted_at_s(),
        proc=proc,
    )


def ended(pid: int, *, grace_s: float = 30.0, kill: bool = False) -> tuple[ReapResult, list[str]]:
    sent: list[str] = []
    with held(pid) as (target, signals):
        return reap.end(target, signals, grace_s, lambda: kill, sent), sent


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count every signal that would leave by a descriptor, and send none; no other way is open."""
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *given: sent.append(given[1]))
    return sent


def refused(pid: int, **more: Any) -> str:
    with pytest.raises(NotAllowed) as error, held(pid, **more) as (target, signals):
        reap.end(target, signals, 0.1, lambda: True, [])
    return error.value.page


@pytest.mark.parametrize("name", ["gnome-shell", "nvidia-cuda-mps-control"])
def test_never_who_has_such_a_name(tmp_path: Path, sends: list[int], name: str) -> None:
    with noting(tmp_path / "notes", "SIGTERM", "SIGINT", name=name) as pid:
        assert refused(pid) == "errors#never-ended"
    assert sends == []


def test_never_this_program_nor_the_first_of_the_kernel(sends: list[int]) -> None:
    for key in (key_of(os.getpid()), ProcessKey(pid=2, started_at_s=0.0)):
        with (
            pytest.raises(NotAllowed),
            reap.hold(key, lambda: subject(os.getpid()), booted_at_s=booted_at_s()),
        ):
            pass
    assert sends == []


@pytest.mark.parametrize("line", ["0::", "0::/\n1:name=systemd:"])
def test_never_our_own_control_group(tmp_path: Path, sends: list[int], line: str) -> None:
    group = f"{line}/user.slice/session-3.scope\n".encode()
    with noting(tmp_path / "notes") as pid:
        files = {f"{pid}/cgroup": group, "self/cgroup": group}
        assert refused(pid, files=files) == "errors#never-ended"
        root = dict.fromkeys(files, b"0::/\n1:name=systemd:/\n")
        with held(pid, files=root):  # the root is nobody's
            pass
    assert sends == []


Files = dict[str, bytes]
"""Of /proc, that are not as the kernel has them."""


@contextlib.contextmanager
def _running(folder: Path, name: str, *handled: str) -> Iterator[tuple[int, Files]]:
    with noting(folder / "notes", *handled, name=name) as pid:
        yield pid, {}


def plain(folder: Path) -> AbstractContextManager[tuple[int, Files]]:
    """Run somebody who may be ended."""
    return _running(folder, "python", "SIGTERM")


@contextlib.contextmanager
def _with_file(
    folder: Path, name: str, change: Callable[[bytes], bytes], *also: str
) -> Iterator[tuple[int, Files]]:
    """Run a job of which one file is another one, and ``also`` others are like it."""
    with noting(folder / "notes") as pid:
        content = change(Path(f"/proc/{pid}/{name}").read_bytes())
        yield pid, dict.fromkeys((f"{pid}/{name}", *also), content)


@contextlib.contextmanager
def _leader(_: Path) -> Iterator[tuple[int, Files]]:
    """Run what leads the session of a terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("sleep", ["sleep", "60"])
    try:
        assert until(lambda: b"sleep" in Path(f"/proc/{pid}/comm").read_bytes())
        yield pid, {}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)


def _of_the_kernel(stat: bytes) -> bytes:
    head, _, rest = stat.rpartition(b")")
    fields = rest.split()
    fields[6] = b"%d" % (int(fields[6]) | 0x200000)
    return head + b") " + b" ".join(fields)


def _of_another(status: bytes) -> bytes:
    return re.sub(rb"(?m)^Uid:.*$", b"Uid:\t64321\t64321\t64321\t64321", status)


NEVER: dict[str, Callable[[Path], AbstractContextManager[tuple[int, Files]]]] = {
    "first": lambda _: contextlib.nullcontext((1, {})),
    "kernel": lambda folder: _with_file(folder, "stat", _of_the_kernel),
    "another-user": lambda folder: _with_file(folder, "status", _of_another),
    "own-group": lambda folder: _with_file(
        folder, "cgroup", lambda _: b"0::/user.slice/session-3.scope\n", "self/cgroup"
    ),
    "parent": lambda _: contextlib.nullcontext((os.getppid() or os.getpid(), {})),
    "terminal": _leader,
    "traced": lambda folder: _running(folder, "python", "traced"),
    "multiplexer": lambda folder: _running(folder, "tmux: server", "SIGTERM"),
    "remote-login": lambda folder: _running(folder, "sshd", "SIGTERM"),
    "display": lambda folder: _running(folder, "Xorg", "SIGTERM"),
    "mps": lambda folder: _running(folder, "nvidia-cuda-mps-server", "SIGTERM"),
    "persistence": lambda folder: _running(folder, "nvidia-persistenced", "SIGTERM"),
}
"""Who is never ended, whatever lists it: what runs such a process, and how /proc shows it.

The campaign runs them by all that may end a process.
"""


@pytest.mark.parametrize("name", NEVER)
def test_never(tmp_path: Path, sends: list[int], name: str) -> None:
    with NEVER[name](tmp_path) as (pid, files):
        page = refused(pid, files=files)
        assert pid in {1, os.getpid(), os.getppid()} or Path(f"/proc/{pid}").exists()
    assert page == f"errors#{'not-yours' if name == 'another-user' else 'never-ended'}"
    assert sends == []
    assert not (tmp_path / "notes").exists()


@contextlib.contextmanager
def as_another_user(*programs: str) -> Iterator[int]:
    need(os.getuid() == 0 and shutil.which("setpriv"), "setpriv and root, to be another user")
    argv = ["setpriv", "--reuid=65534", "--clear-groups", *programs]
    with Child(argv) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        assert until(lambda: comm.read_text() == f"{programs[0]}\n")
        yield process.pid


def test_never_another_users(sends: list[int]) -> None:
    with as_another_user("sleep", "60") as pid:
        assert refused(pid) == "errors#not-yours"
    assert sends == []


def test_never_who_runs_with_another_users_rights(tmp_path: Path, sends: list[int]) -> None:
    """The user started it, and it has become another one, as a program with setuid does."""
    with noting(tmp_path / "notes") as pid:
        uid = os.getuid()
        status = Path(f"/proc/{pid}/status").read_bytes()
        mixed = status.replace(b"\nUid:\t%d\t%d" % (uid, uid), b"\nUid:\t%d\t64321" % uid)
        assert refused(pid, files={f"{pid}/status": mixed}) == "errors#never-ended"
    assert sends == []


@pytest.mark.parametrize("kind", ["gone", "defunct", "ghost", "driver-wait"])
def test_what_no_signal_frees_is_refused(
    tmp_path: Path, sends: list[int], kind: HoldingKind
) -> None:
    with (
        noting(tmp_path / "notes") as pid,
        pytest.raises(NotAllowed) as error,
        held(pid, kind, "idle"),
    ):
        pass
    assert error.value.page == "errors#no-signal-frees"
    assert sends == []


def test_a_healthy_training_is_refused(tmp_path: Path, sends: list[int]) -> None:
    with noting(tmp_path / "notes") as pid:
        training = subject(pid)._replace(kinds=frozenset(), needs="needed: 2 h without work")
        for seen in (training, subject(pid, busy_on="GPU 1")):
            with (
                pytest.raises(NotAllowed) as error,
                held(pid, seen=seen),
            ):
                pass
            assert error.value.page == "errors#not-idle"
            assert f"kill -TERM {pid}" in error.value.hint
    assert sends == []


USER = b"0::/user.slice/user-7.slice/user@7.service/app.slice/train.service\n"
ID = "6ff8daebd14c"


@pytest.mark.parametrize(
    ("info", "cgroup", "command"),
    [
        ({"job": "slurm 42.0"}, b"", "scancel -b --signal=TERM 42"),
        ({"group": "slurm 42.0"}, b"", "scancel -b --signal=TERM 42"),
        ({"unit": "train.service"}, USER, "systemctl --user restart train.service"),
        ({"unit": "a.service"}, b"0::/system.slice/a.service", "systemctl restart a.service"),
        ({"container": f"docker {ID}"}, b"", f"docker restart {ID}"),
        ({"container": f"podman {ID}"}, b"", f"podman restart {ID}"),
    ],
)
def test_a_manager_is_named_with_its_command(
    tmp_path: Path, sends: list[int], info: dict[str, str], cgroup: bytes, command: str
) -> None:
    with (
        noting(tmp_path / "notes") as pid,
        pytest.raises(NotAllowed) as error,
        held(pid, files={f"{pid}/cgroup": cgroup}, info=info),
    ):
        pass
    assert (error.value.page, error.value.hint) == ("errors#managed", command)
    assert sends == []


def test_a_job_of_slurm_is_known_by_its_environment(tmp_path: Path, sends: list[int]) -> None:
    env = {**os.environ, "SLURM_JOB_ID": "4711"}
    with noting(tmp_path / "notes", env=env) as pid, pytest.raises(NotAllowed) as error, held(pid):
        pass
    assert error.value.hint == "scancel -b --signal=TERM 4711"
    assert sends == []


def test_a_rank_is_left_to_its_launcher(tmp_path: Path, sends: list[int]) -> None:
    with (
        noting(tmp_path / "notes") as pid,
        pytest.raises(NotAllowed) as error,
        held(pid, launcher=(4700, "torchrun[4700]")),
    ):
        pass
    assert (error.value.page, error.value.hint) == ("errors#managed", "kill -TERM 4700")
    assert sends == []


def test_another_pid_namespace_is_left_alone(sends: list[int]) -> None:
    bubblewrap = shutil.which("bwrap")
    need(bubblewrap or (os.getuid() == 0 and shutil.which("unshare")), "bubblewrap, or root")
    ways = ["bwrap", "--bind", "/", "/", "--unshare-pid"] if bubblewrap else ["unshare", "-pf"]
    with Child([*ways, "sleep", "60"]) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        assert until(lambda: children.read_text().split())
        pids = children.read_text().split()
        assert refused(int(pids[0])) == "errors#managed"
        assert sends == []
        os.kill(int(pids[0]), signal.SIGKILL)


def test_one_that_waits_in_the_kernel_is_named_with_where(tmp_path: Path, sends: list[int]) -> None:
    with noting(tmp_path / "notes") as pid:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        stuck = stat.replace(b") S ", b") D ").replace(b") R ", b") D ")
        files = {f"{pid}/stat": stuck, f"{pid}/wchan": b"nv_wait"}
        with pytest.raises(NotAllowed) as error, held(pid, files=files):
            pass
    assert error.value.page == "errors#no-signal-frees"
    assert "nv_wait" in error.value.message
    assert sends == []


def test_without_descriptors_of_processes_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: list[int]
) -> None:
    monkeypatch.setattr("gpuwatchd.act.target._open", lambda _: None)
    with noting(tmp_path / "notes") as pid:
        assert refused(pid) == "errors#no-pidfd"
    assert sends == []


@pytest.mark.parametrize(
    ("handled", "noted", "sent"),
    [
        (("SIGTERM", "SIGINT"), ["SIGTERM"], ["SIGTERM"]),
        (("SIGTERM",), ["SIGTERM"], ["SIGTERM"]),
        (("SIGINT",), ["SIGINT"], ["SIGINT"]),
        ((), [], ["SIGINT"]),
    ],
)
def test_it_may_save_before_it_ends(
    tmp_path: Path, handled: tuple[str, ...], noted: list[str], sent: list[str]
) -> None:
    with noting(tmp_path / "notes", *handled) as pid:
        assert ended(pid) == (ReapResult.ENDED, sent)
    notes = tmp_path / "notes"
    assert (notes.read_text().split() if noted else []) == noted


def test_one_that_goes_on_at_int_gets_term(tmp_path: Path) -> None:
    with noting(tmp_path / "notes", "SIGINT", "stay") as pid:
        assert ended(pid, grace_s=0.5) == (ReapResult.ENDED, ["SIGINT", "SIGTERM"])


def test_kill_is_sent_only_where_it_may_be(tmp_path: Path) -> None:
    with noting(tmp_path / "notes", "ignore") as pid:
        assert ended(pid, grace_s=0.3) == (ReapResult.RUNS, ["SIGTERM"])
        assert ended(pid, grace_s=0.3, kill=True) == (ReapResult.ENDED, ["SIGTERM", "SIGKILL"])


def test_a_stopped_one_is_let_go_on_to_end(tmp_path: Path) -> None:
    with noting(tmp_path / "notes", "SIGTERM") as pid:
        os.kill(pid, signal.SIGSTOP)
        assert until(lambda: b") T " in Path(f"/proc/{pid}/stat").read_bytes())
        assert ended(pid) == (ReapResult.ENDED, ["SIGTERM", "SIGCONT"])
    assert (tmp_path / "notes").read_text() == "SIGTERM\n"


def test_one_that_ends_meanwhile_gets_nothing(tmp_path: Path) -> None:
    with noting(tmp_path / "notes") as pid, held(pid) as (target, signals):
        os.kill(pid, signal.SIGKILL)
        assert target.wait(30.0)
        sent: list[str] = []
        with pytest.raises(TargetGone):
            reap.end(target, signals, 1.0, lambda: True, sent)
        assert sent == []


def test_another_process_under_the_pid_gets_nothing(tmp_path: Path, sends: list[int]) -> None:
    with noting(tmp_path / "notes") as pid:
        listed = ProcessKey(pid=pid, started_at_s=(key_of(pid).started_at_s or 0.0) - 60.0)
        with (
            pytest.raises(TargetChanged),
            reap.hold(listed, lambda: subject(pid), booted_at_s=booted_at_s()),
        ):
            pass
    assert sends == []


def test_a_pid_that_is_given_anew_is_never_hit() -> None:
    """The campaign runs ten thousand of them by the same function."""
    done = races(200)
    assert done.wrong == 0
    assert done.right > 0  # it is no race where nothing is ever sent
    assert done.refused > 0
