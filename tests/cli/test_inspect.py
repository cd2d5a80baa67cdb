"""From `run` to the name of the variable, with a stand-in for CuPy; hostile mailboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _gpuwatchd_probe import agent, counters, mailbox, requests

from gpuwatchd.cli.verbs import inspect
from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.mailboxes import outside
from gpuwatchd.core.codes import CensusError, MailboxFault, OutsideFault
from gpuwatchd.store.reader import Reader
from gpuwatchd.view.answers.inspection import InspectionData
from gpuwatchd.view.text.inspection import lines
from tests.children import Child
from tests.cli import world
from tests.conftest import only_where, present
from tests.probe.stand_in import CUPY
from tests.store.world import actions, opened
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.calls import Ctl


RUN = (str(world.PROGRAM), "run")
JOB = """
import os, sys, time, cupy
def train():
    kept = []
    while True:
        if len(kept) % 30 == 0:  # as a loader does: the inspection goes on in another thread
            os.waitpid(os.fork() or os._exit(0), 0)
        kept.append(cupy.ndarray(8))
        time.sleep(0.01)
print("ready", flush=True)
train()
"""


@contextmanager
def running(place: Path, code: str, *flags: str) -> Iterator[Child[str]]:
    (place / "cupy.py").write_text(CUPY)
    (place / "job.py").write_text(code)
    command = [*RUN, *flags, "--", sys.executable, "-W", "error", str(place / "job.py")]
    with Child[str](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Child[str]]:
    with running(tmp_path, JOB) as process:
        yield process


def _mailbox_of(pid: int) -> mailboxes.Mailbox:
    place = mailboxes.folder_of(pid, os.getuid())

    def written() -> mailboxes.Mailbox | None:
        found = mailboxes.read(place, pid, os.getuid())
        return found if isinstance(found, mailboxes.Mailbox) else None

    return present(wait_for(written))


MARKED = """
import itertools, sys, time, cupy
from gpuwatchd import probe
from _gpuwatchd_probe import spans
held, now = [2 << 30], itertools.count(0.0, 30.0)
cupy.Pool.used_bytes = lambda self: held[0]
spans._clock = lambda: next(now)
@probe.watch("log_loss")
def log_loss():
    held[0] += 8 << 20
def step():
    with probe.span("step"):
        log_loss()
        with probe.span("idle"):
            pass
for _ in range(200):
    step()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.requirement("M7")
def test_the_function_that_leaks_is_named(tmp_path: Path, ctl: Ctl) -> None:
    with running(tmp_path, MARKED, "--counters-only") as job:
        by_name = {row.name: row for row in _mailbox_of(job.pid).spans}
        assert by_name["log_loss"].total_memory_growth == 200 * 8 << 20
        assert by_name["step"].total_memory_growth == 0
        said = ctl.json("inspect", str(job.pid), "--functions", "--exit-code", code=3)
        answer = msgspec.convert(said["data"], InspectionData).functions
        assert answer is not None
        verdicts = {one.name: one.verdict for one in answer.functions}
        assert verdicts == {"log_loss": "leak", "step": "elsewhere", "idle": "elsewhere"}
        assert [(one.kind, one.functions) for one in answer.findings] == [
            ("memory_leak", ("log_loss",))
        ]
        assert (answer.insights[0].kind, answer.score) == ("temporal_growth", 65)
        job.end()
        assert job.communicate()[1] == ""


@pytest.mark.slow
@pytest.mark.requirement("B8")
def test_the_variable_is_named_and_the_allocator_read(
    job: Child[str], ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "_WARM_UP_S", 0.0)
    mailbox = _mailbox_of(job.pid)
    assert (mailbox.framework.name, mailbox.framework.version) == ("cupy", "9.9")
    said = ctl.json("inspect", str(job.pid), "--every", "1s", "--exit-code", code=3)
    answer = msgspec.convert(said["data"], InspectionData)
    (device,) = answer.devices
    assert device.allocated_bytes is not None
    assert device.reserved_bytes == device.allocated_bytes + (1 << 30)
    (group, *_) = answer.growing
    assert group.holder is not None
    assert (group.holder.name, group.holder.kind, group.holder.line) == (
        "kept in train()",
        "list",
        4,
    )
    assert list(group.counts) == sorted(set(group.counts))
    assert answer.error is None
    assert job.poll() is None
    assert "kept in train()" in "".join(lines(answer))
    again = ctl.json("inspect", str(job.pid), code=1)
    assert again["data"]["error"] == CensusError.TOO_SOON
    job.end()
    assert job.communicate()[1] == ""
    assert not list(mailboxes.folder(os.getuid()).glob("*.req*"))


