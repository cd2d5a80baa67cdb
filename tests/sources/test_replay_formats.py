"""Every format by a small hand-written log: the figures that are read out of it.

Which devices, processes and spans of time are found in each of these logs is recorded.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from gpuwatchd.collect.logs import terminal
from gpuwatchd.collect.logs.formats import FORMATS
from gpuwatchd.collect.replay import LogFile, LogOptions, LogSeries, read_log
from tests.conftest import present

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
MIB = 1024**2


@functools.cache
def samples() -> list[tuple[Path, LogFile]]:
    """Return every log that is kept here; what analyze says of each is recorded."""
    return [(file, read_log(file)) for file in sorted(LOGS.iterdir())]


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


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_format_can_be_told_and_has_its_name(name: str) -> None:
    found = [(file, log) for file, log in samples() if log.format == name]
    assert found, f"no log in {LOGS} is recognised as {name}: add one"
    sample, guessed = found[0]
    told = read_log(sample, LogOptions(format=name))
    assert (told.rows, told.skipped, told.error) == (guessed.rows, guessed.skipped, guessed.error)


def test_nvidia_csv_values() -> None:
    log = read_log(LOGS / "nvidia_two_gpus.csv")
    first, second = log.series
    assert mib(first)[:3] == [1000, 1010, 1020]
    assert mib(second)[-1] == 1000 + 10 * 19 * 2
    assert first.t_s[0] == pytest.approx(1770112800.1)  # 2026-02-03T10:00:00.100Z
    assert np.diff(first.t_s) == pytest.approx(5.0)
    assert first.limit_bytes == first.total_bytes == 24576 * MIB


def test_reserve_lowers_the_limit_but_not_the_total() -> None:
    log = read_log(LOGS / "nvidia_header_every_row.csv")
    series = of(log)
    assert series.total_bytes == 8192 * MIB
    assert series.limit_bytes == 7980 * MIB


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
    assert len({series.subject.id for series in log.series}) == 4
    assert of(log, pid=None).breaks == (12, 24)


def test_processes_without_memory_are_still_named() -> None:
    log = read_log(LOGS / "compute_apps_windows.csv")
    assert [process.key.pid for process in log.processes] == [2056, 7824, 19388]
    assert log.processes[2].name == "C:\\Program Files\\Some App\\Some App.exe"


def test_table_loop() -> None:
    log = read_log(LOGS / "table_loop.log")
    assert mib(of(log)) == [1000 + 7 * k for k in range(8)]
    assert of(log).device.pci_bus == "0000:3b:00.0"


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
    assert part.device.parent_uid == card.device.uid == "GPU-aa"
    assert card.t_s.tolist() == [0, 15, 30, 45]


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
    assert device.used_bytes.tolist() == [2_000_000_000 + i for i in range(5)]
    assert process.used_bytes.tolist() == [1_500_000_000 + i for i in range(5)]


def test_days_and_elapsed_time() -> None:
    days = of(read_log(LOGS / "two_columns_day_first.csv"))
    assert days.t_s[0] == 1773309600.0  # 12 March 2026, not a month 13
    assert days.breaks == (3, 6)
    elapsed = read_log(LOGS / "elapsed_quoted_newline.csv")
    assert not elapsed.epoch
    assert of(elapsed).t_s[:2].tolist() == [0.0, 0.25]


@pytest.mark.parametrize(
    ("header", "unit"),
    [
        *[("time,MiB", 2**20), ("time,memory_mib", 2**20), ("ts,used_gib", 2**30)],
        *[("GB,time", 2**30), ("timestamp,Job Memory (KiB)", 1024), ("time,leakMB", 2**20)],
        *[("time,Bytes", 1), ("time,thumb", None), ("time,step,MiB", None)],
        *[(f"time,{what}_mib", None) for what in ("host", "cpu", "ram", "swap", "disk", "rx")],
        *[("time,ramMiB", None), ("time,RAM [MiB]", None)],
    ],
)
def test_what_is_alone_beside_times_and_called_by_a_unit_is_memory(
    header: str, unit: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "log.csv"
    rows = [["2026-03-01 10:00:00", "700"], ["2026-03-01 10:00:05", "701"]]
    cells = [",".join(row[::-1] if header == "GB,time" else row) for row in rows]
    file.write_text("\n".join([header, *cells, ""]))
    log = read_log(file)
    if unit is None:
        assert log.error is not None
    else:
        assert of(log).used_bytes.tolist() == [700 * unit, 701 * unit]


def test_large_numbers_without_a_unit_are_bytes() -> None:
    log = read_log(LOGS / "epoch_bytes.csv")
    assert of(log).used_bytes[0] == 5_000_000_000
    assert of(log).total_bytes == 8589934592
    assert any("read as bytes" in text for text in log.warnings)


def test_one_log_of_many_formats_is_one_device() -> None:
    log = read_log(LOGS / "mixed_blocks.log")
    card = next(s for s in log.series if s.process is None and not s.device.parent_uid)
    assert mib(card) == [1000, 1010, 420]
    assert len([device for device in log.devices if device.parent_uid is None]) == 1


def rows(text: str, count: int = 20) -> str:
    """Return so many rows of a pattern with {i}, {used} (800, 801, ...) and {s} in it."""
    return "".join(text.format(i=i, used=800 + i, s=f"{i:02}") + "\n" for i in range(count))


DATE, SMI = "2026/02/03 10:00:{s}.500", "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
SMI_ROWS = rows(DATE + ", 0, {used} MiB, 24564 MiB")


@pytest.mark.parametrize(
    ("text", "step_s", "total"),
    [
        ("memory.used [MiB]\n" + rows("{used} MiB"), 5, None),
        (rows("{used} MiB"), 5, None),
        (rows("{used}"), 5, None),
        (rows(DATE + ", {used} MiB"), 1, None),
        (rows("{used} MiB, " + DATE), 1, None),
        (rows("17000000{s}, {used}"), 1, None),
        (rows("0, {used} MiB"), 5, None),
        (rows("{used} MiB, 24564 MiB"), 5, 24564),
        (rows("{i} %, {used} MiB"), 5, None),
        ("timestamp_ms,used_mb\n" + rows("{i}500,{used}").replace("\n0500", "\n500"), 1, None),
        ("timestamp_ms,mem_used_mb\n" + rows("17000000{s}000,{used}"), 1, None),
        (SMI + rows(DATE + ", 0, {used} MiB, 24564 MiB,"), 1, 24564),
        ("Run 7, time: noon, memory used by me\nused memory, as below:\n" + SMI + SMI_ROWS,
         1, 24564),
        ("time,ram_used_mb,gpu_ram_used_mb\n" + rows("10:00:{s},9{s}00,{used}"), 1, None),
        ("time,mem_used,mem_total,vram_used,vram_total\n"
         + rows("10:00:{s},9000,9999,{used},24564"), 1, 24564),
        ("time,cpu_pct,memory_used,gpu_util,gpu_memory_used\n"
         + rows("10:00:{s},7,9000,3,{used}"), 1, None),
        ("time,gpu_util,mem_used,cpu_pct\n" + rows("10:00:{s},7,{used},3"), 1, None),
    ],
)  # fmt: skip
def test_logs_people_have(text: str, step_s: float, total: int | None, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    log = read_log(tmp_path / "log", LogOptions(interval_s=5))
    assert (log.error, log.bad_rows) == (None, 0)
    series = of(log)
    assert mib(series) == [800 + i for i in range(20)]
    assert np.diff(series.t_s) == pytest.approx(step_s)
    assert series.total_bytes == (None if total is None else total * MIB)


@pytest.mark.parametrize(
    ("text", "where", "columns"),
    [
        (rows("7{s}, {used}"), "line 1", "-,used"),
        (rows(DATE + ", {i}.5, {used}.0"), "line 1", "time,-,used"),
        ("when;how much\n" + rows("{i};{used}"), "when", "time,used"),
        ("time,rss_mb,mem\n" + rows("10:00:{s},7,{used}"), "rss_mb", "time,-,used"),
        ("time,cpu_pct,mem_used,gpu_util\n" + rows("10:00:{s},7,{used},3"), "mem_used",
         "time,-,used,-"),
        (SMI + rows(DATE + ", 0, {used} MiB, 24564 MiB, note"), "line 2: 5 cells",
         "time,index,used,total,-"),
        (rows("17000000{s},{used} MiB\nnan,801 MiB"), "1700000000", "time,used"),
    ],
)  # fmt: skip
def test_an_unclear_layout_asks_for_columns(
    text: str, where: str, columns: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(text)
    log = read_log(tmp_path / "log", LogOptions(interval_s=5))
    assert where in present(log.error)
    assert "--columns" in log.hint
    told = LogOptions(interval_s=5, columns=tuple(columns.split(",")))
    assert mib(of(read_log(tmp_path / "log", told))) == [800 + i for i in range(20)]


def test_a_single_row_with_one_cell_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(SMI + SMI_ROWS.replace("807 MiB,", "807 MiB, 1,"))
    log = read_log(tmp_path / "log")
    assert log.skipped == {"torn": 1}
    assert any("line 9: 5 cells" in text for text in log.warnings)


def test_tegrastats_and_a_redrawn_screen_keep_their_times() -> None:
    tegra = of(read_log(LOGS / "tegrastats.log"))
    assert (mib(tegra)[-1], tegra.total_bytes) == (1825 + 27, 30536 * MIB)
    assert tegra.t_s[0] == 1683207120  # 4 May 2023
    screen = of(read_log(LOGS / "watch_screen.txt"))
    assert mib(screen) == [1000 + 7 * n for n in range(1, 11)]
    assert np.diff(screen.t_s).tolist() == [60] * 9


def test_a_screen_scrolls() -> None:
    lines = [f"line {n}" for n in range(2000)]
    drawn = terminal.Screen().feed("\x1b[2;1H" + "\r\n".join(lines), final=True)
    assert drawn.splitlines() == ["", *lines]


def test_screens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_MOST_CHARS", 600)
    screen = terminal.Screen()
    assert screen.feed("\x1b[999;1Hlow\x1b[1;1H") == "\n\nlow\n"
    assert len(screen.feed("\x1b[9;1Hx\x1b[1;1Hy\x1b[1;1H" * 1000)) < 700
    assert screen.dropped > 900
    assert len(terminal.Screen().feed("\x1b[500;500Hx\x1b[1;1H" * 1000)) < 4000
