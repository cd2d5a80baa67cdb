"""What the daemon writes is what comes back, also after a restart and on a bad disk."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.store.reader import Reader
from tests import making
from tests.making import alert, finding
from tests.store.world import (
    BOOT,
    CARDS,
    INFOS,
    KNOWN,
    T0,
    Time,
    delivery,
    opened,
    rows,
    sample,
    settings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


def test_samples_wait_for_a_tenth_of_the_age_and_never_longer_than_the_flush_time(
    tmp_path: Path,
) -> None:
    time = Time()
    history = opened(tmp_path, time, flush=60)
    flushed_s = []
    waiting = 0
    for tick in range(360):
        history.record(sample(time.now_s), CARDS, {})
        history.flush_due(time.now_s)
        waiting = tick + 1 - rows(tmp_path, "SELECT count(*) FROM gpu_raw")[0][0]
        age_s = 5.0 * tick
        assert waiting <= max(1.0, min(0.1 * age_s, 60.0) / 5.0)
        if not waiting:
            flushed_s.append(age_s)
        time.pass_s(5)
    assert flushed_s[:5] == [5.0, 10.0, 15.0, 20.0, 25.0]
    # A daemon that lives on writes as seldom as it is told to.
    late = [at_s for at_s in flushed_s if at_s > 700.0]
    assert {b - a for a, b in itertools.pairwise(late)} == {60.0}
    history.close()


def test_a_short_flush_time_is_kept_from_the_start(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time, flush=1)
    for _ in range(4):
        history.record(sample(time.now_s), CARDS, {})
        history.flush_due(time.now_s)
        time.pass_s(1)
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(4,)]
    history.close()


def test_every_value_of_a_reading_has_its_column_and_unit(tmp_path: Path, history: History) -> None:
    reading: dict[str, Any] = {
        "util_pct": 49.6,
        "memory_util_pct": 12.0,
        "temp_c": 61.4,
        "power_w": 299.9995,
        "clock_mhz": 1410.0,
    }
    history.record(sample(T0, 5 * 2**30, **reading), CARDS, {}, {"GPU-0": 700})
    history.close()
    assert rows(tmp_path, "SELECT * FROM gpu_raw") == [
        (int(T0 * 1000), 1, 5 * 2**30, 50, 12, 61, 300_000, 1410, 700)
    ]


def test_unknown_is_null(tmp_path: Path, history: History) -> None:
    history.record(sample(T0, None, uses=(None,), util_pct=3.0), CARDS, KNOWN)
    history.record(sample(T0 + 5, None), CARDS, KNOWN)
    history.close()
    assert rows(tmp_path, "SELECT used_bytes, util_percent, power_mw FROM gpu_raw") == [
        (None, 3, None)
    ]
    assert rows(tmp_path, "SELECT used_bytes FROM process_raw") == [(None,)]


def test_an_unchanged_process_has_one_row_a_minute(tmp_path: Path, history: History) -> None:
    for tick in range(36):
        uses = (500, 500 + (tick == 7))
        history.record(sample(T0 + 5 * tick, uses=uses), CARDS, KNOWN)
    history.close()
    found = rows(tmp_path, "SELECT process, (ts_ms / 1000 - 1700000040) / 5 FROM process_raw")
    assert [tick for process, tick in found if process == 1] == [0, 12, 24]
    assert [tick for process, tick in found if process == 2] == [0, 7, 8, 12, 24]
    assert rows(tmp_path, "SELECT max(last_ts_ms) FROM process") == [(int((T0 + 175) * 1000),)]


def test_devices_and_processes_come_back_as_they_were(tmp_path: Path, history: History) -> None:
    history.record(sample(T0, uses=(1, 2, 3), cards=CARDS), CARDS, KNOWN)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert tuple(reader.devices()) == CARDS
        assert tuple(reader.processes()) == INFOS


def test_an_instance_comes_back_with_the_position_of_its_card(tmp_path: Path) -> None:
    piece = msgspec.structs.replace(
        CARDS[0], uid="MIG-1", index=0, parent_uid=CARDS[1].uid, parent_index=1
    )
    cards = (*CARDS, piece)
    history = opened(tmp_path)
    history.record(sample(T0, uses=(1,), cards=cards), cards, KNOWN)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert {device.uid: device for device in reader.devices()}["MIG-1"].label == "MIG 1:0"


def test_what_is_learnt_later_completes_a_process_and_forgets_nothing(
    tmp_path: Path, history: History
) -> None:
    key = INFOS[0].key
    bare = msgspec.structs.replace(INFOS[0], argv=(), user=None)
    for tick, info in enumerate((bare, INFOS[0], bare)):
        history.record(sample(T0 + 60 * tick, uses=(5,)), CARDS, {key: info})
        history.flush(T0 + 60 * tick)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert reader.processes() == [INFOS[0]]


def test_a_process_of_unknown_start_is_one_row(tmp_path: Path) -> None:
    info = msgspec.structs.replace(
        INFOS[0], key=msgspec.structs.replace(INFOS[0].key, started_at_s=None)
    )
    taken = sample(T0, uses=(5,))
    use = msgspec.structs.replace(taken.readings[0].uses[0], key=info.key)  # type: ignore[index]
    reading = msgspec.structs.replace(taken.readings[0], uses=(use,))
    for _ in range(2):
        history = opened(tmp_path)
        history.record(msgspec.structs.replace(taken, readings=(reading,)), CARDS, {info.key: info})
        history.close()
    with Reader.open(tmp_path) as reader:
        assert [found.key for found in reader.processes()] == [info.key]


def test_alerts_and_deliveries_survive_a_restart(tmp_path: Path) -> None:
    history = opened(tmp_path)
    one, other = alert(), alert(key="leak:y", opened_at_s=9_000.25)
    sent = history.apply([one, other], [delivery("leak:x"), delivery("leak:y")])
    assert [found.row for found in sent] == [1, 2]
    history.close()

    history = opened(tmp_path)
    assert history.open_alerts() == [other, one]
    assert history.pending_deliveries() == sent
    done = msgspec.structs.replace(sent[0], state="sent", attempts=1, sent_at_s=T0 + 3.5)
    history.apply((), (done,))
    assert history.pending_deliveries() == sent[1:]
    over = alert(state="resolved", resolved_at_s=9_999.0)
    history.apply([over], [])
    assert history.open_alerts() == [other]
    history.close()

    history = opened(tmp_path)
    assert history.open_alerts() == [other]
    assert history.pending_deliveries() == sent[1:]
    history.close()
    with Reader.open(tmp_path) as reader:
        assert reader.deliveries("leak:x") == [done]
        assert reader.alerts() == [other, over]
        assert reader.alerts(open_only=True) == [other]
        assert reader.alerts(since_s=10_000.0) == [other]


def test_an_alert_changes_its_row_and_reopens_as_a_new_one(
    tmp_path: Path, history: History
) -> None:
    for notices in range(3):
        history.apply([alert(notices=notices)], [])
    over = alert(state="resolved", resolved_at_s=9_999.0)
    for again in (over, over, alert(opened_at_s=12_000.0), over):
        history.apply([again], [])
    history.close()
    assert rows(tmp_path, "SELECT state, opened_ts_ms FROM alert ORDER BY id") == [
        ("resolved", 9_500_000),
        ("firing", 12_000_000),
    ]


def test_one_message_on_one_channel_is_one_delivery(history: History) -> None:
    first, other = history.apply([], [delivery("leak:x"), delivery("leak:x", channel="desktop")])
    (again,) = history.apply([], [delivery("leak:x", attempts=2)])
    assert again.row == first.row
    assert [(found.row, found.attempts) for found in history.pending_deliveries()] == [
        (first.row, 2),
        (other.row, 0),
    ]


def test_an_alert_points_at_its_device_and_process(tmp_path: Path, history: History) -> None:
    taken = sample(T0, uses=(5, 6))
    history.record(taken, CARDS, KNOWN)
    subject = msgspec.structs.replace(alert().subject, device_uid="GPU-0", process=INFOS[1].key)
    history.apply([alert(subject=subject)], [])
    found = rows(
        tmp_path,
        "SELECT g.uuid, p.pid FROM alert a JOIN gpu g ON g.id = a.gpu"
        " JOIN process p ON p.id = a.process",
    )
    assert found == [("GPU-0", 101)]


def test_a_huge_message_is_stored_within_its_bound(tmp_path: Path) -> None:
    history = opened(tmp_path)
    huge = making.message(body="\x01" * 100_000, finding=finding(reason="r" * 20_000))
    history.apply([], [delivery("k", message=huge)])
    history.close()
    ((size,),) = rows(tmp_path, "SELECT length(payload) FROM delivery")
    assert size <= 16 * 1024
    history = opened(tmp_path)
    assert history.pending_deliveries()[0].message.body.startswith("\x01" * 1000)
    history.close()


def test_a_value_that_does_not_fit_costs_itself_only(tmp_path: Path, history: History) -> None:
    history.record(sample(T0, 2**70), CARDS, {})
    history.record(sample(T0 + 5, 7), CARDS, {})
    history.apply([alert(key="bad \ud800"), alert()], [])
    assert history.flush(T0 + 5)
    assert rows(tmp_path, "SELECT used_bytes FROM gpu_raw") == [(7,)]
    assert rows(tmp_path, "SELECT key FROM alert") == [("leak:x",)]
    assert any("did not fit" in problem for problem in history.problems)


def test_a_process_that_does_not_fit_does_not_stop_the_writing(
    tmp_path: Path, history: History
) -> None:
    rude = msgspec.structs.replace(INFOS[0], name="\ud800")
    history.record(sample(T0, uses=(5,)), CARDS, {rude.key: rude})
    assert history.flush(T0)
    history.record(sample(T0 + 60), CARDS, {})
    assert history.flush(T0 + 60)
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(2,)]
    assert rows(tmp_path, "SELECT name, pid FROM process") == [("?", INFOS[0].key.pid)]


def test_strange_rows_are_left_out_and_told(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.apply([alert()], [delivery("leak:x")])
    history.close()
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
        connection.execute("UPDATE alert SET finding = '{}'")
        connection.commit()
    history = opened(tmp_path)
    assert history.open_alerts() == []
    assert len(history.pending_deliveries()) == 1
    assert any("could not be understood" in problem for problem in history.problems)
    history.apply([alert()], [])
    assert rows(tmp_path, "SELECT count(*) FROM alert") == [(1,)]
    history.close()


def test_events_and_segments_are_written_at_once(tmp_path: Path, history: History) -> None:
    history.event("gpu-lost", "fell off the bus", "GPU-0")
    history.segment("clock-step", wall_step_s=-600.0)
    with Reader.open(tmp_path) as reader:
        (event,) = reader.events()
        assert (event.at_s, event.kind, event.device_uid) == (T0, "gpu-lost", "GPU-0")
        (segment,) = reader.segments()
        assert (segment.reason, segment.wall_step_s, segment.boot_id) == (
            "clock-step",
            -600.0,
            BOOT,
        )


def test_each_source_begins_one_segment(tmp_path: Path, history: History) -> None:
    for tick in range(4):
        history.record(sample(T0 + tick), CARDS, {})
        history.record(sample(T0 + tick, cards=CARDS[1:], boot_id="simulated"), CARDS, {})
    history.close()
    assert rows(tmp_path, "SELECT boot_id, reason FROM segment") == [
        (BOOT, "start"),
        ("simulated", "start"),
    ]


def test_the_history_belongs_to_one_thread(history: History) -> None:
    refused: list[str] = []

    def elsewhere() -> None:
        for act in (history.open_alerts, history.close, lambda: history.flush(T0)):
            with pytest.raises(RuntimeError, match="belongs to the thread"):
                act()
            refused.append("yes")
        assert history.check() is None

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(refused) == 3


def test_alerts_are_synced_fully_and_samples_normally(history: History) -> None:
    assert history._file.connection is not None
    said: list[str] = []
    history._file.connection.set_trace_callback(said.append)
    history.apply([alert()], [])
    full, back = (said.index(f"PRAGMA synchronous = {level}") for level in ("FULL", "NORMAL"))
    assert full < said.index("BEGIN IMMEDIATE") < said.index("COMMIT") < back
    said.clear()
    history.record(sample(T0), CARDS, {})
    history.flush(T0)
    assert "COMMIT" in said
    assert not any("synchronous" in statement for statement in said[-5:])


def test_closing_twice_is_fine_and_leaves_one_file(tmp_path: Path, history: History) -> None:
    history.record(sample(T0), CARDS, {})
    history.close()
    history.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "history.db"]
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(1,)]


def test_below_the_floor_samples_wait_and_alerts_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [499 * 2**20]

    class Space:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return free[0]

    monkeypatch.setattr(os, "statvfs", lambda _: Space())
    history = opened(tmp_path, min_free_mib=500)
    history.record(sample(T0), CARDS, {})
    assert not history.flush(T0)
    assert not history.writing
    assert any("min-free-mib" in problem for problem in history.problems)
    history.apply([alert()], [])
    assert rows(tmp_path, "SELECT (SELECT count(*) FROM gpu_raw), count(*) FROM alert") == [(0, 1)]
    free[0] = 549 * 2**20  # above the floor, not yet 10 % above
    assert not history.flush(T0)
    free[0] = 551 * 2**20
    assert history.flush(T0)
    assert history.writing
    assert history.problems == ()
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(1,)]
    history.close()


def test_the_defaults_of_the_settings_are_those_of_the_configuration() -> None:
    assert settings(min_free_mib=500) == type(settings())()


def test_another_program_that_closes_the_file_takes_nothing_away(tmp_path: Path) -> None:
    # Closing any descriptor of the file would drop our locks, and the other program, taking itself
    # for the last one, would delete the write-ahead log under us.
    time = Time()
    history = opened(tmp_path, time, flush=60)
    touch = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
    touch += "c.execute('SELECT count(*) FROM gpu_raw').fetchone(); c.close()"
    for _ in range(4):
        for _ in range(13):
            history.record(sample(time.now_s), CARDS, {})
            history.flush_due(time.now_s)
            time.pass_s(5)
        command = [sys.executable, "-c", touch, str(tmp_path / "history.db")]
        subprocess.run(command, check=True, timeout=60)
        assert (tmp_path / "history.db-wal").exists()
    (seen,) = rows(tmp_path, "SELECT count(*) FROM gpu_raw")
    assert seen[0] >= 48
    history.close()
