"""Every format by a small hand-written log: what is recognised, counted, and given."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from gpuwatchd.collect.logs.formats import FORMATS
from gpuwatchd.collect.replay import LogFile, LogOptions, LogSeries, read_log
from gpuwatchd.core import registry
from tests.conftest import present

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
MIB = 1024**2


class Want(NamedTuple):
    format: str
    rows: int
    skipped: dict[str, int]
    series: int
    error: str | None = None
    """A part of the sentence; None means no error."""


NO_TIME = "no time in this log: pass --interval"
EXPECTED: dict[str, Want] = {
    "accounted_apps.csv": Want("nvidia-smi-accounted", 0, {}, 0, "peaks only"),
    "ambiguous_dates.csv": Want("csv", 10, {}, 1, "day and month"),
    "bandwidth_only.csv": Want(
        "nvidia-smi-csv", 2, {"no memory column": 2}, 0,
        "no memory column; columns found: timestamp, gpu, memory, utilization.memory"),
    "compute_apps.csv": Want("compute-apps-csv", 25, {"not available": 1}, 3),
    "compute_apps_pid_reuse.csv": Want("compute-apps-csv", 36, {}, 4),
    "compute_apps_windows.csv": Want(
        "compute-apps-csv", 3, {"not available": 3}, 0, "without a memory figure"),
    "dcgm_long.csv": Want("dcgm-csv", 12, {}, 2),
    "dcgmi_dmon.log": Want("dcgmi-dmon", 8, {}, 2, NO_TIME),
    "dmon_fb.log": Want("nvidia-smi-dmon", 20, {}, 2),
    "dmon_no_date.log": Want("nvidia-smi-dmon", 10, {}, 1, NO_TIME),
    "dmon_no_fb.log": Want(
        "nvidia-smi-dmon", 2, {"no memory column": 2}, 0, "no memory column (mem is use"),
    "elapsed_quoted_newline.csv": Want("csv", 10, {}, 1),
    "epoch_bytes.csv": Want("csv", 10, {}, 1),
    "export.csv": Want("gpuwatchd-csv", 10, {}, 2),
    "export.ndjson": Want("gpuwatchd-ndjson", 10, {}, 2),
    "failed.txt": Want("unknown", 0, {}, 0, "line 1: no data, the tool failed: NVIDIA-SMI has"),
    "gpustat.json": Want("gpustat-json", 16, {"not available": 8}, 2),
    "gpustat.txt": Want("gpustat-text", 8, {}, 2),
    "host_column.csv": Want("csv", 16, {}, 2),
    "index_constant.csv": Want("nvidia-smi-csv", 24, {}, 4),
    "lines.jsonl": Want("json-lines", 7, {"torn": 1}, 1),
    "mixed_hosts.csv": Want("nvidia-smi-csv", 40, {}, 0, "more than one GPU or host"),
    "no_header.log": Want("csv-without-header", 24, {}, 2),
    "no_header_unclear.csv": Want(
        "csv-without-header", 6, {"no header": 6}, 0, "line 1: a table without a header"),
    "no_index_same_time.csv": Want("csv", 20, {}, 2),
    "notes.txt": Want("unknown", 0, {}, 0, "no known log format; the file begins with 'Dear"),
    "nvidia_bad_rows.csv": Want(
        "nvidia-smi-csv", 7, {"torn": 2, "bad time": 1, "bad number": 1}, 1),
    "nvidia_failure_at_end.csv": Want("nvidia-smi-csv", 6, {}, 1),
    "nvidia_free_only.csv": Want(
        "nvidia-smi-csv", 6, {"no memory column": 6}, 0, "free memory without a total"),
    "nvidia_header_every_row.csv": Want("nvidia-smi-csv", 12, {}, 1),
    "nvidia_no_time.csv": Want("nvidia-smi-csv", 10, {}, 2, NO_TIME),
    "nvidia_not_available.csv": Want("nvidia-smi-csv", 5, {"not available": 2}, 1),
    "nvidia_power_only.csv": Want(
        "nvidia-smi-csv", 2, {"no memory column": 2}, 0,
        "no memory column; columns found: timestamp, power.draw [W]"),
    "nvidia_torn_end.csv": Want("nvidia-smi-csv", 10, {"torn": 1}, 1),
    "nvidia_two_gpus.csv": Want("nvidia-smi-csv", 40, {}, 2),
    "nvidia_unified.csv": Want(
        "nvidia-smi-csv", 2, {"not available": 2}, 0, "unified memory: this log holds no memory"),
    "old_processes.json": Want("json-lines", 3, {}, 2),
    "only_a_date.log": Want("unknown", 0, {}, 0, "a date and no readings"),
    "pmon.log": Want("nvidia-smi-pmon", 8, {}, 2),
    "prometheus.txt": Want("prometheus", 8, {}, 2, NO_TIME),
    "q_text.log": Want("nvidia-smi-q", 12, {}, 3),
    "rocm.json": Want("rocm-smi-json", 3, {}, 1, NO_TIME),
    "table_loop.log": Want("nvidia-smi-table", 14, {}, 2),
    "table_mig.log": Want("nvidia-smi-table", 2, {}, 2),
    "two_columns_day_first.csv": Want("csv", 9, {}, 1),
    "two_writers.csv": Want("nvidia-smi-csv", 61, {"torn": 1}, 2, NO_TIME),
    "wandb.csv": Want("wandb-csv", 12, {}, 2),
    "wandb_percent.jsonl": Want(
        "wandb-jsonl", 4, {"not available": 4}, 0, "memory in per cent only"),
    "xml_entities.xml": Want("nvidia-smi-xml", 1, {"torn": 1}, 0, "line 1: torn"),
    "xml_loop.xml": Want("nvidia-smi-xml", 20, {"not available": 5}, 3),
    "xml_old_no_time.xml": Want("nvidia-smi-xml", 16, {"not available": 4}, 3, NO_TIME),
}  # fmt: skip


def of(log: LogFile, *, pid: int | None = None, uid: str = "") -> LogSeries:
    """Return the one series of a pid (None: of the device)."""
    found = [
        series for series in log.series
        if (series.process.key.pid if series.process else None) == pid
        and series.device.uid.endswith(uid)
    ]  # fmt: skip
    assert len(found) == 1, [series.subject.id for series in log.series]
    return found[0]


def mib(series: LogSeries) -> list[float]:
    return [round(value / MIB, 3) for value in series.used_bytes]


def test_every_hand_written_log_has_its_expectation() -> None:
    files = {file.name for file in LOGS.iterdir()}
    assert files == set(EXPECTED) | {"mixed_blocks.log"}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_log_gives_what_is_in_it(name: str) -> None:
    want, log = EXPECTED[name], read_log(LOGS / name)
    assert (log.format, log.rows, log.skipped) == (want.format, want.rows, want.skipped)
    assert log.bad_rows == sum(want.skipped.values())
    assert len(log.series) == want.series
    if want.error is None:
        assert log.error is None
    else:
        assert want.error in str(log.error)
    for series in log.series:
        assert (np.diff(series.t_s) > 0).all()
        assert series.device in log.devices


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_format_can_be_told_and_has_its_name(name: str) -> None:
    reader = registry.load(FORMATS, name)
    assert reader.name == name
    samples = [file for file, want in EXPECTED.items() if want.format == name]
    assert samples, "a format needs a hand-written log"
    told = read_log(LOGS / samples[0], LogOptions(format=name))
    guessed = read_log(LOGS / samples[0])
    assert (told.rows, told.skipped, told.error) == (guessed.rows, guessed.skipped, guessed.error)


def test_nvidia_csv_values() -> None:
    log = read_log(LOGS / "nvidia_two_gpus.csv")
    first, second = log.series
    assert mib(first)[:3] == [1000, 1010, 1020]
    assert mib(second)[-1] == 1000 + 10 * 19 * 2
    assert first.t_s[0] == pytest.approx(1770112800.1)  # 2026-02-03T10:00:00.100Z
    assert np.diff(first.t_s) == pytest.approx(5.0)
    assert first.limit_bytes == first.total_bytes == 24576 * MIB
    assert (first.device.index, first.device.name) == (0, "Example GPU 24GB")
    assert first.device.uid == "log:-/0"
    assert first.subject.process is None


def test_reserve_lowers_the_limit_but_not_the_total() -> None:
    log = read_log(LOGS / "nvidia_header_every_row.csv")
    series = of(log)
    assert series.total_bytes == 8192 * MIB
    assert series.limit_bytes == 7980 * MIB
    assert series.device.uid == "GPU-1b2c3d4e-0000-1111-2222-333344445555"


def test_failure_after_the_data_is_told() -> None:
    log = read_log(LOGS / "nvidia_failure_at_end.csv")
    assert any("line 8" in text and "GPU is lost" in text for text in log.warnings)


def test_free_memory_becomes_used_memory_with_a_total() -> None:
    log = read_log(LOGS / "nvidia_free_only.csv", LogOptions(total_bytes=8192 * MIB))
    assert log.error is None
    assert mib(of(log))[:2] == [192, 242]


def test_interval_makes_ticks_seconds() -> None:
    log = read_log(LOGS / "nvidia_no_time.csv", LogOptions(interval_s=2.0))
    assert log.error is None
    assert log.timed
    assert not log.epoch
    assert [series.t_s.tolist() for series in log.series] == [[0, 2, 4, 6, 8]] * 2
    without = read_log(LOGS / "nvidia_no_time.csv")
    assert not without.timed
    assert without.hint


def test_names_with_commas_stay_whole() -> None:
    log = read_log(LOGS / "compute_apps.csv")
    series = of(log, pid=4711)
    assert series.process is not None
    assert series.process.name == "/opt/my tools/train, v2"
    assert mib(series)[:2] == [1000, 1100]
    assert mib(of(log, pid=None))[:2] == [1050, 1150]
    assert any("lower bound" in text for text in log.warnings)
    assert [series.lower_bound for series in log.series] == [True, False, False]


def test_a_pid_that_comes_back_is_another_process() -> None:
    log = read_log(LOGS / "compute_apps_pid_reuse.csv")
    found = [series.process for series in log.series if series.process]
    assert [process.name for process in found] == ["python", "python", "bash"]
    assert len({series.subject.id for series in log.series}) == 4
    assert of(log, pid=None).breaks == (12, 24)


def test_processes_without_memory_are_still_named() -> None:
    log = read_log(LOGS / "compute_apps_windows.csv")
    assert [process.key.pid for process in log.processes] == [2056, 7824, 19388]
    assert log.processes[2].name == "C:\\Program Files\\Some App\\Some App.exe"


def test_table_loop() -> None:
    log = read_log(LOGS / "table_loop.log")
    assert mib(of(log)) == [1000 + 7 * k for k in range(8)]
    assert of(log).t_s[0] == 1770112800.0
    assert of(log).device.pci_bus == "0000:3b:00.0"
    assert of(log, pid=4711).t_s.size == 6


def test_mig_part_is_a_child_not_another_card() -> None:
    log = read_log(LOGS / "table_mig.log")
    card, part = log.series
    assert part.device.parent_uid == card.device.uid
    assert (mib(card), mib(part)) == ([59], [11091])


def test_xml_reads_the_card_and_not_its_part() -> None:
    log = read_log(LOGS / "xml_loop.xml")
    card = next(s for s in log.series if s.process is None and not s.device.parent_uid)
    assert mib(card) == [500, 530, 560, 590, 620]
    assert (card.total_bytes, card.limit_bytes) == (81920 * MIB, 81440 * MIB)
    part = next(s for s in log.series if s.device.parent_uid)
    assert mib(part) == [12] * 5
    assert {process.key.pid for process in log.processes} == {4711, 4712}


def test_q_text_reads_the_card_and_not_bar1() -> None:
    log = read_log(LOGS / "q_text.log")
    card = next(s for s in log.series if s.process is None and not s.device.parent_uid)
    assert mib(card) == [400, 411, 422, 433]
    assert of(log, pid=4711).device.uid.endswith("/2/0")


def test_gpustat_masks_secrets_and_knows_unknown() -> None:
    log = read_log(LOGS / "gpustat.json")
    process = present(of(log, pid=77).process)
    assert process.user == "ann"
    assert process.argv == ("python", "t.py", "--token", "****")
    assert {process.key.pid for process in log.processes} == {77, 78}


def test_rocm_is_in_bytes() -> None:
    log = read_log(LOGS / "rocm.json", LogOptions(interval_s=1))
    assert of(log).used_bytes.tolist() == [17776640 + k * MIB for k in range(3)]
    assert of(log).device.vendor == "amd"


def test_prometheus_labels_and_mig() -> None:
    log = read_log(LOGS / "prometheus.txt", LogOptions(interval_s=15))
    card, part = log.series
    assert (mib(card), mib(part)) == ([70000, 70001, 70002, 70003], [500, 501, 502, 503])
    assert card.device.name == 'Example, "big" GPU'
    assert card.total_bytes == 81000 * MIB
    assert part.device.parent_uid == card.device.uid == "GPU-aa"
    assert card.t_s.tolist() == [0, 15, 30, 45]


def test_dcgm_total_is_used_and_free() -> None:
    log = read_log(LOGS / "dcgm_long.csv")
    assert {s.device.name for s in log.series} == {"Example GPU (node0/0)", "Example GPU (node1/0)"}
    assert all(s.total_bytes == 8000 * MIB for s in log.series)


def test_wandb_takes_bytes_and_not_bandwidth() -> None:
    log = read_log(LOGS / "wandb.csv")
    assert of(log, uid="/0").used_bytes[:2].tolist() == [2_000_000_000, 2_005_000_000]
    share = read_log(LOGS / "wandb_percent.jsonl", LogOptions(total_bytes=1e9))
    assert of(share).used_bytes.tolist() == [1.0e8, 1.1e8, 1.2e8, 1.3e8]
    assert share.error is None


@pytest.mark.parametrize("name", ["export.csv", "export.ndjson"])
def test_own_export_comes_back(name: str) -> None:
    log = read_log(LOGS / name)
    device, process = of(log), of(log, pid=4711)
    assert device.device.uid == "GPU-77"
    assert device.used_bytes.tolist() == [2_000_000_000 + i for i in range(5)]
    assert process.used_bytes.tolist() == [1_500_000_000 + i for i in range(5)]
    assert present(process.process).name == "python"
    assert device.total_bytes == 8589934592


def test_hosts_and_days_and_elapsed_time() -> None:
    hosts = read_log(LOGS / "host_column.csv")
    assert {series.device.uid for series in hosts.series} == {"log:north/0", "log:south/0"}
    days = of(read_log(LOGS / "two_columns_day_first.csv"))
    assert days.t_s[0] == 1773309600.0  # 12 March 2026, not a month 13
    assert days.breaks == (3, 6)
    elapsed = read_log(LOGS / "elapsed_quoted_newline.csv")
    assert not elapsed.epoch
    assert of(elapsed).t_s[:2].tolist() == [0.0, 0.25]


def test_large_numbers_without_a_unit_are_bytes() -> None:
    log = read_log(LOGS / "epoch_bytes.csv")
    assert of(log).used_bytes[0] == 5_000_000_000
    assert of(log).total_bytes == 8589934592
    assert of(log).device.memory_total_bytes == 8589934592
    assert any("read as bytes" in text for text in log.warnings)


def test_one_log_of_many_formats_is_one_device() -> None:
    log = read_log(LOGS / "mixed_blocks.log")
    assert set(log.format.split("+")) == {
        "nvidia-smi-table", "nvidia-smi-csv", "compute-apps-csv", "nvidia-smi-q",
        "nvidia-smi-pmon",
    }  # fmt: skip
    card = next(s for s in log.series if s.process is None and not s.device.parent_uid)
    assert mib(card) == [1000, 1010, 420]
    assert card.device.uid == "GPU-0a0b0c0d-1111-2222-3333-444455556666"
    assert len([device for device in log.devices if device.parent_uid is None]) == 1
