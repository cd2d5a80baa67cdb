"""The digest: once a day or a week, at a local time, what is open, what was, and what it cost.

It goes through the same outbox as every other message. The instant of the last one is kept in the
history, so that what was missed while the machine was off is one digest, and none comes twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.model import Delivery
from gpuwatchd.pipeline import messages
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.model import Alert, Cost, Decision, Finding, Holding, Message
    from gpuwatchd.notify.outbox.outbox import Outbox
    from gpuwatchd.pipeline.alert_cost import AlertCosts
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.writer import History

log = logging.getLogger("gpuwatchd")

LAST: Final = "digest.last"
"""Name of the mark of the last one."""
DAY_S: Final = 86_400.0
LONGEST_S: Final = 31 * DAY_S
"""No digest looks back further."""
_LOOK_S: Final = 60.0
_DAYS: Final = 9
_MONDAY: Final = 0
_MOST: Final = 3
"""Reasons, processes and subjects that are named in a line; the others are counted."""
_WHY: Final = {"daily": "of the day", "weekly": "of the week"}


class DigestContent(NamedTuple):
    """What a digest tells."""

    alerts: tuple[Alert, ...] = ()
    """Those that fired and were open at any time in it."""
    watched: tuple[Alert, ...] = ()
    """What grows now and is not told yet."""
    held_back: tuple[Decision, ...] = ()
    holdings: tuple[Holding, ...] = ()
    """Idle memory now."""


def news(
    alerts: Iterable[Alert],
    decisions: Iterable[Decision],
    holdings: Iterable[Holding],
    *,
    from_s: float,
) -> DigestContent:
    """Choose what belongs in a digest."""
    known = list(alerts)
    fired = [
        alert
        for alert in known
        if alert.firing_at_s is not None
        and (alert.resolved_at_s is None or alert.resolved_at_s > from_s)
    ]
    held = {}
    for decision in decisions:
        if decision.kind == "hold" and decision.at_s > from_s:
            # The same notice held back by two channels, or again, is one that people did not get.
            held[decision.alert_key, decision.notice, decision.reason] = decision
    return DigestContent(
        alerts=tuple(fired),
        watched=tuple(alert for alert in known if alert.state == "watch"),
        held_back=tuple(held.values()),
        holdings=tuple(holdings),
    )


def compose(
    content: DigestContent, *, number: str, why: str, from_s: float, now_s: float
) -> Message:
    """Return the digest as a message; the same ``number`` makes the same id at every try."""
    message = messages.digest(content.alerts, number=number, why=why, from_s=from_s, now_s=now_s)
    beside = {
        "Cost": _cost(content.alerts),
        "Growing": _watched(content.watched),
        "Idle memory": _holdings(content.holdings),
        "Not sent": _held_back(content.held_back),
    }
    facts = message.facts | {label: value for label, value in beside.items() if value}
    return msgspec.structs.replace(message, facts=facts)


def _cost(alerts: Sequence[Alert]) -> str:
    """Return what is at risk now, what idle memory has cost, and what was lost.

    In the words of ``gpuwatchctl cost``: at risk is what a crash now would lose.
    """
    still = [alert for alert in alerts if alert.state != "resolved"]
    leaks = [alert for alert in still if alert.kind == "leak"]
    held = [alert for alert in still if alert.kind == "held"]
    lost = [alert for alert in alerts if alert.died]
    parts = []
    for label, those, name in (
        ("at risk by what leaks", leaks, "spent_usd"),
        ("more until memory is full", leaks, "at_risk_usd"),
        ("spent on idle memory", held, "spent_usd"),
        ("lost where memory ran out", lost, "spent_usd"),
    ):
        costs = _once(those)
        known = [usd for one in costs if (usd := getattr(one, name)) is not None]
        if known:
            parts.append(f"{cost.in_currency(sum(known), costs[0])} {label}")
    return ", ".join(parts)


def _once(alerts: Iterable[Alert]) -> list[Cost]:
    """Return what alerts cost; of several about the same process, one."""
    pairs = set[tuple[str, object]]()
    costs = []
    for alert in alerts:
        if alert.cost is None:
            continue
        whose = {(it.device_uid, it.process) for it in alert.cost.members or (alert.subject,)}
        if not whose & pairs:
            costs.append(alert.cost)
        pairs |= whose
    return costs


def _pace(finding: Finding) -> str:
    rate = finding.shown_rate_bytes_per_s
    return "" if rate is None else units.rate(rate)


def _watched(alerts: Sequence[Alert]) -> str:
    return _listed(
        [f"{text.clean(alert.title)} {_pace(alert.finding)}".strip() for alert in alerts],
        "no warning yet",
    )


def _holdings(holdings: Sequence[Holding]) -> str:
    ordered = sorted(holdings, key=lambda holding: -(holding.held_bytes or 0))
    known = [holding.held_bytes for holding in ordered if holding.held_bytes is not None]
    texts = [
        f"{'nobody' if holding.process is None else text.clean(holding.process.attribution)} "
        f"{units.size(holding.held_bytes)} ({holding.kind})"
        for holding in ordered
    ]
    return _listed(texts, units.size(sum(known)) if known else "")


def _held_back(decisions: Sequence[Decision]) -> str:
    reasons = Counter(text.clean(decision.reason) for decision in decisions)
    texts = [f"{count} x {reason}" for reason, count in reasons.most_common()]
    value = "1 notice" if len(decisions) == 1 else f"{len(decisions)} notices"
    return _listed(texts, value)


def _listed(texts: Sequence[str], lead: str) -> str:
    """Return "lead: the first; the second; 4 more"."""
    if not texts:
        return ""
    named = [text.cut(value, 100) for value in texts[:_MOST]]
    if len(texts) > _MOST:
        named.append(f"{len(texts) - _MOST} more")
    return f"{lead}: {'; '.join(named)}" if lead else "; ".join(named)


def following(last_s: float, section: PolicySection) -> float:
    """Return when the first digest after an instant is due, epoch seconds.

    A time of day that clocks skip comes when they have skipped it; one that they show twice once.
    """
    hour, _, minute = section.digest_at.partition(":")
    here = units.Local.at(last_s)
    for day in range(_DAYS):
        if section.digest == "weekly" and (here.weekday + day) % 7 != _MONDAY:
            continue
        due_s = here.epoch(day, 60 * int(hour) + int(minute))
        if due_s > last_s:
            return due_s
    return last_s + 7 * DAY_S


class Digests:
    """Sends a digest when one is due."""

    def __init__(
        self,
        state: State,
        outbox: Outbox,
        history: History | None,
        costs: AlertCosts,
        mono: Callable[[], float],
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._history = history
        self._costs = costs
        self._mono = mono
        self.section: PolicySection | None = None
        """The settings that :attr:`due_mono_s` follows."""
        self.due_mono_s = float("inf")
        """When there is something to do: at least each minute, for the wall clock may be set."""
        self._last_s: float | None = None

    def step(self, now_s: float) -> None:
        """Send one if its time has come, and say when to come again."""
        section = self.section = self._state.settings.config.policy
        if (
            section.digest == "off"
            or self._history is None
            or self._outbox.message_dispatcher is None
        ):
            self.due_mono_s = float("inf")
            self._last_s = None
            return
        last_s = self._begun(self._history, now_s)
        due_s = following(last_s, section)
        if now_s >= due_s:
            self._send(self._history, section, max(last_s, now_s - LONGEST_S), now_s)
            self._keep(self._history, now_s)
            last_s, due_s = now_s, following(now_s, section)
        self._last_s = last_s
        self.due_mono_s = self._mono() + min(due_s - now_s, _LOOK_S)

    def _begun(self, history: History, now_s: float) -> float:
        """Return when the last one was sent; where there was none, the first day begins now."""
        last_s = self._last_s
        if last_s is None:
            last_s = history.shelf.read(tables.load_instant, LAST)
        if last_s is None:
            self._keep(history, now_s)
            return now_s
        # A clock that was set back by a minute must not send the same one again, and one that was
        # set back by a year not keep the next one away for so long.
        return last_s if last_s - now_s < DAY_S else now_s

    @staticmethod
    def _keep(history: History, now_s: float) -> None:
        history.shelf.write_now(tables.save_meta, LAST, now_s)

    def _send(self, history: History, section: PolicySection, from_s: float, now_s: float) -> None:
        alerts = {
            (alert.key, alert.opened_at_s): alert
            for alert in (
                *history.over_since(from_s),
                *(self._as_of(now_s, open_alert) for open_alert in history.open_alerts()),
            )
        }
        decisions = history.shelf.read(tables.load_decisions, None, from_s) or []
        content = news(alerts.values(), decisions, self._state.holdings, from_s=from_s)
        if not any(content) and section.digest == "daily":
            log.info("no digest: there was no event")
            return
        day = time.strftime("%Y-%m-%d", time.localtime(now_s))
        message = compose(
            content,
            number=f"{section.digest}|{day}",
            why=_WHY[section.digest],
            from_s=from_s,
            now_s=now_s,
        )
        self._outbox.send(deliveries(message, section.digest_channels, now_s))
        self._outbox.made_mono_s.append(self._mono())  # for the limit per hour

    def _as_of(self, now_s: float, alert: Alert) -> Alert:
        """Return an open alert with what it costs now."""
        try:
            now = self._costs.of(alert, now_s)
        except Exception:
            # Whatever is odd about one alert, the digest leaves with what was known.
            log.warning("failed part=digest key=%s", text.clean(alert.key), exc_info=True)
            return alert
        return alert if now is None else msgspec.structs.replace(alert, cost=now)


def deliveries(message: Message, channels: Iterable[str], now_s: float) -> list[Delivery]:
    """Return a message on its way by each of some channels."""
    return [
        Delivery(
            alert_key=message.alert_key,
            channel=channel,
            message=message,
            state="pending",
            attempts=0,
            created_at_s=now_s,
            next_try_at_s=now_s,
        )
        for channel in dict.fromkeys(channels)
    ]
