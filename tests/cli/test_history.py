"""``history``: what happened beside the memory, host memory, who a process was, seconds."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli.output import width_of
from gpuwatchd.core import config
from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import DeviceReading, ProcessInfo, ProcessKey, ProcessUse, Sample
from gpuwatchd.store import actions, checkpoints
from gpuwatchd.store.writer import History
from tests import making

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

GIB = making.GIB
STEP_S, POINTS = 5.0, 240
OWNER = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=1000.0), name="python", argv=("python", "train.py"),
    user="alice", framework="PyTorch", framework_sure=True, job="slurm 42.0", rank=3,
    container="docker " + "ab" * 32, unit="ollama.service",
)  # fmt: skip


class Clock:
    """What the history takes for now."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __call__(self) -> float:
        return self.at_s


def _record(events: dict[float, tuple[str, str, str | None]], *, host: bool = True) -> float:
    """Write 20 minutes of one process and what happened so many seconds before their end."""
    end_s = time.time() // 60 * 60 - 30.0
    clock = Clock(end_s - POINTS * STEP_S)
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(
        config.state_dir(), settings, clock=clock, monotonic=lambda: 1e6, boot_id="b"
    )
    for k in range(POINTS):
        clock.at_s = at_s = end_s - (POINTS - 1 - k) * STEP_S
        use = ProcessUse(
            key=OWNER.key, used_bytes=4 * GIB + k * 4096, host_bytes=2 * GIB if host else None
        )
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=5 * GIB + k * 4096, free_bytes=None,
            total_bytes=80 * GIB, util_pct=90.0, uses=(use,),
        )  # fmt: skip
        sample = Sample(
            taken_at_s=at_s, taken_mono_s=at_s - end_s + 1e6, boot_id="b", readings=(reading,)
        )
        history.record(sample, (making.CARD,), {OWNER.key: OWNER})
        for before_s, (kind, said, uid) in events.items():
            if at_s <= end_s - before_s < at_s + STEP_S:
                history.event(kind, said, uid)
    history.flush(end_s)
    history.close()
    return end_s


def _shown(ctl: Ctl, *arguments: str) -> str:
    return ctl("history --since 1h", *arguments)


def _data(ctl: Ctl, *arguments: str) -> list[dict[str, Any]]:
    answer: dict[str, Any] = json.loads(_shown(ctl, *arguments, "--json"))
    found: list[dict[str, Any]] = answer["data"]
    return found


HAPPENED = {
    600.0: ("xid", "XID 79: the GPU has fallen off the bus", making.CARD.uid),
    590.0: ("gpu-lost", "does not answer", making.CARD.uid),
    300.0: ("driver-changed", "the driver was replaced", None),
    100.0: ("xid", "of another GPU", "GPU-9"),
}


def test_events_are_listed_in_time_order(ctl: Ctl) -> None:
    _record(HAPPENED)
    (one,) = _data(ctl, "--events")
    kinds = [event["kind"] for event in one["events"]]
    assert kinds == ["start", "xid", "gpu-lost", "driver-changed"]
    assert one["rows"] == []
    shown = _shown(ctl, "--events")
    assert re.search(r"\d\d:\d\d:\d\d  XID 79: the GPU has fallen off the bus", shown)
    assert "of another GPU" not in shown
    assert max(map(width_of, shown.splitlines())) <= 80
    rows = list(csv.DictReader(io.StringIO(_shown(ctl, "--events", "--format", "csv"))))
    assert [row["kind"] for row in rows] == kinds
    lines = _shown(ctl, "--events", "--format", "ndjson").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [e["text"] for e in one["events"]]


def test_seconds_are_shown_where_minutes_do_not_tell_rows_apart(ctl: Ctl) -> None:
    _record({})
    fine = re.findall(r"\d\d:\d\d:\d\d", _shown(ctl, "--since", "5m", "--bucket", "15s"))
    assert len(fine) == len(set(fine)) >= 10
    assert not re.findall(r"\d\d:\d\d:\d\d", _shown(ctl, "--bucket", "1m"))


def test_a_young_process_has_more_than_one_row(ctl: Ctl) -> None:
    """The rows fit what is recorded, not how far back was asked for."""
    _record({})
    shown = _shown(ctl, "--pid", "4711", "--since", "6h").splitlines()
    assert 18 <= sum("4.0 GiB" in row for row in shown) <= 22
    assert sum("python train.py[4711]" in row for row in shown) == 1
    assert max(map(width_of, shown)) <= 80


@pytest.mark.parametrize("form", ["csv", "ndjson"])
@pytest.mark.parametrize("of_process", [False, True])
def test_what_it_writes_is_a_log_that_analyze_reads(
    form: str, of_process: bool, tmp_path: Path, ctl: Ctl
) -> None:
    _record({})
    more = ("--pid", "4711") if of_process else ()
    written = _shown(ctl, "--format", form, *more)
    rows = len(written.splitlines()) - (form == "csv")
    file = tmp_path / f"log.{form}"
    file.write_text(written, encoding="utf-8")
    (log,) = ctl.data("analyze", str(file))
    assert log["format"] == f"gpuwatchd-{form}"
    assert (log["rows"], log["bad_rows"], log["error"]) == (rows, 0, None)
    assert rows > 20
    subject = log["subjects"][-1]
    assert subject["device"]["uid"] == making.CARD.uid
    if of_process:
        who = subject["process"]
        assert (who["pid"], who["name"]) == (4711, "python")


def test_what_was_asked_of_jobs_and_when_they_saved_is_listed(ctl: Ctl) -> None:
    end_s = _record({})
    other = ProcessKey(pid=5, started_at_s=7.0)
    steps: list[tuple[float, actions.Phase, str]] = [
        (end_s - 90.0, "asked", "by gpuwatchctl"),
        (end_s - 89.0, "done", "asked pid 4711"),
        (end_s - 60.0, "done", f"{actions.SAVED}: /data/run.pt"),
    ]
    for at_s, phase, result in steps:
        row = actions.Action(
            at_s=at_s, verb="checkpoint", process=OWNER.key, phase=phase, result=result, who="bob"
        )
        actions.add(config.state_dir(), row)
    for process, who, file in ((OWNER.key, "file", "/data/run\x1b[2J.pt"), (other, "bob", "")):
        saved = checkpoints.Checkpoint(
            process=process, saved_at_s=end_s - 60.0, said_by=who, detail=file
        )
        checkpoints.write(config.state_dir(), saved)
    (one,) = _data(ctl, "--events")
    found = [event for event in one["events"] if "pid" in event]
    assert [(event["kind"], event["pid"], event["by"]) for event in found] == [
        ("ask-to-save", 4711, "bob"),
        ("asked-to-save", 4711, "bob"),
        ("saved", 4711, None),
        ("saved", 5, "bob"),
    ]
    shown = " ".join(_shown(ctl, "--events").split())
    assert "asked-to-save: python[4711] by bob: asked pid 4711" in shown
    assert "saved: python[4711]: /data/run.pt" in shown
    assert "saved: pid 5 by bob" in shown
    assert "saved: pid 5" not in _shown(ctl, "--events", "--pid", "4711")
    assert _shown(ctl, "--events", "--format", "csv").count("saved,") == 2
    # Beside the memory are what happened to the device and to time alone.
    assert "to-save" not in _shown(ctl, "--wide")
