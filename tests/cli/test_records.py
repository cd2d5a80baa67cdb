"""``history``, ``alerts`` and ``predict`` from a history that a daemon left behind."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import (
    Delivery,
    DeviceReading,
    Message,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    Subject,
)
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, AlertState, Device, MemoryKind
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


def _message() -> Message:
    return Message(id="m@x", notice="firing", severity="warning", subject="s", body="b")


def _record(*, ago_s: float = 5.0, alerts: bool = True) -> float:
    """Write 40 minutes of a leak that ended ``ago_s`` ago; return when it ended."""
    end_s = time.time() - ago_s
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(
        config.state_dir(), settings, clock=lambda: end_s, monotonic=lambda: 1e6, boot_id="b"
    )
    infos = {LEAKER.key: LEAKER, CALM.key: CALM}
    for step in range(POINTS):
        at_s = end_s - (POINTS - 1 - step) * STEP_S
        leaked = round(1000 * MIB + step * STEP_S * RATE) // 4096 * 4096
        uses = (
            ProcessUse(key=LEAKER.key, used_bytes=leaked),
            ProcessUse(key=CALM.key, used_bytes=500 * MIB),
        )
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=leaked + 600 * MIB, free_bytes=None,
            total_bytes=80 * making.GIB, util_pct=90.0, uses=uses,
        )  # fmt: skip
        sample = Sample(
            taken_at_s=at_s, taken_mono_s=at_s - end_s + 1e6, boot_id="b", readings=(reading,)
        )
        history.record(sample, (making.CARD,), infos)
    if alerts:
        alert = world.firing(opened_at_s=end_s - 900, changed_at_s=end_s - 600, notices=1)
        failed = Delivery(
            alert_key=alert.key, channel="email", message=_message(), state="failed", attempts=4,
            created_at_s=end_s - 500, error="550 no such\x1b[2J user",
        )  # fmt: skip
        sent = Delivery(
            alert_key=alert.key, channel="desktop", message=_message(), state="sent", attempts=1,
            created_at_s=end_s - 500, sent_at_s=end_s - 499,
        )  # fmt: skip
        history.apply([alert], [failed, sent])
        over = world.firing(
            key="leak:GPU-1/5@1.0", state="resolved", opened_at_s=end_s - 90000,
            resolved_at_s=end_s - 80000, ended="the process ended", notices=0,
        )  # fmt: skip
        history.apply([over], [])
    history.flush(end_s)
    history.close()
    return end_s


def _json(ctl: Ctl, *arguments: str) -> Any:
    return ctl.json(*arguments)


@pytest.mark.parametrize("ago_s", [5.0, 3 * 86400.0])
def test_predict_judges_the_history_again(ago_s: float, ctl: Ctl) -> None:
    _record(ago_s=ago_s)
    answer = _json(ctl, "predict")
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
    assert "=python[4711] of alice" in shown
    assert "jax" in shown


INSTANCE = msgspec.structs.replace(
    making.CARD, uid="MIG-7", index=7, parent_uid=making.CARD.uid, memory_total_bytes=None
)


def _grown_device(
    *devices: Device, calm_bytes: int | None = 500 * MIB, parted: int = POINTS
) -> None:
    """Leave a history in which the first device grows, and nobody on it does.

    The others are its MIG instances, for the first ``parted`` samples.
    """
    end_s = time.time() - 5.0
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(
        config.state_dir(), settings, clock=lambda: end_s, monotonic=lambda: 1e6, boot_id="b"
    )
    for step in range(POINTS):
        at_s = end_s - (POINTS - 1 - step) * STEP_S
        used = round(4000 * MIB + step * STEP_S * RATE)
        reading = DeviceReading(
            device_uid=devices[0].uid, used_bytes=used, free_bytes=None,
            total_bytes=80 * making.GIB,
            uses=(
                ProcessUse(key=LEAKER.key, used_bytes=1000 * MIB),
                ProcessUse(key=CALM.key, used_bytes=calm_bytes),
            ),
        )  # fmt: skip
        instances = [
            DeviceReading(
                device_uid=device.uid, used_bytes=MIB, free_bytes=None, total_bytes=None, uses=()
            )
            for device in devices[1:]
            if step < parted
        ]
        sample = Sample(
            taken_at_s=at_s,
            taken_mono_s=at_s - end_s + 1e6,
            boot_id="b",
            readings=(reading, *instances),
        )
        history.record(sample, devices, {LEAKER.key: LEAKER, CALM.key: CALM})
    history.flush(end_s)
    history.close()


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
    card = _json(ctl, "predict")["data"][0]
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
    (item,) = _json(ctl, "predict")["data"]
    assert (item["unattributed_bytes"] is not None) is known


def test_predict_obeys_the_settings_in_force(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    _record()
    monkeypatch.setenv("GPUWATCHD_DETECTION_MIN_SLOPE_MB_PER_SEC", "5")
    (item,) = _json(ctl, "predict")["data"]
    assert item["verdict"]["leak"] is False


def test_status_takes_a_young_history_but_not_an_old_one(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    _record(ago_s=5)
    answer = _json(ctl, "status")
    assert answer["source"] == "database"
    assert answer["daemon"]["running"] is False
    assert "the daemon is not running" in ctl("status")
    (config.state_dir() / "history.db").unlink()
    _record(ago_s=7200)
    assert main(["status"]) == 1


def test_history_in_all_its_forms(ctl: Ctl) -> None:
    _record()
    (item,) = _json(ctl, "history", "--since", "1h")["data"]
    assert len(item["rows"]) == POINTS
    first, last = item["rows"][0], item["rows"][-1]
    assert last["used_last_bytes"] - first["used_last_bytes"] > 1300 * MIB
    rows = list(csv.DictReader(io.StringIO(ctl("history --since 1h --format csv"))))
    assert [int(row["used_last_bytes"]) for row in rows] == [
        row["used_last_bytes"] for row in item["rows"]
    ]
    lines = ctl("history --since 1h --format ndjson").splitlines()
    assert [json.loads(line) for line in lines] == item["rows"]
    shown = ctl("history --since 1h --bucket 10m")
    assert shown.count("MiB") + shown.count("GiB") >= 4 * 4
    assert "GPU 0" in shown


def test_history_of_a_process_defuses_formulas(ctl: Ctl) -> None:
    _record()
    rows = list(csv.DictReader(io.StringIO(ctl("history --since 1h --pid 4711 --format csv"))))
    assert {row["pid"] for row in rows} == {"4711"}
    assert {row["name"] for row in rows} == {"'=python"}
    assert "=python[4711] of alice" in ctl("history --since 1h --pid 4711")


def test_history_joins_process_rows_into_buckets(ctl: Ctl) -> None:
    _record()
    (item,) = _json(ctl, "history", "--since", "1h", "--pid", "4711", "--bucket", "10m")["data"]
    assert 4 <= len(item["rows"]) <= 6
    assert all(row["width_s"] == 600 for row in item["rows"])
    highest = [row["used_max_bytes"] for row in item["rows"]]
    assert highest == sorted(highest)


def test_history_prints_a_query_that_runs(ctl: Ctl) -> None:
    _record()
    arguments = ["history", "--since", "1h", "--bucket", "5m"]
    (item,) = _json(ctl, *arguments)["data"]
    query = ctl(*arguments, "--sql")
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        found = connection.execute(query.rstrip().rstrip(";")).fetchall()
    assert len(found) == len(item["rows"]) > 5


def test_a_period_without_data_is_1(ctl: Ctl) -> None:
    _record()
    assert "nothing is recorded between" in ctl.err("history --since 3d --until 2d")


def test_alerts_come_from_the_history(ctl: Ctl) -> None:
    _record()
    answer = _json(ctl, "alerts")
    assert answer["source"] == "database"
    assert "daemon-absent" in [warning["code"] for warning in answer["warnings"]]
    assert [alert["state"] for alert in answer["data"]] == ["firing"]
    every = _json(ctl, "alerts", "--all")["data"]
    assert [alert["state"] for alert in every] == ["firing", "resolved"]
    recent = _json(ctl, "alerts", "--all", "--since", "2h")["data"]
    assert [alert["state"] for alert in recent] == ["firing"]
    assert "over: the process ended" in ctl("alerts --all --exit-code", code=3).replace("\n ", "")


def test_past_alerts_are_no_findings(ctl: Ctl) -> None:
    _record(alerts=False)
    over = world.firing(state="resolved", resolved_at_s=time.time() - 60, ended="it is over")
    world.write(alerts=(over,))
    assert "resolved" in ctl("alerts --all --exit-code")


def test_alerts_of_one_gpu_are_known_without_a_daemon(ctl: Ctl) -> None:
    _record()
    assert len(_json(ctl, "alerts", "--gpu", "0")["data"]) == 1
    assert _json(ctl, "alerts", "--gpu", "1")["data"] == []


def test_one_alert_says_where_it_went(ctl: Ctl) -> None:
    _record()
    alert = _json(ctl, "alerts", "show", "4711")["data"]
    assert [(d["channel"], d["state"], d["attempts"]) for d in alert["deliveries"]] == [
        ("email", "failed", 4),
        ("desktop", "sent", 1),
    ]
    shown = ctl("alerts show 4711")
    assert "desktop: delivered" in shown
    assert "email: given up after 4 tries: 550 no such user" in " ".join(shown.split())
    assert "550 no such user" in shown
    assert "\x1b" not in shown


def test_an_ambiguous_key_names_one(ctl: Ctl) -> None:
    _record()
    assert "fits 2 alerts" in ctl.err("alerts show leak")


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
    assert _json(ctl, "alerts", "show", target)["data"]["on_host"] is meant


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 200])
@pytest.mark.parametrize("verb", ["history", "alerts", "predict", "status", "plot", "doctor"])
def test_a_damaged_history_is_one_line(
    verb: str, content: bytes, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    config.state_dir().mkdir(parents=True)
    (config.state_dir() / "history.db").write_bytes(content)
    shown = ctl.both(verb, code=1)
    assert "Traceback" not in shown.err
    assert "internal" not in shown.err
    assert len(shown.err.splitlines()) <= 3
    if verb in {"history", "plot", "doctor"}:
        assert "damaged" in shown.err + shown.out


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
