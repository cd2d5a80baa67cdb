"""``feedback``: said, shown, taken back; what cannot be done is one line, a hint and a code."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

import msgspec
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.program_key import key_on
from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.config import DetectionSection, StoreSection
from gpuwatchd.core.model import (
    DeviceReading,
    Finding,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Profile,
    Sample,
    Series,
)
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.run_baselines import said_to_be
from gpuwatchd.pipeline.track_baseline import Suppression
from gpuwatchd.pipeline.watcher import Headroom, Track
from gpuwatchd.store.live import KnownRuns, LiveDevice, LiveProcess
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.ring import Ring
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world

KEY = "leak:GPU-1/4711@1000.0"
OVER = "leak:GPU-1/5@1.0"


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with an open alert of pid 4711 and one of pid 5 that is over."""
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    info = ProcessInfo(key=making.KEY, name="python", user="alice", program="abc")
    reading = DeviceReading(
        device_uid="GPU-1", used_bytes=5, free_bytes=5, total_bytes=10,
        uses=(ProcessUse(key=info.key, used_bytes=5),),
    )  # fmt: skip
    sample = Sample(taken_at_s=time.time(), taken_mono_s=0.0, boot_id="b", readings=(reading,))
    history.record(sample, (making.CARD,), {info.key: info})
    other = making.finding().subject
    over = world.firing(
        key=OVER, state="resolved", opened_at_s=100.0, resolved_at_s=200.0, title="python[5]",
        subject=type(other)(device_uid="GPU-1", process=ProcessKey(pid=5, started_at_s=1.0)),
    )  # fmt: skip
    history.apply([world.firing(), over], [])
    history.close()


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("alert", [KEY, "4711", "GPU-1/4711", "latest"])
def test_an_alert_is_named_as_alerts_prints_it(
    alert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask(capsys, "feedback", alert, "normal", "--why", "fills its cache")
    assert answer["verb"] == "feedback"
    (said,) = answer["data"]
    assert said["key"] == KEY
    assert (said["word"], said["why"], said["undone_at"]) == ("normal", "fills its cache", None)
    assert said["process"]["pid"] == 4711
    assert said["program_known"] is True
    assert said["daemon_running"] is False
    with Reader.open(config.state_dir()) as reader:
        assert [word.alert_key for word in reader.user_labels()] == [KEY]


def test_what_was_said_is_shown_with_the_alert(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feedback", "4711", "normal", "--why", "a cache\x1b[2J"]) == 0
    shown = capsys.readouterr().out
    assert "said: normal (a cache)" in shown
    assert "when the daemon runs again" in " ".join(shown.split())
    assert "judged by it" in " ".join(shown.split())
    (alert,) = ask(capsys, "alerts")["data"]
    assert alert["feedback"]["word"] == "normal"
    assert alert["feedback"]["why"] == "a cache"
    assert main(["alerts"]) == 0
    assert "said: normal (a cache)" in capsys.readouterr().out
    assert main(["alerts", "show", "4711"]) == 0
    assert "said: normal (a cache)" in capsys.readouterr().out


def test_a_running_daemon_follows_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    world.write()
    assert main(["feedback", "4711", "normal"]) == 0
    assert "over within seconds" in " ".join(capsys.readouterr().out.split())
    assert main(["feedback", "4711", "leak"]) == 0
    assert "the alert stays" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_known_again_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feedback", "say", "5", "leak"]) == 0
    assert "cannot be known again" in " ".join(capsys.readouterr().out.split())


def test_it_can_be_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "feedback", "4711", "normal")
    ask(capsys, "feedback", "5", "leak")
    (gone,) = ask(capsys, "feedback", "undo", "4711")["data"]
    assert gone["word"] == "normal"
    assert gone["undone_at"] is not None
    assert [said["key"] for said in ask(capsys, "feedback", "list")["data"]] == [OVER]
    everything = ask(capsys, "feedback", "list", "--all")["data"]
    assert [said["key"] for said in everything] == [OVER, KEY]
    assert main(["feedback", "undo", "latest"]) == 0
    assert "taken back" in capsys.readouterr().out
    assert ask(capsys, "feedback", "list")["data"] == []
    assert main(["feedback", "list"]) == 0
    assert "nothing was said" in capsys.readouterr().out


def test_a_new_word_takes_the_place_of_the_old(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "feedback", "4711", "normal")
    ask(capsys, "feedback", "4711", "leak")
    assert [said["word"] for said in ask(capsys, "feedback", "list")["data"]] == ["leak"]


@pytest.mark.parametrize(
    ("arguments", "code", "words", "hint"),
    [
        (["feedback", "nobody", "normal"], 1, "no alert 'nobody'", "alerts --all"),
        (["feedback", "GPU-1", "normal"], 1, "fits 2 alerts", "for example: ac592d (GPU 0"),
        (["feedback", "4711", "harmless"], 2, "harmless", "--help"),
        (["feedback"], 2, "of which alert, and what?", "--help"),
        (["feedback", "4711"], 2, "Missing argument", "--help"),
        (["feedback", "undo", "4711"], 1, "nothing was said of 4711", "feedback list"),
        (["feedback", "undo", "nobody"], 1, "no alert 'nobody'", "alerts --all"),
        (["feedback", "undo", "latest"], 1, "nothing was said of latest", "feedback list"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_a_hint(
    arguments: list[str], code: int, words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    first, second, *page = capsys.readouterr().err.splitlines()
    assert len(page) == (0 if code == 2 else 1)
    assert words in first
    assert second.startswith("hint: ")
    assert hint in second
    assert main([*arguments, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == code
    assert page == [f"see: gpuwatchctl docs {name}" for name in [error["page"]] if name]


def test_without_a_history_nothing_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    path = config.state_dir() / "history.db"
    path.unlink()
    for arguments in (["feedback", "4711", "normal"], ["feedback", "list"]):
        assert main(arguments) == 1
        assert "history" in capsys.readouterr().err
    world.write()
    assert main(["feedback", "4711", "normal"]) == 1
    assert "nothing can be said without the history" in capsys.readouterr().err


def test_a_history_that_is_locked_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuwatchd.store.access.BUSY_S", 0.01)
    path = config.state_dir() / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["feedback", "4711", "normal"]) == 1
        assert "locked by another program" in capsys.readouterr().err
        other.execute("ROLLBACK")
    assert main(["feedback", "4711", "normal"]) == 0


def test_predict_says_what_is_known_beside_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    found = world.leak()
    state = world.state()
    info = state.devices[0].processes[0].info  # type: ignore[index]
    known = LiveProcess(
        info=info, used_bytes=5, finding=found, history=KnownRuns(runs=3, word="normal")
    )
    device = type(state.devices[0])(
        device=state.devices[0].device, reading=state.devices[0].reading, finding=found,
        processes=(known, world.process(99)),
    )  # fmt: skip
    world.write(devices=(device,))
    first, second = ask(capsys, "predict")["data"][0]["processes"]
    assert first["history"] == {"runs": 3, "word": "normal", "siblings": 0, "yesterday": False}
    assert second["history"] is None
    assert main(["predict"]) == 0
    assert "3 earlier runs, said to be normal" in " ".join(capsys.readouterr().out.split())
    assert main(["status"]) == 0
    assert "3 earlier runs, said to be normal" in " ".join(capsys.readouterr().out.split())


def test_what_is_quiet_because_of_the_word_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    hush = Suppression(level_bytes=9e18, why=said_to_be(None))
    track = Track(
        subject=making.finding().subject, device=making.CARD, window=Ring(60.0), room=Headroom(),
        title=Title(), hush=hush, peak=5.0,
    )  # fmt: skip
    finding = track.hushed(world.leak())
    assert finding.tier == "none"
    device = LiveDevice(
        device=making.CARD, reading=world.reading("GPU-1", 5), finding=finding,
        processes=(world.process(finding=finding),),
    )  # fmt: skip
    world.write(devices=(device,), alerts=())
    assert main(["status"]) == 0
    assert "growing, said to be normal (gradual)" in " ".join(capsys.readouterr().out.split())
    track.peak = 1e19
    assert track.hushed(world.leak()).tier == "alert"


PROFILE = Profile(
    ended_at_s=9e8, run_s=4000.0, base_bytes=1.0, hold_s=0.0, proven_bytes=5.0, top_bytes=5.0
)


def test_predict_from_the_history_knows_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.shelf.keep(
        Run(
            key=key_on("abc", making.CARD) or "",
            device_uid="GPU-1",
            label="python",
            process=ProcessKey(pid=3, started_at_s=8e8),
            begun_at_s=8e8,
            profile=PROFILE,
        )
    )
    history.close()
    (device,) = ask(capsys, "predict")["data"]
    (process,) = device["processes"]
    assert process["history"] == {"runs": 1, "word": None, "siblings": 0, "yesterday": False}


def test_what_was_said_of_a_process_is_no_earlier_run_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(capsys, "feedback", "4711", "normal")
    with Reader.open(config.state_dir()) as reader:
        (word,) = reader.user_labels()
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.shelf.keep(
        Run(
            key=key_on("abc", making.CARD) or "", device_uid="GPU-1", label="python",
            process=making.KEY, begun_at_s=1000.0, word=word.row,
            profile=msgspec.structs.replace(PROFILE, word="normal"),
        )
    )  # fmt: skip
    history.close()
    judged: list[Series] = []
    judge = verdict.judge

    def noted(series: Series, settings: DetectionSection) -> Finding:
        judged.append(series)
        return judge(series, settings)

    monkeypatch.setattr(verdict, "judge", noted)
    ((process,),) = (device["processes"] for device in ask(capsys, "predict")["data"])
    assert (process["history"]["runs"], process["history"]["word"]) == (0, "normal")
    # It has lived for longer than it was seen, and is judged by its age, as the daemon does.
    (own,) = (one for one in judged if one.subject.process == making.KEY)
    assert own.age_s == pytest.approx(time.time() - 1000.0, abs=60.0)
    assert len(own.history) == 1


@pytest.mark.parametrize("verb", [["feedback", "", "normal"], ["feedback", "471", "normal"]])
def test_an_empty_key_and_a_part_of_a_number_mean_no_alert(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(verb) == 1
    shown = capsys.readouterr().err
    assert "hint: gpuwatchctl alerts --all" in shown
    with Reader.open(config.state_dir()) as reader:
        assert reader.user_labels() == []


def test_a_mistake_is_not_printed_at_full_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feedback", "x" * 100_000, "leak"]) == 1
    assert len(capsys.readouterr().err) < 500


@pytest.mark.parametrize("verb", [["feedback", "4711", "normal"], ["feedback", "undo", "4711"]])
def test_a_history_that_cannot_be_used_is_not_called_missing(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
    assert main(verb) == 1
    shown = capsys.readouterr().err
    assert "later version" in shown
    assert "hint: upgrade gpuwatchd" in shown
    world.write()
    assert main(verb) == 1
    assert "hint: upgrade gpuwatchd" in capsys.readouterr().err


def test_a_word_outlives_its_alert_and_can_still_be_taken_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(capsys, "feedback", "5", "normal")
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("DELETE FROM alert WHERE key = ?", (OVER,))
        connection.commit()
    (said,) = ask(capsys, "feedback", "list")["data"]
    (gone,) = ask(capsys, "feedback", "undo", said["key"])["data"]
    assert gone["undone_at"] is not None
    assert ask(capsys, "feedback", "list")["data"] == []


def test_an_alert_without_a_curve_teaches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.apply([world.firing(key="gpu:GPU-9", kind="gpu")], [])
    history.close()
    assert main(["feedback", "gpu:GPU-9", "normal"]) == 1
    err = capsys.readouterr().err
    assert "nothing can be learned" in err
    assert "gpuwatchctl snooze gpu:GPU-9 8h" in err
    with Reader.open(config.state_dir()) as reader:
        assert reader.user_labels() == []
