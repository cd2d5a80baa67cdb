"""Makes messages of the notices that are due, writes both down, and hands them to the outbox."""

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
from gpuwatchd.pipeline.track import Track
from gpuwatchd.pipeline.track_evaluation import subject_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.alerts import Notice, Notifications
    from gpuwatchd.core.model import Message, ProcessInfo, Proposal
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

    def with_subject(self, alert: Alert) -> Alert:
        """Return an alert with its ``about`` as known now."""
        tracked = self._state.devices.get(alert.subject.device_uid)
        device = None if tracked is None else tracked.device
        facts = subject_facts(device, self._info(alert), alert.subject, alert.finding.framework)
        before = alert.about
        if before == facts or (before is not None and before.process and not facts.process):
            return alert  # Who has ended is not forgotten.
        return msgspec.structs.replace(alert, about=facts)

    def with_cost(
        self, alert: Alert, now_s: float, thread: str = "", *, counted: bool = True
    ) -> Alert:
        """Return an alert of a notice with its cost now and the first message of its thread.

        ``thread``: that of the alert whose message it joins. Without ``counted`` its cost stays.
        """
        first = alert.first_message or (thread if alert.notices == 1 else "")
        first = first or messages.message_id(alert, "firing", 1)
        # What a death has cost was counted when it died.
        cost = self._costs.of(alert, now_s) if counted and not alert.died else alert.cost
        return msgspec.structs.replace(alert, cost=cost, first_message=first)

    def with_final_cost(self, alert: Alert, now_s: float) -> Alert:
        """Return an alert that is over, with all that its job has cost since its checkpoint."""
        try:
            return msgspec.structs.replace(alert, cost=self._costs.of(alert, now_s, died=True))
        except Exception:
            # Whatever is odd about its cost, that a job has died is sent.
            log.exception("failed part=cost key=%s", alert.key)
            return alert

    def message(self, notice: Notice, track: Track | None, now_s: float) -> Message:
        """Return the message of a notice; ``track`` is drawn in it, None: without a chart."""
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
        if track is not None:
            from gpuwatchd.pipeline import chart_points  # noqa: PLC0415 - numpy comes with it

            chart = chart_points.chart(track, alert)
        return messages.compose(
            alert,
            notice.kind,
            now_s=now_s,
            also=notice.also,
            chart=chart,
            buttons=buttons,
            proposals=proposals,
        )

    def _info(self, alert: Alert) -> ProcessInfo | None:
        process = alert.subject.process
        return None if process is None else self._state.infos.get(process)


# Resolved alerts: what people know of them, and whose last notice is still to be sent.


