"""Who is told what and when: notices that are due become messages, and both are written down."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import wording
from gpuwatchd.core import units
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Alert, Decision, Delivery
from gpuwatchd.pipeline import action_handler, messages
from gpuwatchd.pipeline.clock import moved_resolved
from gpuwatchd.pipeline.live_state import RecentDeaths
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.pipeline.track import Track
from gpuwatchd.pipeline.track_evaluation import subject_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.alerts import Notice, Notifications
    from gpuwatchd.core.model import Device, Message, ProcessInfo, Proposal
    from gpuwatchd.notify.outbox.outbox import Outbox
    from gpuwatchd.pipeline.alert_cost import AlertCosts
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.proposals import Proposals
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.writer import History

PROPOSED = 4
"""Alerts of one message whose next step it names."""


class MessageBuilder:
    """Makes messages of notices."""

    def __init__(
        self,
        state: State,
        costs: AlertCosts,
        *,
        proposals: Proposals | None = None,
        booted_at_s: float | None = None,
    ) -> None:
        self._state = state
        self._costs = costs
        self._proposals = proposals
        self._booted_at_s = booted_at_s

    def introduced(self, alert: Alert) -> Alert:
        """Return an alert with what is known now of whom it is about."""
        found = subject_facts(self._device(alert), self._info(alert), alert.finding)
        before = alert.about
        if before == found or (before is not None and before.process and not found.process):
            return alert  # Who has ended is not forgotten.
        return msgspec.structs.replace(alert, about=found)

    def priced(
        self, alert: Alert, now_s: float, thread: str = "", *, counted: bool = True
    ) -> Alert:
        """Return an alert that is being told, with what it costs at this moment."""
        own = messages.message_id(alert, "firing", 1)
        first = alert.first_message or (thread if thread and alert.notices == 1 else own)
        # What a death has cost was counted when it died.
        cost = self._costs.of(alert, now_s) if counted and not alert.died else alert.cost
        return msgspec.structs.replace(alert, cost=cost, first_message=first)

    def final(self, alert: Alert, now_s: float) -> Alert:
        """Return an alert that is over, with all that its job has cost since its checkpoint."""
        try:
            return msgspec.structs.replace(alert, cost=self._costs.of(alert, now_s))
        except Exception:
            # Whatever is odd about its cost, that a job has died is sent.
            log.exception("failed part=cost key=%s", alert.key)
            return alert

    def message(self, notice: Notice, curve: Track | None, now_s: float) -> Message:
        """Return the message of a notice."""
        alert = notice.alert
        buttons = action_handler.buttons_for(
            alert, self._state.settings.config, self._info(alert), booted_at_s=self._booted_at_s
        )
        proposals: list[tuple[Alert, Proposal]] = []
        if self._proposals is not None and notice.kind != "resolved":
            own = messages.message_id(alert, notice.kind, alert.notices)
            proposals = self._proposals.for_message((alert, *notice.also[: PROPOSED - 1]), own)
            buttons += self._proposals.buttons(it for it in proposals if it[0].key == alert.key)
        chart = None
        if curve is not None:
            from gpuwatchd.pipeline import chart_points  # noqa: PLC0415 - numpy comes with it

            chart = chart_points.chart(curve, alert)
        message = messages.compose(
            alert,
            notice.kind,
            now_s=now_s,
            also=notice.also,
            chart=chart,
            buttons=buttons,
            proposals=proposals,
        )
        lead = sentences.critical_lead(alert, notice.kind)
        return msgspec.structs.replace(message, lead=lead)

    def _device(self, alert: Alert) -> Device | None:
        device = self._state.devices.get(alert.subject.device_uid)
        return None if device is None else device.device

    def _info(self, alert: Alert) -> ProcessInfo | None:
        process = alert.subject.process
        return None if process is None else self._state.infos.get(process)


# Alerts that are over: what people know of them, and what they are still to be told.


class ResolvedAlerts:
    """Remembers by key; times are on the clock of the source that an alert is of."""

    def __init__(self) -> None:
        self.owing: dict[str, Alert] = {}
        """Alert key -> the alert whose end is still to be told."""
        self.pasts: dict[str, policy.AlertHistory] = {}
        self._sources: dict[str, str] = {}
        """Alert key -> its source, once that is known."""

    def recall(self, alerts: Iterable[Alert], now_s: float) -> None:
        """Take over what an earlier run left."""
        found = list(alerts)
        self.pasts.update(policy.recalled(found, now_s))
        self.owing.update(
            {alert.key: alert for alert in found if alert.next_notice_at_s is not None}
        )

    def add(self, source: str, alert: Alert, rules: policy.Rules, now_s: float) -> None:
        """Take in an alert that is over, or of which that was told."""
        key = alert.key
        self._sources[key] = source
        self.pasts[key] = policy.remembered(self.pasts.get(key), alert, now_s)
        if alert.next_notice_at_s is not None:
            self.owing[key] = alert
        elif key in self.owing and self.owing[key].opened_at_s == alert.opened_at_s:
            del self.owing[key]
        for old in [
            k for k, history in self.pasts.items() if not policy.matters(history, rules, now_s)
        ]:
            del self.pasts[old]
            self._sources.pop(old, None)

    def reopened(
        self, source: str, alert: Alert, rules: policy.Rules, now_s: float
    ) -> tuple[Alert, Alert | None]:
        """Return an alert that has just fired as people see it, and the one that is not over."""
        past = self.pasts.get(alert.key)
        self._sources[alert.key] = source
        alert = policy.reopened(alert, past, rules, now_s)
        owed = self.owing.pop(alert.key, None)
        if owed is None or past is None:
            return alert, owed
        owed = msgspec.structs.replace(
            owed, next_notice_at_s=None, **wording.hold_fields(Hold.REOPENED)
        )
        self.pasts[alert.key] = policy.remembered(past, owed, now_s)
        return alert, owed

    def owed(self, source: str) -> list[Alert]:
        """Return what a source's alerts still owe; what nobody has claimed is everybody's."""
        return [alert for key, alert in self.owing.items() if self._is_of(key, source)]

    def lately(self) -> tuple[Alert, ...]:
        """Return alerts that are over and still matter."""
        return tuple(past.last for past in self.pasts.values())

    def move(self, source: str, by_s: float) -> list[Alert]:
        """Move a source's alerts in time; return those that still owe something."""
        keys = [key for key in {*self.owing, *self.pasts} if self._is_of(key, source)]
        moved: list[Alert] = []
        for key in keys:
            self._sources[key] = source
            if key in self.owing:
                self.owing[key] = moved_resolved(self.owing[key], by_s)
                moved.append(self.owing[key])
            past = self.pasts.get(key)
            if past is not None:
                ends_s = tuple(end + by_s for end in past.ends_s)
                self.pasts[key] = policy.AlertHistory(
                    last=moved_resolved(past.last, by_s), ends_s=ends_s
                )
        return moved

    def _is_of(self, key: str, source: str) -> bool:
        return self._sources.get(key, source) == source


