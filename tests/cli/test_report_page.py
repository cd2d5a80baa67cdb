"""The report as a file: whole or not there, its owner's alone, bounded, and of nobody else."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import main
from gpuwatchd.core.model import AlertSubject, ProcessInfo, ProcessKey, Subject
from gpuwatchd.view.report import document, html
from tests import making
from tests.cli import reported, world

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from tests.cli.calls import Ctl

GIB = making.GIB
MIB = 2**20
SINCE = "44h"
DRAWN = re.compile(r"<svg.*?</svg>|<script.*?</script>|<style.*?</style>", re.DOTALL)
OTHERS = re.compile(r"alice|bob|train\.py|tune\.py|serve\.py|4711|5000|slurm|31099")


def saved(file: Path, *arguments: str) -> str:
    """Return the content of a report's file."""
    assert main(["report", "--since", SINCE, "--output", str(file), *arguments]) == 0
    return file.read_text("utf-8")


def names(folder: Path, part: str) -> list[str]:
    """Return what is in a folder and has these letters in its name, hidden or not."""
    return sorted(one.name for one in folder.iterdir() if part in one.name)


@pytest.mark.usefixtures("truth")
def test_a_file_is_whole_and_its_owners_alone(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "june.html"
    file.write_text("older")
    file.chmod(0o644)
    page = saved(file)
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names(tmp_path, "june") == ["june.html"]


@pytest.mark.usefixtures("truth")
def test_the_name_decides_the_format(tmp_path: Path, ctl: Ctl) -> None:
    assert json.loads(saved(tmp_path / "x.json"))["verb"] == "report"
    assert saved(tmp_path / "x.txt").startswith("GPU report of")
    assert saved(tmp_path / "x.out", "--format", "html").startswith("<!doctype")
    assert main(["report", "--json", "--format", "html"]) == 2
    assert main(["report", "--since", "1h", "--until", "2h"]) == 2


@pytest.mark.usefixtures("truth")
def test_a_page_goes_to_a_pipe_or_to_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ctl("report --format html --since", SINCE).startswith("<!doctype html>")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["report", "--format", "html", "--since", SINCE]) == 0
    (name,) = names(tmp_path, ".html")
    days = [time.strftime("%Y-%m-%d", time.localtime(time.time() - ago)) for ago in (44 * 3600, 0)]
    assert ctl("report --format html --since", SINCE, "--output", "-").rstrip().endswith("</html>")
    assert names(tmp_path, ".html") == [name]
    assert name.startswith("gpu-report-")
    assert name.endswith(f"{days[0]}-to-{days[1]}.html")


@pytest.mark.slow
@pytest.mark.usefixtures("truth")
def test_what_cannot_be_written_says_so_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in ctl.err("report --output", str(tmp_path / "folder.html"))
    old = tmp_path / "old.html"
    old.write_text("older")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in ctl.err("report --output", str(old))
    assert old.read_text() == "older"
    assert names(tmp_path, "old.html") == ["old.html"]


def test_a_link_stays_one_and_a_pipe_gets_the_report(tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("older")
    link.symlink_to(real)
    html.write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    out, into = os.pipe()
    html.write(Path(f"/dev/fd/{into}"), "piped")
    os.close(into)
    with os.fdopen(out, encoding="utf-8") as stream:
        assert stream.read() == "piped"
    html.write(Path(os.devnull), "gone")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["html", "json", "txt"])
def test_with_user_there_is_nothing_of_others(
    truth: reported.Truth, tmp_path: Path, form: str
) -> None:
    # Of the hardware that she shares: it concerns her, and its chart is of all.
    shared = making.alert(
        key="gpu:GPU-2", kind="gpu", subject=Subject(device_uid=world.SECOND.uid), notices=1,
        finding=making.calm(subject=Subject(device_uid=world.SECOND.uid), reason="it is hot"),
        opened_at_s=truth.at(35), changed_at_s=truth.at(35), firing_at_s=truth.at(35),
        title="GPU 1 (A100)",
    )  # fmt: skip
    truth.history.apply([shared], [])
    truth.live(alerts=(truth.leak, shared))
    file = tmp_path / f"mine.{form}"
    content = saved(file, "--user", "carol", "--all")
    # What is drawn has figures of its own; they name nobody.
    words = DRAWN.sub("", content)
    assert "carol" in words
    assert "others together" in words or form == "json"
    found = OTHERS.findall(re.sub(r"[0-9.]+(?=,|\]|\}|Z|\")", "", words))
    assert found == []
    named = re.findall(r"alice|bob|train\.py|tune\.py|serve\.py|slurm", content)
    assert named == []


