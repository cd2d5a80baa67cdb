"""From alerts to messages, with a real history: grouped, priced, written down, taken up again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts.routing import held_route
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.config import Config, CostSection, PolicySection, StoreSection
from gpuwatchd.core.model import Matcher, ProcessInfo, ProcessKey, Sample, Silence, Subject
from gpuwatchd.core.model.alerts import TitlePart
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.state import rules_of
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, present, sample
from tests.pipeline.play import QUIET, Postbox, Script, leaking, run
from tests.pipelines import make_pipeline
from tests.store.world import Time

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.tick import Tick

BASE_S = 1_750_000_000.0
OTHER = ProcessInfo(key=ProcessKey(pid=4712, started_at_s=1_001.0), name="python", user="bob")
STEP = 5.0


class Case:
    """A pipeline on a history that survives it."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.directory = directory
        self.config = config or Config()
        self.time = Time(BASE_S)
        self.count = 0
        self.ends_at: int | None = None
        self.both = False
        self.post = Postbox()
        self.begin()

    def begin(self) -> None:
        """Begin with what the history has."""
        self.history = History.open(
            self.directory, StoreSection(min_free_mib=0), boot_id="boot", clock=self.time.clock,
            monotonic=self.time.monotonic,
        )  # fmt: skip
        self.pipeline = make_pipeline(
            config=self.config, sources=[Script(lambda _: self.sample())], history=self.history,
            message_dispatcher=self.post, wall=self.time.clock, mono=self.time.monotonic,
        )  # fmt: skip
        self.pipeline.resume()

    def sample(self) -> Sample:
        """Return what is there now; the source's clock is that of the people."""
        tick, at_s = self.count, 1000.0 + STEP * self.count
        one = leaking(tick)
        grown = max(0, tick - 60) * 200 * MIB
        if self.both:
            uses = [(LEAKER, 10 * GIB + grown // 2), (OTHER, 10 * GIB + grown // 2)]
            one = sample(at_s, [*uses, (QUIET, 100 * MIB)])
        if self.ends_at is not None and tick >= self.ends_at:
            one = sample(at_s, [(QUIET, 100 * MIB)])
        return _at(one, self.time.now_s)

    def run(self, ticks: int) -> list[Tick]:
        out = []
        for _ in range(ticks):
            out += run(self.pipeline, 1)
            self.count += 1
            self.time.pass_s(STEP)
        return out

    def end(self, ticks: int) -> None:
        """Let what leaks end."""
        self.ends_at = self.count
        self.run(ticks)

    def die(self) -> None:
        """Stop without a word, as a kill does, and begin anew."""
        self.history.close()
        self.begin()

    @property
    def told(self) -> list[str]:
        return [one.message.notice for one in self.post.taken]


def _at(one: Sample, wall_s: float) -> Sample:
    return msgspec.structs.replace(one, taken_at_s=wall_s)


def test_what_is_known_of_an_alert_is_kept_with_it(tmp_path: Path) -> None:
    case = Case(tmp_path, Config(cost=CostSection(usd_per_gpu_hour=2.0)))
    case.run(190)
    (delivery,) = case.post.taken
    assert delivery.message.cost
    assert [button.name for button in delivery.message.buttons][:2] == ["snooze", "show"]
    assert delivery.message.chart is not None
    (kept,) = case.history.open_alerts()
    assert kept.about is not None
    assert (kept.about.user, kept.about.process, kept.about.gpu) == ("alice", "python", "0")
    assert kept.about.command == "python train.py"
    assert kept.group == f"gpu:{CARD.uid}"
    assert present(kept.cost).usd_per_hour is not None
    assert (kept.told_on, kept.told_severity) == (("desktop",), kept.severity)
    assert kept.first_message == delivery.message.id
    with Reader.open(tmp_path) as reader:
        (said,) = [d for d in reader.decisions(kept.key) if d.kind == "notify"]
    assert (said.target, said.notice) == ("desktop", "firing")
    case.pipeline.close()


def test_two_on_one_device_share_their_notice(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.both = True
    case.run(260)
    firing = [one.message for one in case.post.taken if one.message.notice == "firing"]
    assert sum(1 + len(message.also) for message in firing) == 2
    assert len(firing) == 1
    # Each end answers the notice that told of it, and only the last one ends what they share.
    case.both, case.ends_at = False, None
    case.run(5)
    case.end(5)
    ends = [one.message for one in case.post.taken if one.message.notice == "resolved"]
    assert sorted(message.alert_key for message in ends) == sorted(
        (firing[0].alert_key, *firing[0].also)
    )
    assert [message.thread for message in ends] == [firing[0].id] * 2
    assert [message.others_open for message in ends] == [True, False]
    case.pipeline.close()


def test_a_restart_repeats_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, Config(policy=PolicySection(max_per_hour=1)))
    case.run(190)
    assert case.told == ["firing"]
    case.die()
    case.run(5)
    case.end(5)
    assert case.told == ["firing"]  # the limit per hour is remembered
    case.die()
    case.run(60 * 4)
    assert case.told == ["firing", "resolved"]
    assert case.post.taken[1].message.thread == case.post.taken[0].message.id
    case.die()
    case.run(5)
    assert case.told == ["firing", "resolved"]
    case.pipeline.close()


def test_of_the_limit_per_hour_only_what_is_of_this_hour_counts(tmp_path: Path) -> None:
    case = Case(tmp_path, Config(policy=PolicySection(max_per_hour=1)))
    case.time.now_s += 365 * 86_400.0  # a clock that was a year ahead
    case.run(190)
    assert case.told == ["firing"]
    case.time.now_s -= 365 * 86_400.0
    case.die()
    case.run(5)
    case.end(5)
    assert case.told == ["firing", "resolved"]
    case.pipeline.close()


def test_a_digest_counts_for_the_limit_per_hour(tmp_path: Path) -> None:
    case = Case(tmp_path, Config(policy=PolicySection(max_per_hour=2)))
    case.run(190)
    case.pipeline.outbox.made_mono_s.append(case.time.monotonic())
    case.end(5)
    (over,) = case.history.over_since(0.0)
    assert (case.told, over.held_code) == (["firing"], Hold.RATE_LIMIT)
    case.pipeline.close()


def test_a_silence_that_somebody_sets_is_heard_and_ends(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.run(10)
    now_s = case.time.now_s
    one = Silence(
        matcher=Matcher(user="alice"), from_at_s=now_s, until_at_s=now_s + 1200.0, who="alice",
        even_critical=True,
    )  # fmt: skip
    transaction(tmp_path, tables.write_silence, one)
    case.run(190)
    assert case.told == []
    (held,) = [a for a in case.history.open_alerts() if a.state == "firing"]
    assert (held.held_code, held.held_facts["who"]) == (Hold.SILENCED, "alice")
    case.die()
    case.run(10)
    assert case.told == []
    case.run(60)
    assert case.told == ["firing"]
    with Reader.open(tmp_path) as reader:
        reasons = [d.reason for d in reader.decisions(held.key) if d.kind == "hold"]
    assert reasons == [held.held_back]
    case.pipeline.close()


def test_of_what_reached_nobody_nobody_hears_that_it_is_over(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.post.outcome = "failed"  # for good
    case.run(190)
    assert case.told == ["firing"]
    assert case.pipeline.outbox.reach.undelivered() == (case.post.taken[0].alert_key,)
    case.post.outcome = "sent"
    case.end(20)
    assert case.told == ["firing"]
    (over,) = case.history.over_since(0.0)
    assert (over.next_notice_at_s, over.held_code) == (None, Hold.BEGINNING_UNDELIVERED)
    case.pipeline.close()


def test_a_gpu_that_is_lost_says_it_all_until_it_is_back(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.run(200)
    real = case.sample

    def lost() -> Sample:
        one = real()
        reading = msgspec.structs.replace(
            one.readings[0], state="lost", used_bytes=None, free_bytes=None, uses=None
        )
        return msgspec.structs.replace(one, readings=(reading,), processes=())

    before = case.told
    case.sample = lost  # type: ignore[method-assign]
    case.run(80)
    kinds = [one.alert_key.partition(":")[0] for one in case.post.taken[len(before) :]]
    assert kinds == ["gpu"]
    (leak,) = [a for a in case.history.open_alerts() if a.kind == "leak"]
    assert leak.inhibited_by == f"gpu:{CARD.uid}"
    case.die()
    case.run(30)
    assert len(case.post.taken) == len(before) + 1
    case.sample = real  # type: ignore[method-assign]
    case.run(90)
    (leak,) = [a for a in case.history.open_alerts() if a.kind == "leak"]
    assert leak.inhibited_by == ""
    later = [(d.message.notice, d.alert_key.partition(":")[0]) for d in case.post.taken]
    assert ("resolved", "gpu") in later
    assert ("firing", "leak") in later
    case.pipeline.close()


def test_one_alert_that_cannot_be_judged_costs_no_other_its_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = policy.due_notices

    def announce(alerts: list[Alert], *args: object, **kinds: object) -> policy.Notifications:
        if any(one.subject.process == OTHER.key for one in alerts):
            raise RuntimeError("no")
        return real(alerts, *args, **kinds)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "due_notices", announce)
    case = Case(tmp_path)
    case.both = True
    case.run(260)
    assert [d.message.notice for d in case.post.taken][:1] == ["firing"]
    assert all(f"/{KEY.pid}@" in d.alert_key for d in case.post.taken)
    (problem,) = [one for one, _ in case.pipeline.problems() if "no message can be sent" in one]
    assert f"/{OTHER.key.pid}@" in problem
    case.pipeline.close()


def test_hundreds_in_one_message_are_not_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatchd.pipeline.alert_notifier.PRICED", 1)
    case = Case(tmp_path, Config(cost=CostSection(usd_per_gpu_hour=2.0)))
    case.both = True
    case.run(260)
    (told,) = [one.message for one in case.post.taken if one.message.notice == "firing"]
    kept = {one.key: one for one in case.history.open_alerts()}
    assert kept[told.alert_key].cost is not None
    assert [kept[key].cost for key in told.also] == [None]
    assert [kept[key].first_message for key in told.also] == [told.id]
    case.pipeline.close()


def test_why_a_notice_waits_can_be_stored() -> None:
    held = held_route("", Hold.GROUP_PAUSE, pause_s=rules_of(Config()).group_interval_s)
    assert msgspec.json.decode(msgspec.json.encode(held.facts)) == {"pause_s": 300.0}


def test_a_message_about_many_lists_every_pid() -> None:
    subjects = [Subject(device_uid=CARD.uid, process=ProcessKey(pid=pid, started_at_s=1.0))
                for pid in range(4200001, 4200009)]  # fmt: skip
    title = (TitlePart(text="a_program_with_a_long_name.py"),)
    also = [alert(key=one.id, subject=one, title_parts=title) for one in subjects]
    value = messages.compose(also[0], "firing", now_s=BASE_S, also=also[1:]).facts["Also"]
    assert all(str(one.process.pid) in value for one in subjects[3:] if one.process)
