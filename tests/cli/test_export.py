"""``export``: what it asks, what it writes, and what it does when it cannot."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sqlite3
import stat
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pytest

from gpuwatchd.core import config
from tests.cli.calls import Terminal
from tests.contrib.corpus_check import check
from tests.pipeline import corpus_world as history

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where to write, with a history of the last hour to write from."""
    history.write(config.state_dir(), time.time() - 2.0)
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "corpus.jsonl.gz"


def test_it_writes_a_file_that_the_checker_and_analyze_take(ctl: Ctl, file: Path) -> None:
    shown = ctl("export --anonymous --yes --licence CC-BY-4.0", str(file))
    assert history.MARK not in shown
    assert check.main([str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(gzip.decompress(file.read_bytes()).splitlines()[0])["licence"] == "CC-BY-4.0"
    (log,) = ctl.data("analyze", str(file), code=3)
    assert (log["format"], log["rows"]) == ("gpuwatchd-corpus", 720)
    plain = file.with_suffix("")
    data = ctl.data("export --anonymous --yes", str(plain))
    assert data["size_bytes"] == plain.stat().st_size
    assert (data["devices"], data["subjects"], data["verdicts"], data["labels"]) == (1, 3, 1, 1)
    assert len(plain.read_text().splitlines()) == 4


def test_its_verdict_is_that_of_the_history(ctl: Ctl, file: Path) -> None:
    ctl("export --anonymous --yes --quiet --since 2h", str(file))
    (log,) = ctl.data("analyze", str(file), code=3)
    played = ctl.data("backtest --since 2h")
    (case,) = [one for one in played["devices"][0]["cases"] if one["alert_at"] is not None]
    (one,) = [each for each in log["subjects"] if each["alerts"]]
    assert one["verdict"]["pattern"] == case["pattern"]
    rate = one["verdict"]["rate_bytes_per_s"]
    assert rate == pytest.approx(case["rate_bytes_per_s"], rel=0.01)


def test_it_asks_on_a_terminal(
    ctl: Ctl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", Terminal())
    answers = iter([False, True])
    monkeypatch.setattr(click, "confirm", lambda *_, **__: next(answers))
    ctl("export --anonymous", str(file), code=1)
    assert not file.exists()
    sample = ctl("export --anonymous", str(file))
    assert '"format":"gpuwatchd-corpus"' in sample
    assert '"354 more"' in sample
    assert file.exists()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("export", 2),
        ("export --anonymous", 2),
        ("export --anonymous --json", 2),
        ("export --anonymous --yes --since nonsense", 2),
        ("export --anonymous --yes --since 2099-01-01", 2),
        ("export --anonymous --yes --licence GPL", 2),
        ("export --anonymous --yes --device 7", 1),
        ("export --anonymous --yes --since 1s", 1),
    ],
)
def test_what_is_not_meant_is_one_line(ctl: Ctl, file: Path, line: str, code: int) -> None:
    told = ctl.both(line, str(file), code=code).err.splitlines()
    assert told[0].startswith("gpuwatchctl: ")
    assert told[1].startswith("hint: ")
    assert not file.exists()


@pytest.mark.parametrize("table", ["gpu_raw", "process_raw"])
@pytest.mark.parametrize("damaged", [2**63 - 1, 10**15, -5])
def test_a_damaged_row_is_left_out(ctl: Ctl, file: Path, table: str, damaged: int) -> None:
    plain = file.with_suffix("")
    before = ctl.data("export --anonymous --yes --licence CC0-1.0", str(plain))["points"]
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection, connection:
        ((at_ms,),) = connection.execute(f"SELECT ts_ms FROM {table} ORDER BY 1 LIMIT 1 OFFSET 100")
        connection.execute(f"UPDATE {table} SET used_bytes = ? WHERE ts_ms = ?", (damaged, at_ms))
    assert ctl.data("report")
    after = ctl.data("export --anonymous --yes --force --licence CC0-1.0", str(plain))["points"]
    assert before - 20 < after < before
    assert check.main([str(plain)]) == 0


def test_one_device_of_several(ctl: Ctl, file: Path) -> None:
    assert ctl.data("export --anonymous --yes --device 0", str(file))["devices"] == 1


def test_a_file_that_is_there_stays_unless_forced(ctl: Ctl, file: Path) -> None:
    file.write_text("mine")
    ctl.err("export --anonymous --yes", str(file))
    assert file.read_text() == "mine"
    ctl("export --anonymous --yes --force", str(file))
    assert check.main(["--any-licence", str(file)]) == 0


@pytest.mark.parametrize("place", ["nowhere/corpus.jsonl", "."])
def test_a_place_that_cannot_be(ctl: Ctl, file: Path, place: str) -> None:
    told = ctl.err("export --anonymous --yes --force", str(file.parent / place))
    assert told.splitlines()[2] == "see: gpuwatchctl docs errors#report-not-written"


@pytest.mark.parametrize(
    ("fault", "code"), [(OSError(errno.ENOSPC, "full"), 1), (KeyboardInterrupt(), 130)]
)
def test_a_full_disk_or_an_interrupt_leaves_nothing_behind(
    ctl: Ctl, file: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: int
) -> None:
    file.write_text("older")

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(os, "fsync", fail)
    ctl.err("export --anonymous --yes --force", str(file), code=code)
    assert [*file.parent.iterdir()] == [file]
    assert file.read_text() == "older"


def test_a_damaged_history_is_one_line(ctl: Ctl, file: Path) -> None:
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("DROP TABLE feedback")
    told = ctl.both("export --anonymous --yes", str(file), code=1)
    assert "Traceback" not in told.err
    assert not file.exists()


def test_its_answer_names_nobody(ctl: Ctl, file: Path) -> None:
    answer = ctl("export --anonymous --yes --json", str(file))
    assert history.MARK not in msgspec.json.decode(answer)["data"].__repr__()