log = logging.getLogger("gpuwatchd")

STALE_S = 600.0
"""Nobody is reminded of an alert whose subject has not been seen for this long."""
PRICED = 16
"""Of so many alerts in one message it is counted what they cost: it takes milliseconds of each."""
_HOUR_S = 3600.0

Opening = tuple[str, float]
"""Key of an alert, and when it opened."""


class AlertHolder(Protocol):
    """What an alert is kept with: a track, or an alarm."""

    alert: Alert | None


def _heard_at_s(bearer: AlertHolder) -> float | None:
    """Return when something was last known of a subject."""
    if isinstance(bearer, Track):
        newest = bearer.window.last
        return None if newest is None else newest[0]
    at_s: float | None = getattr(bearer, "heard_at_s", None)
    return at_s


def _aged(bearer: AlertHolder, now_s: float) -> Alert | None:
    """Mark an alert as stale, or take that back; return it when that is news."""
    alert, heard_s = bearer.alert, _heard_at_s(bearer)
    fresh = heard_s is not None and now_s - heard_s <= STALE_S
    if alert is None or (alert.held_code is Hold.NO_DATA) != fresh:
        return None
    # Of one that is still to be told, another reason says more.
    if not fresh and alert.held_code and not alert.notices:
        return None
    bearer.alert = msgspec.structs.replace(
        alert, **wording.hold_fields(None if fresh else Hold.NO_DATA)
    )
    return bearer.alert


