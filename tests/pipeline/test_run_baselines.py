"""What earlier runs, siblings, yesterday and the user say changes what is watched and told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.pipeline.run_baselines import MARGIN
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from tests.making import CARD, GIB, MIB, sample
from tests.pipeline.play import Postbox, Script
from tests.pipelines import make_pipeline
from tests.store import runs
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.writer import History

MINUTE = 60.0


class Lab:
    """One machine over many runs and restarts, with a history on disk."""

    def __init__(self, directory: Path, devices: Sequence[Device] = (CARD,)) -> None:
        self.directory = directory
        self.time = Time(1_700_000_040.0)
        self.devices = tuple(devices)
        self.alive: dict[ProcessInfo, tuple[Device, Callable[[float], float]]] = {}
        self.post = Postbox()
        self.pids = 4000
        self.step_s = 10.0
        self.changes: list[Alert] = []
        self.start()

    def start(self) -> None:
        self.history: History = opened(self.directory, self.time)
        self.pipeline = make_pipeline(
            config=Config(),
            sources=[Script(lambda _: self.look(), devices=self.devices)],
            history=self.history,
            message_dispatcher=self.post,
            wall=self.time.clock,
            mono=self.time.monotonic,
        )
        self.pipeline.resume()

    def stop(self) -> None:
        self.pipeline.close()

    def restart(self) -> None:
        self.stop()
        self.time.pass_s(30)
        self.start()

    def look(self) -> Sample:
        now_s = self.time.now_s
        readings, infos = [], []
        for device in self.devices:
            uses = [
                (info, int(curve(now_s - (info.key.started_at_s or 0.0))) // (2 * MIB) * (2 * MIB))
                for info, (where, curve) in self.alive.items()
                if where is device
            ]
            one = sample(self.time.mono_s, uses, device=device, wall_s=now_s)
            readings += [msgspec.structs.replace(r, util_pct=90.0) for r in one.readings]
            infos += [info for info, _ in uses]
        return msgspec.structs.replace(
            sample(self.time.mono_s, [], wall_s=now_s),
            boot_id="boot-1",
            readings=tuple(readings),
            processes=tuple(infos),
        )

    def begin(
        self,
        curve: Callable[[float], float],
        *,
        program: str | None = "abc",
        device: Device = CARD,
        parent: int = 1,
    ) -> ProcessInfo:
        self.pids += 1
        info = ProcessInfo(
            key=ProcessKey(pid=self.pids, started_at_s=self.time.now_s),
            name="python",
            user="alice",
            argv=("python", "train.py"),
            program=program,
            parent_pid=parent,
        )
        self.alive[info] = (device, curve)
        return info

    def pass_minutes(self, minutes: float) -> list[Alert]:
        """Let time go by; return the alerts whose state changed."""
        seen: list[Alert] = []
        for _ in range(int(minutes * MINUTE / self.step_s)):
            self.time.pass_s(self.step_s)
            seen += self.pipeline.tick().changes
            if self.time.now_s % MINUTE < self.step_s:
                self.history.flush(self.time.now_s)
                self.history.chores(self.time.now_s)
        self.changes += seen
        return seen

    def run(self, curve: Callable[[float], float], minutes: float = 100) -> list[Alert]:
        """Let a program run and end; return the alerts whose state changed."""
        info = self.begin(curve)
        return [*self.pass_minutes(minutes), *self.end(info)]

    def end(self, *infos: ProcessInfo) -> list[Alert]:
        """Let programs end; return the alerts whose state changed."""
        for info in infos:
            del self.alive[info]
        return self.pass_minutes(2)

    def track(self, info: ProcessInfo, device: Device = CARD) -> Track:
        return self.pipeline.state.tracks[Subject(device_uid=device.uid, process=info.key).id]

    def say(self, alert: Alert, said: str) -> None:
        about = runs.word(
            runs.run(),
            said,
            alert_key=alert.key,
            opened_at_s=alert.opened_at_s,
            subject=alert.subject,
            given_at_s=self.time.now_s,
        )
        transaction(self.directory, tables.write_label, about)


pytestmark = pytest.mark.slow

BASE, ROOM = 6 * GIB, 30 * GIB


def ramp(age_s: float) -> float:
    """Fill 30 GiB in a straight line within 50 minutes, then stand: benign, and looks bad."""
    return BASE + ROOM * min(age_s / (50 * MINUTE), 1.0)


def leaking(age_s: float) -> float:
    """Do the same, and lose 150 MiB a minute from the 20th minute on."""
    return ramp(age_s) + 150 * MIB * max(0.0, age_s / MINUTE - 20)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A machine with so many cards, one if nothing is said."""
    number = getattr(request, "param", 1)
    cards = [msgspec.structs.replace(CARD, uid=f"GPU-{n}", index=n) for n in range(number)]
    made = Lab(tmp_path, cards if number > 1 else (CARD,))
    yield made
    made.stop()


