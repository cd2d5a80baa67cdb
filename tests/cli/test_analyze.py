"""``analyze`` from outside: what it says, to people and to programs, and how it ends."""

from __future__ import annotations

import gzip
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import main
from gpuwatchd.pipeline import replay
from tests.cli import logs_of
from tests.conftest import not_here

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.log_types import LogFile
    from tests.cli.calls import Ctl

HEADER = "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"


def leak(path: Path, *, minutes: int = 60) -> Path:
    rows = [HEADER]
    for second in range(0, minutes * 60, 5):
        used = 12_000 + 10 * max(0, second - 300)
        stamp = f"2026/03/01 {10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000"
        rows += [
            f"{stamp}, 0, NVIDIA A100-SXM4-80GB, {used // 2 * 2:.0f} MiB, 81920 MiB\n",
            f"{stamp}, 1, NVIDIA A100-SXM4-80GB, 4000 MiB, 81920 MiB\n",
        ]
    path.write_text("".join(rows))
    return path


@pytest.mark.requirement("M6", "M31")
def test_a_verdict_has_the_facts_of_its_signals(tmp_path: Path, ctl: Ctl) -> None:
    file = leak(tmp_path / "gpu.csv")
    (answer,) = ctl.data("analyze", str(file), code=3)
    verdict = answer["subjects"][0]["verdict"]
    (trend,) = [one for one in verdict["signals"] if one["detector"] == "trend"]
    assert trend["facts"]["r_squared"] > 0.99
    assert verdict["severity"] == "warning"
    assert verdict["advice"]
    text = file.read_text().splitlines(keepends=True)
    flat = [line.replace(line.split(", ")[3], "4000 MiB") for line in text[1:1100]]
    high = [line.replace("4000 MiB,", "24000 MiB,") for line in flat[-200:]]
    file.write_text("".join([text[0], *flat[:-200], *high]))
    (answer,) = ctl.data("analyze", str(file), code=None)
    verdict = answer["subjects"][0]["verdict"]
    (spike,) = verdict["signals"]
    facts = spike["facts"]
    assert (verdict["pattern"], facts["alike"]) == ("spike", 1.0)
    assert facts["jump_bytes"] == 20000 * 2**20
    assert facts["median_rise_bytes"] == 0.0
    assert 0.0 <= facts["fence_bytes"] < facts["jump_bytes"]


def test_what_is_only_watched_fails_on_demand(tmp_path: Path) -> None:
    file = tmp_path / "gpu.csv"
    file.write_text("".join(logs_of.cards(5).splitlines(keepends=True)[:60]))
    levels = {"warning": 0, "critical": 0, "never": 0, "watch": 3, "info": 3}
    assert {level: main(["analyze", str(file), "--fail-on", level]) for level in levels} == levels


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"timestamp, power.draw [W]\n2026/03/01 10:00:00.000, 30 W\n", "no memory column"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 100, ""),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0", ""),
    ],
)
def test_what_is_no_log_is_exit_5_with_one_line(
    content: bytes, why: str, tmp_path: Path, ctl: Ctl
) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    said = ctl.both("analyze", str(file), code=5)
    lines = said.err.splitlines()
    assert lines[0].startswith(f"gpuwatchctl: {file}: ")
    assert why in lines[0]
    assert [line.partition(": ")[0] for line in lines[1:]] == ["hint", "see"]
    assert lines[2].endswith("errors#log-format")
    answered = ctl.json("analyze", str(file), code=5)
    assert answered["data"][0]["error"]
    assert answered["error"]["exit_code"] == 5
    assert answered["error"]["page"] == "errors#log-format"
    assert str(file) in answered["error"]["message"]


def test_an_endless_file_is_given_up(ctl: Ctl) -> None:
    assert "/dev/zero" in ctl.err("analyze /dev/zero", code=5)


def test_a_directory_stands_for_its_files(tmp_path: Path, ctl: Ctl) -> None:
    leak(tmp_path / "a.csv", minutes=20)
    (tmp_path / "deep").mkdir()
    packed = tmp_path / "deep" / "b.csv.gz"
    packed.write_bytes(gzip.compress(leak(tmp_path / ".hidden.csv", minutes=20).read_bytes()))
    (tmp_path / "README.md").write_text("# not a log")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.csv").write_text("x")
    said = ctl.json("analyze", str(tmp_path), code=None)
    assert [Path(file["path"]).name for file in said["data"]] == ["a.csv", "b.csv.gz"]


