"""A job that records: a stand-in for torch and its CUDA allocator runs out of memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _gpuwatchd_probe import oom, tensors

from gpuwatchd.collect import mailboxes
from gpuwatchd.view.answers.inspection import InspectionData
from tests.children import Child
from tests.cli import world
from tests.conftest import need
from tests.probe import gate
from tests.probe.stand_in import CUPY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

TORCH = """
from types import SimpleNamespace
from . import cuda
__version__ = "2.13.0"
OBSERVERS, HISTORY = [], []
class OutOfMemoryError(RuntimeError):
    pass
class Tensor:
    pass
_C = SimpleNamespace(
    _cuda_attach_out_of_memory_observer=OBSERVERS.append,
    _cuda_isHistoryEnabled=lambda: bool(HISTORY),
)
def allocate(size):
    for observe in OBSERVERS:
        observe(0, size, 80 << 30, 1 << 30)
    raise OutOfMemoryError(size)
"""
CUDA = """
from types import SimpleNamespace
def is_initialized():
    return True
def device_count():
    return 1
def get_device_properties(index):
    return SimpleNamespace(uuid="0")
def memory_stats_as_nested_dict(index):
    sizes = {"all": {"current": 79 << 30, "peak": 79 << 30}}
    return {"reserved_bytes": sizes, "allocated_bytes": sizes, "num_ooms": 1}
def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=1 << 62):
    import torch
    torch.HISTORY.append((enabled, context, stacks, max_entries))
memory = SimpleNamespace(_record_memory_history=_record_memory_history)
"""
JOB = """
import sys
from _gpuwatchd_probe import agent
agent.start("torch", 0.0)
import torch, cupy
def train():
    kept = [cupy.ndarray(8) for _ in range(40)]
    for line in sys.stdin:
        try:
            torch.allocate(1 << 40)
        except torch.OutOfMemoryError:
            if line == "end\\n":
                raise
        print(torch.HISTORY, flush=True)
train()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "cuda.py").write_text(CUDA)
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path / "job.py"


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_what_was_there_is_kept(version: str, program: Path, ctl: Ctl) -> None:
    from tests.cli.test_inspect import _mailbox_of

    python = gate.interpreters().get(version)
    need(python is not None, f"no Python {version}")
    assert python is not None
    command = [str(world.PROGRAM), "run", "--record", "--", python, "-W", "error", str(program)]
    pipe = subprocess.PIPE
    with Child[str](command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as job:
        assert _mailbox_of(job.pid).recording
        assert job.stdin is not None
        assert job.stdout is not None
        print("go on", file=job.stdin, flush=True)
        assert job.stdout.readline() == "[('all', 'alloc', 'python', 20000)]\n"
        place = mailboxes.folder(os.getuid())
        first = mailboxes.last_oom(place, job.pid, os.getuid())
        _, err = job.communicate("end\n")
    assert err.splitlines()[-1] == f"torch.OutOfMemoryError: {1 << 40}"
    answer = msgspec.convert(ctl.json("inspect", str(job.pid))["data"], InspectionData)
    assert (answer.ended, answer.failure) == (True, "torch.OutOfMemoryError")
    record = answer.oom
    assert record is not None
    assert first is not None
    assert first.at_s == mailboxes.last_oom(place, job.pid, os.getuid()).at_s  # type: ignore[union-attr]
    assert (record.requested_bytes, record.limit_bytes) == (1 << 40, 80 << 30)
    assert record.devices[0].allocated_bytes == 79 << 30
    assert [frame.function for frame in record.stack[0].frames][:2] == ["allocate", "train"]
    (group,) = record.largest
    assert group.counts == (40,)
    assert group.holder is not None
    assert (group.holder.name, group.holder.line) == ("kept in train()", 7)
    assert "kept in train()" in ctl("inspect", str(job.pid))
    mailboxes.sweep(place)
    kept = sorted(file.name for file in place.glob(f"{job.pid}.*"))
    assert kept == [f"{job.pid}.json", f"{job.pid}.oom-1.json"]


def _torch(**parts: Any) -> Any:
    memory = SimpleNamespace(_record_memory_history=parts.pop("record", None))
    cuda = SimpleNamespace(memory=memory, is_initialized=lambda: True)
    return SimpleNamespace(_C=SimpleNamespace(**parts), cuda=cuda)


def test_a_recording_of_the_users_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(max_entries: int) -> None:
        raise AssertionError(max_entries)

    box: Any = None  # so that writing fails: nothing reaches the job
    off = {"_cuda_isHistoryEnabled": lambda: False}
    for torch in (
        _torch(record=record, _cuda_isHistoryEnabled=lambda: True),
        _torch(record=record),
        _torch(record=lambda enabled: record(7), **off),
        _torch(record=record, **off),
    ):
        monkeypatch.setitem(sys.modules, "torch", torch)
        recorder = oom.begin(box)
        assert recorder is not None
        assert not recorder.recording
        recorder.observe(0, 1, 2, 3)


def test_no_variable_is_kept_alive() -> None:
    def step() -> weakref.ref[threading.Event]:
        tensor = threading.Event()
        assert oom.stacks()[0]["frames"][0]["name"] == "step"
        return weakref.ref(tensor)

    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


@pytest.mark.requirement("M38")
def test_the_line_that_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        pass

    frames = [
        {"filename": "/x/site-packages/torch/nn.py", "line": 1, "name": "forward"},
        {"filename": "/x/train.py", "line": 87, "name": "log_loss"},
    ]
    memory = SimpleNamespace(_allocation_traceback={4096: None, 8192: frames}.get)
    addresses = iter([4096, 8192])
    torch = SimpleNamespace(
        Tensor=Tensor,
        _C=SimpleNamespace(_data_address=lambda _: next(addresses)),
        cuda=SimpleNamespace(memory=memory),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert tensors.addresses([Tensor()]) == []
    monkeypatch.setenv("GPUWATCHD_PROBE_RECORD", "1")
    groups: list[dict[str, Any]] = [
        {"addresses": tensors.addresses([Tensor(), 7, Tensor()])}, {"addresses": []}
    ]  # fmt: skip
    oom.add_lines(groups)
    assert groups == [{"line": frames[1]}, {}]
    memory._allocation_traceback = None
    oom.add_lines(groups := [{"addresses": [4096]}])
    assert groups == [{}]
