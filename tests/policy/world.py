"""A small world for policy: alerts, a notifier, a store that survives restarts, a clock."""

from __future__ import annotations

import itertools
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import Rules
from gpuwatchd.core.codes import Ending, Hold
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import (
    Alert,
    AlertSubject,
    Decision,
    Delivery,
    EtaRange,
    Finding,
    Message,
    ProcessKey,
    Silence,
    Subject,
)
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.alert_notifier import AlertNotifier
from gpuwatchd.pipeline.clock import Clocks, moved_alert, resumed
from gpuwatchd.pipeline.state import Settings, State
from tests.making import calm, finding, present

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HOUR_S = 3600.0
START_S = 1_750_000_000.0
SOURCE = "world"
URGENT = EtaRange(low_s=500, mid_s=1_200, high_s=1_500)
SOON = EtaRange(low_s=2_000, mid_s=3_000, high_s=4_000)
LATER = EtaRange(low_s=20_000, mid_s=30_000, high_s=40_000)
ETAS = {"urgent": URGENT, "critical": SOON, "warning": LATER}
RANK = {"over": -1, "info": 0, "warning": 1, "critical": 2}


class Bearer:
    """What an alert is kept with."""

    def __init__(self, alert: Alert | None = None) -> None:
        self.alert = alert
        self.last_known_s: float | None = None