def test_what_was_not_prepared_is_one_line(ctl: Ctl) -> None:
    answer = ctl.json("inspect", str(os.getpid()), code=1)
    assert answer["error"]["page"] == "errors#not-prepared"
    assert ctl.json("inspect", str(2**22 + 7), code=1)["error"]["page"] == "errors#no-such-process"


@pytest.mark.parametrize(
    ("command", "code"),
    [(["no-such-command-of-ours"], 127), (["/etc/passwd"], 126), (["sh", "-c", "exit 7"], 7)],
)
def test_run_ends_as_its_command_does(command: list[str], code: int) -> None:
    done = subprocess.run([*RUN, "--", *command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def _content(**changes: Any) -> bytes:
    whole = {
        "v": 1, "pid": os.getpid(), "seq": 1, "at_s": 1.0, "python": "3.8.1",
        "started_ticks": mailboxes._started_ticks(os.getpid()), "boot_id": mailboxes._boot_id(),
        "framework": {"name": "torch"},
    }  # fmt: skip
    return json.dumps({**whole, **changes}).encode()


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        (_content(), 0o600, None),
        (_content(), 0o644, MailboxFault.NOT_TRUSTED),
        (_content(started_ticks=1), 0o600, MailboxFault.OTHER_PROCESS),
        (_content(boot_id="x"), 0o600, MailboxFault.OTHER_PROCESS),
        (_content(python="x" * (1 << 17)), 0o600, MailboxFault.NOT_TRUSTED),
        (_content(framework=7), 0o600, MailboxFault.NO_MAILBOX),
        (_content(spans=[{"name": "f", "call_count": 1}] * 50), 0o600, None),
        (_content(spans=[{"name": "f", "call_count": 1}] * 51), 0o600, MailboxFault.NO_MAILBOX),
        (_content(spans=[{"name": "f", "call_count": 10**16}]), 0o600, MailboxFault.NO_MAILBOX),
        (b"\xff{", 0o600, MailboxFault.NO_MAILBOX),
        (b"", 0o600, MailboxFault.NO_MAILBOX),
        (b'{"last":' * 8000, 0o600, MailboxFault.NO_MAILBOX),
        (b'{"seq":' + b"9" * 60000 + b"}", 0o600, MailboxFault.NO_MAILBOX),
    ],
    ids=range(13),
)
def test_a_mailbox_is_believed_only_of_its_own_process(
    content: bytes, mode: int, fault: MailboxFault | None, tmp_path: Path
) -> None:
    file = tmp_path / f"{os.getpid()}.json"
    file.write_bytes(content)
    file.chmod(mode)
    found = mailboxes.read(tmp_path, os.getpid(), os.getuid())
    assert found is fault if fault else isinstance(found, mailboxes.Mailbox)
    assert mailboxes.read(tmp_path, os.getpid(), os.getuid() + 1) is MailboxFault.NOT_TRUSTED


def test_a_link_or_a_pipe_is_no_mailbox(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / f"{os.getpid()}.json"
    other.write_bytes(_content())
    other.chmod(0o600)
    file.symlink_to(other)
    assert mailboxes.read(tmp_path, os.getpid(), os.getuid()) is MailboxFault.NOT_TRUSTED
    file.unlink()
    os.mkfifo(file, 0o600)
    assert mailboxes.read(tmp_path, os.getpid(), os.getuid()) is MailboxFault.NOT_TRUSTED
    file.unlink()
    file.touch(0o600)
    os.truncate(file, 1 << 30)
    assert mailboxes.read(tmp_path, os.getpid(), os.getuid()) is MailboxFault.NOT_TRUSTED


def _planted_request(kind: str, path: Path) -> None:
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 30)
    else:
        path.write_text(kind)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "huge", "", "[]", '{"id": "../x"}'])
