"""When jobs saved their work: written by anybody, of one process alone, forgotten with age."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import retention, tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.tables import Action, Checkpoint
from tests import histories
from tests.making import KEY
from tests.store.world import T0, Time, opened

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


JOB = ProcessKey(pid=4711, started_at_s=T0 - 100.0)


def saved(at_s: float, process: ProcessKey = JOB) -> Checkpoint:
    return Checkpoint(process=process, saved_at_s=at_s, said_by="alice")


def test_what_is_said_is_read_by_everybody(tmp_path: Path, history: History) -> None:
    transaction(tmp_path, tables.write_checkpoint, saved(T0 + 1.0))
    found = history.shelf.checkpoints()
    history.close()
    assert found is not None
    assert [(one.process, one.saved_at_s, one.said_by) for one in found] == [
        (JOB, T0 + 1.0, "alice")
    ]
    with Reader.open(tmp_path) as reader:
        assert reader.checkpoints() == found


def test_it_can_be_said_while_the_daemon_is_stopped(tmp_path: Path) -> None:
    opened(tmp_path, Time(T0)).close()
    assert transaction(tmp_path, tables.write_checkpoint, saved(T0)).row is not None


def test_the_daemon_reads_the_newest_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "NEWEST", 3)
    history = opened(tmp_path, Time(T0))
    for number in range(6):
        transaction(tmp_path, tables.write_checkpoint, saved(T0 + number))
    found = history.shelf.checkpoints()
    history.close()
    assert found is not None
    assert [one.saved_at_s - T0 for one in found] == [3.0, 4.0, 5.0]
    with Reader.open(tmp_path) as reader:
        assert len(reader.checkpoints()) == 6


def test_the_same_checkpoint_is_written_once(tmp_path: Path) -> None:
    opened(tmp_path, Time(T0)).close()
    rows = {transaction(tmp_path, tables.write_checkpoint, saved(T0)).row for _ in range(3)}
    assert len(rows) == 1


def test_what_the_daemon_finds_waits_for_the_next_flush(tmp_path: Path, history: History) -> None:
    history.shelf.keep_checkpoint(saved(T0))
    assert history.shelf.waiting
    assert [one.saved_at_s for one in history.shelf.checkpoints() or ()] == [T0]
    assert history.flush(T0 + 1.0)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert [one.saved_at_s for one in reader.checkpoints()] == [T0]


def test_only_the_newest_of_a_process_are_kept(history: History) -> None:
    for number in range(tables.KEPT_PER_PROCESS + 20):
        history.shelf.keep_checkpoint(saved(T0 + number))
    history.flush(T0 + 1.0)
    found = history.shelf.checkpoints() or []
    history.close()
    assert len(found) == tables.KEPT_PER_PROCESS
    assert found[0].saved_at_s == T0 + 20


def test_a_later_process_with_the_same_pid_is_another() -> None:
    later = ProcessKey(pid=4711, started_at_s=T0 + 5000.0)
    nearly = ProcessKey(pid=4711, started_at_s=T0 - 99.0)
    unknown = ProcessKey(pid=4711, started_at_s=None)
    assert tables.same_process(JOB, nearly)
    assert not tables.same_process(JOB, later)
    assert not tables.same_process(JOB, unknown)


def test_what_is_too_old_is_forgotten(history: History) -> None:
    history.shelf.keep_checkpoint(saved(T0))
    history.shelf.keep_checkpoint(saved(T0 + 100.0))
    history.flush(T0 + 1.0)
    connection = history._file.connection
    assert connection is not None
    retention.expire_records(connection, round((T0 + 50.0) * 1000))
    assert [one.saved_at_s for one in history.shelf.checkpoints() or ()] == [T0 + 100.0]


_A_THOUSAND = 1000
_AT_MOST = 20
"""Thousands of steps of SQLite: a month of minutes would be some hundred."""


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    histories.thirty_days(folder)
    return folder / "history.db"


@pytest.mark.slow
def test_a_job_of_a_month_is_known_by_name_and_device(month: Path) -> None:
    with closing(sqlite3.connect(month)) as it:
        (one,) = tables.load_action_events(it, 0.0)
    assert (one.kind, one.name, one.device_uids) == (
        tables.SAVED,
        "python",
        (histories.uid(0),),
    )


@pytest.mark.slow
def test_its_minutes_are_not_read_for_it(month: Path) -> None:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(month)) as it:
        it.set_progress_handler(step, _A_THOUSAND)
        tables.load_action_events(it, 0.0)
    assert steps <= _AT_MOST


def test_rows_are_kept_in_order(tmp_path: Path) -> None:
    opened(tmp_path).close()
    asked = Action(at_s=T0, verb="checkpoint", process=None, phase="asked", who="alice")
    done = Action(
        at_s=T0 + 1, verb="checkpoint", process=None, phase="done", result="asked", who="alice"
    )
    for one in (asked, done):
        transaction(tmp_path, tables.write_action, one)
    with Reader.open(tmp_path) as reader:
        kept = reader.ask(tables.load_actions)
    assert [(one.phase, one.result, one.who, one.at_s) for one in kept] == [
        ("asked", "", "alice", T0),
        ("done", "asked", "alice", T0 + 1),
    ]


def test_the_process_is_the_one_that_was_seen(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as it:
        it.execute(
            "INSERT INTO process(boot_id, pid, started_ts_ms, started_at_s, name, framework_sure,"
            " first_ts_ms, last_ts_ms) VALUES('b', ?, ?, ?, 'python', 0, 0, 0)",
            (KEY.pid, int((KEY.started_at_s or 0) * 1000), KEY.started_at_s),
        )
    transaction(
        tmp_path,
        tables.write_action,
        Action(at_s=T0, verb="checkpoint", process=KEY, phase="asked"),
    )
    with Reader.open(tmp_path) as reader:
        (kept,) = reader.ask(tables.load_actions)
    assert kept.process == KEY


@pytest.mark.parametrize(
    ("verb", "phase", "code", "kind"),
    [
        ("act-checkpoint", "done", "asked", "asked-to-save"),
        ("act-end", "asked", "idle", "ending"),
        ("act-end", "done", "ended", "ended"),
        ("act-end", "done", "unconfirmed", "not-ended"),
        ("act-restart", "done", "failed", "not-restarted"),
        ("act-requeue", "done", "requeued", "requeued"),
        ("act-requeue", "done", "handed-over", "handed-over"),
        ("act-requeue", "refused", "no-checkpoint", "not-requeued"),
    ],
)
def test_a_step_is_kept_with_its_code_and_is_an_event_by_it(
    tmp_path: Path, verb: str, phase: tables.Phase, code: str, kind: str
) -> None:
    opened(tmp_path).close()
    step = Action(at_s=T0, verb=verb, process=None, phase=phase, code=code, who="gpuwatchd")
    proposed = Action(at_s=T0, verb=verb, process=None, phase="asked", dry_run=True)
    saved = Action(at_s=T0, verb="checkpoint", process=None, phase="done", code="x", saved=True)
    for one in (step, proposed, saved):
        transaction(tmp_path, tables.write_action, one)
    with Reader.open(tmp_path) as reader:
        assert [event.kind for event in reader.action_events()] == [kind]
        rows = reader.actions(T0, T0)
    assert [(row.code, row.dry_run, row.saved) for row in rows] == [
        (code, False, False),
        ("", True, False),
        ("", False, True),
    ]
