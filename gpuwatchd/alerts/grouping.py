"""Which notices are due, which leave together, and what is held back and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.alerts.lifecycle import passes_cooldown, reminder_at_s
from gpuwatchd.alerts.policy_types import HOUR_S, RANK, Effective, Route, Rules
from gpuwatchd.alerts.routing import (
    InhibitingAlerts,
    RoutingCase,
    capped_severity,
    held_route,
    inhibitor,
    routes_of,
    rules_for,
)
from gpuwatchd.core.codes import Hold, TitleRole
from gpuwatchd.core.model import Alert, Decision, NoticeKind, Silence, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Severity
    from gpuwatchd.core.units import Local


_PROGRAM = frozenset({TitleRole.NONE, TitleRole.INTERPRETER})
"""Parts of a title that do not differ between runs of a program."""
Signature = tuple[tuple[str, str, float | None], ...]


class Due(NamedTuple):
    """A notice that is due, or leaves with one that is."""

    alert: Alert
    notice: NoticeKind
    severity: Severity
    effective: Effective
    routes: tuple[Route, ...]
    joins: bool = False
    """It is not due: it leaves with others, or not yet."""

    @property
    def signature(self) -> Signature:
        """By which channels it leaves, and when."""
        return tuple((r.channel, r.kind, r.until_at_s) for r in self.routes if r.kind != "hold")

    @property
    def group(self) -> str:
        """What its alert shares its notices with."""
        return self.alert.group or group_of(self.alert)

    @property
    def urgent(self) -> bool:
        """Whether it is news, and critical."""
        return self.severity == "critical" and self.notice in {"firing", "escalated"}

    @property
    def order(self) -> tuple[bool, int, float, str]:
        """Sort key: news first, of that the worst, then the oldest."""
        old = self.notice == "repeat"
        return old, -RANK[self.severity], self.alert.firing_at_s or 0.0, self.alert.key

    @property
    def together(self) -> tuple[str, bool, Signature]:
        """What leaves as one message: of one group, open or over, by the same channels."""
        return self.group, self.notice == "resolved", self.signature


def group_of(alert: Alert, beside: Sequence[Alert] = ()) -> str:
    """Return what an alert shares its notices with: its user's program, its job, else its device.

    One user's runs of one program grow for one reason, and so do ranks of one job; strangers on one
    device take from the same memory, and whoever looks at one of them looks at the other.
    ``beside`` are open alerts: a program that others of another group are of has its own.
    """
    job = "" if alert.about is None else alert.about.job
    own = f"job:{job}" if job else f"gpu:{alert.subject.device_uid}"
    program = program_of(alert) if beside else ""
    others = {other.group for other in beside if program and program_of(other) == program}
    return program if others - {own, ""} else own


def program_of(alert: Alert) -> str:
    """Return the group of an alert's program, "" where its user or process is unknown.

    It is of one kind, user, container and service: tenants are strangers, also as root.
    """
    about = alert.about
    if about is None or not (about.user and about.process):
        return ""
    script = "".join([part.text for part in alert.title_parts or () if part.role in _PROGRAM])
    words = (alert.kind, about.user, about.container, about.service, about.process, script)
    return f"program:{', '.join(filter(None, words))}"


def regrouped(alert: Alert, beside: Iterable[Alert]) -> list[Alert]:
    """Return others of an alert's program that join its group: those that nobody was told of."""
    if alert.group != program_of(alert):
        return []
    return [
        msgspec.structs.replace(other, group=alert.group)
        for other in beside
        if other.key != alert.key and other.group != alert.group and not other.notices
        if program_of(other) == alert.group
    ]


def notice_due(alert: Alert, now_s: float) -> NoticeKind | None:
    """Return which notice this alert owes now, None when none."""
    due = alert.next_notice_at_s is not None and now_s >= alert.next_notice_at_s
    if alert.state == "resolved":
        return "resolved" if due else None
    if alert.state != "firing":
        return None
    if alert.notices == 0:
        return "firing" if due else None
    if passes_cooldown(alert):
        return "escalated"
    return "repeat" if due else None


def grouped_by_message(due: Iterable[Due]) -> list[list[Due]]:
    """Return the messages, the most urgent first."""
    groups: dict[tuple[str, bool, Signature], list[Due]] = {}
    for due_notice in due:
        groups.setdefault(due_notice.together, []).append(due_notice)
    batches = [sorted(batch, key=lambda notice: notice.order) for batch in groups.values()]
    return sorted(batches, key=lambda batch: (not batch[0].urgent, batch[0].order))


