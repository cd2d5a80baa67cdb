"""Memory snapshots of PyTorch: read as plain data, never run."""

from __future__ import annotations

import io
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.logs import snapshot_reader
from gpuwatchd.collect.logs.formats import torch_snapshot
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core import run_program
from gpuwatchd.core.codes import SiteKind
from tests.conftest import ON_LINUX, ROOT, present

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB = 1 << 20
BEGIN_US = 1_750_000_000_000_000
FRAMES = [
    {"filename": "/x/site-packages/torch/nn/modules/module.py", "line": 5, "name": "forward"},
    {"filename": "/home/alice/train.py", "line": 88, "name": "step"},
]


def event(action: str, mib: int, at_s: float, **more: Any) -> dict[str, Any]:
    at_us = BEGIN_US + int(at_s * 1e6)
    return {"action": action, "addr": 1, "size": mib * MIB, "time_us": at_us, **more}


def snapshot(steps: int = 120, *, keep: int | None = None) -> dict[str, Any]:
    """Return a leak of 8 MiB each 10 s; ``keep`` only the newest events, as the ring does."""
    trace: list[dict[str, Any]] = []
    for step in range(steps):
        at_s = step * 10.0
        trace += [
            event("segment_alloc", 10, at_s),
            event("alloc", 8, at_s + 0.01),
            event("alloc", 2, at_s + 0.02),
            event("free_requested", 2, at_s + 0.03),
            event("free_completed", 2, at_s + 0.04),
        ]
    segment = {
        "device": 0, "total_size": steps * 10 * MIB, "allocated_size": steps * 8 * MIB,
        "blocks": [{"size": 8 * MIB, "state": "active_allocated", "frames": FRAMES}] * steps,
    }  # fmt: skip
    kept = trace if keep is None else trace[-keep:]
    return {"segments": [segment], "device_traces": [kept, []], "external_annotations": []}


def write(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(content))
    return file


@pytest.mark.parametrize("keep", [None, 100])
def test_levels_are_absolute_however_much_the_ring_kept(tmp_path: Path, keep: int | None) -> None:
    log = read_log(write(tmp_path, snapshot(keep=keep)))
    assert (log.error, log.format) == (None, "pytorch-snapshot")
    by_name = {series.device.name: series for series in log.series}
    assert sorted(by_name) == ["PyTorch allocated", "PyTorch reserved"]
    for name, step_mib in (("PyTorch allocated", 8), ("PyTorch reserved", 10)):
        series = by_name[name]
        assert series.device.index == 0
        assert series.used_bytes[-1] == 120 * step_mib * MIB
        grown = np.polyfit(series.t_s, series.used_bytes, 1)[0]
        assert grown == pytest.approx(step_mib * MIB / 10, rel=0.02)
        assert series.t_s[-1] == pytest.approx(BEGIN_US / 1e6 + 1190.04)


def test_the_site_of_what_lives_is_named_below_pytorch_itself(tmp_path: Path) -> None:
    sites = present(read_log(write(tmp_path, snapshot())).snapshot).sites
    assert [(one.kind, one.file, one.line, one.function) for one in sites] == [
        (SiteKind.LINE, "/home/alice/train.py", 88, "step")
    ]
    assert (sites[0].live_bytes, sites[0].block_count) == (120 * 8 * MIB, 120)


def test_running_out_is_told(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0].append(event("oom", 512, 1200.0, device_free=1))
    assert "the trace shows that memory ran out once" in read_log(write(tmp_path, content)).warnings


def test_without_a_history_it_says_how_to_record_one(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"] = [[]]
    log = read_log(write(tmp_path, content))
    assert any("_record_memory_history" in note for note in log.warnings)
    assert len(log.series) == 2


def test_reserved_that_grows_alone_is_no_leak_of_tensors(tmp_path: Path) -> None:
    content = snapshot()
    trace = content["device_traces"][0]
    content["device_traces"][0] = [each for each in trace if each["action"] == "segment_alloc"]
    notes = read_log(write(tmp_path, content)).warnings
    assert any("free cache rather than a leak" in note for note in notes)
    notes = read_log(write(tmp_path, snapshot())).warnings
    assert not any("rather than a leak" in note for note in notes)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.mark,)


