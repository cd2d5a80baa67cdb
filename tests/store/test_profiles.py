"""What earlier runs did and what the user said: kept, bounded, joined, undone, never in the way."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import profiles, tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.store.runs import profile, run, word
from tests.store.world import CARDS, INFOS, KNOWN, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

GIB = 2.0**30
UID = CARDS[0].uid


@pytest.fixture
def history(history: History) -> History:
    """Return a history in which two processes have been seen."""
    history.record(sample(T0, uses=(5, 6)), CARDS, KNOWN)
    history.flush(T0)
    return history


def test_a_run_is_known_at_once_and_written_with_the_next_flush(
    tmp_path: Path, history: History
) -> None:
    history.shelf.keep(run())
    assert history.shelf.runs("k") == [run()]
    assert rows(tmp_path, "SELECT count(*) FROM profile") == [(0,)]
    history.flush(T0 + 60)
    assert history.shelf.runs("k") == [run()]
    assert history.shelf.runs("other") == []
    assert rows(tmp_path, "SELECT key, label, pid, top_bytes FROM profile") == [
        ("k", "python train.py", 100, 10 * 2**30)
    ]
    history.close()
    with Reader.open(tmp_path) as reader:
        assert reader.runs("k") == reader.runs() == [run()]
        assert reader.runs("other") == []


def test_a_run_is_written_when_the_daemon_stops(tmp_path: Path, history: History) -> None:
    history.shelf.keep(run())
    history.close()
    again = opened(tmp_path)
    assert again.shelf.runs("k") == [run()]
    again.close()


def test_the_same_run_is_one_row_with_what_was_known_last(history: History) -> None:
    for top in (3.0, 4.0):
        history.shelf.keep(run(profile=profile(top_bytes=top * GIB)))
        history.flush(T0 + 60)
    (known,) = history.shelf.runs("k")
    assert known.profile.top_bytes == 4 * GIB


def test_the_newest_five_launches_of_a_program_are_kept(history: History) -> None:
    for number in range(9):
        history.shelf.keep(run(number))
        history.shelf.keep(run(number, key="other"))
        history.flush(T0 + 60 * number)
    kept = [known.begun_at_s for known in history.shelf.runs("k")]
    assert kept == [run(number).begun_at_s for number in range(4, 9)]
    assert len(history.shelf.runs("other")) == 5


def test_the_ranks_of_one_launch_do_not_drive_out_the_launches_before(history: History) -> None:
    history.shelf.keep(run(0))
    for rank in range(40):
        one = run(1)
        history.shelf.keep(
            msgspec.structs.replace(
                one,
                process=ProcessKey(pid=500 + rank, started_at_s=one.begun_at_s + rank),
                begun_at_s=one.begun_at_s + rank,
            )
        )
    history.flush(T0 + 60)
    known = history.shelf.runs("k")
    assert known[0] == run(0)
    assert len(known) == 1 + profiles.KEPT_RANKS


def test_a_run_of_which_the_user_spoke_is_kept_longer(tmp_path: Path, history: History) -> None:
    history.shelf.keep(run(0))
    history.flush(T0)
    transaction(tmp_path, tables.write_label, word(run(0)))
    for number in range(1, 9):
        history.shelf.keep(run(number))
        history.flush(T0 + 60 * number)
    assert history.shelf.runs("k")[0] == run(0)
    assert transaction(tmp_path, tables.remove_label, word(run(0)).alert_key, T0 + 9) == 1
    history.shelf.keep(run(9))
    history.flush(T0 + 600)
    assert run(0) not in history.shelf.runs("k")


def test_the_number_of_programs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "KEPT_PROGRAMS", 3)
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0, uses=(5,)), CARDS, KNOWN)
    for number in range(6):
        history.shelf.keep(run(number, key=f"k{number}"))
    history.flush(T0)
    history.chores(time.now_s)
    for _ in range(3):
        time.pass_s(300)
        history.chores(time.now_s)
    assert rows(tmp_path, "SELECT key FROM profile ORDER BY key") == [("k3",), ("k4",), ("k5",)]
    history.close()


def test_what_is_too_old_is_forgotten(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time, events=86_400.0)
    history.record(sample(T0, uses=(5,)), CARDS, KNOWN)
    history.shelf.keep(run(0))
    history.flush(T0)
    transaction(tmp_path, tables.write_label, word(run(0)))
    time.pass_s(2 * 86_400.0)
    history.chores(time.now_s)
    for _ in range(3):
        time.pass_s(300)
        history.chores(time.now_s)
    assert rows(tmp_path, "SELECT count(*) FROM profile") == [(0,)]
    history.chores(time.now_s)
    assert rows(tmp_path, "SELECT count(*) FROM feedback") == [(0,)]
    history.close()


def test_a_word_is_noticed_once_and_can_be_taken_back(tmp_path: Path, history: History) -> None:
    assert history.shelf.changed_elsewhere()
    assert not history.shelf.changed_elsewhere()
    said = transaction(tmp_path, tables.write_label, word(run()))
    assert said.row is not None
    assert history.shelf.changed_elsewhere()
    assert not history.shelf.changed_elsewhere()
    assert history.shelf.user_labels() == [said]
    other = transaction(tmp_path, tables.write_label, word(run(), "leak", given_at_s=T0 + 9))
    assert history.shelf.user_labels() == [other]
    assert transaction(tmp_path, tables.remove_label, other.alert_key, T0 + 11) == 1
    assert transaction(tmp_path, tables.remove_label, other.alert_key, T0 + 12) == 0
    assert history.shelf.user_labels() == []
    history.close()
    with Reader.open(tmp_path) as reader:
        assert reader.user_labels() == []
        assert [w.undone_at_s for w in reader.user_labels(all_of_them=True)] == [T0 + 9, T0 + 11]


def test_what_a_run_had_done_when_the_user_spoke_goes_with_the_word(
    tmp_path: Path, history: History
) -> None:
    said = transaction(tmp_path, tables.write_label, word(run()))
    history.shelf.keep(run(word=said.row))
    history.shelf.keep(run())
    history.flush(T0 + 60)
    assert len(history.shelf.runs("k")) == 2
    transaction(tmp_path, tables.remove_label, said.alert_key, T0 + 70)
    assert history.shelf.runs("k") == [run()]


def test_speaking_does_not_disturb_a_daemon_that_writes(tmp_path: Path, history: History) -> None:
    stop = threading.Event()

    def talk() -> None:
        number = 0
        while not stop.is_set():
            transaction(tmp_path, tables.write_label, word(run(number % 50)))
            number += 1

    speaker = threading.Thread(target=talk)
    speaker.start()
    try:
        for tick in range(60):
            history.record(sample(T0 + 5 * tick, uses=(tick, 6)), CARDS, KNOWN)
            history.shelf.keep(run(tick))
            history.flush(T0 + 5 * tick)
    finally:
        stop.set()
        speaker.join()
    history.flush(T0 + 600)
    assert history.problems == ()
    assert len(history.shelf.runs("k")) >= 5
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(60,)]


def test_there_is_nothing_to_say_it_to(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no history"):
        transaction(tmp_path, tables.write_label, word(run()))
    (tmp_path / "history.db").write_bytes(b"x" * 8192)
    with pytest.raises(StoreError, match="damaged"):
        transaction(tmp_path, tables.write_label, word(run()))


def test_a_strange_profile_is_left_out(tmp_path: Path, history: History) -> None:
    history.shelf.keep(run(0))
    history.shelf.keep(run(1))
    history.flush(T0 + 60)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("UPDATE profile SET profile = '{}' WHERE pid = 100")
    assert history.shelf.runs("k") == [run(1)]


@pytest.mark.parametrize("what", ["base_bytes", "run_s", "grown_bytes"])
@pytest.mark.parametrize("number", ["1e308", "-1e9"])
def test_a_damaged_number_is_left_out(
    tmp_path: Path, history: History, what: str, number: str
) -> None:
    history.shelf.keep(run(0))
    history.shelf.keep(run(1))
    history.flush(T0 + 60)
    path = f"$.{what}[0]" if what == "grown_bytes" else f"$.{what}"
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        (changed,) = other.execute(
            "SELECT json_replace(profile, ?, json(?)) FROM profile WHERE pid = 100", (path, number)
        ).fetchone()
        other.execute("UPDATE profile SET profile = ? WHERE pid = 100", (changed,))
    assert number.removesuffix("9") in changed
    assert history.shelf.runs("k") == [run(1)]


def test_a_text_that_is_no_utf_8_stops_nobody(tmp_path: Path, history: History) -> None:
    transaction(tmp_path, tables.write_label, word(run()))
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("UPDATE feedback SET title = CAST(x'41ff' AS TEXT)")
    (heard,) = history.shelf.user_labels() or []
    assert heard.title == "A\ufffd"
    history.record(sample(T0 + 60), CARDS, {})
    history.flush(T0 + 60)
    assert rows(tmp_path, "SELECT max(ts_ms) FROM gpu_raw") == [(round((T0 + 60) * 1000),)]
    with Reader.open(tmp_path) as reader:
        assert [said.title for said in reader.user_labels()] == ["A\ufffd"]


def test_without_a_file_runs_wait_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = opened(tmp_path / "file")
    for number in range(600):
        history.shelf.keep(run(number))
    assert 0 < len(history.shelf.runs("k")) <= 500
    assert history.shelf.user_labels() is None
    assert not history.shelf.changed_elsewhere()
    history.close()


def test_minutes_and_load_of_a_process(history: History, time: Time) -> None:
    for tick in range(120):
        time.now_s = T0 + 5 * tick
        history.record(sample(time.now_s, 1000 + tick, uses=(tick,), util_pct=50.0), CARDS, KNOWN)
    history.flush(time.now_s)
    history.chores(time.now_s)
    minutes = history.shelf.minutes(UID, INFOS[0].key, T0, T0 + 600)
    assert minutes[:2] == [(T0 + 60, 11), (T0 + 120, 23)]
    assert history.shelf.minutes(UID, None, T0, T0 + 600)[0] == (T0 + 60, 1011)
    assert history.shelf.minutes(UID, ProcessKey(pid=1, started_at_s=None), T0, T0 + 600) == []
    assert history.shelf.load_pct(UID, T0, T0 + 600)[0] == (T0 + 60, 50)


def test_the_program_of_a_process_is_stored(tmp_path: Path) -> None:
    history = opened(tmp_path)
    known = {key: msgspec.structs.replace(info, program="abc") for key, info in KNOWN.items()}
    history.record(sample(T0, uses=(5,)), CARDS, known)
    history.close()
    history = opened(tmp_path)
    assert history.shelf.program_of(INFOS[0].key) == ("abc", "python")
    assert history.shelf.program_of(INFOS[1].key) == (None, "")
    history.close()
    with Reader.open(tmp_path) as reader:
        assert [info.program for info in reader.processes()] == ["abc"]
