"""The same leak is found in every tool's log, and blamed on the process where it is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.collect.logs.formats import FORMATS
from tests.cli import logs_of
from tests.cli.logs_of import LEAKER, WRITTEN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

OWN = {"gpuwatchd-csv", "gpuwatchd-ndjson"}
"""What ``history`` exports comes back exactly: tested beside it."""
WITHOUT_A_SERIES = {"nvidia-smi-accounted"}
WITHOUT_A_HEADER = {"csv-without-header"}


def test_every_format_is_written() -> None:
    assert set(WRITTEN) == set(FORMATS) - OWN - WITHOUT_A_SERIES - WITHOUT_A_HEADER


@pytest.mark.parametrize("name", list(WRITTEN))
def test_the_leak_is_found_and_whose_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = WRITTEN[name]
    file = tmp_path / "log"
    file.write_text(written.text() + "\n")
    assert main(["analyze", "--json", *written.flags, str(file)]) == 3
    answer = json.loads(capsys.readouterr().out)
    (log,) = answer["data"]
    assert log["format"] == name
    (found,) = [each for each in log["subjects"] if each["alerts"]]
    verdict = found["verdict"]
    assert (verdict["pattern"], verdict["leak"]) == ("gradual", True)
    assert verdict["rate_bytes_per_s"] == pytest.approx(2.5 * 2**20, rel=0.1)
    assert (verdict["eta"] is not None) == written.total
    pid = (found["process"] or {}).get("pid")
    assert pid == (LEAKER if written.processes else None)


def test_a_device_log_and_a_process_log_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpu.csv").write_text(logs_of.query_gpu() + "\n")
    (tmp_path / "apps.csv").write_text(logs_of.compute_apps() + "\n")
    both = [str(tmp_path / "gpu.csv"), str(tmp_path / "apps.csv")]
    assert main(["analyze", "--json", *both]) == 3
    (log,) = json.loads(capsys.readouterr().out)["data"]
    assert log["path"] == " + ".join(both)
    (found,) = [each for each in log["subjects"] if each["alerts"]]
    assert found["process"]["pid"] == LEAKER
    # The process log alone knows no size of the memory; the device's log does.
    assert found["verdict"]["eta"] is not None
    assert main(["analyze", "--json", *both[::-1]]) == 3
    assert json.loads(capsys.readouterr().out)["data"][0]["subjects"] == log["subjects"]
    assert main(["analyze", *both]) == 3
    shown = capsys.readouterr().out
    assert shown.count("at the end:") == 1  # the device's verdict is that of its process
    assert f"[{LEAKER}]" in next(row for row in shown.splitlines() if "samples over" in row)


def test_jobs_that_follow_one_another_are_no_growth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each job is larger than the one before, and none leaks: only the process log can tell."""
    gpu, apps = logs_of.successive_jobs()
    (tmp_path / "gpu.csv").write_text(gpu + "\n")
    (tmp_path / "apps.csv").write_text(apps + "\n")
    assert main(["analyze", "--json", str(tmp_path / "gpu.csv"), str(tmp_path / "apps.csv")]) == 0
    (log,) = json.loads(capsys.readouterr().out)["data"]
    assert [each for each in log["subjects"] if each["alerts"] or each["watches"]] == []


def test_logs_of_other_times_or_cards_stay_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpu.csv").write_text(logs_of.query_gpu() + "\n")
    for name, old, new in (("day.csv", "2026/", "2025/"), ("card.csv", "GPU-0a0b", "GPU-ffff")):
        (tmp_path / name).write_text(logs_of.compute_apps().replace(old, new) + "\n")
        assert main(["analyze", "--json", str(tmp_path / "gpu.csv"), str(tmp_path / name)]) == 3
        logs = json.loads(capsys.readouterr().out)["data"]
        assert [log["path"] for log in logs] == [str(tmp_path / "gpu.csv"), str(tmp_path / name)]