SUMMARY_S = 900.0
"""Beyond the limit per hour, what is due leaves together, this long after the last message."""
LATE_S = 86_400.0
"""That something is over is no news any more after this time."""
_URGENT_SHARE = 4.0


class Notice(Value, frozen=True, kw_only=True):
    """One message that is to be made."""

    kind: NoticeKind
    alert: Alert
    """The worst one that it is about: with this notice booked, as severe as people are told."""
    also: tuple[Alert, ...] = ()
    """Others that share it."""
    routes: tuple[Route, ...] = ()
    """Channels that it leaves by, now or later."""


class Notifications(NamedTuple):
    """What :func:`due_notices` found."""

    alerts: list[Alert]
    """Those that changed: with their notices booked, or why they are held back."""
    decisions: list[Decision]
    notices: list[Notice]


class SendingContext(Value, frozen=True, kw_only=True):
    """What counts beside the alerts themselves."""

    local: Local | None = None
    """The time where people are; None: it is never quiet."""
    silences: tuple[Silence, ...] = ()
    """Those in force."""
    others: tuple[Alert, ...] = ()
    """Open alerts of other sources: they may inhibit one of these."""
    past: tuple[Alert, ...] = ()
    """Resolved alerts: their groups may be in their pause."""
    levels: dict[str, float] = msgspec.field(default_factory=dict)
    """Alert key -> bytes that its subject holds now, where that is known."""


ALONE = SendingContext()


def due_notices(
    alerts: Iterable[Alert],
    rules: Rules,
    *,
    now_s: float,
    sent_at_s: Sequence[float],
    context: SendingContext = ALONE,
) -> Notifications:
    """Return the notices that are due now, and why others are held back.

    ``alerts`` are open, or resolved with a notice of that to send; ``sent_at_s`` is when messages
    went out lately, for the limit per hour. All times are of the alerts' own clock.
    """
    alerts = list(alerts)
    collector = _NoticeCollector(rules, now_s, context, [*alerts, *context.others])
    due = [due_notice for alert in alerts if (due_notice := collector.collect(alert)) is not None]
    if due:
        due = collector.grouped(due, [*alerts, *context.others, *context.past])
        collector.send(grouped_by_message(due + collector.joining(alerts, due)), sent_at_s)
    return Notifications(list(collector.changed.values()), collector.decisions, collector.notices)


