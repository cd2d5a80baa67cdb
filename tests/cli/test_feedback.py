"""``feedback``: said, shown, taken back; what cannot be done is one line, a hint and a code."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.program_key import key_on
from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.model import Finding, ProcessInfo, ProcessKey, Profile, Series, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.run_baselines import said_to_be
from gpuwatchd.pipeline.track import Headroom, Suppression, Track
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.ring import Ring
from gpuwatchd.view.queries import alert_changes
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from gpuwatchd.core.config import DetectionSection
    from tests.cli.calls import Ctl


KEY = "leak:GPU-1/4711@1000.0"
OVER = "leak:GPU-1/5@1.0"


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with an open alert of pid 4711 and one of pid 5 that is over."""
    info = ProcessInfo(key=making.KEY, name="python", user="alice", program="abc")
    sample = making.sample(time.time(), [(info, 5)], used_bytes=5)
    with world.history() as history:
        history.record(sample, (making.CARD,), {info.key: info})
        history.apply([world.firing(), world.over()], [])


@pytest.mark.parametrize("alert", [KEY, "4711", "GPU-1/4711", "latest"])
def test_an_alert_is_named_as_alerts_prints_it(alert: str, ctl: Ctl) -> None:
    answer = ctl.json("feedback", alert, "normal", "--why", "fills its cache")
    assert answer["verb"] == "feedback"
    (said,) = answer["data"]
    assert said["key"] == KEY
    assert (said["word"], said["why"], said["undone_at"]) == ("normal", "fills its cache", None)
    assert said["process"]["pid"] == 4711
    assert said["program_known"] is True
    assert said["daemon_running"] is False
    with Reader.open(config.state_dir()) as reader:
        assert [word.alert_key for word in reader.user_labels()] == [KEY]


def test_what_was_said_is_shown_with_the_alert(ctl: Ctl) -> None:
    ctl("feedback 4711 normal --why", "a cache\x1b[2J")
    (alert,) = ctl.data("alerts")
    assert (alert["feedback"]["word"], alert["feedback"]["why"]) == ("normal", "a cache")
    for line in ("alerts", "alerts show 4711"):
        assert "(a cache)" in ctl(line)


def test_it_can_be_taken_back(ctl: Ctl) -> None:
    ctl.json("feedback", "4711", "normal")
    ctl.json("feedback", "5", "leak")
    (gone,) = ctl.data("feedback", "undo", "4711")
    assert gone["word"] == "normal"
    assert gone["undone_at"] is not None
    assert [said["key"] for said in ctl.data("feedback", "list")] == [OVER]
    everything = ctl.data("feedback", "list", "--all")
    assert [said["key"] for said in everything] == [OVER, KEY]
    assert "removed" in ctl("feedback undo latest")
    assert ctl.data("feedback", "list") == []
    assert "no alert has a label" in ctl("feedback list")
    error = ctl.json("feedback undo 4711", code=1)["error"]
    assert error["page"] == "errors#nothing-said"


def test_a_new_word_takes_the_place_of_the_old(ctl: Ctl) -> None:
    ctl.json("feedback", "4711", "normal")
    ctl.json("feedback", "4711", "leak")
    assert [said["word"] for said in ctl.data("feedback", "list")] == ["leak"]


