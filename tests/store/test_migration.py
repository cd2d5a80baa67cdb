"""A history of an earlier version becomes a present one, with all that it held."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import Subject
from gpuwatchd.store import schema
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.profiles import IdleLevel
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.tables import remove_label, write_label
from tests.making import alert
from tests.store.runs import run, word
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


def older(directory: Path, version: int) -> None:
    """Write a file as version ``version`` of the tables had it, with a little of everything."""
    with closing(sqlite3.connect(directory / schema.FILE_NAME, isolation_level=None)) as it:
        it.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        it.execute("PRAGMA journal_mode = wal")
        for step in schema.STEPS[:version]:
            for statement in step.split(";\n"):
                it.execute(statement)
        it.execute(f"PRAGMA user_version = {version}")
        it.execute(
            "INSERT INTO segment(started_ts_ms, boot_id, mono_ms, reason) VALUES(?,?,0,'start')",
            (int(T0 * 1000), BOOT),
        )
        it.execute(
            "INSERT INTO gpu(id, uuid, source, vendor, position, name, memory_kind, first_ts_ms,"
            " last_ts_ms) VALUES(1,'GPU-0','nvml','nvidia',0,'NVIDIA A100','dedicated',?,?)",
            (int(T0 * 1000), int(T0 * 1000) + 5000),
        )
        it.executemany(
            "INSERT INTO gpu_raw(ts_ms, gpu, used_bytes) VALUES(?,1,?)",
            [(int(T0 * 1000) + 5000 * k, 1000 + k) for k in range(2)],
        )
        opened_alert = alert(subject=Subject(device_uid="GPU-0"))
        it.execute(
            "INSERT INTO alert(key, kind, severity, state, opened_ts_ms, changed_ts_ms, title,"
            " finding) VALUES('leak:x','leak','warning','firing',9500000,9900000,'t',?)",
            (msgspec.json.encode(opened_alert).decode(),),
        )
        if version > 1:
            it.execute(
                "INSERT INTO feedback(alert_key, opened_ts_ms, gpu_uuid, unattributed, title, word,"
                " given_ts_ms) VALUES('leak:x', 9500000, 'GPU-0', 1, 't', 'normal', 9600000)"
            )


def test_what_nobody_owns_comes_back_after_a_restart_but_not_where_memory_is_shared(
    tmp_path: Path,
    history: History,
    time: Time,
) -> None:
    for step, rest in enumerate([300, -7, 0, 400]):
        history.record(sample(T0 + 5 * step), CARDS, {}, {"GPU-0": rest})
    history.record(sample(T0 + 20), CARDS, {}, {})
    history.close()
    time.pass_s(30)
    again = opened(tmp_path, time)
    found = dict(again.recent_series(0))
    again.close()
    assert found[Subject(device_uid="GPU-0", unattributed=True)] == [
        (T0, 300),
        (T0 + 10, 0),
        (T0 + 15, 400),
    ]


def test_host_memory_and_use_of_processes_are_kept(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    figures = [(5000, 40.4), (5000, 12.0), (7000, None), (7000, 1.0), (7000, 99.6)]
    for step, (held, pct) in enumerate(figures):
        taken = sample(T0 + 25 * step, uses=(100,))
        use = msgspec.structs.replace(taken.readings[0].uses[0], host_bytes=held, sm_pct=pct)  # type: ignore[index]
        reading = msgspec.structs.replace(taken.readings[0], uses=(use,))
        history.record(msgspec.structs.replace(taken, readings=(reading,)), CARDS, KNOWN)
    history.close()
    assert rows(tmp_path, "SELECT used_bytes, sm_percent, host_bytes FROM process_raw") == [
        (100, 40, 5000),
        (100, None, 7000),
        (100, 1, 7000),
    ]
    time.pass_s(200)
    again = opened(tmp_path, time)
    found = dict(again.recent_series(0))
    again.close()
    host = Subject(device_uid="GPU-0", process=INFOS[0].key, host=True)
    assert found[host] == [(T0, 5000), (T0 + 50, 7000)]
    history = opened(tmp_path, time)
    history.chores(T0 + 960)
    history.close()
    assert rows(tmp_path, "SELECT used_last_bytes, host_last_bytes FROM process_1m") == [
        (100, 7000),
        (100, 7000),
    ]


def test_what_is_normal_for_a_device_survives_a_restart(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.shelf.learn("GPU-0", IdleLevel(500, "boot-0"), T0)
    assert history.shelf.idle_levels() == {"GPU-0": IdleLevel(500, "boot-0")}
    history.shelf.learn("GPU-0", IdleLevel(400, BOOT), T0)
    history.close()
    history = opened(tmp_path)
    assert history.shelf.idle_levels() == {"GPU-0": IdleLevel(400, BOOT)}
    assert not history.shelf.waiting
    history.close()


def test_a_word_on_host_memory_is_one_on_host_memory(tmp_path: Path) -> None:
    opened(tmp_path).close()
    subject = Subject(device_uid="GPU-0", process=INFOS[0].key, host=True)
    transaction(tmp_path, write_label, word(run(), subject=subject, alert_key="leak:h"))
    with Reader.open(tmp_path) as reader:
        assert [w.subject for w in reader.user_labels()] == [subject]
    assert transaction(tmp_path, remove_label, "leak:h", T0) == 1
    assert subject.id.endswith("/host")