class Store:
    """What a database would keep: rows as JSON, by key and opening."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, float], bytes] = {}
        self.made: dict[str, float] = {}
        self.decisions: list[Decision] = []
        self.openings: list[float | None] = []
        """When the alert of each decision had opened; None of one that is over."""
        self.bearers: dict[str, Bearer] = {}

    def apply(self, alerts: Iterable[Alert], deliveries: Sequence[Delivery]) -> list[Delivery]:
        for alert in alerts:
            # The file has one open alert per key: a moved opening is the same one.
            for key, opened_s in list(self.rows):
                row = self.alert((key, opened_s))
                if key == alert.key and row.resolved_at_s is None:
                    del self.rows[key, opened_s]
            self.rows[alert.key, alert.opened_at_s] = msgspec.json.encode(alert)
        for one in deliveries:
            self.made.setdefault(one.message.id, one.created_at_s)
        return list(deliveries)

    def decide(self, decisions: Iterable[Decision]) -> None:
        for one in decisions:
            bearer = self.bearers.get(one.alert_key)
            alert = None if bearer is None else bearer.alert
            self.decisions.append(one)
            self.openings.append(None if alert is None else alert.firing_at_s)

    def alert(self, row: tuple[str, float]) -> Alert:
        return msgspec.json.decode(self.rows[row], type=Alert)

    def alerts(self) -> list[Alert]:
        return [self.alert(row) for row in self.rows]


class Dresser:
    """Makes messages without devices, prices or pictures."""

    def __init__(self, process: str) -> None:
        self.process = process

    def with_subject(self, alert: Alert) -> Alert:
        if alert.about is not None:
            return alert
        about = AlertSubject(gpu="0", user="alice", process=self.process)
        return msgspec.structs.replace(alert, about=about)

    def with_cost(
        self, alert: Alert, now_s: float, thread: str = "", *, counted: bool = True
    ) -> Alert:
        own = messages.message_id(alert, "firing", 1)
        return msgspec.structs.replace(alert, first_message=alert.first_message or thread or own)

    def message(self, notice: policy.Notice, curve: object, now_s: float) -> Message:
        alert = notice.alert
        return Message(
            id=messages.message_id(alert, notice.kind, alert.notices),
            notice=notice.kind,
            severity=alert.severity,
            subject=alert.title,
            body="",
            alert_key=alert.key,
            also=tuple(one.key for one in notice.also),
            facts={one.key: one.severity for one in (alert, *notice.also)},
        )


class Told(msgspec.Struct, frozen=True):
    """One message as its first channel got it, on the clock of people."""

    at_s: float
    notice: str
    key: str
    severity: str
    also: tuple[str, ...]
    held: str
    channels: tuple[str, ...]
    severities: dict[str, str]

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)


class World:
    """Subjects that grow or not, judged every few seconds."""

    def __init__(
        self, rules: Rules | None = None, *, devices: int = 1, subjects: int = 3, process: str = ""
    ) -> None:
        self.rules = rules or Rules()
        self.process = process
        self.store = Store()
        self.mono_s = 5_000.0
        self.wall_s = START_S
        self.told: list[Told] = []
        self.silences: list[Silence] = []
        self.lost = False
        self.subjects = {
            f"leak:{one.id}": one
            for number in range(subjects)
            for one in (
                Subject(
                    device_uid=f"GPU-{number % devices}",
                    process=ProcessKey(pid=100 + number, started_at_s=1.0),
                ),
            )
        }
        self.keys = list(self.subjects)
        self.how = dict.fromkeys(self.keys, "calm")
        self.bearers = {key: Bearer() for key in self.keys}
        self.gpu = Bearer()
        self.store.bearers = {**self.bearers, "gpu:GPU-0": self.gpu}
        self.restart()

    def restart(self) -> None:
        """Begin anew with nothing but the store."""
        self.state = State(Config())
        self.state.settings = Settings(Config(), self.rules)
        post: Any = SimpleNamespace(
            send=self._send,
            reach=SimpleNamespace(undelivered=tuple),
            made_mono_s=deque(maxlen=1000),
        )
        store: Any = self.store
        dresser: Any = Dresser(self.process)
        self.alert_notifier = AlertNotifier(
            self.state, post, store, message_builder=dresser,
            clocks=Clocks(lambda: self.wall_s, lambda: self.mono_s),
        )  # fmt: skip
        known = [resumed(alert, self.rules, self.wall_s) for alert in self.store.alerts()]
        self.alert_notifier.resume(
            [alert for alert in known if alert.resolved_at_s is not None],
            [at_s for at_s in self.store.made.values() if at_s >= self.wall_s - 3600.0],
            self.wall_s,
        )
        for bearer in (*self.bearers.values(), self.gpu):
            bearer.alert = None
        for alert in known:
            if alert.resolved_at_s is None:
                bearer = self.gpu if alert.kind == "gpu" else self.bearers[alert.key]
                bearer.alert = alert

    def reload(self, rules: Rules) -> None:
        """Take over other rules."""
        self.rules = rules
        self.state.settings = Settings(Config(), rules)

    def step_clock(self, by_s: float) -> None:
        """Set the wall clock while everything runs."""
        self.wall_s += by_s
        moved = []
        for bearer in (*self.bearers.values(), self.gpu):
            if bearer.alert is not None:
                bearer.alert = moved_alert(bearer.alert, by_s)
                if bearer.alert.state != "pending":
                    moved.append(bearer.alert)
            if bearer.last_known_s is not None:
                bearer.last_known_s += by_s
        self.silences = [
            msgspec.structs.replace(one, until_at_s=one.until_at_s + by_s) for one in self.silences
        ]
        self.alert_notifier.move(SOURCE, moved, by_s)

    def silence(self, seconds: float, **changes: Any) -> None:
        one = Silence(from_at_s=self.wall_s, until_at_s=self.wall_s + seconds, **changes)
        self.silences.append(one)

    def finding(self, key: str) -> Finding:
        how, subject = self.how[key], self.subjects[key]
        values: dict[str, Any] = {"subject": subject, "judged_at_s": self.wall_s, "id": subject.id}
        values["onset_at_s"] = self.wall_s - 600.0
        if how in ETAS:
            return finding(eta=ETAS[how], confidence=0.85, **values)
        if how == "unknown":
            return calm(pattern="unknown", **values)
        return calm(**values)

    def step(self, seconds: float = 10.0) -> None:
        """Let time go by, judge everything once, and tell what is due."""
        self.mono_s += seconds
        self.wall_s += seconds
        now_s = self.wall_s
        self.state.silences.active = tuple(
            one for one in self.silences if one.until_at_s > now_s and one.cleared_at_s is None
        )
        changes: list[Alert] = []
        for key, bearer in self.bearers.items():
            if self.how[key] == "gone":
                outcome = (
                    policy.ended(bearer.alert, Ending.PROCESS_ENDED, self.rules, now_s=now_s)
                    if bearer.alert is not None
                    else policy.Outcome(alert=None, changed=False)
                )
            elif self.how[key] == "silent":
                continue
            else:
                bearer.last_known_s = now_s
                outcome = policy.evaluate(
                    self.finding(key), bearer.alert, self.rules, now_s=now_s, title=key
                )
            self._settle(bearer, outcome, changes)
        self._hardware(changes, now_s)
        every = [*self.bearers.values(), self.gpu]
        self.alert_notifier.notify(SOURCE, every, changes, now_s)
        self._check(now_s)

    def be(self, key: str, how: str, seconds: float, every_s: float = 10.0) -> None:
        """Let a subject be so, and time go by."""
        self.how[key] = how
        self.run(seconds, every_s)

    def run(self, seconds: float, every_s: float = 10.0) -> None:
        for _ in range(round(seconds / every_s)):
            self.step(every_s)

    def _hardware(self, changes: list[Alert], now_s: float) -> None:
        self.gpu.last_known_s = now_s
        if self.lost and self.gpu.alert is None:
            subject = Subject(device_uid="GPU-0")
            self.gpu.alert = Alert(
                key="gpu:GPU-0", kind="gpu", subject=subject, state="firing", severity="critical",
                finding=calm(subject=subject, reason="it does not answer; nor do others"),
                opened_at_s=now_s, changed_at_s=now_s,
                firing_at_s=now_s, next_notice_at_s=now_s + self.rules.flap_hold_s,
                title="GPU 0",
            )  # fmt: skip
            changes.append(self.gpu.alert)
        elif not self.lost and self.gpu.alert is not None:
            outcome = policy.ended(self.gpu.alert, Ending.DEVICE_ANSWERS, self.rules, now_s=now_s)
            self._settle(self.gpu, outcome, changes)

    @staticmethod
    def _settle(bearer: Bearer, outcome: policy.Outcome, changes: list[Alert]) -> None:
        alert = outcome.alert
        bearer.alert = None if alert is not None and alert.state == "resolved" else alert
        if outcome.changed and alert is not None:
            changes.append(alert)

    def _send(self, deliveries: list[Delivery], alerts: list[Alert]) -> None:
        self.store.apply(alerts, deliveries)
        by_message = itertools.groupby(deliveries, key=lambda one: one.message.id)
        for _, group in by_message:
            some = list(group)
            message = some[0].message
            self.told.append(
                Told(
                    self.mono_s, message.notice, message.alert_key, message.severity,
                    message.also, some[0].held, tuple(one.channel for one in some),
                    message.facts,
                )
            )  # fmt: skip

    def _check(self, now_s: float) -> None:
        """Say at every moment: who is to be told and was not is held back, and that says why."""
        for bearer in (*self.bearers.values(), self.gpu):
            alert = bearer.alert
            if alert is None or alert.state != "firing":
                continue
            # And nothing says why it is held back that is not due.
            if alert.held_code not in {None, Hold.NO_DATA}:
                assert policy.notice_due(alert, now_s) is not None, alert
            if alert.notices > 0:
                # Nor is what has become worse, or is to be told again, passed over in silence.
                worth = policy.capped_severity(alert, policy.rules_for(alert, self.rules))
                worse = RANK[worth] > RANK[alert.told_severity or alert.severity]
                again_s = alert.next_notice_at_s
                assert alert.held_code or not worse, alert
                assert alert.held_code or again_s is None or now_s < again_s, alert
                continue
            assert alert.next_notice_at_s is not None, alert.key
            waits = now_s < alert.next_notice_at_s
            assert waits or alert.held_code, alert
            # A wait is never longer than a cool-down.
            assert alert.next_notice_at_s <= now_s + self.rules.cooldown_s, alert

    def notices(self, key: str | None = None) -> list[str]:
        """Return the kinds of notices about one subject, or about all."""
        return [one.notice for one in self.told if key is None or key in one.keys]

    def alert(self, key: str) -> Alert:
        """Return the open alert on one subject."""
        return present(self.bearers[key].alert)

    def at_s(self, key: str) -> list[float]:
        """Return when people were told about one subject."""
        return [one.at_s for one in self.told if key in one.keys]


def fresh(rules: Rules | None = None) -> tuple[World, str]:
    """Return a world with one subject that is calm."""
    world = World(rules, subjects=1)
    return world, world.keys[0]


def one(rules: Rules | None = None, how: str = "warning") -> tuple[World, str]:
    """Return a world with one subject, of which people have just been told."""
    world, key = fresh(rules)
    world.be(key, how, 600.0)
    return world, key