def test_a_history_that_is_locked_is_said_so(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    monkeypatch.setattr("gpuwatchd.store.checked_connection.BUSY_S", 0.01)
    path = config.state_dir() / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "locked by another program" in ctl.err("feedback 4711 normal")
        other.execute("ROLLBACK")
    assert main(["feedback", "4711", "normal"]) == 0


def test_what_is_quiet_because_of_the_word_says_so(ctl: Ctl) -> None:
    suppression = Suppression(level_bytes=9e18, why=said_to_be(None))
    track = Track(
        subject=making.finding().subject, device=making.CARD, headroom=Headroom(), title=Title(),
        window=Ring(60.0), evidence=Ring(60.0), suppression=suppression, peak=5.0,
    )  # fmt: skip
    finding = track.suppressed(world.leak())
    assert finding.tier == "none"
    device = LiveDevice(
        device=making.CARD, reading=world.reading("GPU-1", 5), finding=finding,
        processes=(world.process(finding=finding),),
    )  # fmt: skip
    world.write(devices=(device,), alerts=())
    assert "growing, marked as normal (gradual)" in " ".join(ctl("status").split())
    track.peak = 1e19
    assert track.suppressed(world.leak()).tier == "alert"


PROFILE = Profile(
    ended_at_s=9e8, run_s=4000.0, base_bytes=1.0, hold_s=0.0, proven_bytes=5.0, top_bytes=5.0
)


def keep(process: ProcessKey, **changes: Any) -> None:
    """Keep a run of the program."""
    values: dict[str, Any] = {"begun_at_s": 8e8, "profile": PROFILE, **changes}
    run = Run(
        key=key_on("abc", making.CARD) or "", device_uid="GPU-1", label="python", process=process,
        **values,
    )  # fmt: skip
    with world.history() as history:
        history.shelf.keep(run)


def test_predict_from_the_history_knows_earlier_runs(ctl: Ctl) -> None:
    keep(ProcessKey(pid=3, started_at_s=8e8))
    ((process,),) = (device["processes"] for device in ctl.data("predict"))
    assert process["history"] == {"runs": 1, "word": None, "siblings": 0, "yesterday": False}


def test_what_was_said_of_a_process_is_no_earlier_run_of_it(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    ctl.json("feedback", "4711", "normal")
    with Reader.open(config.state_dir()) as reader:
        (word,) = reader.user_labels()
    profile = msgspec.structs.replace(PROFILE, word="normal")
    keep(making.KEY, begun_at_s=1000.0, word=word.row, profile=profile)
    judged: list[Series] = []
    judge = verdict.judge

    def noted(series: Series, settings: DetectionSection) -> Finding:
        judged.append(series)
        return judge(series, settings)

    monkeypatch.setattr(verdict, "judge", noted)
    ((process,),) = (device["processes"] for device in ctl.data("predict"))
    assert (process["history"]["runs"], process["history"]["word"]) == (0, "normal")
    # It has lived for longer than it was seen, and is judged by its age, as the daemon does.
    (own,) = (one for one in judged if one.subject.process == making.KEY)
    assert own.age_s == pytest.approx(time.time() - 1000.0, abs=60.0)
    assert len(own.history) == 1


@pytest.mark.parametrize("verb", [["feedback", "", "normal"], ["feedback", "471", "normal"]])
def test_an_empty_key_and_a_part_of_a_number_mean_no_alert(verb: list[str], ctl: Ctl) -> None:
    shown = ctl.err(*verb)
    assert "hint: gpuwatchctl alerts --all" in shown
    with Reader.open(config.state_dir()) as reader:
        assert reader.user_labels() == []


def test_a_word_outlives_its_alert_and_can_still_be_taken_back(ctl: Ctl) -> None:
    ctl.json("feedback", "5", "normal")
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("DELETE FROM alert WHERE key = ?", (OVER,))
        connection.commit()
    (said,) = ctl.data("feedback", "list")
    (gone,) = ctl.data("feedback", "undo", said["key"])
    assert gone["undone_at"] is not None
    assert ctl.data("feedback", "list") == []


@pytest.mark.parametrize("source", ["simulate", "nvml"])
def test_of_a_simulated_program_nothing_is_learned(source: str) -> None:
    card = msgspec.structs.replace(making.CARD, uid="GPU-8", source=source)
    info = ProcessInfo(key=ProcessKey(pid=8, started_at_s=8.0), name="python")
    seen = making.sample(time.time(), [])
    sample = msgspec.structs.replace(seen, readings=(world.reading(card.uid, 5),))
    subject = Subject(device_uid=card.uid, process=info.key)
    with world.history() as history:
        history.record(sample, (card,), {info.key: info})
        history.apply([world.firing(key="leak:GPU-8/8@8.0", subject=subject)], [])
    labelled = alert_changes.label("leak:GPU-8/8@8.0", "normal", None)
    assert (labelled.learned, labelled.recorded) == (False, source == "simulate")


def test_an_alert_without_a_curve_teaches_nothing(ctl: Ctl) -> None:
    world.remember(world.firing(key="gpu:GPU-9", kind="gpu"))
    err = ctl.err("feedback gpu:GPU-9 normal")
    assert "cannot be labelled" in err
    assert "gpuwatchctl snooze gpu:GPU-9 8h" in err
    with Reader.open(config.state_dir()) as reader:
        assert reader.user_labels() == []
