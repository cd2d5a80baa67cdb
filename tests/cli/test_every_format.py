"""The same leak is found in every tool's log, and blamed on the process where it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.logs.formats import FORMATS
from tests.cli import logs_of
from tests.cli.logs_of import LEAKER, WRITTEN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

pytestmark = pytest.mark.slow

OWN = {"gpuwatchd-corpus", "gpuwatchd-csv", "gpuwatchd-ndjson"}
"""What ``history`` and ``export`` write comes back: tested beside it."""
WITHOUT_A_SERIES = {"nvidia-smi-accounted"}
WITHOUT_A_HEADER = {"csv-without-header"}


def test_every_format_is_written() -> None:
    written = set(FORMATS) - OWN - WITHOUT_A_SERIES - WITHOUT_A_HEADER
    assert set(WRITTEN) == written, "a format has its row in WRITTEN of tests/cli/logs_of.py"


@pytest.mark.parametrize("name", list(WRITTEN))
def test_the_leak_is_found_and_whose_it_is(name: str, tmp_path: Path, ctl: Ctl) -> None:
    written = WRITTEN[name]
    file = tmp_path / "log"
    file.write_text(written.text() + "\n")
    answer = ctl.json("analyze", *written.flags, str(file), code=3)
    (log,) = answer["data"]
    assert log["format"] == name
    (found,) = [each for each in log["subjects"] if each["alerts"]]
    verdict = found["verdict"]
    assert (verdict["pattern"], verdict["leak"]) == ("gradual", True)
    assert verdict["rate_bytes_per_s"] == pytest.approx(2.5 * 2**20, rel=0.1)
    assert (verdict["eta"] is not None) == written.total
    pid = (found["process"] or {}).get("pid")
    assert pid == (LEAKER if written.processes else None)


def test_a_device_log_and_a_process_log_together(tmp_path: Path, ctl: Ctl) -> None:
    (tmp_path / "gpu.csv").write_text(logs_of.query_gpu() + "\n")
    (tmp_path / "apps.csv").write_text(logs_of.compute_apps() + "\n")
    both = [str(tmp_path / "gpu.csv"), str(tmp_path / "apps.csv")]
    (log,) = ctl.data("analyze", *both, code=3)
    assert log["path"] == " + ".join(both)
    (found,) = [each for each in log["subjects"] if each["alerts"]]
    assert found["process"]["pid"] == LEAKER
    # The process log alone knows no size of the memory; the device's log does.
    assert found["verdict"]["eta"] is not None
    assert ctl.data("analyze", *both[::-1], code=3)[0]["subjects"] == log["subjects"]
    shown = ctl("analyze", *both, code=3)
    assert shown.count("at the end:") == 1  # the device's verdict is that of its process
    assert f"[{LEAKER}]" in next(row for row in shown.splitlines() if "samples over" in row)


def test_jobs_that_follow_one_another_are_no_growth(tmp_path: Path, ctl: Ctl) -> None:
    """Each job is larger than the one before, and none leaks: only the process log can tell."""
    gpu, apps = logs_of.successive_jobs()
    (tmp_path / "gpu.csv").write_text(gpu + "\n")
    (tmp_path / "apps.csv").write_text(apps + "\n")
    (log,) = ctl.data("analyze", str(tmp_path / "gpu.csv"), str(tmp_path / "apps.csv"))
    assert [each for each in log["subjects"] if each["alerts"] or each["watches"]] == []


def test_logs_of_other_times_or_cards_stay_apart(tmp_path: Path, ctl: Ctl) -> None:
    (tmp_path / "gpu.csv").write_text(logs_of.query_gpu() + "\n")
    for name, old, new in (("day.csv", "2026/", "2025/"), ("card.csv", "GPU-0a0b", "GPU-ffff")):
        (tmp_path / name).write_text(logs_of.compute_apps().replace(old, new) + "\n")
        logs = ctl.data("analyze", str(tmp_path / "gpu.csv"), str(tmp_path / name), code=3)
        assert [log["path"] for log in logs] == [str(tmp_path / "gpu.csv"), str(tmp_path / name)]