def test_hostile_names_stay_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    evil = world.HOSTILE + "<script>alert(1)</script>" + "x" * 300
    truth = reported.Truth(name=evil, user="<img src=x onerror=alert(1)>")
    truth.live()
    try:
        page = saved(tmp_path / "evil.html", "--all")
        text = saved(tmp_path / "evil.txt", "--all")
    finally:
        truth.close()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page or "\\u003cscript" in page
    assert not any(ord(c) < 32 and c != "\n" for c in page + text)
    assert "\u202e" not in page + text


def crowd(alerts: int, processes: int) -> None:
    """Have had so many incidents and processes within two hours."""
    now_s = float(int(time.time()) // 60 * 60)
    people = [
        ProcessInfo(
            key=ProcessKey(pid=10_000 + n, started_at_s=now_s - 7200), name=f"job-{n}",
            user=f"user{n % 97}", argv=("python", f"train_{n}.py"), job=f"slurm {n}",
        )
        for n in range(processes)
    ]  # fmt: skip

    def incident(n: int) -> Alert:
        info = people[n % processes]
        subject = Subject(device_uid="GPU-1", process=info.key)
        finding = making.finding(
            subject=subject, judged_at_s=now_s - 3600, advice=("Look at what it keeps. " * 5,)
        )
        return making.alert(
            key=f"leak:{subject.id}#{n}", subject=subject, finding=finding, state="resolved",
            opened_at_s=now_s - 5000, changed_at_s=now_s - 100, firing_at_s=now_s - 4000,
            resolved_at_s=now_s - 100 + n / alerts, ended="its process ended",
            title=f"GPU 0 (A100): {info.numbered} of {info.user}",
            about=AlertSubject(user=info.user or ""),
        )  # fmt: skip

    with world.history() as history:
        for minute in range(0, 120, 20):
            uses = [(info, 40 * MIB) for info in people]
            one = making.sample(now_s - 7200 + minute * 60, uses, used_bytes=70 * GIB)
            history.record(one, (making.CARD,), {info.key: info for info in people})
        history.apply([incident(n) for n in range(alerts)], [])
        history.flush(now_s)


@pytest.mark.slow
def test_a_page_stays_small_whatever_happened(tmp_path: Path, ctl: Ctl) -> None:
    crowd(500, 1000)
    page = saved(tmp_path / "all.html", "--since", "3h", "--all")
    assert len(page.encode()) <= 2 * MIB
    assert page.count("<article") >= document.CARDS
    assert "Further incidents" in page
    assert "500 incidents" in page
    short = saved(tmp_path / "top.html", "--since", "3h")
    assert len(short.encode()) <= MIB
    data: dict[str, Any] = ctl.data("report --since 3h --all")
    assert len(data["findings"]) + len(data["further"]) == 500
    assert len(data["who"]) == 1000


def test_a_gpu_that_is_gone_is_still_in_the_past(truth: reported.Truth, ctl: Ctl) -> None:
    only = msgspec.structs.replace(
        world.state().devices[1], device=world.SECOND, finding=None, processes=()
    )
    truth.live(devices=(only,), holdings=())
    data = ctl.data("report --since", SINCE, "--gpu", "0")
    assert [one["device"]["index"] for one in data["gpus"]] == [0]
    assert "no GPU matches 7" in ctl.err("report --gpu 7")
    assert "was on no GPU in this period" in ctl.err("report --pid 31337")