def test_a_directory_gives_so_many_files_and_no_large_ones_of_other_endings(
    tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.csv", "b.log.1", "c.csv"):
        leak(tmp_path / name, minutes=20)
    (tmp_path / "core.4711").write_bytes(bytes(1024**2 + 1))
    monkeypatch.setattr("gpuwatchd.cli.verbs.analyze._MOST_FILES", 2)
    said = ctl.json("analyze", str(tmp_path), code=None)
    assert [Path(file["path"]).name for file in said["data"]] == ["a.csv", "b.log.1"]
    assert [warning["code"] for warning in said["warnings"]] == ["not-all"]
    words = ctl.err("analyze", str(tmp_path), code=None)
    assert words.startswith(f"warning: {tmp_path}: 2 of 4 files are left out")
    assert "warning" not in ctl.err("analyze", str(tmp_path / "a.csv"), code=None)


@pytest.mark.requirement("M16")
def test_only_the_chosen_gpu(tmp_path: Path, ctl: Ctl) -> None:
    file = str(leak(tmp_path / "gpu.csv", minutes=20))
    said = ctl.json("analyze --gpu 1", file, code=None)
    assert [s["device"]["index"] for s in said["data"][0]["subjects"]] == [1]
    assert "no GPU of these logs matches --gpu 7" in ctl.err("analyze --gpu 7", file)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--tz", "Mars/Olympus"], "is not a time zone"),
        (["--memory-total", "24"], "write the unit"),
        (["--memory-total", "lots"], "is not a size"),
        (["--interval", "soon"], "is not a duration"),
        (["--date-order", "ymd"], "ymd"),
        (["--format", "voodoo"], "voodoo"),
    ],
)
def test_a_wrong_flag_says_what_is_wanted(
    args: list[str], why: str, tmp_path: Path, ctl: Ctl
) -> None:
    said = ctl.both("analyze", *args, str(leak(tmp_path / "g.csv", minutes=6)), code=None)
    assert said.code in {2, 5}
    assert why in said.err


@pytest.mark.parametrize("at_once", [False, True])
def test_a_log_that_breaks_us_costs_no_other_log_its_verdict(
    at_once: bool, tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once and multiprocessing.get_start_method() != "fork":
        not_here("a replaced function reaches another process by fork only")
    files = [str(leak(tmp_path / f"{name}.csv", minutes=30)) for name in "abc"]
    plain = replay.analyze

    def breaks(log: LogFile, *args: Any, **more: Any) -> Any:
        if log.path == files[1]:
            raise ZeroDivisionError("by our own fault")
        return plain(log, *args, **more)

    monkeypatch.setattr(replay, "analyze", breaks)
    if at_once:
        monkeypatch.setattr("gpuwatchd.cli.verbs.analyze._PARALLEL_FROM_BYTES", 1)
    said = ctl.json("analyze", *files)
    assert [file["path"] for file in said["data"]] == files
    assert [bool(file["subjects"]) for file in said["data"]] == [True, False, True]
    assert "ZeroDivisionError: by our own fault" in said["data"][1]["error"]


@pytest.mark.slow
def test_every_real_log_is_answered(shared_data: Path, ctl: Ctl) -> None:
    said = ctl.json("analyze", str(shared_data / "traces"), str(shared_data / "formats"), code=None)
    assert len(said["data"]) > 80
    for file in said["data"]:
        assert file["error"] or file["subjects"] or file["warnings"], file["path"]
        assert file["bad_rows"] <= file["rows"]


def test_a_name_that_is_no_text_does_not_keep_its_log_from_json(ctl: Ctl, tmp_path: Path) -> None:
    log = leak(tmp_path / os.fsdecode(b"a\xff.csv"), minutes=30)
    assert ctl.data("analyze", str(log))[0]["path"].endswith(".csv")


def test_files_of_two_days_of_a_machine_are_one_log(tmp_path: Path, ctl: Ctl) -> None:
    head = "timestamp, gpu_uuid, name, index, memory.used [MiB], memory.total [MiB]\n"
    listed = "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    gpu, apps = [], []
    for at in range(0, 4 * 3600, 20):
        stamp = f"2026/03/{1 + (at + 22 * 3600) // 86400:02} "
        stamp += f"{(22 + at // 3600) % 24:02}:{at // 60 % 60:02}:{at % 60:02}.000"
        used = 8_000 + max(0, at - 1800) // 4
        gpu.append(f"{stamp}, GPU-a, NVIDIA A100, 0, {used + 500} MiB, 40960 MiB\n")
        apps.append(f"{stamp}, GPU-a, 4711, python, {used} MiB\n")
    files = []
    for name, top, rows in (("gpu", head, gpu), ("apps", listed, apps)):
        for day, part in (("1", rows[: len(rows) // 2 + 9]), ("2", rows[len(rows) // 2 :])):
            files.append(tmp_path / f"{name}-{day}.csv")
            files[-1].write_text(top + "".join(part))
    (log,) = ctl.json("analyze", *map(str, files), code=3)["data"]
    assert log["warnings"] == []
    found = {
        subject["process"] and subject["process"]["pid"]: subject for subject in log["subjects"]
    }
    assert {pid: (one["samples"], one["alert_count"]) for pid, one in found.items()} == {
        None: (720, 0),
        4711: (720, 1),
    }
