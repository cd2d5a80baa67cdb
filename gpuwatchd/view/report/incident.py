"""The incidents of a period: what was foreseen, what came, who it was, who heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.model.findings import STALE_S, Finding
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.text import verdict_text
from gpuwatchd.view.text.subject_facts import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatchd.analysis.cost import Entry
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Alert, Delivery, Device, ProcessInfo, Silence
    from gpuwatchd.view.text.alert_details import AlertRecord

_RANK = {"critical": 0, "warning": 1, "info": 2}
_KINDS = {"leak": 0, "limit": 1, "gpu": 2, "held": 3}


_T = TypeVar("_T")


class Stake(NamedTuple):
    """What one thing is ranked by."""

    level: tuple[int, ...]
    """Lower is first; only things of one level compete."""
    usd: float | None
    """At stake; None is unknown, which is not nothing."""
    left_s: float | None
    """Until memory is full; None is never, or unknown."""
    rest: tuple[float | str, ...]
    """Breaks ties."""


def ranked(things: Iterable[_T], of: Callable[[_T], Stake]) -> list[_T]:
    """Return things by level, then by dollars, then by the time left.

    Where a price of a level is unknown the time left comes first: what costs nobody knows what
    must not stand below a dollar that is due hours later.
    """
    pairs = [(of(thing), thing) for thing in things]
    unpriced = {stake.level for stake, _ in pairs if stake.usd is None}

    def place(stake: Stake) -> tuple[object, ...]:
        left_s = float("inf") if stake.left_s is None else stake.left_s
        dear = -(stake.usd or 0.0)
        by = (left_s, 0.0) if stake.level in unpriced else (dear, left_s)
        return (stake.level, by, stake.rest, dear)

    return [one for _, one in sorted(pairs, key=lambda pair: place(pair[0]))]


class Incident(NamedTuple):
    """One alert with everything that is on record of it."""

    alert: Alert
    story: AlertRecord
    first: Finding
    """As it was judged when it was told of first, as far as that is kept."""
    info: ProcessInfo | None
    device: Device | None
    picture: Picture | None
    entries: tuple[Entry, ...]
    """What it cost."""
    silences: tuple[Silence, ...]
    """That held for it at some time, also those that are over."""


@dataclass
class Channel:
    """What became of the messages that were to leave by one channel."""

    name: str
    sent: int = 0
    failed: int = 0
    waiting: int = 0
    dry: int = 0
    last_sent_s: float | None = None
    why: str = ""
    """Why the last one that failed did."""

    def add(self, delivery: Delivery) -> None:
        """Count one message."""
        if delivery.dry_run:
            self.dry += 1
        elif delivery.state == "sent":
            self.sent += 1
            self.last_sent_s = max(
                self.last_sent_s or 0.0, delivery.sent_at_s or delivery.created_at_s
            )
        elif delivery.state == "failed":
            self.failed += 1
            self.why = delivery.error or self.why
        else:
            self.waiting += 1
            self.why = delivery.held or delivery.error or self.why


def worth(entries: Iterable[Entry]) -> dict[str, float | None]:
    """Return what is at stake in each incident, US dollars by key; "saved" is not at stake.

    None where a part of it has no known price.
    """
    found: dict[str, float | None] = {}
    for entry in entries:
        if entry.what != "saved":
            before = found.get(entry.key, 0.0)
            known = before is not None and entry.usd is not None
            more = (entry.usd or 0.0) + (entry.ahead_usd or 0.0)
            found[entry.key] = (before or 0.0) + more if known else None
    return found


def order(alerts: Iterable[Alert], money: Mapping[str, float | None]) -> list[Alert]:
    """Return alerts in order: open, severe, ended badly, dear, near, new."""
    return ranked(alerts, lambda alert: _stake(alert, money.get(alert.key)))


def _stake(alert: Alert, usd: float | None) -> Stake:
    eta = alert.finding.eta if alert.state in OPEN else None
    return Stake(
        level=(
            0 if alert.state in OPEN else 1,
            _RANK[alert.severity],
            0 if alert.ran_out else 1,
            _KINDS.get(alert.kind, 3),
        ),
        usd=usd,
        left_s=None if eta is None else eta.mid_s,
        rest=(-alert.opened_at_s, alert.key),
    )


def first_notified(alert: Alert, deliveries: Sequence[Delivery]) -> Finding:
    """Return the judgement that people were told first; without one on record, the newest.

    Of what is over, that one foresees nothing: it may be from after the end.
    """
    for delivery in deliveries:
        finding = delivery.message.finding
        own = delivery.message.alert_key in {alert.key, ""} and finding is not None
        if own and finding is not None and finding.subject == alert.subject:
            return finding
    if alert.state in OPEN:
        return alert.finding
    return msgspec.structs.replace(alert.finding, eta=None)


def foreseen(incident: Incident, *, now_s: float) -> str:
    """Return the forecast as it was made first: instants, since its durations are long over."""
    finding = incident.first
    if finding.eta is None or incident.alert.kind != "leak":
        return ""
    at_s = finding.judged_at_s
    low, mid = (units.moment(at_s + s, now_s=now_s) for s in (finding.eta.low_s, finding.eta.mid_s))
    high_s = finding.eta.high_s
    interval = f"{low} or later"
    if high_s is not None:
        interval = f"{low} to {units.moment(at_s + high_s, now_s=now_s)}"
    return f"full at {mid} ({interval}), forecast of {units.moment(at_s, now_s=now_s)}"


def is_old(finding: Finding, *, now_s: float) -> bool:
    """Say whether a judgement is of a while ago, so that the time it leaves has run on since."""
    return now_s - finding.judged_at_s > STALE_S


def outcome(incident: Incident, *, now_s: float) -> str:
    """Return what came of it, and how the forecast did."""
    alert = incident.alert
    over_s = alert.resolved_at_s
    if over_s is None:
        calm = verdict_text.calmed(alert, now_s=now_s)
        return f"it is still open; its growth {calm}" if calm else "it is still open"
    text = f"{alert.ended or 'it is resolved'}, at {units.moment(over_s, now_s=now_s)}"
    eta = incident.first.eta
    if eta is None or alert.kind != "leak":
        return text
    took_s = over_s - incident.first.judged_at_s
    if alert.ran_out:
        if took_s < eta.low_s:
            return f"{text}: {units.duration(eta.low_s - took_s)} before the interval"
        if eta.high_s is not None and took_s > eta.high_s:
            return f"{text}: {units.duration(took_s - eta.high_s)} after the interval"
        return f"{text}: within the forecast interval"
    if took_s < eta.mid_s:
        return f"{text}: {units.duration(eta.mid_s - took_s)} before memory would have been full"
    return text


def held_true(incident: Incident) -> bool | None:
    """Say whether memory ran out within the interval foreseen; None where it did not run out."""
    over_s, eta = incident.alert.resolved_at_s, incident.first.eta
    if over_s is None or eta is None or not incident.alert.ran_out:
        return None
    took_s = over_s - incident.first.judged_at_s
    return eta.low_s <= took_s and (eta.high_s is None or took_s <= eta.high_s)


def who(incident: Incident) -> str:
    """Return who it is: process, user, framework, job, container, as far as known."""
    about, info = incident.alert.about, incident.info
    if info is not None:
        parts = [verdict_text.who(info), verdict_text.framework(incident.first, info), *where(info)]
        return ", ".join(part for part in parts if part and part != "?")
    if about is None or not (about.process or about.user):
        return ""
    pid = f"[{about.pid}]" if about.pid is not None else ""
    owner = f" of {about.user}" if about.user else ""
    parts = [f"{about.process or 'process'}{pid}{owner}", about.framework, about.job]
    return ", ".join(part for part in [*parts, about.container] if part)


def spent(incident: Incident) -> tuple[float | None, float | None]:
    """Return GPU-hours and US dollars of an incident; None where a part is unknown."""
    if not incident.entries:
        return None, None
    found = cost.summed(incident.entries)
    return found.gpu_hours, found.usd
