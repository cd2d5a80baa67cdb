"""``history``, ``alerts`` and ``predict`` from a history that a daemon left behind."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.cli import main
from gpuwatchd.core import config, units
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import DeviceReading, ProcessInfo, ProcessKey, ProcessUse, Subject
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.view.blocks import width_of
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import Alert, AlertState, Device, MemoryKind
    from gpuwatchd.store.writer import History
    from tests.cli.calls import Ctl


MIB = making.MIB
STEP_S = 15.0
POINTS = 160
RATE = 0.6 * MIB
"""Bytes per second."""
LEAKER = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=1000.0), name="=python", user="alice", framework="jax"
)
CALM = ProcessInfo(key=ProcessKey(pid=99, started_at_s=5.0), name="idle", user="bob")


def _record(*, ago_s: float = 5.0, alerts: bool = True) -> None:
    """Write 40 minutes of a leak that ended ``ago_s`` ago."""

    def look(step: int) -> list[DeviceReading]:
        leaked = round(1000 * MIB + step * STEP_S * RATE) // 4096 * 4096
        uses = (
            ProcessUse(key=LEAKER.key, used_bytes=leaked),
            ProcessUse(key=CALM.key, used_bytes=500 * MIB),
        )
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=leaked + 600 * MIB, free_bytes=None,
            total_bytes=80 * making.GIB, util_pct=90.0, uses=uses,
        )  # fmt: skip
        return [reading]

    end_s = world.watched(POINTS, STEP_S, look, (LEAKER, CALM), end_s=time.time() - ago_s)
    if alerts:
        alert = world.firing(opened_at_s=end_s - 900, changed_at_s=end_s - 600, notices=1)
        over = world.over(opened_at_s=end_s - 90000, resolved_at_s=end_s - 80000, notices=0)
        world.remember(alert, over)


@pytest.mark.parametrize("ago_s", [5.0, 3 * 86400.0])
@pytest.mark.requirement("B15")
def test_predict_judges_the_history_again(ago_s: float, ctl: Ctl) -> None:
    _record(ago_s=ago_s)
    answer = ctl.json("predict")
    assert answer["source"] == "database"
    assert answer["stale_s"] == pytest.approx(ago_s, abs=30)
    assert "from-history" in [w["code"] for w in answer["warnings"]]
    (item,) = answer["data"]
    verdicts = {process["pid"]: process["verdict"] for process in item["processes"]}
    assert verdicts[4711]["pattern"] == "gradual"
    assert verdicts[4711]["leak"] is True
    assert verdicts[4711]["rate_bytes_per_s"] == pytest.approx(RATE, rel=0.1)
    assert verdicts[99]["leak"] is False
    assert item["verdict"] == verdicts[4711]
    shown = ctl("predict --exit-code", code=3)
    assert "jax" in shown


@pytest.mark.parametrize(
    ("curve", "words", "facts"),
    [
        (lambda step: 6000 + 60 * step, (), []),
        (lambda step: 6000 + 60 * step, ("--cache-gb", "10"), [("declared-size", "command line")]),
        (lambda step: 6000 + 500 * (step // 20), (), [("period", "utilisation")]),
    ],
)
def test_the_history_is_judged_with_command_line_and_epochs(
    curve: Callable[[int], int], words: tuple[str, ...], facts: list[tuple[str, str]], ctl: Ctl
) -> None:
    key = ProcessKey(pid=4711, started_at_s=time.time() - (POINTS + 20) * STEP_S)
    job = ProcessInfo(key=key, name="python", argv=("python", "t.py", *words))

    def look(step: int) -> list[DeviceReading]:
        held, util_pct = curve(step) * MIB, 95.0 if step % 20 > 1 else 5.0
        reading = world.reading(making.CARD.uid, held / making.GIB)
        uses = (ProcessUse(key=key, used_bytes=held),)
        return [msgspec.structs.replace(reading, util_pct=util_pct, uses=uses)]

    world.watched(POINTS, STEP_S, look, (job,), end_s=time.time() - 5.0)
    answer = ctl.json("explain 4711")["data"]
    assert [(fact["name"], fact["source"]) for fact in answer["facts"]] == facts
    assert (answer["verdict"]["confidence"] < 0.6) is bool(facts)


INSTANCE = msgspec.structs.replace(
    making.CARD, uid="MIG-7", index=7, parent_uid=making.CARD.uid, memory_total_bytes=None
)


def _grown_device(
    *devices: Device, calm_bytes: int | None = 500 * MIB, parted: int = POINTS
) -> None:
    """Leave a history in which the first device grows, and nobody on it does.

    The others are its MIG instances, for the first ``parted`` samples.
    """

    def look(step: int) -> list[DeviceReading]:
        uses = (
            ProcessUse(key=LEAKER.key, used_bytes=1000 * MIB),
            ProcessUse(key=CALM.key, used_bytes=calm_bytes),
        )
        reading = DeviceReading(
            device_uid=devices[0].uid, used_bytes=round(4000 * MIB + step * STEP_S * RATE),
            free_bytes=None, total_bytes=80 * making.GIB, uses=uses,
        )  # fmt: skip
        instances = [
            DeviceReading(
                device_uid=device.uid, used_bytes=MIB, free_bytes=None, total_bytes=None, uses=()
            )
            for device in devices[1:]
            if step < parted
        ]
        return [reading, *instances]

    people = (LEAKER, CALM)
    world.watched(POINTS, STEP_S, look, people, end_s=time.time() - 5.0, devices=devices)


@pytest.mark.parametrize(
    ("devices", "parted", "leaks"),
    [
        ((making.CARD,), 0, True),
        ((msgspec.structs.replace(making.CARD, memory_kind="coherent"),), 0, False),
        ((making.CARD, INSTANCE), POINTS, False),
        ((making.CARD, INSTANCE), 100, True),
    ],
)
def test_the_history_judges_as_a_whole_what_the_daemon_would(
    devices: tuple[Device, ...], parted: int, leaks: bool, ctl: Ctl
) -> None:
    _grown_device(*devices, parted=parted)
    card = ctl.data("predict")[0]
    assert card["device"]["uid"] == making.CARD.uid
    assert card["verdict"]["leak"] is leaks


@pytest.mark.parametrize(
    ("kind", "calm_bytes", "known"),
    [
        ("dedicated", 500 * MIB, True),
        ("dedicated", None, False),
        ("unified", 500 * MIB, False),
        ("coherent", 500 * MIB, False),
    ],
)
def test_the_history_calls_unowned_what_it_knows_to_be(
    kind: MemoryKind, calm_bytes: int | None, known: bool, ctl: Ctl
) -> None:
    _grown_device(msgspec.structs.replace(making.CARD, memory_kind=kind), calm_bytes=calm_bytes)
    (item,) = ctl.data("predict")
    assert (item["unattributed_bytes"] is not None) is known


def test_status_takes_a_young_history_but_not_an_old_one(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    _record(ago_s=5)
    answer = ctl.json("status")
    assert answer["source"] == "database"
    assert answer["daemon"]["running"] is False
    assert "the daemon is not running" in ctl("status")
    (config.state_dir() / "history.db").unlink()
    _record(ago_s=7200)
    assert main(["status"]) == 1


def test_history_of_a_process_defuses_formulas(ctl: Ctl) -> None:
    _record()
    rows = list(csv.DictReader(io.StringIO(ctl("history --since 1h --pid 4711 --format csv"))))
    assert {row["pid"] for row in rows} == {"4711"}
    assert {row["name"] for row in rows} == {"'=python"}
    assert "=python[4711] of alice" in ctl("history --since 1h --pid 4711")


def test_what_its_allocator_says_stands_beside_what_a_process_holds(ctl: Ctl) -> None:
    _record()
    begin_s = time.time() - 1800.0
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as it:
        ((row, card),) = it.execute(
            "SELECT DISTINCT r.process, r.gpu FROM process_raw r JOIN process p ON p.id = r.process"
            " WHERE pid = 4711"
        )
        values = [(round((begin_s + i) * 1000), row, card, 7 * MIB, 9 * MIB) for i in (0, 60)]
        it.executemany("INSERT INTO process_counters VALUES(?,?,?,?,?,NULL,NULL)", values)
        it.commit()
    (item,) = ctl.data("history --since 1h --pid 4711")
    known = [each for each in item["rows"] if each["allocated_bytes"] is not None]
    assert 60 / STEP_S <= len(known) <= 1 + 135 / STEP_S < len(item["rows"])
    assert {each["reserved_bytes"] for each in known} == {9 * MIB}
    page = ctl("history --since 1h --pid 4711")
    assert units.size(9 * MIB) in page
    assert "allocated" not in ctl("history --since 1h --pid 99")
    (item,) = ctl.data("history --since 1h --pid 4711 --bucket 10m")
    assert {each["allocated_bytes"] for each in item["rows"]} == {None, 7 * MIB}


def test_a_death_stands_at_the_last_row_of_its_process(ctl: Ctl) -> None:
    _record(ago_s=900.0, alerts=False)
    end_s = time.time() - 900.0
    subject = Subject(device_uid=making.CARD.uid, process=LEAKER.key)
    died = world.firing(
        subject=subject, state="resolved", ended_code=Ending.ENDED_NEAR_LIMIT,
        opened_at_s=end_s - 900.0, firing_at_s=end_s - 900.0, resolved_at_s=end_s + 600.0,
    )  # fmt: skip
    world.remember(died)
    *_, last = ctl("history --since 3h --pid 4711").splitlines()
    assert "died" in last


def test_history_prints_a_query_that_runs(ctl: Ctl) -> None:
    _record()
    arguments = ["history", "--since", "1h", "--bucket", "5m"]
    (item,) = ctl.data(*arguments)
    query = ctl(*arguments, "--sql")
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        found = connection.execute(query.rstrip().rstrip(";")).fetchall()
    assert len(found) == len(item["rows"]) > 5


def test_a_period_without_data_is_1(ctl: Ctl) -> None:
    _record()
    assert "nothing is recorded between" in ctl.err("history --since 3d --until 2d")
    assert "no process of pid 4194303 is or was" in ctl.err("history --pid 4194303")
    assert "no process of user nobody is or was" in ctl.err("history --user nobody")


@pytest.mark.requirement("M20")
def test_alerts_come_from_the_history(ctl: Ctl) -> None:
    _record()
    answer = ctl.json("alerts")
    assert answer["source"] == "database"
    assert "daemon-absent" in [warning["code"] for warning in answer["warnings"]]
    assert [alert["state"] for alert in answer["data"]] == ["firing"]
    every = ctl.data("alerts --all")
    assert [alert["state"] for alert in every] == ["firing", "resolved"]
    recent = ctl.data("alerts --all --since 2h")
    assert [alert["state"] for alert in recent] == ["firing"]
    ctl("alerts --all --exit-code", code=3)
    critical = [alert for alert in every if alert["severity"] == "critical"]
    assert ctl.data("alerts --all --severity critical") == critical
    assert ctl.data("alerts --all --severity info") == every


def test_an_ambiguous_key_names_one(ctl: Ctl) -> None:
    _record()
    assert "fits 2 alerts" in ctl.err("alerts show leak", code=2)


def _on_host(state: AlertState) -> Alert:
    subject = Subject(device_uid="GPU-1", process=making.KEY, host=True)
    found = msgspec.structs.replace(making.finding(), subject=subject)
    return world.firing(
        key="leak:GPU-1/4711@1000.0/host",
        subject=subject,
        finding=found,
        state=state,
        title="host memory of python[4711]",
    )


@pytest.mark.parametrize(
    ("on_gpu", "on_host", "target", "meant"),
    [
        ("firing", "firing", "4711", False),
        ("firing", "watch", "4711", False),
        ("watch", "firing", "4711", True),
        ("firing", "firing", "4711/host", True),
        ("firing", "watch", "4711/host", True),
    ],
)
def test_a_pid_means_one_of_its_two_alerts(
    on_gpu: AlertState, on_host: AlertState, target: str, meant: bool, ctl: Ctl
) -> None:
    world.write(alerts=(world.firing(state=on_gpu), _on_host(on_host)))
    assert ctl.data("alerts show", target)["on_host"] is meant


@pytest.mark.parametrize(
    "line", ["plot", "report", "history", "feedback 4711 normal", "feedback undo 4711"]
)
def test_a_history_of_a_later_version_is_refused_also_beside_a_live_state(
    line: str, ctl: Ctl
) -> None:
    _record()
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
    world.write()
    said = ctl.both(line, code=1)
    assert said.out == ""
    assert "later version" in said.err
    assert "hint: upgrade gpuwatchd" in said.err


GIB = making.GIB
FINE_S, LOOKS = 5.0, 240
OWNER = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=1000.0), name="python", argv=("python", "train.py"),
    user="alice", framework="PyTorch", framework_sure=True, job="slurm 42.0", rank=3,
    container="docker " + "ab" * 32, unit="ollama.service",
)  # fmt: skip


def _record_events(events: dict[float, tuple[str, str, str | None]]) -> float:
    """Write 20 minutes of one process and what happened so many seconds before their end."""
    end_s = time.time() // 60 * 60 - 30.0

    def look(step: int) -> list[DeviceReading]:
        use = ProcessUse(key=OWNER.key, used_bytes=4 * GIB + step * 4096, host_bytes=2 * GIB)
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=5 * GIB + step * 4096, free_bytes=None,
            total_bytes=80 * GIB, util_pct=90.0, uses=(use,),
        )  # fmt: skip
        return [reading]

    def beside(history: History, at_s: float) -> None:
        for before_s, event in events.items():
            if at_s <= end_s - before_s < at_s + FINE_S:
                history.event(*event)

    return world.watched(LOOKS, FINE_S, look, (OWNER,), end_s=end_s, beside=beside)


def _shown(ctl: Ctl, *arguments: str) -> str:
    return ctl("history --since 1h", *arguments)


HAPPENED = {
    600.0: ("xid", "XID 79: the GPU has fallen off the bus", making.CARD.uid),
    590.0: ("gpu-lost", "does not answer", making.CARD.uid),
    300.0: ("driver-changed", "the driver was replaced", None),
    100.0: ("xid", "of another GPU", "GPU-9"),
}


def test_events_are_listed_in_time_order(ctl: Ctl) -> None:
    _record_events(HAPPENED)
    (one,) = ctl.data("history --since 1h", "--events")
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


def test_how_far_alerts_got_is_listed_and_stands_in_the_table(ctl: Ctl) -> None:
    end_s = _record_events({})
    steps = {"opened_at_s": end_s - 1000, "watch_at_s": end_s - 900, "firing_at_s": end_s - 600}
    death = {"critical_at_s": end_s - 300, "resolved_at_s": end_s - 60, "state": "resolved"}
    end = wording.ending(Ending.ENDED_NEAR_LIMIT)
    world.remember(world.over(), world.firing(**steps, **death, **end))
    (one,) = ctl.data("history --since 1h", "--events")
    got = ["watch", "alert", "critical", "died"]
    assert [event["kind"] for event in one["events"]] == ["start", *got]
    (drawn,) = ctl.data("plot --since 1h")
    of_alerts = [mark["text"] for mark in drawn["marks"] if mark["kind"] in got]
    assert [event["text"] for event in one["events"]][1:] == of_alerts
    shown = _shown(ctl)
    assert [kind for kind in got if kind not in shown] == []
    assert len(ctl.data("history --since 1h --events --pid 4711")[0]["events"]) == 5
    assert len(ctl.data("history --since 1h --events --pid 5")[0]["events"]) == 1


@pytest.mark.parametrize("form", ["csv", "ndjson"])
@pytest.mark.parametrize("of_process", [False, True])
def test_what_it_writes_is_a_log_that_analyze_reads(
    form: str, of_process: bool, tmp_path: Path, ctl: Ctl
) -> None:
    _record_events({})
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
    end_s = _record_events({})
    other = ProcessKey(pid=5, started_at_s=7.0)
    steps: list[tuple[float, tables.Phase, str]] = [
        (end_s - 90.0, "asked", "by gpuwatchctl"),
        (end_s - 89.0, "done", "asked pid 4711"),
        (end_s - 60.0, "done", "has saved: /data/run.pt"),
    ]
    for at_s, phase, result in steps:
        row = tables.Action(
            at_s=at_s, verb="checkpoint", process=OWNER.key, phase=phase, result=result, who="bob"
        )
        transaction(config.state_dir(), tables.write_action, row)
    for process, who, file in ((OWNER.key, "file", "/data/run\x1b[2J.pt"), (other, "bob", "")):
        saved = tables.Checkpoint(
            process=process, saved_at_s=end_s - 60.0, said_by=who, detail=file
        )
        transaction(config.state_dir(), tables.write_checkpoint, saved)
    (one,) = ctl.data("history --since 1h", "--events")
    found = [event for event in one["events"] if "pid" in event]
    assert [(event["kind"], event["pid"], event["by"]) for event in found] == [
        ("ask-to-save", 4711, "bob"),
        ("asked-to-save", 4711, "bob"),
        ("saved", 4711, None),
        ("saved", 5, "bob"),
    ]
    assert "saved: pid 5" not in _shown(ctl, "--events", "--pid", "4711")
    assert _shown(ctl, "--events", "--format", "csv").count("saved,") == 2
    # Beside the memory are what happened to the device and to time alone.
    assert "to-save" not in _shown(ctl, "--wide")


def test_what_happened_to_every_gpu_is_told_once(ctl: Ctl) -> None:
    cards = (making.CARD, world.SECOND)

    def look(_: int) -> list[DeviceReading]:
        return [world.reading(card.uid, 5) for card in cards]

    world.watched(20, FINE_S, look, (), end_s=time.time() - 60.0, devices=cards)
    with world.history() as history:
        history.event("driver-changed", "it was replaced", None)
    shown = _shown(ctl, "--events")
    assert shown.count("it was replaced") == 1
    assert shown.index("every GPU") < shown.index("it was replaced")