@pytest.mark.requirement("M37")
def test_a_pickle_that_wants_to_run_code_is_not_opened(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = {**snapshot(2), "external_annotations": [Evil(str(mark))]}
    log = read_log(write(tmp_path, content))
    assert not mark.exists()
    assert "posix.mkdir, which could run code: it is not opened" in present(log.error)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\xff.",  # a memo of four thousand million entries
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00abc.",  # a terabyte of bytes
        b"\x80\x04\x95\x10\x00",
        b"\x80\x04}.",
        pickle.dumps([1, 2, 3]),
        pickle.dumps({"segments": 7}),
    ],
)
def test_what_is_no_snapshot_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(data)
    log = read_log(file)
    assert "pickle" in present(log.error)
    assert "\n" not in present(log.error)
    assert not log.series


@ON_LINUX
@pytest.mark.parametrize("unit", [b"]", b"}\x94"])
def test_a_pickle_that_swells_is_refused_after_its_first_part(tmp_path: Path, unit: bytes) -> None:
    file = tmp_path / "swells.pickle"
    file.write_bytes(b"\x80\x04(" + unit * ((16 << 20) // len(unit)) + b"l.")
    error, hint, peak_mib = bounded(file, room=64 << 20)
    assert error == "this pickle needs more memory than a snapshot should"
    assert "_dump_snapshot" in hint
    # 64 MiB, what is added for its size, and this program; whole it would take 1 GiB.
    assert peak_mib < 448


def bounded(file: Path, *, room: int) -> tuple[str, str, int]:
    """Return error and hint of the process that reads a file in less room, and its peak in MiB."""
    # Not ru_maxrss, which a program inherits from the one that started it.
    script = (
        "import os, sys; from pathlib import Path\n"
        "from gpuwatchd.collect.logs import snapshot_reader\n"
        f"snapshot_reader._ROOM_BYTES = {room}\n"
        "def leave(_):\n"
        "    status = Path('/proc/self/status').read_text().splitlines()\n"
        "    sys.stderr.write(next(line.split()[1] for line in status if line[:5] == 'VmHWM'))\n"
        "    sys.exit()\n"
        "os._exit = leave\n"
        "snapshot_reader.main()"
    )
    argv = [sys.executable, "-c", script, str(file.stat().st_size), "60"]
    done = run_program.ask(
        argv, file.read_bytes(), environ={**os.environ, "PYTHONPATH": str(ROOT)}, timeout_s=120
    )
    assert done.code == 0, done.said
    answer = msgspec.json.decode(done.out, type=snapshot_reader.Answer)
    return answer.error, answer.hint, int(done.said) >> 10


def test_a_file_that_is_too_large_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, snapshot())
    with file.open("r+b") as large:
        large.truncate(torch_snapshot.MOST_BYTES + 1)

    def never(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(torch_snapshot, "_asked", never)
    log = read_log(file)
    assert log.error == "this snapshot is larger than 512 MiB"
    assert "max_entries" in log.hint


@ON_LINUX
def test_a_large_honest_snapshot_has_room(tmp_path: Path) -> None:
    # Without the share per byte this would not fit: 6 MiB of file take some 50 MiB.
    file = write(tmp_path, snapshot(steps=30_000))
    assert file.stat().st_size > 3 << 20
    assert bounded(file, room=24 << 20)[0] == ""


def test_a_pickle_without_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = {"size": 1, "state": "active_allocated"}
    segment = {"device": 0, "total_size": 1, "blocks": [block] * 100_000}
    monkeypatch.setattr(torch_snapshot, "_LIMIT_S", 2)
    log = read_log(write(tmp_path, {"segments": [segment] * 100_000}))
    assert log.error == "this pickle was not read within 2 s"


@pytest.mark.parametrize("program", ["import os; os.kill(os.getpid(), 9)", "raise MemoryError"])
def test_a_reader_that_dies_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(torch_snapshot, "_PROGRAM", ("-c", program))
    error = present(read_log(write(tmp_path, snapshot(2))).error)
    assert error.endswith(("ended early: signal 9", "ended early: MemoryError"))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["segments", "device_traces", "device", "blocks", "frames", "action", "size",
             "time_us", "total_size", "state", "alloc", "active_allocated"]
        ),
        inner, max_size=5,
    ),
    max_leaves=30,
)  # fmt: skip


@given(segments=st.lists(JUNK, max_size=4), traces=JUNK)
def test_any_plain_content_is_answered(segments: list[Any], traces: Any) -> None:
    content = pickle.dumps({"segments": segments, "device_traces": traces})
    answer = snapshot_reader.answer(io.BytesIO(content))
    msgspec.json.decode(msgspec.json.encode(answer), type=snapshot_reader.Answer)
    assert not answer.error
    for memory in present(answer.snapshot).devices:
        for at_s, used in (memory.reserved, memory.allocated):
            assert np.isfinite(used).all()
            assert (np.array(used) >= 0).all()
            assert (np.diff(at_s) > 0).all()
