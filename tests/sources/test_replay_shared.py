"""Every real log that is not part of the project: what it must give."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from gpuwatchd.collect.replay import LogOptions, read_log
from tests.conftest import present

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared_data
MIB = 1024**2


class Want(NamedTuple):
    format: str
    rows: int
    bad: int
    series: int
    error: str = ""
    """A part of the sentence; "" means no error."""


NO_TIME = "no time in this log: pass --interval"
RAW: dict[str, Want] = {
    "date_line_and_dashes_between.log": Want("csv-without-header", 50, 0, 2),
    "dcgm_prometheus_export_247gpus.csv": Want("dcgm-csv", 358, 0, 247),
    "ddmmyyyy_no_index_custom.csv": Want("csv", 11, 0, 11, "day and month"),
    "dmon_2016_fb_column.log": Want("nvidia-smi-dmon", 10, 0, 1, NO_TIME),
    "epoch_float_ts.csv": Want("csv", 59, 0, 1),
    "header_repeated_every_row.csv": Want("nvidia-smi-csv", 30, 0, 1),
    "iso8601_offset_extra_gpu_col.csv": Want("nvidia-smi-csv", 43, 0, 8),
    "latin1_degree_sign.csv": Want("csv", 7, 0, 1),
    "memory_total_before_used.csv": Want("nvidia-smi-csv", 39, 0, 1),
    "mm-dd-yyyy_nounits_orin.csv": Want("nvidia-smi-csv", 79, 0, 1, "day and month"),
    "newline_inside_quoted_field.csv": Want("csv", 20, 0, 1),
    "only_a_date_12h_clock.log": Want("unknown", 0, 0, 0, "a date and no readings"),
    "power_only.csv": Want("nvidia-smi-csv", 9, 9, 0, "columns found: timestamp, power.draw [W]"),
    "snippets/dmon_s_mutc_o_TD.log": Want("nvidia-smi-dmon", 4, 0, 1),
    "snippets/dmon_s_pucet_o_DT_no_fb.log": Want("nvidia-smi-dmon", 3, 3, 0, "no memory column"),
    "snippets/failed.txt": Want("unknown", 0, 0, 0, "the tool failed"),
    "snippets/gb10_unified_all_na.csv": Want("nvidia-smi-csv", 1, 1, 0, "unified memory"),
    "snippets/mig_in_container_unreadable_row.csv": Want("compute-apps-csv", 2, 1, 2),
    "snippets/windows_compute_apps_crlf_insufficient_permissions.csv": Want(
        "compute-apps-csv", 3, 3, 0, "without a memory figure"),
    "snippets/windows_uuid_pid_na_name.csv": Want(
        "compute-apps-csv", 2, 2, 0, "without a memory figure"),
    "snippets/wsl2_host_and_container.csv": Want(
        "compute-apps-csv", 2, 2, 0, "without a memory figure"),
    "torn_interleaved_two_gpus_index0.csv": Want(
        "csv-without-header", 54, 54, 0, "a table without a header"),
    "torn_two_writers_nul_bytes.csv": Want(
        "nvidia-smi-csv+nvidia-smi-table", 4, 1, 1, NO_TIME),
    "watch_loop_nvidia_smi_table.log": Want("nvidia-smi-table", 57, 0, 4),
}  # fmt: skip
XML: dict[str, int] = {
    "nvidia_qx-a100.xml": 1, "nvidia_qx-gb200.xml": 4, "nvidia_qx-h100.xml": 8,
    "nvidia_qx-l40s.xml": 1, "nvidia_qx-t4.xml": 1, "telegraf_a100-sxm4-v12.xml": 5,
    "telegraf_a10g.xml": 2, "telegraf_gtx-1070-ti.xml": 1, "telegraf_gtx-1660-ti.xml": 1,
    "telegraf_quadro-p2000-v12.xml": 1, "telegraf_quadro-p400.xml": 1,
    "telegraf_rtx-3060-v12.xml": 1, "telegraf_rtx-3080-v12.xml": 6,
    "telegraf_rtx-3080-v13.xml": 1, "telegraf_rtx-3090-v12.xml": 1,
    "telegraf_rtx-4000-sff-ada-v13.xml": 5, "telegraf_tesla-t4.xml": 3,
}  # fmt: skip
ROCM: dict[str, int] = {"mi100_rocm571.json": 6, "mi100_rocm602.json": 4}
CAPTURED = {
    "nvidia-smi-table", "nvidia-smi-q", "nvidia-smi-csv", "compute-apps-csv", "nvidia-smi-pmon",
    "nvidia-smi-dmon", "nvidia-smi-accounted",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RAW))
def test_raw_log(name: str, shared_data: Path) -> None:
    want, log = RAW[name], read_log(shared_data / "formats" / "raw" / name)
    assert (log.format, log.rows, log.bad_rows, len(log.series)) == want[:4]
    if want.error:
        assert want.error in str(log.error)
    else:
        assert log.error is None


@pytest.mark.parametrize("name", sorted(XML))
def test_xml_document(name: str, shared_data: Path) -> None:
    log = read_log(shared_data / "formats" / "xml" / name)
    assert (log.format, log.error) == ("nvidia-smi-xml", None)
    assert (log.rows - log.bad_rows, len(log.series)) == (XML[name], XML[name])


def test_mig_parts_are_children(shared_data: Path) -> None:
    log = read_log(shared_data / "formats" / "xml" / "telegraf_a100-sxm4-v12.xml")
    card = next(series for series in log.series if series.device.parent_uid is None)
    assert card.used_bytes[0] != 12 * MIB  # the first such block is that of a part
    assert card.total_bytes == 81920 * MIB
    parts = [series for series in log.series if series.device.parent_uid]
    assert len(parts) == 4
    assert all(part.total_bytes == 19968 * MIB for part in parts)


def test_rocm_and_gpustat(shared_data: Path) -> None:
    for file in sorted((shared_data / "formats" / "rocm").iterdir()):
        log = read_log(file)
        assert (log.format, log.error) == ("rocm-smi-json", None)
        assert len(log.series) == ROCM.get(file.name, 1)
        assert all(series.device.vendor == "amd" for series in log.series)
    log = read_log(shared_data / "formats" / "made" / "gpustat_1_1_1.json")
    assert (log.format, log.rows, log.bad_rows, len(log.series)) == ("gpustat-json", 5, 2, 3)


def test_captures_mix_formats_of_one_card(shared_data: Path) -> None:
    for file in sorted((shared_data / "formats" / "captures").iterdir()):
        log = read_log(file)
        assert log.error is None, file.name
        assert set(log.format.split("+")) == CAPTURED, file.name
        cards = [s for s in log.series if s.process is None and s.device.parent_uid is None]
        assert len(cards) == 1, file.name
        assert cards[0].t_s.size >= 4, file.name
        assert "torn" not in log.skipped, file.name
        assert "bad number" not in log.skipped, file.name


def test_traces_give_the_figures_of_their_manifest(shared_data: Path) -> None:
    folder = shared_data / "traces"
    for entry in json.loads((folder / "manifest.json").read_text()):
        log = read_log(folder / entry["file"])
        if entry["file"].endswith("sparse_reports.csv"):
            continue  # prose in columns: a test of its own
        if log.error is not None:
            assert "free memory without a total" in log.error, entry["file"]
            continue
        assert (log.rows, log.bad_rows) == (entry["rows"], 0), entry["file"]
        devices = [series for series in log.series if series.process is None]
        assert len(devices) == entry.get("gpus", 1)
        if "max_mib" in entry:
            top = max(float(series.used_bytes.max()) for series in devices) / MIB
            assert top <= entry["max_mib"] + 0.01


def test_a_list_of_reports_is_refused(shared_data: Path) -> None:
    log = read_log(shared_data / "traces" / "issues" / "sparse_reports.csv")
    assert "no known log format" in present(log.error)
    assert not log.series


def test_header_told_by_the_caller_splits_two_cards(shared_data: Path) -> None:
    names = ("index", "name", "memory.total", "memory.used", "memory.free", "temperature.gpu",
             "pstate", "utilization.gpu", "utilization.memory")  # fmt: skip
    file = shared_data / "formats" / "raw" / "torn_interleaved_two_gpus_index0.csv"
    log = read_log(file, LogOptions(columns=names, interval_s=10))
    assert log.skipped["torn"] >= 35
    assert {series.device.name for series in log.series} == {
        "Tesla V100-PCIE-32GB (a)", "Tesla V100-SXM2-32GB (b)"}  # fmt: skip


def test_every_file_is_read_without_an_exception(shared_data: Path) -> None:
    files = [file for part in ("traces", "formats", "platforms")
             for file in (shared_data / part).rglob("*") if file.is_file()]  # fmt: skip
    assert len(files) > 100
    for file in files:
        log = read_log(file)
        assert log.series or log.error, file
        for series in log.series:
            assert (np.diff(series.t_s) > 0).all(), file
            assert np.isfinite(series.used_bytes).all(), file


def test_few_logs_give_no_series(shared_data: Path) -> None:
    folders = (shared_data / "formats", shared_data / "traces")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    logs = [file for file in files if file.name not in {"README.md", "manifest.json"}]
    unread = [file.name for file in logs if read_log(file, LogOptions(interval_s=5)).error]
    assert (len(logs), len(unread)) == (89, 13), unread
