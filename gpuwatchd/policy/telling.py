"""Which notices are due, which leave together, and what is held back and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import units
from gpuwatchd.model import Alert, Decision, NoticeKind, Silence, Value
from gpuwatchd.policy.inhibition import inhibitor
from gpuwatchd.policy.matching import rules_for
from gpuwatchd.policy.past import ladder_s, passes
from gpuwatchd.policy.routing import routes as routes_of
from gpuwatchd.policy.routing import told_as
from gpuwatchd.policy.rules import HOUR_S, RANK, Effective, Local, Route, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.model import Severity

STALE = "nothing has been heard of it for 10 minutes"
"""Why nobody is reminded of an alert: no data is neither good news nor bad."""
SUMMARY_S = 900.0
"""Beyond the limit per hour, what is due leaves together, this long after the last message."""
LATE_S = 86_400.0
"""That something is over is no news any more after this time."""
_URGENT_SHARE = 4.0

Signature = tuple[tuple[str, str, float | None], ...]


class Notice(Value, frozen=True, kw_only=True):
    """One message that is to be made."""

    kind: NoticeKind
    alert: Alert
    """The worst one that it is about: with this notice booked, as severe as people are told."""
    also: tuple[Alert, ...] = ()
    """Others that share it."""
    routes: tuple[Route, ...] = ()
    """Channels that it leaves by, now or later."""


class Announced(NamedTuple):
    """What :func:`announce` found."""

    alerts: list[Alert]
    """Those that changed: with their notices booked, or why they are held back."""
    decisions: list[Decision]
    notices: list[Notice]


class _Due(NamedTuple):
    alert: Alert
    notice: NoticeKind
    severity: Severity
    effective: Effective
    routes: tuple[Route, ...]

    @property
    def signature(self) -> Signature:
        """By which channels it leaves, and when."""
        return tuple((r.channel, r.kind, r.until_at_s) for r in self.routes if r.kind != "hold")

    @property
    def group(self) -> str:
        return self.alert.group or group_of(self.alert)

    @property
    def urgent(self) -> bool:
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


def group_of(alert: Alert) -> str:
    """Return what an alert shares its notices with: its job, else its device.

    Ranks of one job grow for one reason; strangers on one device take from the same memory, and
    whoever looks at one of them looks at the other.
    """
    job = "" if alert.about is None else alert.about.job
    return f"job:{job}" if job else f"gpu:{alert.subject.device_uid}"


def notice_due(alert: Alert, now_s: float) -> NoticeKind | None:
    """Return which notice this alert owes now, None when none."""
    due = alert.next_notice_at_s is not None and now_s >= alert.next_notice_at_s
    if alert.state == "resolved":
        return "resolved" if due else None
    if alert.state != "firing":
        return None
    if alert.notices == 0:
        return "firing" if due else None
    if passes(alert):
        return "escalated"
    return "repeat" if due else None


class Around(Value, frozen=True, kw_only=True):
    """What counts beside the alerts that are announced."""

    local: Local | None = None
    """The time where people are; None: it is never quiet."""
    silences: tuple[Silence, ...] = ()
    """Those in force."""
    others: tuple[Alert, ...] = ()
    """Open alerts that are announced elsewhere: they may make one of these no news."""
    past: tuple[Alert, ...] = ()
    """Alerts that are over and of whose group people were told lately."""
    levels: dict[str, float] = msgspec.field(default_factory=dict)
    """Alert key -> bytes that its subject holds now, where that is known."""


ALONE = Around()


def announce(
    alerts: Iterable[Alert],
    rules: Rules,
    *,
    now_s: float,
    sent_at_s: Sequence[float],
    around: Around = ALONE,
) -> Announced:
    """Return what is to be told now of these alerts, and what is held back and why.

    Parameters
    ----------
    alerts
        Open alerts, and those that are over and of which that is still owed.
    sent_at_s
        When messages went out lately, for the limit per hour.
    """
    mine = list(alerts)
    teller = _Teller(rules, now_s, around, [*mine, *around.others])
    due = [found for alert in mine if (found := teller.look(alert)) is not None]
    if due:
        due = teller.grouped(due, [*mine, *around.others, *around.past])
        teller.send(_together(due + teller.joining(mine, due)), sent_at_s)
    return Announced(list(teller.changed.values()), teller.decisions, teller.notices)


def _together(due: Iterable[_Due]) -> list[list[_Due]]:
    """Return the messages, the most urgent first."""
    found: dict[tuple[str, bool, Signature], list[_Due]] = {}
    for one in due:
        found.setdefault(one.together, []).append(one)
    batches = [sorted(batch, key=lambda one: one.order) for batch in found.values()]
    return sorted(batches, key=lambda batch: (not batch[0].urgent, batch[0].order))


class _Teller:
    """Looks at alerts one after the other and keeps what comes of it."""

    def __init__(self, rules: Rules, now_s: float, around: Around, beside: Iterable[Alert]) -> None:
        self.rules = rules
        self.now_s = now_s
        self.around = around
        self.above = [
            one
            for one in beside
            if one.state == "firing" and (one.kind == "gpu" or one.subject.process is not None)
        ]
        self.lost = [one for one in self.above if one.kind == "gpu"]
        self.changed: dict[tuple[str, float], Alert] = {}
        self.decisions: list[Decision] = []
        self.notices: list[Notice] = []

    def look(self, alert: Alert) -> _Due | None:
        """Return what is due of an alert and may leave; note why it may not."""
        notice = notice_due(alert, self.now_s)
        if notice is None and not (self.lost or alert.held_back or alert.inhibited_by):
            return None
        alert = self._inhibited(alert, due=notice is not None)
        found = None if notice is None else self._due(alert)
        if found is None:
            if alert.held_back and alert.held_back != STALE:
                self._change(alert, held_back="")
            return None
        held = next((one for one in found.routes if one.kind == "hold"), None)
        if found.signature or held is None:
            return found
        over = alert.resolved_at_s
        late = over is not None and self.now_s - over > LATE_S
        if notice == "resolved" and (late or held.until_at_s is None):
            self._drop(found, held.reason)
        else:
            self._hold(found, held.reason)
        return None

    def _due(self, alert: Alert) -> _Due | None:
        """Return what is due of an alert as people are told of it; None where nothing is."""
        effective = rules_for(alert, self.rules)
        severity = told_as(alert, effective)
        capped = alert if severity == alert.severity else _as(alert, severity)
        notice = notice_due(capped, self.now_s)
        if notice is None:
            return None
        found = routes_of(
            alert,
            notice,
            self.rules,
            local=self.around.local,
            silences=self.around.silences,
            others=self.above,
            level_bytes=self.around.levels.get(alert.key),
        )
        return _Due(alert, notice, severity, effective, found)

    def _inhibited(self, alert: Alert, *, due: bool) -> Alert:
        """Note which alert makes this one no news, or that none does any more."""
        # Of a lost GPU it is shown at once; of others when there is something to tell.
        others = self.above if due or alert.inhibited_by else self.lost
        above = inhibitor(alert, others) if alert.state == "firing" else None
        key = "" if above is None else above.key
        return alert if alert.inhibited_by == key else self._change(alert, inhibited_by=key)

    def _change(self, alert: Alert, **changes: object) -> Alert:
        alert = msgspec.structs.replace(alert, **changes)
        self.changed[alert.key, alert.opened_at_s] = alert
        return alert

    def grouped(self, due: list[_Due], beside: Iterable[Alert]) -> list[_Due]:
        """Return what may leave now: not new members of a group that was just told of.

        They leave with the next notice of their group, or after its pause.
        """
        fresh = {one.group for one in due if one.notice == "firing"}
        if not fresh:
            return due
        told_s: dict[str, float] = {}
        for alert in beside:
            at_s, group = alert.last_notice_at_s, alert.group or group_of(alert)
            if group in fresh and alert.notices and at_s is not None:
                told_s[group] = max(told_s.get(group, at_s), min(at_s, self.now_s))
        pause_s = self.rules.group_interval_s
        soon = {
            one.group
            for one in due
            if one.notice in {"escalated", "repeat"}
            or (one.notice == "firing" and self._cannot_wait(one))
        }
        out: list[_Due] = []
        for one in due:
            last_s = told_s.get(one.group)
            early = last_s is not None and self.now_s - last_s < pause_s
            if one.notice == "firing" and early and one.group not in soon:
                pause = units.duration(pause_s)
                self._hold(one, f"its group was told of lately; new alerts of it after {pause}")
            else:
                out.append(one)
        return out

    def _cannot_wait(self, one: _Due) -> bool:
        """Say whether the pause of its group would cost an alert a quarter of the time left."""
        eta = one.alert.finding.eta
        soon = eta is None or eta.low_s < _URGENT_SHARE * self.rules.group_interval_s
        return one.severity == "critical" and soon

    def joining(self, alerts: Iterable[Alert], due: list[_Due]) -> list[_Due]:
        """Return those that are not due and leave with others of their group all the same.

        Somebody who is told of one alert is told of the others that have fired meanwhile, and is
        reminded of all at once.
        """
        wanted = {one.together for one in due if one.notice != "resolved"}
        known = {one.alert.key for one in due}
        out: list[_Due] = []
        for old in alerts if wanted else ():
            alert = self.changed.get((old.key, old.opened_at_s), old)
            if alert.key in known or not self._may_join(alert):
                continue
            found = self._due(_as_due(alert, self.now_s))
            if found is not None and found.together in wanted:
                out.append(found._replace(alert=alert))
        return out

    def _may_join(self, alert: Alert) -> bool:
        """Say whether an alert that has fired waits for nothing but its time, and that is near."""
        at_s, last_s = alert.next_notice_at_s, alert.last_notice_at_s
        if alert.state != "firing" or at_s is None or alert.held_back:
            return False
        if alert.notices == 0 or last_s is None:
            return last_s is None
        rules = self.rules
        cool = self.now_s - last_s >= rules.cooldown_s
        return cool and at_s - self.now_s <= rules.group_interval_s

    def send(self, batches: list[list[_Due]], sent_at_s: Sequence[float]) -> None:
        """Book what leaves; beyond the limit per hour it leaves together, or waits for that."""
        lately = [at_s for at_s in sent_at_s if self.now_s - at_s < HOUR_S]
        count, limit = len(lately), self.rules.max_per_hour
        last_s = max(lately, default=-HOUR_S)
        beyond: list[_Due] = []
        for batch in batches:
            # What is critical passes, but not for ever: a storm of it would be as bad as silence.
            if count < limit or (batch[0].urgent and count < 2 * limit):
                count, last_s = count + 1, self.now_s
                self._book(batch)
            else:
                beyond += batch
        if not beyond:
            return
        if self.now_s - last_s < SUMMARY_S:
            for one in beyond:
                self._hold(one, f"{limit} messages went out within the hour")
            return
        summaries: dict[tuple[bool, Signature], list[_Due]] = {}
        for one in beyond:
            summaries.setdefault((one.notice == "resolved", one.signature), []).append(one)
        for batch in summaries.values():
            self._book(sorted(batch, key=lambda one: one.order))

    def _book(self, batch: list[_Due]) -> None:
        booked = []
        for one in batch:
            alert = self._change(one.alert, **self._booked(one))
            booked.append(_as(alert, one.severity))
            for route in one.routes:
                held = route.kind == "hold"
                self._decide(one, "hold" if held else "notify", route.reason, route.channel)
        first = batch[0]
        leaving = tuple(route for route in first.routes if route.kind != "hold")
        self.notices.append(
            Notice(kind=first.notice, alert=booked[0], also=tuple(booked[1:]), routes=leaving)
        )

    def _booked(self, one: _Due) -> dict[str, object]:
        """Return what changes of an alert whose notice leaves."""
        alert, rules = one.alert, self.rules
        changes: dict[str, object] = {
            "notices": alert.notices + 1,
            "held_back": "",
            "told_severity": one.severity,
            "told_on": tuple(dict.fromkeys((*alert.told_on, *(s[0] for s in one.signature)))),
        }
        if one.notice == "resolved":
            return {**changes, "next_notice_at_s": None, "told_over": True}
        flapping = one.notice == "firing" and alert.flaps + 1 >= rules.flaps
        steps_s = one.effective.repeat_s
        return {
            **changes,
            "last_notice_at_s": self.now_s,
            "next_notice_at_s": ladder_s(alert.notices, steps_s, rules, self.now_s),
            "told_flapping": alert.told_flapping or flapping,
        }

    def _hold(self, one: _Due, why: str) -> None:
        """Note why a notice that is due stays due: once, not at every look."""
        if one.alert.held_back != why:
            self._decide(one, "hold", why)
            self._change(one.alert, held_back=why)

    def _drop(self, one: _Due, why: str) -> None:
        """Note why nobody is told that something is over."""
        self._decide(one, "hold", why)
        self._change(one.alert, held_back=why, next_notice_at_s=None)

    def _decide(self, one: _Due, kind: str, reason: str, target: str = "") -> None:
        self.decisions.append(
            Decision(
                finding_id=one.alert.finding.id,
                alert_key=one.alert.key,
                kind="hold" if kind == "hold" else "notify",
                target=target,
                notice=one.notice,
                reason=reason,
                at_s=self.now_s,
            )
        )


def _as(alert: Alert, severity: Severity) -> Alert:
    """Return an alert as severe as people are told."""
    return msgspec.structs.replace(alert, severity=severity)


def _as_due(alert: Alert, now_s: float) -> Alert:
    return msgspec.structs.replace(alert, next_notice_at_s=now_s)
