"""``analyze --html``: the page of a log, beside what is printed and with the same exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpuwatchd.cli import main
from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.model import Device, Subject
from gpuwatchd.pipeline.replay import SubjectResult
from gpuwatchd.view.report import document, log_report
from tests.cli import logs_of
from tests.making import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.charts.chart_model import Picture
    from tests.cli.calls import Ctl

DEVICE = Device(uid="U", vendor="nvidia", index=0, name="A100", memory_total_bytes=80 * GIB)


@pytest.fixture
def leak(tmp_path: Path) -> Path:
    """Return a log with a leak."""
    file = tmp_path / "leak.csv"
    file.write_text(logs_of.cards(90), "utf-8")
    return file


def drawn(page: str) -> list[dict[str, Any]]:
    """Return the pictures that are in a page."""
    data = page.partition('id="gpuwatchd-data">')[2].partition("</script>")[0]
    found: list[dict[str, Any]] = json.loads(data)["pictures"]
    return found


def test_the_page_has_chart_verdict_and_evidence(leak: Path, tmp_path: Path, ctl: Ctl) -> None:
    page = tmp_path / "x.html"
    assert "LEAK gradual" in ctl("analyze", str(leak), "--html", str(page), code=3)
    content = page.read_text("utf-8")
    assert page.stat().st_mode & 0o777 == 0o600
    (picture,) = drawn(content)
    assert picture["kind"] in {"leak", "critical"}
    assert picture["forecast"]["mid_s"] > 0
    assert picture["limit_bytes"] == 80 * GIB
    assert {mark["kind"] for mark in picture["marks"]} == {"watch", "alert"}
    assert "alert firing" in content
    assert str(leak) in content


def test_exit_codes_and_json_are_as_without_it(leak: Path, tmp_path: Path, ctl: Ctl) -> None:
    page = tmp_path / "x.html"
    calm = tmp_path / "calm.csv"
    calm.write_text(logs_of.cards(0), "utf-8")
    assert main(["analyze", str(calm), "--html", str(page)]) == 0
    assert "No leak in 1 subject of 1 log." in page.read_text("utf-8")
    assert len(drawn(page.read_text("utf-8"))) == 1
    assert main(["analyze", str(leak), "--fail-on", "never", "--html", str(page)]) == 0
    assert ctl.json("analyze", str(leak), "--html", str(page), code=3)["verb"] == "analyze"
    assert "is a folder" in ctl.err("analyze", str(leak), "--html", str(tmp_path))


def test_of_twenty_logs_the_worst_comes_first(tmp_path: Path, ctl: Ctl) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for n in range(20):
        (folder / f"{n:02}.csv").write_text(logs_of.cards(90 if n == 13 else 0), "utf-8")
    (folder / "99.csv").write_text("nothing, of\nany, use\n", "utf-8")
    page = tmp_path / "x.html"
    assert main(["analyze", str(folder), "--html", str(page)]) == 3
    content = page.read_text("utf-8")
    assert "Other subjects" in content
    assert "no verdict:" in content
    assert len(drawn(content)) == 1


def test_what_cannot_be_read_leaves_no_page(tmp_path: Path, ctl: Ctl) -> None:
    bad, page = tmp_path / "bad.csv", tmp_path / "x.html"
    bad.write_text("nothing, of\nany, use\n", "utf-8")
    assert "gpuwatchctl:" in ctl.err("analyze", str(bad), "--html", str(page), code=5)
    assert not page.exists()


def test_many_subjects_stay_within_bounds(tmp_path: Path, ctl: Ctl) -> None:
    file, page = tmp_path / "many.csv", tmp_path / "x.html"
    file.write_text(logs_of.cards(0, count=40), "utf-8")
    assert main(["analyze", str(file), "--all", "--html", str(page)]) == 0
    content = page.read_text("utf-8")
    assert len(drawn(content)) == document.CHARTS
    assert len(content.encode()) < 2 * 2**20
    assert content.count("<article") == 40


def chart(count: int, *, breaks: tuple[int, ...] = (), epoch: bool = True) -> Picture:
    """Return the chart of samples one second apart; at each break a hundred seconds are missing."""
    t_s = np.arange(count, dtype=np.float64) + 1e9 * epoch
    for at in breaks:
        t_s[at:] += 100.0
    used = np.arange(count, dtype=np.float64)
    subject = Subject(device_uid="U")
    series = LogSeries(
        subject=subject, device=DEVICE, process=None, t_s=t_s, used_bytes=used, limit_bytes=None,
        breaks=breaks,
    )  # fmt: skip
    found = SubjectResult(
        subject=subject, device=DEVICE, process=None, samples=count, started_at_s=float(t_s[0]),
        ended_at_s=float(t_s[-1]), finding=None, watches=(), alerts=(),
    )  # fmt: skip
    return log_report.picture(LogFile(path="x", epoch=epoch), series, found)


def test_many_samples_keep_their_extremes() -> None:
    picture = chart(100_000)
    curve = picture.curve
    assert len(curve.at_s) <= log_report.POINTS
    assert (min(curve.low_bytes), max(curve.high_bytes)) == (0.0, 99_999.0)  # type: ignore[type-var]
    assert all(a < b for a, b in zip(curve.at_s, curve.at_s[1:], strict=False))
    assert "one point is 334 s" not in picture.notes
    assert picture.notes[0].startswith("one point is 6 min")


def test_a_gap_is_one_point_without_a_value() -> None:
    picture = chart(1000, breaks=(400,))
    assert picture.curve.used_bytes.count(None) == 1
    assert picture.curve.used_bytes[0] is not None
    assert picture.curve.used_bytes[-1] is not None
    (gap,) = picture.gaps
    assert gap.end_s - gap.begin_s == 101.0
    assert gap.why == "the log has no data"


def test_a_log_without_dates_says_so() -> None:
    assert "the log has no dates: times are relative to its start" in chart(5, epoch=False).notes
