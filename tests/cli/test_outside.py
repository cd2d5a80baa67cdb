"""Processes that were not prepared: their stack from outside, and the probe put into them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.mailboxes import outside
from gpuwatchd.core.codes import OutsideFault
from gpuwatchd.store.reader import Reader
from gpuwatchd.view.answers.inspection import InspectionData
from tests.children import Child
from tests.conftest import only_where
from tests.probe.stand_in import CUPY
from tests.store.world import actions, opened

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

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