class ResolvedAlerts:
    """Resolved alerts by key; times are on the clock of the source that an alert is of."""

    def __init__(self) -> None:
        self.pending_resolved: dict[str, Alert] = {}
        """Alert key -> the resolved alert whose notice of that is still to be sent."""
        self.histories: dict[str, policy.AlertHistory] = {}
        self._sources: dict[str, str] = {}
        """Alert key -> its source, once that is known."""

    def recall(self, alerts: Iterable[Alert], now_s: float) -> None:
        """Take over what an earlier run left."""
        resolved = list(alerts)
        self.histories.update(policy.recalled(resolved, now_s))
        self.pending_resolved.update(
            {alert.key: alert for alert in resolved if alert.next_notice_at_s is not None}
        )

    def add(self, source: str, alert: Alert, rules: policy.Rules, now_s: float) -> None:
        """Take in a resolved alert: that has just ended, or whose last notice is sent."""
        key = alert.key
        self._sources[key] = source
        self.histories[key] = policy.remembered(self.histories.get(key), alert, now_s)
        if alert.next_notice_at_s is not None:
            self.pending_resolved[key] = alert
        elif (old := self.pending_resolved.get(key)) and old.opened_at_s == alert.opened_at_s:
            del self.pending_resolved[key]
        for gone in [
            k for k, history in self.histories.items() if not policy.matters(history, rules, now_s)
        ]:
            del self.histories[gone]
            self._sources.pop(gone, None)

    def reopened(
        self, source: str, alert: Alert, rules: policy.Rules, now_s: float
    ) -> tuple[Alert, Alert | None]:
        """Return an alert that has just fired, going on from its resolved predecessor.

        Also that predecessor where its last notice was still to be sent: it will not be.
        """
        past = self.histories.get(alert.key)
        self._sources[alert.key] = source
        alert = policy.reopened(alert, past, rules, now_s)
        pending = self.pending_resolved.pop(alert.key, None)
        if pending is None or past is None:
            return alert, pending
        pending = msgspec.structs.replace(
            pending, next_notice_at_s=None, **wording.hold_fields(Hold.REOPENED)
        )
        self.histories[alert.key] = policy.remembered(past, pending, now_s)
        return alert, pending

    def to_notify(self, source: str) -> list[Alert]:
        """Return resolved alerts with a notice to send, of a source or of none that is known."""
        return [alert for key, alert in self.pending_resolved.items() if self._is_of(key, source)]

    def recent(self) -> tuple[Alert, ...]:
        """Return the last resolved alert of each key that still matters."""
        return tuple(past.last for past in self.histories.values())

    def move(self, source: str, by_s: float) -> list[Alert]:
        """Move a source's alerts in time; return those with a notice to send."""
        keys = [
            key for key in {*self.pending_resolved, *self.histories} if self._is_of(key, source)
        ]
        moved: list[Alert] = []
        for key in keys:
            self._sources[key] = source
            if key in self.pending_resolved:
                self.pending_resolved[key] = moved_resolved(self.pending_resolved[key], by_s)
                moved.append(self.pending_resolved[key])
            past = self.histories.get(key)
            if past is not None:
                ends_s = tuple(end + by_s for end in past.ends_s)
                self.histories[key] = policy.AlertHistory(
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
    """What has an alert: a track, a ``ConditionAlert``, or an ``UnclaimedAlert``."""

    alert: Alert | None


def _last_known_s(holder: AlertHolder) -> float | None:
    """Return when something was last known of a subject."""
    if isinstance(holder, Track):
        newest = holder.window.last
        return None if newest is None else newest[0]
    at_s: float | None = getattr(holder, "last_known_s", None)
    return at_s


def _mark_stale(holder: AlertHolder, now_s: float) -> Alert | None:
    """Mark an alert as stale, or take that back; return it where that is a change."""
    alert, known_s = holder.alert, _last_known_s(holder)
    fresh = known_s is not None and now_s - known_s <= STALE_S
    if alert is None or (alert.held_code is Hold.NO_DATA) != fresh:
        return None
    # Of one that is still to be told, another reason says more.
    if not fresh and alert.held_code and not alert.notices:
        return None
    held = wording.NOT_HELD if fresh else wording.hold_fields(Hold.NO_DATA)
    holder.alert = msgspec.structs.replace(alert, **held)
    return holder.alert


def _regrouped(alert: Alert, holders: dict[str, AlertHolder]) -> dict[Opening, Alert]:
    """Let others of an alert's program join its group; return them."""
    others = policy.regrouped(alert, _alerts(holders))
    for other in others:
        holders[other.key].alert = other
    return {(other.key, other.opened_at_s): other for other in others}


class AlertNotifier:
    """Sends what policy says is due, for one source's alerts at a time."""

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
        # People's own clock: that of a source may be a recorded one.
        self._wall, self._mono = clocks
        self.resolved = ResolvedAlerts()
        self.deaths = RecentDeaths(history)
        self.open_alerts: dict[str, tuple[Alert, ...]] = {}
        """Source -> its alerts that are open."""
        self.failing: dict[str, str] = {}
        """Alert key -> why no message could be made of it."""
        self._unwritten: dict[str, dict[Opening, Alert]] = {}
        """Source -> alerts that changed in a tick whose write failed."""

    def resume(self, resolved: Iterable[Alert], sent_at_s: Iterable[float], now_s: float) -> None:
        """Take up what an earlier run left."""
        self.resolved.recall(resolved, now_s)
        mono_s = self._mono()
        # What was sent "in the future" of a clock that was set back counts as sent now; further
        # away it cannot be of this hour.
        lately = sorted(at_s for at_s in sent_at_s if at_s - now_s < _HOUR_S)
        self._outbox.made_mono_s.extend(mono_s - max(0.0, now_s - at_s) for at_s in lately)

    def move(self, source: str, alerts: list[Alert], by_s: float) -> None:
        """Take over alerts whose times were moved by a step of the wall clock."""
        alerts = alerts + self.resolved.move(source, by_s)
        if self._history is not None and alerts:
            self._history.apply(alerts, [])

    def notify(
        self, source: str, alerted: Iterable[AlertHolder], changes: list[Alert], now_s: float
    ) -> list[Decision]:
        """Send the notices that are due of one source's alerts; return policy's decisions.

        ``source``: a label of :class:`.source_workers.Sources`, or ``CONDITIONS`` or
        ``PREVIOUS_RUN``. ``alerted`` has its open alerts, ``changes`` those whose state changed in
        this tick, resolved ones among them. Alerts, decisions and messages are one transaction.
        """
        if changes and self._state.silences.active:
            self._state.silences.take_changes(changes, self._wall())
        holders = {
            holder.alert.key: holder
            for holder in alerted
            if holder.alert is not None and holder.alert.state != "pending"
        }
        updated = self._unwritten.get(source, {})
        updated = updated | self._take_changes(source, holders, changes, now_s)
        resolved = self.resolved.to_notify(source)
        if not (holders or updated or resolved):
            self.open_alerts.pop(source, None)
            return []
        for holder in holders.values():
            stale = _mark_stale(holder, now_s)
            if stale is not None:
                updated[stale.key, stale.opened_at_s] = stale
        self.open_alerts[source] = _alerts(holders)
        notifications = self._due_notices(source, holders, resolved, now_s)
        deliveries, failed, priced = self._messages(notifications, holders, now_s)
        decisions = [
            decision for decision in notifications.decisions if decision.alert_key not in failed
        ]
        notified = [
            priced.get(alert.key, alert)
            for alert in notifications.alerts
            if alert.key not in failed
        ]
        written = updated | {(alert.key, alert.opened_at_s): alert for alert in notified}
        if written or deliveries or decisions:
            self._unwritten[source] = updated
            self.deaths.note(written.values())
            if self._history is not None:
                self._history.decide(decisions)
            self._outbox.send(deliveries, list(written.values()))
            del self._unwritten[source]
        # Only now: what could not be written, as memory was short, is due again.
        for alert in notified:
            if alert.state == "resolved":
                self.resolved.add(source, alert, self._state.settings.rules, now_s)
            else:
                holders[alert.key].alert = alert
        self.open_alerts[source] = _alerts(holders)
        return decisions

    def _take_changes(
        self, source: str, holders: dict[str, AlertHolder], changes: list[Alert], now_s: float
    ) -> dict[Opening, Alert]:
        """Take in alerts whose state changed; return what is to be written of them."""
        rules, updated = self._state.settings.rules, dict[Opening, Alert]()
        for alert in changes:
            log.info("alert %s key=%s title=%r", alert.state, alert.key, alert.title)
            now = alert
            holder = holders.get(alert.key)
            if alert.state == "resolved":
                if alert.died and alert.kind == "leak":
                    now = self._builder.with_final_cost(alert, now_s)
                if alert.next_notice_at_s is not None and self._is_undelivered(alert.key):
                    why = wording.hold_fields(Hold.BEGINNING_UNDELIVERED)
                    now = msgspec.structs.replace(now, next_notice_at_s=None, **why)
                    self._explain(now, now_s)
                if now.next_notice_at_s is None:
                    self.failing.pop(now.key, None)
                self.resolved.add(source, now, rules, now_s)
            elif holder is not None and holder.alert is not None:
                now = self._builder.with_subject(holder.alert)
                if not now.group:
                    beside = [*_alerts(holders), *self._elsewhere(source)]
                    now = msgspec.structs.replace(now, group=policy.group_of(now, beside))
                    updated |= _regrouped(now, holders)
                if now.state == "firing" and now.firing_at_s == now.changed_at_s:
                    now, not_over = self.resolved.reopened(source, now, rules, now_s)
                    if not_over is not None:
                        updated[not_over.key, not_over.opened_at_s] = not_over
                        self._explain(not_over, now_s)
                holder.alert = now
            updated[now.key, now.opened_at_s] = now
        return updated

    def _is_undelivered(self, key: str) -> bool:
        """Say whether no channel has delivered, or will deliver, that an alert began."""
        if self._history is None or key not in self._outbox.reach.undelivered():
            return False
        # What still waits is dropped by the outbox, with the end of what it is about.
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

    def _due_notices(
        self, source: str, holders: dict[str, AlertHolder], resolved: list[Alert], now_s: float
    ) -> Notifications:
        """Return what policy says is due."""
        rules = self._state.settings.rules
        alerts = list(_alerts(holders))
        firing = {alert.key for alert in alerts if alert.state == "firing"}
        # One that has fired again is not over.
        alerts += [alert for alert in resolved if alert.key not in firing]
        levels = {}
        if rules.overrides:
            for key, holder in holders.items():
                newest = holder.window.last if isinstance(holder, Track) else None
                if newest is not None:
                    levels[key] = newest[1]
        silences = self._state.silences.active
        context = policy.SendingContext(
            local=units.Local.at(self._wall()) if silences or rules.quiet else None,
            silences=tuple(silences),
            others=tuple(self._elsewhere(source)),
            past=self.resolved.recent(),
            levels=levels,
        )
        return self._evaluate_policy(alerts, context, now_s)

    def _elsewhere(self, source: str) -> list[Alert]:
        """Return the open alerts of other sources."""
        return [
            alert for name, some in self.open_alerts.items() if name != source for alert in some
        ]

    def _evaluate_policy(
        self, alerts: list[Alert], context: policy.SendingContext, now_s: float
    ) -> Notifications:
        """Ask policy; an alert that it cannot judge costs no other its notice."""
        rules, sent_s = self._state.settings.rules, self._sent_at_s(now_s)
        try:
            return policy.due_notices(alerts, rules, now_s=now_s, sent_at_s=sent_s, context=context)
        except Exception as error:
            if len(alerts) != 1:
                parts = [self._evaluate_policy([one], context, now_s) for one in alerts]
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
        """Return the messages, the keys of alerts without one, and key -> alert with its cost.

        Those of which none could be made stay due.
        """
        for decision in notifications.decisions:
            if decision.kind == "hold":
                log.info("held back key=%s reason=%r", decision.alert_key, decision.reason)
        booked = {alert.key: alert for alert in notifications.alerts}
        out: list[Delivery] = []
        failed: set[str] = set()
        priced: dict[str, Alert] = {}
        for notice in notifications.notices:
            keys = [notice.alert.key, *(one.key for one in notice.also)]
            try:
                first, *others = (booked[key] for key in keys)
                costs = {first.key: self._builder.with_cost(first, now_s)}
                thread = costs[first.key].first_message
                costs |= {
                    one.key: self._builder.with_cost(one, now_s, thread, counted=number < PRICED)
                    for number, one in enumerate(others, start=1)
                }
                out += self._deliveries(_with_costs(notice, costs), holders, now_s)
            except Exception as error:
                if not failed.union(self.failing).issuperset(keys):
                    log.exception("failed part=message key=%s", keys[0])
                self.failing.update(
                    {key: f"no message could be made of {key}: {error!r}" for key in keys}
                )
                failed.update(keys)
                continue
            priced.update(costs)
            for key in keys:
                self.failing.pop(key, None)
            self._outbox.made_mono_s.append(self._mono())  # for the limit per hour
        return out, failed, priced

    def _deliveries(
        self, notice: Notice, holders: dict[str, AlertHolder], now_s: float
    ) -> list[Delivery]:
        holder = holders.get(notice.alert.key)
        died = self._state.tracks.died.pop(notice.alert.key, None)
        track = holder if isinstance(holder, Track) else died
        message = self._builder.message(notice, track, now_s)
        if notice.kind == "resolved" and self._others_open(notice):
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

    def _others_open(self, notice: Notice) -> bool:
        """Say whether other alerts of the same thread of messages are open."""
        thread = notice.alert.first_message
        return any(
            alert.state == "firing" and alert.first_message == thread
            for some in self.open_alerts.values()
            for alert in some
        )


def _alerts(holders: dict[str, AlertHolder]) -> tuple[Alert, ...]:
    return tuple(holder.alert for holder in holders.values() if holder.alert is not None)


def _with_costs(notice: Notice, costs: dict[str, Alert]) -> Notice:
    def priced(alert: Alert) -> Alert:
        known = costs[alert.key]
        return msgspec.structs.replace(alert, cost=known.cost, first_message=known.first_message)

    return msgspec.structs.replace(
        notice, alert=priced(notice.alert), also=tuple(map(priced, notice.also))
    )