def _regrouped(alert: Alert, holders: dict[str, AlertHolder]) -> dict[Opening, Alert]:
    """Let others of an alert's program join its group; return them."""
    others = policy.regrouped(alert, _alerts(holders))
    for other in others:
        holders[other.key].alert = other
    return {(other.key, other.opened_at_s): other for other in others}


class AlertNotifier:
    """Announces alerts."""

    def __init__(
        self,
        state: State,
        outbox: Outbox,
        history: History | None,
        *,
        message_builder: MessageBuilder,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._history = history
        self._builder = message_builder
        # Clocks of the people who are told: the clock of a source may be a recorded one.
        self._wall, self._mono = clocks
        self._resolved = ResolvedAlerts()
        self.deaths = RecentDeaths(history)
        self._open: dict[str, tuple[Alert, ...]] = {}
        """Source -> its alerts that are open."""
        self.failing: dict[str, str] = {}
        """Alert key -> why no message could be made of it."""

    def is_busy(self, source: str) -> bool:
        """Say whether a source has anything to announce even where no alert is given."""
        return source in self._open or bool(self._resolved.owing)

    def resume(self, over: Iterable[Alert], sent_at_s: Iterable[float], now_s: float) -> None:
        """Take up what an earlier run left."""
        self._resolved.recall(over, now_s)
        mono_s = self._mono()
        # What was sent "in the future" of a clock that was set back counts as sent now; further
        # away it cannot be of this hour.
        lately = sorted(at_s for at_s in sent_at_s if at_s - now_s < _HOUR_S)
        self._outbox.made_mono_s.extend(mono_s - max(0.0, now_s - at_s) for at_s in lately)

    def move(self, source: str, alerts: list[Alert], by_s: float) -> None:
        """Take over alerts whose times were moved by a step of the wall clock."""
        alerts = alerts + self._resolved.move(source, by_s)
        if self._history is not None and alerts:
            self._history.apply(alerts, [])

    def notify(
        self, source: str, bearers: Iterable[AlertHolder], changes: list[Alert], now_s: float
    ) -> list[Decision]:
        """Book the notices that are due for one source's alerts, and send them."""
        if changes:
            self._state.silences.follow(changes, self._wall())
        holders = {
            bearer.alert.key: bearer
            for bearer in bearers
            if bearer.alert is not None and bearer.alert.state != "pending"
        }
        news = self._news(source, holders, changes, now_s)
        owed = self._resolved.owed(source)
        if not (holders or news or owed):
            self._open.pop(source, None)
            return []
        for holder in holders.values():
            aged = _aged(holder, now_s)
            if aged is not None:
                news[aged.key, aged.opened_at_s] = aged
        self._open[source] = _alerts(holders)
        notifications = self._announced(source, holders, owed, now_s)
        deliveries, unmade, priced = self._messages(notifications, holders, now_s)
        decisions = [
            decision for decision in notifications.decisions if decision.alert_key not in unmade
        ]
        for alert in notifications.alerts:
            if alert.key not in unmade:
                alert = priced.get(alert.key, alert)  # noqa: PLW2901
                if alert.state == "resolved":
                    self._resolved.add(source, alert, self._state.settings.rules, now_s)
                else:
                    holders[alert.key].alert = alert
                news[alert.key, alert.opened_at_s] = alert
        self._open[source] = _alerts(holders)
        self.deaths.note(news.values())
        if self._history is not None and (news or deliveries or decisions):
            self._history.decide(decisions)
            deliveries = self._history.apply(list(news.values()), deliveries)
        self._outbox.send(deliveries)
        return decisions

    def _news(
        self, source: str, holders: dict[str, AlertHolder], changes: list[Alert], now_s: float
    ) -> dict[Opening, Alert]:
        """Take in alerts whose state changed; return them as they stand now."""
        rules, news = self._state.settings.rules, dict[Opening, Alert]()
        for alert in changes:
            log.info("alert %s key=%s title=%r", alert.state, alert.key, alert.title)
            now = alert
            bearer = holders.get(alert.key)
            if alert.state == "resolved":
                if alert.died and alert.kind == "leak":
                    now = self._builder.final(alert, now_s)
                if alert.next_notice_at_s is not None and self._is_unheard(alert.key):
                    why = wording.hold_fields(Hold.BEGINNING_UNDELIVERED)
                    now = msgspec.structs.replace(now, next_notice_at_s=None, **why)
                    self._explain(now, now_s)
                if now.next_notice_at_s is None:
                    self.failing.pop(now.key, None)
                self._resolved.add(source, now, rules, now_s)
            elif bearer is not None and bearer.alert is not None:
                now = self._builder.introduced(bearer.alert)
                if not now.group:
                    beside = [*_alerts(holders), *self._elsewhere(source)]
                    now = msgspec.structs.replace(now, group=policy.group_of(now, beside))
                    news |= _regrouped(now, holders)
                if now.state == "firing" and now.firing_at_s == now.changed_at_s:
                    now, not_over = self._resolved.reopened(source, now, rules, now_s)
                    if not_over is not None:
                        news[not_over.key, not_over.opened_at_s] = not_over
                        self._explain(not_over, now_s)
                bearer.alert = now
            news[now.key, now.opened_at_s] = now
        return news

    def _is_unheard(self, key: str) -> bool:
        """Say whether every channel has given up to tell that an alert began."""
        if self._history is None or key not in self._outbox.reach.untold():
            return False
        # What still waits is dropped by the post, with the end of what it tells.
        return not any(
            key in {pending_delivery.alert_key, *pending_delivery.message.also}
            for pending_delivery in self._history.pending_deliveries()
        )

    def _explain(self, alert: Alert, now_s: float) -> None:
        """Write down why nobody is told that an alert is over."""
        decision = Decision(
            finding_id=alert.finding.id,
            alert_key=alert.key,
            kind="hold",
            target="",
            notice="resolved",
            reason=alert.held_back,
            at_s=now_s,
            code=alert.held_code,
            facts=alert.held_facts,
        )
        if self._history is not None:
            self._history.decide([decision])

    def _announced(
        self, source: str, holders: dict[str, AlertHolder], owed: list[Alert], now_s: float
    ) -> Notifications:
        """Ask policy what is to be told."""
        rules = self._state.settings.rules
        alerts = list(_alerts(holders))
        # One that has fired again is not over.
        alerts += [
            one
            for one in owed
            if (same := holders.get(one.key)) is None
            or same.alert is None
            or same.alert.state != "firing"
        ]
        levels = {}
        if rules.overrides:
            for key, holder in holders.items():
                newest = holder.window.last if isinstance(holder, Track) else None
                if newest is not None:
                    levels[key] = newest[1]
        silences = self._state.silences.active
        around = policy.SendingContext(
            local=units.Local.at(self._wall()) if silences or rules.quiet else None,
            silences=tuple(silences),
            others=tuple(self._elsewhere(source)),
            past=self._resolved.lately(),
            levels=levels,
        )
        return self._asked(alerts, around, now_s)

    def _elsewhere(self, source: str) -> list[Alert]:
        """Return the open alerts of other sources."""
        return [alert for name, some in self._open.items() if name != source for alert in some]

    def _asked(
        self, alerts: list[Alert], around: policy.SendingContext, now_s: float
    ) -> Notifications:
        """Ask policy; an alert that it cannot judge costs no other its notice."""
        rules, sent_s = self._state.settings.rules, self._sent_at_s(now_s)
        try:
            return policy.due_notices(alerts, rules, now_s=now_s, sent_at_s=sent_s, around=around)
        except Exception as error:
            if len(alerts) != 1:
                parts = [self._asked([one], around, now_s) for one in alerts]
                return policy.Notifications(
                    [alert for part in parts for alert in part.alerts],
                    [decision for part in parts for decision in part.decisions],
                    [notice for part in parts for notice in part.notices],
                )
            key = alerts[0].key
            if key not in self.failing:
                log.exception("failed part=policy key=%s", key)
            self.failing[key] = f"no message can be sent about {key}: {error!r}"
            return policy.Notifications([], [], [])

    def _sent_at_s(self, now_s: float) -> list[float]:
        """Return when messages went out, on the clock of ``now_s``: an hour is one of people's."""
        mono_s = self._mono()
        while self._outbox.made_mono_s and mono_s - self._outbox.made_mono_s[0] >= _HOUR_S:
            self._outbox.made_mono_s.popleft()
        return [now_s - (mono_s - at_s) for at_s in self._outbox.made_mono_s]

    def _messages(
        self, notifications: Notifications, holders: dict[str, AlertHolder], now_s: float
    ) -> tuple[list[Delivery], set[str], dict[str, Alert]]:
        """Return the messages; the alerts of which none could be made; and what the others cost.

        Those of which none could be made stay due.
        """
        for decision in notifications.decisions:
            if decision.kind == "hold":
                log.info("held back key=%s reason=%r", decision.alert_key, decision.reason)
        booked = {alert.key: alert for alert in notifications.alerts}
        out: list[Delivery] = []
        unmade: set[str] = set()
        priced: dict[str, Alert] = {}
        for notice in notifications.notices:
            keys = [notice.alert.key, *(one.key for one in notice.also)]
            try:
                first, *others = (booked[key] for key in keys)
                costs = {first.key: self._builder.priced(first, now_s)}
                thread = costs[first.key].first_message
                costs |= {
                    one.key: self._builder.priced(one, now_s, thread, counted=number < PRICED)
                    for number, one in enumerate(others, start=1)
                }
                out += self._deliveries(_priced(notice, costs), holders, now_s)
            except Exception as error:
                if not unmade.union(self.failing).issuperset(keys):
                    log.exception("failed part=message key=%s", keys[0])
                self.failing.update(
                    {key: f"no message could be made of {key}: {error!r}" for key in keys}
                )
                unmade.update(keys)
                continue
            priced.update(costs)
            for key in keys:
                self.failing.pop(key, None)
            self._outbox.made_mono_s.append(self._mono())  # for the limit per hour
        return out, unmade, priced

    def _deliveries(
        self, notice: Notice, holders: dict[str, AlertHolder], now_s: float
    ) -> list[Delivery]:
        bearer = holders.get(notice.alert.key)
        died = self._state.tracks.died.pop(notice.alert.key, None)
        curve = bearer if isinstance(bearer, Track) else died
        message = self._builder.message(notice, curve, now_s)
        if notice.kind == "resolved" and self._goes_on(notice):
            message = msgspec.structs.replace(message, others_open=True)
        at_s = self._wall()
        return [
            Delivery(
                alert_key=notice.alert.key,
                channel=route.channel,
                message=message,
                state="pending",
                attempts=0,
                created_at_s=at_s,
                next_try_at_s=at_s if route.kind == "send" else route.until_at_s,
                held="" if route.kind == "send" else route.reason,
            )
            for route in notice.routes
        ]

    def _goes_on(self, notice: Notice) -> bool:
        """Say whether others are open of which people were told in the same thread."""
        thread = notice.alert.first_message
        return any(
            alert.state == "firing" and alert.first_message == thread
            for some in self._open.values()
            for alert in some
        )


def _alerts(holders: dict[str, AlertHolder]) -> tuple[Alert, ...]:
    return tuple(holder.alert for holder in holders.values() if holder.alert is not None)


def _priced(notice: Notice, costs: dict[str, Alert]) -> Notice:
    def priced(alert: Alert) -> Alert:
        known = costs[alert.key]
        return msgspec.structs.replace(alert, cost=known.cost, first_message=known.first_message)

    return msgspec.structs.replace(
        notice, alert=priced(notice.alert), also=tuple(map(priced, notice.also))
    )
