"""The same leak is found in every tool's log, and blamed on the process where it is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.ctl import main
from gpuwatchd.sources.formats import FORMATS
from tests.cli import logs_of
from tests.cli.logs_of import LEAKER, QUIET, WRITTEN

if TYPE_CHECKING:
    from pathlib import Path

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
    answer = json.loads(capsys.readouterr().out)
    subjects = [each for log in answer["data"] for each in log["subjects"]]
    blamed = {(each["process"] or {}).get("pid") for each in subjects if each["alerts"]}
    assert LEAKER in blamed
    assert QUIET not in blamed