def states(changes: Sequence[Alert]) -> list[str]:
    return [alert.state for alert in changes]


def test_the_third_time_a_ramp_is_normal_and_a_leak_in_the_same_program_is_not(lab: Lab) -> None:
    assert "watch" in states(lab.run(ramp)), "a strange straight ramp is worth a watch"
    lab.restart()
    lab.run(ramp)
    lab.restart()
    info = lab.begin(ramp)
    assert lab.pass_minutes(100) == []
    shown = lab.track(info).run_baseline.shown
    assert (shown.runs, shown.word) == (2, None)
    lab.end(info)
    lab.restart()
    seen = lab.run(leaking, 200)
    assert states(seen)[:2] == ["watch", "firing"]


def test_a_program_that_is_another_learns_nothing(lab: Lab) -> None:
    for _ in range(2):
        lab.run(ramp)
    for program in ("other", None):
        info = lab.begin(ramp, program=program)
        assert "watch" in states(lab.pass_minutes(60))
        assert lab.track(info).history == ()
        lab.end(info)


def test_a_run_that_goes_on_when_the_daemon_stops_is_no_history_of_its_own(lab: Lab) -> None:
    info = lab.begin(ramp)
    lab.pass_minutes(30)
    lab.restart()
    lab.pass_minutes(10)
    assert lab.track(info).history == ()
    (known,) = lab.history.shelf.runs(lab.track(info).run_baseline.key or "")
    assert known.profile.run_s == pytest.approx(30 * MINUTE, abs=60)
    lab.end(info)
    (known,) = lab.history.shelf.runs(known.key)
    assert known.profile.run_s == pytest.approx(40 * MINUTE, abs=90)


def test_a_run_that_ended_while_nobody_watched_is_learned_from(lab: Lab) -> None:
    info = lab.begin(ramp)
    lab.pass_minutes(30)
    key = lab.track(info).run_baseline.key or ""
    lab.history.flush(lab.time.now_s)
    lab.history.close()  # as if killed: the pipeline is not closed
    del lab.alive[info]
    lab.time.pass_s(30)
    lab.start()
    lab.pass_minutes(1)
    (known,) = lab.history.shelf.runs(key)
    assert known.process == info.key
    assert known.profile.top_bytes == pytest.approx(ramp(30 * MINUTE), rel=0.05)


def fired(lab: Lab, curve: Callable[[float], float]) -> tuple[ProcessInfo, Alert]:
    info = lab.begin(curve)
    for _ in range(60):
        for alert in lab.pass_minutes(2):
            if alert.state == "firing":
                return info, alert
    raise AssertionError("nothing fired")


def straight(age_s: float) -> float:
    return BASE + 300 * MIB * age_s / MINUTE


