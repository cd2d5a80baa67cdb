"""What piles up while a channel is down: what is overtaken, what leaves together. Pure.

Eight hours without a mail server must not end in a hundred mails, nor a login in the morning in
pop-ups about jobs that recovered at night.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.model import Message
from gpuwatchd.notify import plain_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Delivery, Severity

LATE_S = 3600.0
"""From this age on, undelivered messages of one channel leave as one."""
MAX_LINES = 40
_LONGEST_RETRY_S = 3600.0
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}
_TEXTS = {
    Failure.OVERTAKEN: "overtaken by a later message of the same incident",
    Failure.OVER_BEFORE_SENT: "resolved before it was sent",
    Failure.FALLBACK_SENT: "delivered by {channel} instead",
    Failure.CHANNEL_SENT: "delivered by {channel} after all",
}


class Plan(NamedTuple):
    """What to do with the messages that wait."""

    submit: list[Delivery]
    """To hand to the dispatcher now."""
    drop: list[Delivery]
    """Overtaken: state "failed" and why; to be written down, not sent."""


def is_late(delivery: Delivery, now_s: float) -> bool:
    """Say whether a message is so old that it may be merged with others (epoch seconds)."""
    return now_s - delivery.created_at_s > LATE_S


def is_held(delivery: Delivery) -> bool:
    """Say whether a message has been kept waiting on purpose and not been tried since."""
    return bool(delivery.held) and delivery.state == "pending" and not delivery.attempts


def leaves_with_others(delivery: Delivery, now_s: float) -> bool:
    """Say whether a message may be merged with others: it is late, or was held back.

    A digest is one already.
    """
    late = bool(delivery.held) or is_late(delivery, now_s)
    return late and delivery.message.notice != "digest"


def dropped(delivery: Delivery, why: Failure, **facts: float | str) -> Delivery:
    """Return a delivery that will not be sent, and why."""
    return msgspec.structs.replace(
        delivery,
        state="failed",
        next_try_at_s=None,
        lease_until_s=None,
        error=f"not sent: {_TEXTS[why].format_map(facts)}",
        code=why,
        facts=facts,
    )


def is_dropped(delivery: Delivery) -> bool:
    """Say whether a message was not sent on purpose: no channel has failed."""
    return delivery.state == "failed" and delivery.code in _TEXTS


def moved(delivery: Delivery, by_s: float, now_s: float) -> Delivery:
    """Return a waiting delivery after the wall clock was set forward ``by_s`` (negative: back).

    What waits for a retry waits as long as it would have. What is held until an hour of the day
    waits for that hour on the new clock, but never longer than it would have.
    """
    at_s = delivery.next_try_at_s
    if at_s is not None:
        at_s = min(at_s, at_s + by_s) if is_held(delivery) else at_s + by_s
    return msgspec.structs.replace(
        delivery, created_at_s=min(delivery.created_at_s + by_s, now_s), next_try_at_s=at_s
    )


def plan(waiting: Iterable[Delivery], now_s: float) -> Plan:
    """Return what of the messages that the dispatcher does not have is to be sent now, what never.

    Of one incident on one channel only the newest message about each alert is still worth sending;
    one that has recovered and whose beginning was never told is not told at all, unless it was held
    back on purpose: then its end is told. Where one message of a channel is due that is late
    already, all late ones of that channel are due with it. A next try further away than the longest
    retry (the clock was set back) counts as due.
    """
    incidents: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for delivery in waiting:
        message = delivery.message
        incidents[delivery.channel, message.thread or message.id].append(delivery)
    deliveries: list[Delivery] = []
    drop: list[Delivery] = []
    for (_, incident), group in incidents.items():
        older, newer = _overtaken(group)
        drop += [dropped(one, Failure.OVERTAKEN) for one in older]
        untold = any(one.message.id == incident for one in older)
        untold = untold and not any(is_held(one) for one in group)
        groups = [_keys(one) for one in newer if one.message.notice != "resolved"]
        for one in newer:
            # What probably ran out of memory keeps its severity: it is told, however late.
            harmless = one.message.notice == "resolved" and one.message.severity == "info"
            over = harmless and untold
            if over and not any(_keys(one) & keys for keys in groups):
                drop.append(dropped(one, Failure.OVER_BEFORE_SENT))
            else:
                deliveries.append(one)
    due = [one for one in deliveries if _is_due(one, now_s)]
    reopened = {one.channel for one in due if is_late(one, now_s)}
    late = [
        one
        for one in deliveries
        if one.channel in reopened
        and is_late(one, now_s)
        and not is_held(one)
        and not _is_due(one, now_s)
    ]
    return Plan(due + late, drop)


def _overtaken(group: Iterable[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """Return what of one incident is overtaken, and what is not, oldest first.

    A message that tells of several alerts is overtaken when later ones tell of each of them.
    """
    older: list[Delivery] = []
    newer: list[Delivery] = []
    names: set[str] = set()
    # Reversed after sorting: of two made in the same instant the one made later is the newer one.
    for delivery in sorted(group, key=lambda one: (one.created_at_s, one.row or 0))[::-1]:
        if newer and _keys(delivery) <= names:
            older.append(delivery)
        else:
            newer.append(delivery)
            names |= _keys(delivery)
    return older[::-1], newer[::-1]


def _keys(delivery: Delivery) -> set[str]:
    return {delivery.alert_key, *delivery.message.also}


def _is_due(delivery: Delivery, now_s: float) -> bool:
    at_s = delivery.next_try_at_s or 0.0
    return at_s <= now_s or (not is_held(delivery) and at_s > now_s + _LONGEST_RETRY_S)


def digest(deliveries: Sequence[Delivery], now_s: float) -> Message:
    """Return one message for several that could not be delivered in their time.

    Its id follows from theirs, so that a repetition is recognised as the same mail.
    """
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon with nothing to tell

    ordered = sorted(deliveries, key=lambda delivery: delivery.created_at_s)
    names = "|".join(sorted(delivery.message.id for delivery in ordered))
    worst = max((delivery.message.severity for delivery in ordered), key=_RANK.__getitem__)
    shown = ordered[-MAX_LINES:]
    lines = [
        f"{units.clock(delivery.created_at_s, now_s=now_s)}  {plain_text.word(delivery.message)}: "
        f"{text.clean(delivery.message.subject)}"
        for delivery in shown
    ]
    if len(shown) < len(ordered):
        lines.insert(0, f"({len(ordered) - len(shown)} older ones are left out.)")
    count = f"{len(ordered)} message{'s' if len(ordered) > 1 else ''}"
    reasons = sorted({text.clean(delivery.held, limit=60) for delivery in ordered if delivery.held})
    if all(delivery.held for delivery in ordered):
        what, why = "were held", f"Held until now ({', '.join(reasons)}):"
    else:
        what, why = "could not be delivered earlier", "While this channel could not be reached:"
        why = f"Held ({', '.join(reasons)}), or undeliverable until now:" if reasons else why
    return Message(
        id=f"digest-{hashlib.sha256(names.encode('utf-8', 'replace')).hexdigest()[:24]}",
        notice="repeat",
        severity=worst,
        subject=f"gpuwatchd: {count} that {what}",
        body="\n".join([why, *lines]),
        command="gpuwatchctl alerts --all",
    )
