"""Damage, encodings, time and identity: what must hold whatever the format."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from gpuwatchd.collect.replay import LogFile, LogOptions, ReplaySource, read_log
from gpuwatchd.core.errors import SourceUnavailable
from tests.conftest import present

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1024**2
HEADER = "timestamp, index, name, memory.used [MiB], memory.total [MiB]"


def row(at: int, used: object, *, gpu: int = 0, total: int = 24576, name: str = "Example") -> str:
    stamp = f"2026/02/03 10:{at // 60:02d}:{at % 60:02d}.000"
    return f"{stamp}, {gpu}, {name}, {used} MiB, {total} MiB"


def read(folder: Path, lines: Iterable[str] | bytes, options: LogOptions | None = None) -> LogFile:
    file = folder / "log.csv"
    file.write_bytes(lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    return read_log(file, options or LogOptions())


def used(log: LogFile, at: int = 0) -> list[float]:
    return [float(value) for value in log.series[at].used_bytes / MIB]


PLAIN = [HEADER, *(row(5 * i, 1000 + i) for i in range(40))]
TEXT = "\n".join(PLAIN) + "\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-be").join([b"\xfe\xff", b""]),
        TEXT.encode("utf-16-le"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r\n").encode("utf-16"),
        gzip.compress(TEXT.encode()),
        TEXT.rstrip("\n").encode(),
        ("\x1b[2J\x1b[H" + TEXT).encode(),
    ],
    ids=["utf8", "bom", "utf16", "utf16be", "utf16le-no-mark", "crlf", "utf16-crlf", "gzip",
         "no-last-end", "escapes"],
)  # fmt: skip
def test_encodings_read_alike(tmp_path: Path, data: bytes) -> None:
    log = read(tmp_path, data)
    assert (log.error, log.rows, log.bad_rows) == (None, 40, 0)
    assert used(log) == [1000.0 + i for i in range(40)]


def test_latin1_is_read_and_told(tmp_path: Path) -> None:
    text = "time,temp (°C),memory used (MB),memory total (MB)\n" + "".join(
        f"2026-02-03 10:00:{i:02d},4{i},{900 + i},8192\n" for i in range(5)
    )
    log = read(tmp_path, text.encode("latin-1"))
    assert used(log) == [900, 901, 902, 903, 904]
    assert any("Latin-1" in text for text in log.warnings)


def test_stdin_and_pathlib(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(TEXT.encode())))

    monkeypatch.setattr(sys, "stdin", Stdin)
    log = read_log("-")
    assert (log.path, log.rows, log.error) == ("-", 40, None)


def test_a_cut_gzip_gives_what_came_before(tmp_path: Path) -> None:
    text = "\n".join([HEADER, *(row(i, 1000 + (i * 7919) % 9000) for i in range(3000))])
    data = gzip.compress(text.encode())
    log = read(tmp_path, data[: len(data) // 2])
    assert log.rows < 3000
    assert any("compressed" in text for text in log.warnings)


def test_what_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    assert "No such file" in str(read_log(tmp_path / "absent").error)
    assert read_log(tmp_path).error == "this is a directory"
    assert read_log("a\0b").error == "no file can have this name"
    (tmp_path / "empty").touch()
    assert read_log(tmp_path / "empty").error == "the file is empty"


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"\x80\x04\x95\x10\x00", "pickle"),
        (b":W&B\xbe\xe1\x00", "Weights & Biases"),
        (b"PK\x03\x04rest", "archive"),
        (b"SQLite format 3\x00", "database"),
    ],
)
def test_binary_files_are_refused(tmp_path: Path, head: bytes, word: str) -> None:
    log = read(tmp_path, head + bytes(range(256)) * 10)
    assert word in str(log.error)
    assert not log.series


def test_rows_touched_by_nul_are_torn_and_the_rest_is_kept(tmp_path: Path) -> None:
    lines = list(PLAIN)
    lines[5] = "\0" * 70 + lines[5]
    lines[9] = lines[9][:20] + "\0" + lines[9][20:]
    log = read(tmp_path, lines)
    assert (log.rows, log.skipped) == (40, {"torn": 2})
    assert len(used(log)) == 38


def test_a_header_touched_by_nul_is_still_a_header(tmp_path: Path) -> None:
    log = read(tmp_path, ["\0" * 50 + HEADER, *PLAIN[1:]])
    assert (log.rows, log.bad_rows) == (40, 0)


def test_first_offending_line_is_named(tmp_path: Path) -> None:
    log = read(tmp_path, [HEADER, row(0, "many"), row(5, "few")])
    assert log.error == "line 2: bad number; no usable row (2 bad number)"


def test_a_line_without_end_is_not_believed(tmp_path: Path) -> None:
    lines = ["timestamp,index,memory.total,memory.used",
             *(f"2026-02-03 10:00:{i:02d},0,24576,{1000 + i}" for i in range(6))]  # fmt: skip
    log = read(tmp_path, "\n".join(lines).encode()[:-1])
    assert (log.rows, log.skipped) == (6, {"torn": 1})
    assert used(log) == [1000, 1001, 1002, 1003, 1004]


def test_halves_of_rows_that_parse_are_found_by_their_total(tmp_path: Path) -> None:
    lines = [*PLAIN, row(300, 500, total=245)]
    lines.append(row(305, 500, total=2457))
    log = read(tmp_path, lines)
    assert log.skipped == {"torn": 2}
    assert len(log.series) == 1


def test_a_lasting_change_of_total_is_another_device(tmp_path: Path) -> None:
    lines = [*PLAIN, *(row(300 + 5 * i, 500 + i, total=81559, name="Other") for i in range(30))]
    log = read(tmp_path, lines)
    assert [series.t_s.size for series in log.series] == [40, 30]
    assert len({series.device.uid for series in log.series}) == 2
    assert any("share index 0" in text for text in log.warnings)


def test_a_different_header_starts_a_new_table(tmp_path: Path) -> None:
    other = "timestamp, index, memory.total [MiB], name, memory.used [MiB]"
    lines = [*PLAIN, other]
    lines += [f"2026/02/03 10:{10 + i:02d}:00.000, 0, 24576 MiB, Example, 77 MiB" for i in range(5)]
    log = read(tmp_path, lines)
    assert (log.rows, log.bad_rows) == (45, 0)
    assert used(log)[-5:] == [77] * 5


@pytest.mark.parametrize("form", [
    "2026/02/03 10:00:{:02d}.250", "2026-02-03T10:00:{:02d}.250Z", "2026-02-03 10:00:{:02d}.250",
    "2026-02-03T11:00:{:02d}.250+01:00", "17701128{:02d}.25", "17701128{:02d}250",
    "Tue Feb  3 10:00:{:02d} 2026", "Tue Feb  3 10:00:{:02d} AM EDT 2026",
    "Tue 03 Feb 2026 10:00:{:02d} AM EST", "02-03-2026 10:00:{:02d}", "20260203 10:00:{:02d}",
])  # fmt: skip
def test_forms_of_time(tmp_path: Path, form: str) -> None:
    lines = ["time,gpu,mem_used_mb,mem_total_mb"]
    lines += [f"{form.format(i)},0,{100 + i},8192" for i in range(10, 20)]
    log = read(tmp_path, lines, LogOptions(date_order="mdy"))
    assert log.error is None
    part_s = 0.25 if "25" in form else 0.0
    assert log.series[0].t_s.tolist() == [1770112800.0 + part_s + i for i in range(10, 20)]


def test_zone_of_naive_times(tmp_path: Path) -> None:
    log = read(tmp_path, PLAIN, LogOptions(tz="America/New_York"))
    assert log.series[0].t_s[0] == 1770112800.0 + 5 * 3600
    assert "no time zone" in str(read(tmp_path, PLAIN, LogOptions(tz="Mars/Olympus")).error)


def test_end_of_summer_time_starts_a_new_run(tmp_path: Path) -> None:
    lines = [HEADER]
    lines += [f"2025/10/26 02:{i:02d}:00.000, 0, Example, {100 + i} MiB, 24576 MiB"
              for _ in range(2) for i in range(60)]  # fmt: skip
    log = read(tmp_path, lines, LogOptions(tz="Europe/Berlin"))
    assert [(series.run, series.t_s.size) for series in log.series] == [(0, 60), (1, 60)]
    assert len({series.subject.id for series in log.series}) == 1


@pytest.mark.parametrize(("days", "first"), [
    (("12-03-2026", "13-03-2026", "14-03-2026"), 1773309600.0),
    (("03-12-2026", "03-13-2026", "03-14-2026"), 1773309600.0),
    (("01-03-2026", "02-03-2026", "03-03-2026"), 1772359200.0),
    (("03-01-2026", "03-02-2026", "03-03-2026"), 1772359200.0),
])  # fmt: skip
def test_date_order_is_decided_over_the_whole_log(
    tmp_path: Path, days: tuple[str, ...], first: float
) -> None:
    lines = ["timestamp,gpu,memory_used,memory_total"]
    lines += [f"{day} {hour:02d}:00:00,0,{hour},8192" for day in days for hour in range(24)]
    log = read(tmp_path, lines)
    assert log.error is None
    assert log.series[0].t_s[10] == first
    assert np.diff(log.series[0].t_s).tolist() == [3600.0] * 71


def test_gap_is_a_break_and_doubles_keep_the_last(tmp_path: Path) -> None:
    lines = [HEADER, *(row(i, 100 + i) for i in range(20)), row(19, 500), row(400, 600)]
    log = read(tmp_path, lines)
    assert log.series[0].breaks == (20,)
    assert used(log)[19:] == [500, 600]
    assert any("time met before" in text for text in log.warnings)


def test_rows_in_any_order_are_sorted_and_told(tmp_path: Path) -> None:
    log = read(tmp_path, [HEADER, *reversed(PLAIN[1:])])
    assert used(log) == [1000 + i for i in range(40)]
    assert any("sorted" in text for text in log.warnings)


def test_one_torn_time_does_not_split_a_series(tmp_path: Path) -> None:
    lines = list(PLAIN)
    lines[20] = lines[20].replace("2026/", "2036/")
    log = read(tmp_path, lines)
    assert len(log.series) == 1
    assert log.skipped == {"bad time": 1}


def test_two_devices_without_anything_to_tell_them_apart(tmp_path: Path) -> None:
    same = [row(5 * i, level + i) for i in range(20) for level in (900, 15000)]
    log = read(tmp_path, [HEADER, *same])
    assert "more than one GPU or host" in str(log.error)
    assert not log.series


def test_a_spiky_device_alone_is_not_mixed(tmp_path: Path) -> None:
    log = read(tmp_path, [HEADER, *(row(5 * i, 900 if i % 2 else 15000) for i in range(40))])
    assert log.error is None
    assert len(log.series) == 1


def test_hosts_in_json_and_masked_uuids(tmp_path: Path) -> None:
    lines = ["timestamp, host, uuid, pci.bus_id, memory.used [MiB], memory.total [MiB]"]
    zero = "GPU-00000000-0000-0000-0000-000000000000"
    lines += [f"2026/02/03 10:00:{i:02d}.000, n{k}, {zero}, 00000000:0{k}:00.0, {k}00 MiB, 8192 MiB"
              for i in range(5) for k in (1, 2)]  # fmt: skip
    log = read(tmp_path, lines)
    assert [series.device.uid for series in log.series] == [
        "log:n1/0000:01:00.0", "log:n2/0000:02:00.0"]  # fmt: skip


def test_columns_told_by_the_caller(tmp_path: Path) -> None:
    lines = [f"0, Example, 32510 MiB, {100 + i} MiB, {32410 - i} MiB" for i in range(6)]
    names = ("index", "name", "memory.total", "memory.used", "memory.free")
    log = read(tmp_path, lines, LogOptions(columns=names, interval_s=1))
    assert (log.error, used(log)) == (None, [100.0 + i for i in range(6)])


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    assert "no log format" in str(read(tmp_path, PLAIN, LogOptions(format="xls")).error)
    assert "interval" in str(read(tmp_path, PLAIN, LogOptions(interval_s=0)).error)
    small = read(tmp_path, PLAIN, LogOptions(total_bytes=1.0))
    assert small.series[0].total_bytes == 24576 * MIB, "the log knows better"


def test_a_given_total_smaller_than_what_is_used_is_left_out(tmp_path: Path) -> None:
    lines = ["timestamp,gpu,memory.used", "2026-02-03 10:00:00,0,900", "2026-02-03 10:00:01,0,901"]
    log = read(tmp_path, lines, LogOptions(total_bytes=MIB))
    assert log.series[0].total_bytes is None
    assert used(log) == [900, 901]


def test_hostile_names_are_cleaned(tmp_path: Path) -> None:
    lines = ["timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"]
    lines += [f"2026/02/03 10:00:{i:02d}.000, GPU-1, 7, run\u202e --token=abc, 5 MiB"
              for i in range(3)]  # fmt: skip
    log = read(tmp_path, lines)
    assert log.processes[0].name == "run --token=****"


def test_a_line_without_end_of_many_megabytes_is_torn(tmp_path: Path) -> None:
    data = ("\n".join(PLAIN[:20]) + "\n").encode() + b"x" * (17 << 20) + b"\n"
    data += ("\n".join(PLAIN[20:]) + "\n").encode()
    log = read(tmp_path, data)
    assert (log.rows, log.skipped) == (41, {"torn": 1})


def test_rows_of_a_tick_count_devices_where_no_column_does(tmp_path: Path) -> None:
    lines = ["timestamp, name, memory.used [MiB], memory.total [MiB]"]
    lines += [f"2026/02/03 10:00:{i:02d}.{300 + 3 * k}, Example, {k * 5000 + i} MiB, 24576 MiB"
              for i in range(0, 60, 5) for k in range(3)]  # fmt: skip
    log = read(tmp_path, lines)
    assert [series.device.index for series in log.series] == [0, 1, 2]
    assert used(log, 2) == [10_000.0 + i for i in range(0, 60, 5)]
    assert any("GPU n" in text for text in log.warnings)


def test_fast_sampling_of_one_device_stays_one_device(tmp_path: Path) -> None:
    lines = ["timestamp, name, memory.used [MiB], memory.total [MiB]"]
    lines += [f"2026/02/03 10:00:00.{20 * i:03d}, Example, {500 + i} MiB, 24576 MiB"
              for i in range(50)]  # fmt: skip
    assert [series.t_s.size for series in read(tmp_path, lines).series] == [50]


@pytest.mark.parametrize("header", ["gpu_mem_mb", "GPU Memory (MB)", "vram_mib"])
def test_an_amount_with_a_unit_is_taken_and_told(tmp_path: Path, header: str) -> None:
    lines = [f"time,{header}", *(f"10:00:{i:02d},{100 + i}" for i in range(10))]
    log = read(tmp_path, lines)
    assert used(log) == [100.0 + i for i in range(10)]
    assert not log.epoch
    assert any("read as used memory" in text for text in log.warnings)


def test_a_header_may_be_a_comment(tmp_path: Path) -> None:
    log = read(tmp_path, ["# " + HEADER, *PLAIN[1:]])
    assert (log.format, log.rows, log.bad_rows) == ("nvidia-smi-csv", 40, 0)


def test_the_same_processes_twice_are_two_runs_and_not_twice_the_memory(tmp_path: Path) -> None:
    lines = ["timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"]
    lines += [f"2026/02/03 10:00:{i:02d}.000, GPU-1, {pid}, python, 500 MiB"
              for i in range(20) for pid in (7, 8)] * 2  # fmt: skip
    log = read(tmp_path, lines)
    assert {series.run for series in log.series if series.process} == {0, 1} or len(log.series) > 3
    assert len({(series.subject.id, series.run) for series in log.series}) == 5
    device = [series for series in log.series if series.process is None]
    assert [set(series.used_bytes) for series in device] == [{1000.0 * MIB}]


LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def source(name: str, clock: Clock, speed: float = 1.0) -> ReplaySource:
    return ReplaySource(str(LOGS / name), speed, clock=clock, wall=lambda: 1_000_000.0)


def test_probe_says_why_not() -> None:
    assert ReplaySource().probe().reason == "no log is named"
    assert not ReplaySource("x", 0.0).probe().ok
    assert "No such file" in ReplaySource("/does/not/exist").probe().reason
    unclear = ReplaySource(str(LOGS / "nvidia_no_time.csv")).probe()
    assert "no time in this log" in unclear.reason
    assert unclear.hint
    with pytest.raises(SourceUnavailable, match="no time"):
        ReplaySource(str(LOGS / "nvidia_no_time.csv")).read()


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_recorded_rate_at_any_speed(speed: float) -> None:
    clock = Clock()
    played = source("nvidia_two_gpus.csv", clock, speed)
    assert played.probe().ok
    assert [device.index for device in played.devices()] == [0, 1]
    first = played.read()
    clock.now += 30.0 / speed
    second = played.read()
    assert first.taken_at_s == 1_000_000.0
    assert second.taken_at_s - first.taken_at_s == pytest.approx(30.0)
    assert second.taken_mono_s - first.taken_mono_s == pytest.approx(30.0)
    levels = [sample.readings[0].used_bytes for sample in (first, second)]
    assert levels == [1000 * MIB, 1060 * MIB]
    assert first.readings[0].total_bytes == 24576 * MIB
    assert first.readings[0].free_bytes == 23576 * MIB
    assert first.readings[0].uses is None


def test_processes_are_named_by_the_source_itself() -> None:
    clock = Clock()
    played = source("gpustat.json", clock)
    sample = played.read()
    assert [process.user for process in sample.processes] == ["ann"]
    uses = present(sample.readings[0].uses)
    assert uses[0].key == sample.processes[0].key
    assert uses[0].used_bytes == (6400 - 9) * MIB


def test_a_gap_is_no_reading_and_a_fault() -> None:
    clock = Clock()
    played = source("two_columns_day_first.csv", clock)
    played.read()
    clock.now += 12 * 3600.0
    sample = played.read()
    assert sample.readings == ()
    assert "no reading" in sample.faults[0].why


def test_the_end_is_told() -> None:
    clock = Clock()
    played = source("nvidia_two_gpus.csv", clock)
    played.read()
    clock.now += 3600.0
    with pytest.raises(SourceUnavailable, match="ended"):
        played.read()
    played.close()
    played.close()
    assert played.read().readings, "after close it starts anew"