def test_a_request_that_is_none_is_passed_over(kind: str, tmp_path: Path) -> None:
    box = mailbox.Mailbox(str(tmp_path))
    tmp_path.chmod(0o700)
    _planted_request(kind, tmp_path / f"{os.getpid()}.req")
    assert box.request() is None
    box.write(framework={"name": "cupy"})
    found = mailboxes.read(tmp_path, os.getpid(), os.getuid())
    assert isinstance(found, mailboxes.Mailbox)
    assert found.framework.name == "cupy"


@pytest.mark.parametrize(
    ("free", "asked", "error"),
    [(0.01, {}, "device-memory"), (1.0, {"verb": "exec"}, "unknown-verb"), (1.0, {}, "running")],
)
def test_what_the_agent_refuses(
    free: float, asked: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "free", lambda _: free)
    probe = requests.Inspections(0.0)
    words = {"id": "ab", "verb": "census", "warmup_s": 0.0, **asked}
    if error == "running":
        assert probe.answer(words, ["cupy"]) is None
    assert probe.answer(words, ["cupy"]) == {"error": error}


def test_the_warm_up_is_waited_for() -> None:
    probe = requests.Inspections(time.monotonic())
    assert probe.answer({"id": "1", "verb": "census"}, []) is None
    assert probe.due_s == probe.began_s + requests.WARM_UP_S
    probe.step(threading.Event())
    assert probe.result["censuses"] == 0
    probe.due_s = 0.0
    probe.step(threading.Event())
    assert probe.result["pauses_ms"] or probe.result["error"]


def test_free_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"limit": 100, "allocated": 99}, {"limit": 100, "allocated": 10}]
    monkeypatch.setattr(counters, "read", lambda _: rows)
    assert counters.free("jax") == pytest.approx(0.01)
    assert counters.free("torch") == 1.0


def test_no_hook_raises_into_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    own = agent.Agent(str(tmp_path / "none"), 0.0)
    own._failure, own._content = "builtins.KeyError", {"framework": {"name": "torch"}}
    own._mailbox.folder = "/proc/none"
    monkeypatch.setattr(agent, "_agent", own)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for what in ("start", "end", "close"):
        agent._have(what)
        assert own._thread is None


def test_what_ended_processes_left_is_swept_away(tmp_path: Path) -> None:
    own, gone = tmp_path / f"{os.getpid()}.json", tmp_path / f"{2**22 + 7}.json"
    for file in (own, gone):
        file.write_bytes(b"")
    mailboxes.sweep(tmp_path)
    assert gone.exists()
    os.utime(gone, (1.0, 1.0))
    mailboxes.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [own]
    for number in range(10_000):
        (tmp_path / f"{2**22 + number}.json").touch()
    mailboxes.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [own]


PID = str(os.getpid())
RECORDED = Path(__file__).with_name("py-spy-0.4.3.json")
DUMP = b"""\
Stack dump for PID 7, thread 7 (main thread, has GIL; most recent call last):
  File "train.py", line 9, in <module>
    train()
  File "train.py", line 5, in Trainer.step
    time.sleep(9)
"""
TARGET = """
import sys, cupy
print("ready", flush=True)
for line in sys.stdin:
    with open(line.strip()) as script:
        exec(script.read(), {})
"""