def test_what_is_said_to_be_normal_is_over_at_once_and_stays_quiet_up_to_there(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    lab.say(alert, "normal")
    (over,) = lab.pass_minutes(0.2)
    assert over.state == "resolved"
    assert over.ended_code is Ending.LABELLED_NORMAL
    assert over.next_notice_at_s is None
    assert lab.pass_minutes(3) == []
    finding = lab.track(info).finding
    assert finding is not None
    assert finding.tier == "none"
    lab.restart()
    assert lab.pass_minutes(2) == []
    # 300 MiB a minute go beyond what was normal, sooner or later.
    assert "firing" in states(lab.pass_minutes(60))


def test_what_was_said_can_be_taken_back(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    lab.say(alert, "normal")
    lab.pass_minutes(1)
    assert lab.track(info).suppression is not None
    assert lab.track(info).run_baseline.shown.word == "normal"
    transaction(lab.directory, tables.remove_label, alert.key, lab.time.now_s)
    assert "firing" in states(lab.pass_minutes(25))
    assert lab.track(info).suppression is None
    assert lab.track(info).history == ()


def test_a_new_word_takes_the_place_of_the_old(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    info, alert = fired(lab, straight)
    lab.say(alert, "normal")
    lab.pass_minutes(1)
    assert lab.track(info).suppression is not None
    monkeypatch.setattr(lab.history.shelf, "user_labels", lambda: None)  # cannot be read just now
    lab.say(alert, "leak")
    lab.pass_minutes(1)
    assert lab.track(info).suppression is not None
    monkeypatch.undo()
    assert "firing" in states(lab.pass_minutes(10))
    assert lab.track(info).suppression is None
    assert lab.track(info).run_baseline.shown.word == "leak"


def test_the_word_teaches_the_next_run(lab: Lab) -> None:
    _, alert = fired(lab, ramp)
    lab.pass_minutes(60)
    lab.end(*lab.alive)
    lab.say(alert, "normal")
    info = lab.begin(ramp)
    assert lab.pass_minutes(100) == []
    assert lab.track(info).run_baseline.shown.word == "normal"
    assert [known.word for known in lab.track(info).history] == ["normal"]


def fast(age_s: float) -> float:
    return BASE + 3 * GIB * age_s / MINUTE


def test_a_word_on_a_run_that_is_too_short_for_a_profile_holds_too(lab: Lab) -> None:
    info = lab.begin(fast)
    seen = lab.pass_minutes(4)
    alert = next(one for one in seen if one.state in {"watch", "firing"})
    lab.say(alert, "normal")
    level = fast(4 * MINUTE)
    assert states(lab.pass_minutes(0.2)) == ["resolved"]
    suppression = lab.track(info).suppression
    assert suppression is not None
    assert suppression.level_bytes == pytest.approx(BASE + (1 + MARGIN) * (level - BASE), rel=0.05)
    assert lab.history.shelf.runs(lab.track(info).run_baseline.key or "") == []


def test_what_came_after_the_word_is_not_what_was_said_to_be_normal(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    said_s = lab.time.now_s
    lab.say(alert, "normal")
    lab.pipeline.run_baselines.read_labels = lambda: None  # type: ignore[method-assign, union-attr]
    lab.pass_minutes(30)
    lab.history.flush(lab.time.now_s)
    lab.history.close()  # as if it had been killed before it could listen
    lab.start()
    lab.pass_minutes(2)
    (then,) = [one for one in lab.track(info).history if one.word is not None]
    started_s = info.key.started_at_s or 0.0
    assert then.top_bytes <= straight(said_s - started_s) + 300 * MIB


def test_a_word_moves_along_when_the_program_becomes_known(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    lab.say(alert, "normal")
    lab.pass_minutes(1)
    before = lab.track(info).run_baseline.key
    better = msgspec.structs.replace(info, program="abc with its framework")
    lab.alive = {better: lab.alive[info]}
    lab.pass_minutes(1)
    assert lab.track(info).run_baseline.key != before
    assert [one.word for one in lab.track(info).history] == ["normal"]


def test_a_leak_that_is_confirmed_stays_and_teaches_the_next_run(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    lab.say(alert, "leak")
    assert lab.pass_minutes(3) == []
    assert lab.track(info).alert is not None
    lab.end(*lab.alive)
    again = lab.begin(straight)
    lab.pass_minutes(2)
    assert [known.word for known in lab.track(again).history] == ["leak"]


def test_a_word_that_came_while_the_daemon_was_stopped_is_followed(lab: Lab) -> None:
    info, alert = fired(lab, straight)
    lab.stop()
    lab.time.pass_s(20)
    lab.say(alert, "normal")
    lab.start()
    assert "resolved" in states(lab.pass_minutes(2))
    assert lab.track(info).suppression is not None


def test_a_word_on_memory_that_is_no_program_holds_for_it_alone(lab: Lab) -> None:
    info = lab.begin(straight, program=None)
    seen = lab.pass_minutes(80)
    alert = next(one for one in seen if one.state == "firing")
    lab.say(alert, "normal")
    assert states(lab.pass_minutes(2)) == ["resolved"]
    assert lab.track(info).suppression is not None
    assert len(lab.history.shelf.runs(f"subject/{lab.track(info).subject.id}")) == 1


@pytest.mark.parametrize("lab", [3], indirect=True)
def test_siblings_of_one_job_are_known_while_one_of_them_grows(lab: Lab) -> None:
    cards = lab.devices
    ranks = [lab.begin(ramp, device=card, parent=77) for card in cards]
    stranger = lab.begin(ramp, device=cards[0], parent=78)
    lab.pass_minutes(30)
    for rank, card in zip(ranks, cards, strict=True):
        known = lab.track(rank, card).history
        assert [one.kind for one in known] == ["sibling", "sibling"]
        assert known[0].run_s > 10 * MINUTE
    assert lab.track(stranger, cards[0]).run_baseline.siblings == ()


@pytest.mark.parametrize("lab", [2], indirect=True)
def test_a_job_of_many_ranks_is_one_earlier_run(lab: Lab) -> None:
    cards = lab.devices
    for _ in range(2):
        for card in cards:
            lab.begin(ramp, device=card)
        lab.pass_minutes(20)
        lab.alive.clear()
        lab.pass_minutes(3)
    info = lab.begin(ramp, device=cards[1])
    lab.pass_minutes(1)
    assert lab.track(info, cards[1]).run_baseline.shown.runs == 2


def test_yesterday_is_known_of_what_is_older_than_a_day(lab: Lab) -> None:
    def daily(age_s: float) -> float:
        hour = age_s / 3600 % 24
        return BASE + 2 * GIB * max(0.0, min(hour, 4.0)) - 2 * GIB * max(0.0, min(hour - 8, 4.0))

    info = lab.begin(daily, program=None)
    lab.step_s = 60.0
    lab.pass_minutes(26 * 60)
    assert [one.kind for one in lab.track(info).history] == ["yesterday"]
    assert lab.track(info).run_baseline.shown.yesterday