class _NoticeCollector:
    """Takes alerts one after the other; keeps changed ones, decisions and notices."""

    def __init__(
        self, rules: Rules, now_s: float, context: SendingContext, beside: Iterable[Alert]
    ) -> None:
        self.rules = rules
        self.now_s = now_s
        self.context = context
        self.above = InhibitingAlerts(beside)
        self.reminds = bool(rules.repeat_s) or any(
            override.repeat_s for override in rules.overrides
        )
        self.changed: dict[tuple[str, float], Alert] = {}
        self.decisions: list[Decision] = []
        self.notices: list[Notice] = []

    def collect(self, alert: Alert) -> Due | None:
        """Return the notice of an alert that is due and may leave; else note why it is held."""
        if alert.next_notice_at_s is None and self.reminds:
            alert = self._planned(alert)
        notice = notice_due(alert, self.now_s)
        if notice is None and not (self.above.lost or alert.held_code or alert.inhibited_by):
            return None
        alert = self._inhibited(alert, due=notice is not None)
        if alert.held_code is Hold.NO_DATA and alert.notices and alert.state == "firing":
            return None  # Nobody is reminded of what nobody has heard of.
        due_notice = self._due(alert, notice)
        if due_notice is None:
            if alert.held_code not in {None, Hold.NO_DATA}:
                self._change(alert, **wording.NOT_HELD)
            return None
        held = next((route for route in due_notice.routes if route.kind == "hold"), None)
        if due_notice.signature or held is None:
            return due_notice
        over = alert.resolved_at_s
        late = over is not None and self.now_s - over > LATE_S
        if notice == "resolved" and (late or held.until_at_s is None):
            self._hold(due_notice, held, drop=True)
        else:
            self._hold(due_notice, held)
        return None

    def _planned(self, alert: Alert) -> Alert:
        """Plan the reminder of an alert that had none until the rules were changed."""
        last_s = alert.last_notice_at_s
        if alert.state != "firing" or last_s is None or not alert.notices:
            return alert
        if not (steps_s := rules_for(alert, self.rules).repeat_s):
            return alert
        next_s = reminder_at_s(alert.notices - 1, steps_s, self.rules, last_s)
        return self._change(alert, next_notice_at_s=next_s)

    def _due(self, alert: Alert, notice: NoticeKind | None) -> Due | None:
        """Return what is due of an alert as people are told of it; None where nothing is.

        ``notice``: what it would be by its own severity.
        """
        if notice is None:
            return None
        effective = rules_for(alert, self.rules)
        severity = capped_severity(alert, effective)
        if severity != alert.severity:
            notice = notice_due(_with_severity(alert, severity), self.now_s)
            if notice is None:
                return None
        routes = routes_of(
            RoutingCase(alert, notice, effective, severity, self.context.local),
            self.rules,
            silences=self.context.silences,
            others=self.above.near(alert),
            level_bytes=self.context.levels.get(alert.key),
        )
        return Due(alert, notice, severity, effective, routes)

    def _inhibited(self, alert: Alert, *, due: bool) -> Alert:
        """Note which alert makes this one no news, or that none does any more."""
        above = None
        if alert.state == "firing":
            # Of a lost GPU it is shown at once; of others when there is something to tell.
            every = due or alert.inhibited_by
            above = inhibitor(alert, self.above.near(alert) if every else self.above.lost)
        key = "" if above is None else above.key
        return alert if alert.inhibited_by == key else self._change(alert, inhibited_by=key)

    def _change(self, alert: Alert, **changes: object) -> Alert:
        alert = msgspec.structs.replace(alert, **changes)
        self.changed[alert.key, alert.opened_at_s] = alert
        return alert

    def grouped(self, due: list[Due], beside: Iterable[Alert]) -> list[Due]:
        """Return what may leave now: not new members of a group that was just told of.

        They leave with the next notice of their group, or after its pause.
        """
        fresh = {due_notice.group for due_notice in due if due_notice.notice == "firing"}
        if not fresh:
            return due
        told_s: dict[str, float] = {}
        programs: set[str] = set()
        for alert in beside:
            at_s, group = alert.last_notice_at_s, alert.group or group_of(alert)
            if group in fresh and alert.notices and at_s is not None:
                told_s[group] = max(told_s.get(group, at_s), min(at_s, self.now_s))
                programs |= {program_of(alert)} if alert.state == "firing" else set()
        soon = {
            due_notice.group
            for due_notice in due
            if due_notice.notice in {"escalated", "repeat"}
            or (due_notice.notice == "firing" and self._cannot_wait(due_notice, programs))
        }
        out: list[Due] = []
        for due_notice in due:
            last_s = told_s.get(due_notice.group)
            pause_s = self._pause_s(due_notice.alert, programs)
            early = last_s is not None and self.now_s - last_s < pause_s
            if due_notice.notice == "firing" and early and due_notice.group not in soon:
                self._hold(due_notice, held_route("", Hold.GROUP_PAUSE, pause_s=pause_s))
            else:
                out.append(due_notice)
        return out

    def _pause_s(self, alert: Alert, programs: set[str]) -> float:
        """Return for how long a group is quiet: of a program that people know to leak, longer."""
        program, pause_s = program_of(alert), self.rules.group_interval_s
        known = bool(program) and program in programs
        return max(pause_s, self.rules.cooldown_s) if known else pause_s

    def _cannot_wait(self, due_notice: Due, programs: set[str]) -> bool:
        """Say whether the pause of its group would cost an alert a quarter of the time left."""
        eta, pause_s = due_notice.alert.finding.eta, self._pause_s(due_notice.alert, programs)
        soon = eta is None or eta.low_s < _URGENT_SHARE * pause_s
        return due_notice.severity == "critical" and soon

    def joining(self, alerts: Iterable[Alert], due: list[Due]) -> list[Due]:
        """Return those that are not due and leave with others of their group all the same.

        Somebody who is told of one alert is told of the others that have fired meanwhile, and is
        reminded of all at once.
        """
        wanted = {due_notice.together for due_notice in due if due_notice.notice != "resolved"}
        if not wanted:
            return []
        names = {due_notice.alert.key for due_notice in due}
        programs = {program_of(due_notice.alert) for due_notice in due}
        out: list[Due] = []
        for old in alerts:
            alert = self.changed.get((old.key, old.opened_at_s), old)
            if alert.key in names or not self._may_join(alert, programs):
                continue
            soon = msgspec.structs.replace(alert, next_notice_at_s=self.now_s)
            due_notice = self._due(soon, notice_due(soon, self.now_s))
            if due_notice is not None and due_notice.together in wanted:
                out.append(due_notice._replace(alert=alert, joins=True))
        return out

    def _may_join(self, alert: Alert, programs: set[str]) -> bool:
        """Say whether an alert that has fired waits for nothing but its time, and that is near."""
        at_s, last_s = alert.next_notice_at_s, alert.last_notice_at_s
        if alert.state != "firing" or at_s is None or alert.held_code:
            return False
        if alert.notices == 0 or last_s is None:
            return last_s is None
        cool = self.now_s - last_s >= self.rules.cooldown_s
        return cool and at_s - self.now_s <= self._pause_s(alert, programs)

    def send(self, batches: list[list[Due]], sent_at_s: Sequence[float]) -> None:
        """Book what leaves; beyond the limit per hour it leaves together, or waits for that."""
        lately = [at_s for at_s in sent_at_s if self.now_s - at_s < HOUR_S]
        count, limit = len(lately), self.rules.max_per_hour
        last_s = max(lately, default=-HOUR_S)
        # Where more goes on being due than may leave, what waits would wait for ever.
        waited = any(due.alert.held_code is Hold.RATE_LIMIT for batch in batches for due in batch)
        crowded = len(batches) > limit - count > 0 and waited
        most = limit - 1 if crowded else limit
        beyond: list[Due] = []
        for batch in batches:
            # What is critical passes, but not for ever: a storm of it would be as bad as silence.
            if count < most or (batch[0].urgent and count < 2 * limit):
                count, last_s = count + 1, self.now_s
                self._book(batch)
            else:
                beyond += batch
        if not beyond:
            return
        if self.now_s - last_s < SUMMARY_S and not crowded:
            for due_notice in beyond:
                self._hold(due_notice, held_route("", Hold.RATE_LIMIT, per_hour=limit))
            return
        summaries: dict[tuple[bool, Signature], list[Due]] = {}
        for due_notice in beyond:
            summaries.setdefault(
                (due_notice.notice == "resolved", due_notice.signature), []
            ).append(due_notice)
        for batch in summaries.values():
            self._book(sorted(batch, key=lambda notice: notice.order))

    def _book(self, batch: list[Due]) -> None:
        booked = []
        for due_notice in batch:
            alert = self._change(due_notice.alert, **self._booked(due_notice))
            booked.append(_with_severity(alert, due_notice.severity))
            self.decisions += [
                _decision(due_notice, self.now_s, route) for route in due_notice.routes
            ]
        first = batch[0]
        leaving = tuple(route for route in first.routes if route.kind != "hold")
        self.notices.append(
            Notice(kind=first.notice, alert=booked[0], also=tuple(booked[1:]), routes=leaving)
        )

    def _booked(self, due_notice: Due) -> dict[str, object]:
        """Return what changes of an alert whose notice leaves."""
        alert, rules = due_notice.alert, self.rules
        changes: dict[str, object] = {
            "notices": alert.notices + 1,
            **wording.NOT_HELD,
            "told_severity": due_notice.severity,
            "told_on": tuple(
                dict.fromkeys((*alert.told_on, *(s[0] for s in due_notice.signature)))
            ),
        }
        if due_notice.notice == "resolved":
            return {**changes, "next_notice_at_s": None, "told_over": True}
        flapping = due_notice.notice == "firing" and alert.flaps + 1 >= rules.flaps
        steps_s = due_notice.effective.repeat_s
        return {
            **changes,
            "last_notice_at_s": self.now_s,
            "next_notice_at_s": reminder_at_s(alert.notices, steps_s, rules, self.now_s),
            "told_flapping": alert.told_flapping or flapping,
        }

    def _hold(self, due_notice: Due, route: Route, *, drop: bool = False) -> None:
        """Note why a notice that is due stays due: once, not at every look.

        With ``drop`` it is due no more: nobody is told that something is over.
        """
        alert = due_notice.alert
        # One that an earlier version has held has no facts.
        same = alert.held_code is route.code and alert.held_facts in ({}, route.facts)
        if not drop and (same or due_notice.joins):
            return
        self.decisions.append(
            _decision(due_notice, self.now_s, msgspec.structs.replace(route, channel=""))
        )
        self._change(
            alert,
            held_back=route.reason,
            held_code=route.code,
            held_facts=route.facts,
            next_notice_at_s=None if drop else alert.next_notice_at_s,
        )


def _decision(due_notice: Due, now_s: float, route: Route) -> Decision:
    return Decision(
        finding_id=due_notice.alert.finding.id,
        alert_key=due_notice.alert.key,
        kind="hold" if route.kind == "hold" else "notify",
        target=route.channel,
        notice=due_notice.notice,
        reason=route.reason,
        at_s=now_s,
        code=route.code,
        facts=route.facts,
    )


def _with_severity(alert: Alert, severity: Severity) -> Alert:
    """Return an alert as severe as people are told."""
    return msgspec.structs.replace(alert, severity=severity)
