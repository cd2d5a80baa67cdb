"""Damaged logs of every format: nothing raises, and no impossible figure comes out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.logs import tables
from gpuwatchd.collect.replay import LogFile, LogOptions, read_log
from gpuwatchd.core.text import clean

pytestmark = pytest.mark.slow

LOGS = sorted((Path(__file__).resolve().parent.parent / "data" / "logs").iterdir())
OPTIONS = (
    LogOptions(),
    LogOptions(interval_s=5.0),
    LogOptions(total_bytes=8e9, tz="Europe/Berlin"),
    LogOptions(date_order="dmy"),
    LogOptions(columns=("timestamp", "index", "memory.used", "memory.total")),
)
Edit = tuple[str, float, float, bytes]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "nul", "noise", "swap", "end", "copy", "digits", "join"]),
        st.floats(0, 1),
        st.floats(0, 1),
        st.binary(max_size=60),
    ),
    max_size=6,
)


def edited(data: bytes, edit: Edit) -> bytes:
    """Return the data with one piece of damage at a place between 0 and 1."""
    kind, start, length, noise = edit
    at = int(start * len(data))
    end = min(len(data), at + 1 + int(length * 200))
    if kind == "swap":
        lines = data.split(b"\n")
        one, two = int(start * (len(lines) - 1)), int(length * (len(lines) - 1))
        lines[one], lines[two] = lines[two], lines[one]
        return b"\n".join(lines)
    piece = {
        "cut": b"",
        "nul": b"\0" * (end - at) + data[at:end],
        "noise": noise,
        "copy": data[at:end] * 2,
        "digits": bytes(57 - (byte % 10) if 48 <= byte <= 57 else byte for byte in data[at:end]),
        "join": data[at:end].replace(b"\n", b"").replace(b",", b""),
    }.get(kind)
    return data[:at] if piece is None else data[:at] + piece + data[end:]


def read(data: bytes, options: LogOptions) -> LogFile:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        file.write_bytes(data)
        return read_log(file, options)


def check(log: LogFile) -> None:
    assert log.bad_rows == sum(log.skipped.values()) <= log.rows
    assert all(count > 0 for count in log.skipped.values())
    assert log.series or log.error, "silence is not an answer"
    for series in log.series:
        t, used = series.t_s, series.used_bytes
        assert t.size == used.size > 0
        assert np.isfinite(t).all()
        assert (np.diff(t) > 0).all()
        assert np.isfinite(used).all()
        assert (used >= 0).all()
        if series.total_bytes is not None:
            assert (used <= series.total_bytes).all()
        assert series.limit_bytes is None or np.isfinite(series.limit_bytes)
        assert all(0 < at < t.size for at in series.breaks)
        assert series.device.name == clean(series.device.name)
        assert series.process is None or series.process.name == clean(series.process.name)
    subjects = [(series.subject.id, series.run) for series in log.series]
    assert len(subjects) == len(set(subjects)), "a subject is told once per run"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(LOGS), st.sampled_from(OPTIONS), EDITS)
def test_damaged_logs(file: Path, options: LogOptions, edits: list[Edit]) -> None:
    data = file.read_bytes()
    for edit in edits:
        data = edited(data, edit)
    check(read(data, options))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LOGS), st.sampled_from(LOGS), st.floats(0, 1))
def test_two_logs_in_one_file(one: Path, two: Path, share: float) -> None:
    first = one.read_bytes()
    check(read(first[: int(share * len(first))] + b"\n" + two.read_bytes(), LogOptions()))


CELLS = (
    st.sampled_from([f"2026/02/03 10:{m:02d}:{s:02d}.100" for m in range(3) for s in range(60)]),
    st.sampled_from(["0", "0", "1", "1", "x", "[N/A]"]),
    st.sampled_from(["Example", "Example", "Example", '"Exam, ple"']),
    st.sampled_from(["100 MiB", "200 MiB", "300 MiB", "[N/A]", "many", "99999 MiB"]),
    st.sampled_from(["8192 MiB", "8192 MiB", "8192 MiB", "[N/A]"]),
)
ODD = st.sampled_from(["", "----", "torn, row", "index, timestamp, memory.used [MiB]", ", , , ,"])
ROWS = st.lists(st.one_of(*[st.tuples(*CELLS).map(", ".join)] * 6, ODD), max_size=150)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS)
def test_by_column_and_by_row_are_one_reading(rows: list[str]) -> None:
    header = "timestamp, index, name, memory.used [MiB], memory.total [MiB]"
    data = "\n".join([header, *rows, ""]).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_SMALL_ROWS", 1)
        fast = read(data, LogOptions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables.Table, "_part", tables.Table._by_row)
        slow = read(data, LogOptions())
    assert (fast.rows, fast.skipped, fast.error) == (slow.rows, slow.skipped, slow.error)
    assert len(fast.series) == len(slow.series)
    for one, two in zip(fast.series, slow.series, strict=True):
        assert one.subject == two.subject
        assert one.t_s.tolist() == two.t_s.tolist()
        assert one.used_bytes.tolist() == two.used_bytes.tolist()
        assert (one.total_bytes, one.limit_bytes, one.breaks) == (
            two.total_bytes, two.limit_bytes, two.breaks)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000))
@example(b"{" * 5000)
@example(b'{"a":' * 3000 + b"\n")
@example(b"[" * 100_000)
@example(b"<nvidia_smi_log>" * 2000)
@example(b"timestamp,memory.used\n" + b"9" * 5000 + b"," + b"9" * 5000 + b"\n")
@example(b"timestamp,memory.used\n2026-02-03 10:00:00,1e999\n")
@example(b'"' * 5000)
@example(
    b"[0] X | 1'C, 2 % | " + b"9" * 6000 + b" / 8192 MB |\n[0] X | 1'C | 1 / 2 MB | a:b/1(1M)\n"
)
@example(b"#Entity FBUSD\nID\nGPU " + b"1" * 6000 + b"  5\nGPU 0 " + b"7" * 6000 + b"\n")
@example(b'DCGM_FI_DEV_FB_USED{gpu="0"} 5 ' + b"1" * 6000 + b"\nDCGM_FI_DEV_FB_USED{} 1e400\n")
@example(b'{"used": ' + b"1" * 6000 + b', "time": 5}\n')
@example(b"# gpu sm fb\n" + b"1" * 6000 + b" 5 5\n0 5 " + b"9" * 6000 + b"\n")
@example(b"timestamp,index,memory.used\n2026-02-03 10:00:00," + b"1" * 6000 + b",5\n")
@example(
    b"<nvidia_smi_log><gpu id='0'><uuid>x</uuid><fb_memory_usage><used>"
    + b"9" * 6000
    + b"</used></fb_memory_usage></gpu></nvidia_smi_log>\n"
)
@example(b"\x1f\x8b\x08\x00garbage")
@example(b"\xff\xfe\x00")
def test_any_bytes(data: bytes) -> None:
    log = read(data, LogOptions())
    check(log)
