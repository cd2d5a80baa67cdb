"""Odd logs: nothing raises, and no impossible figure comes out.

The campaign's part "logs" damages logs of every format.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.logs import tables
from gpuwatchd.collect.replay import LogFile, LogOptions, read_log
from tests.campaign.logs import LOGS, check

pytestmark = pytest.mark.slow


def read(data: bytes, options: LogOptions) -> LogFile:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        file.write_bytes(data)
        return read_log(file, options)


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


def test_an_instance_of_a_card_with_an_endless_uuid_is_not_the_card() -> None:
    log = next(path for path in LOGS if path.name == "xml_loop.xml").read_bytes()
    uuid = b"GPU-00000000-0000-0000-0000-000000000000"
    assert uuid in log
    check(read(log.replace(uuid, b"GPU-" + b"9" * 400), LogOptions()))