def _py_spy(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_where_it_is_now(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _py_spy(tmp_path, f'echo "$*" >&2; [ $5 = {PID} ] && cat {RECORDED}', monkeypatch)
    answer = ctl.json("inspect", PID, "--exit-code", code=1)
    data = msgspec.convert(answer["data"], InspectionData)
    assert (data.prepared, data.ended, data.framework) == (False, False, None)
    assert [thread.name for thread in data.stack] == ["MainThread", "loader"]
    assert [(frame.function, frame.line) for frame in data.stack[0].frames] == [
        ("step", 4),
        ("train", 6),
        ("<module>", 8),
    ]
    assert [one["code"] for one in answer["warnings"]] == ["not-prepared"]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("exit 1", OutsideFault.FAILED),
        ("echo [", OutsideFault.FAILED),
        ("echo []", OutsideFault.FAILED),
        ("exec sleep 60", OutsideFault.TIMEOUT),
    ],
)
def test_no_stack_is_one_line(
    body: str, fault: OutsideFault, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _py_spy(tmp_path, body, monkeypatch)
    monkeypatch.setattr(outside, "LIMIT_S", 0.5)
    monkeypatch.setattr(outside, "_is_restricted", lambda: False)
    assert outside.stack(os.getpid(), os.getuid()) is fault
    assert ctl.json("inspect", PID, code=1)["error"]["page"] == "errors#not-prepared"


def test_the_stack_that_python_3_15_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "python_of", lambda _: (3, 15))
    monkeypatch.setattr(outside, "_own_python", lambda *_: DUMP)
    found = outside.stack(7, 0)
    assert isinstance(found, tuple)
    assert [(frame.name, frame.line) for frame in found[0].frames] == [
        ("Trainer.step", 5),
        ("<module>", 9),
    ]


def test_its_own_program_is_run() -> None:
    assert outside._own_python(os.getpid(), os.getuid(), "-c", "print(1)") == b"1\n"


@only_where(sys.version_info < (3, 14), "this Python is new enough")
def test_attaching_needs_consent_and_a_new_python(ctl: Ctl, tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    answer = ctl.json("inspect", PID, "--attach", "--yes", code=1)
    assert answer["error"]["page"] == "errors#not-attached"
    assert actions(tmp_path / "state") == []


def test_the_probe_is_put_into_a_process(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "state").close()
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "job.py").write_text(TARGET)
    planted = []
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "error", str(tmp_path / "job.py")]
    with Child[str](command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"

        def remote_exec(pid: int, uid: int, *words: str) -> bytes:
            about = Path(words[-1]).stat()
            assert (about.st_mode & 0o777, about.st_uid, pid) == (0o600, uid, job.pid)
            planted.append(Path(words[-1]))
            print(words[-1], file=job.stdin, flush=True)
            return b""

        monkeypatch.setattr(outside, "python_of", lambda _: (3, 14))
        monkeypatch.setattr(outside, "_own_python", remote_exec)
        words = ("inspect", str(job.pid), "--attach", "--every", "0.1s")
        assert "--yes" in ctl.err(*words, code=2)
        data = msgspec.convert(ctl.json(*words, "--yes")["data"], InspectionData)
        assert (data.prepared, data.framework, data.censuses) == (True, "cupy", 4)
        assert [row.phase for row in actions(tmp_path / "state")] == ["asked", "done"]
        with Reader.open(tmp_path / "state") as reader:
            assert [one.kind for one in reader.action_events()] == ["attaching", "attached"]
        assert not planted[0].exists()
        job.end()
        assert job.communicate()[1] == ""


def test_what_does_not_begin_is_left_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = []
    monkeypatch.setattr(outside, "LIMIT_S", 0.2)

    def remote_exec(*words: Any) -> bytes:
        planted.append(words[-1])
        return b""

    monkeypatch.setattr(outside, "_own_python", remote_exec)
    fault = outside.attach(os.getpid(), os.getuid(), tmp_path)
    assert fault is OutsideFault.TIMEOUT
    Path(planted[0]).unlink()
    monkeypatch.setattr(outside, "_own_python", lambda *_: OutsideFault.REFUSED)
    before = set(Path("/tmp").glob("gpuwatchd-*.py"))
    assert outside.attach(os.getpid(), os.getuid(), tmp_path) is OutsideFault.REFUSED
    assert set(Path("/tmp").glob("gpuwatchd-*.py")) == before


def test_doctor_says_which_mailboxes_are_ignored(ctl: Ctl) -> None:
    place = mailboxes.folder(os.getuid())
    place.mkdir(parents=True)
    (place / f"{PID}.json").write_bytes(b"{}")
    (place / f"{PID}.json").chmod(0o644)
    (place / f"{2**22 + 7}.json").write_bytes(b"")
    check, _ = ctl.data("doctor", "probe", code=None)
    assert (check["level"], check["id"]) == ("warning", "probe-ignored")
