"""What a turn of the outbox sends, gives up, or hands to another channel. Pure.

Eight hours without a mail server must not end in a hundred mails, nor a login in the morning in
pop-ups about jobs that recovered at night.

A message is sent by all of its own channels. A fallback sends it when each of them has failed for
good, or has been failing for longer than ``fallback-after``; the next fallback when that one has
failed as well. What a fallback has sent is not sent again when its own channel comes back. A
fallback keeps to its own quiet hours, and to the severity that it is for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.model import Message
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.outbox.states import State, expired, is_held, redirected, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.model import Delivery
    from gpuwatchd.core.units import Local

LATE_S = 3600.0
"""From this age on, undelivered messages of one channel leave as one."""
MAX_LINES = 40
_LONGEST_RETRY_S = 3600.0


def is_late(delivery: Delivery, now_s: float) -> bool:
    """Say whether a message is so old that it may be merged with others (epoch seconds)."""
    return now_s - delivery.created_at_s > LATE_S


def leaves_with_others(delivery: Delivery, now_s: float) -> bool:
    """Say whether a message may be merged with others: it is late, or was held back.

    A digest is one already.
    """
    late = bool(delivery.held) or is_late(delivery, now_s)
    return late and delivery.message.notice != "digest"


class Plan(NamedTuple):
    """What to do with rows."""

    submit: list[Delivery]
    """To hand to their channels now; or, by a fallback, to be written down and sent."""
    expired: list[Delivery]
    """To be written down, not sent."""


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
        incidents[delivery.message.thread or delivery.message.id, delivery.channel].append(delivery)
    deliveries: list[Delivery] = []
    drop: list[Delivery] = []
    for (incident, _), group in incidents.items():
        older, newer = _overtaken(group)
        drop += [expired(one, Failure.OVERTAKEN) for one in older]
        unsent = any(one.message.id == incident for one in older)
        unsent = unsent and not any(is_held(one) for one in group)
        groups = [_keys(one) for one in newer if one.message.notice != "resolved"]
        for one in newer:
            # What probably ran out of memory keeps its severity: it is told, however late.
            harmless = one.message.notice == "resolved" and one.message.severity == "info"
            over = harmless and unsent
            if over and not any(_keys(one) & keys for keys in groups):
                drop.append(expired(one, Failure.OVER_BEFORE_SENT))
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


def fallbacks(
    messages: Iterable[Collection[Delivery]],
    section: PolicySection,
    local: Callable[[], Local],
    *,
    waits: Callable[[Delivery], bool],
    lost: Callable[[Delivery], bool],
) -> Plan:
    """Return what another channel is to send, and what needs no sending any more.

    Parameters
    ----------
    messages
        The rows of each message.
    waits
        Says whether a pending row is in nobody's hands at this moment.
    lost
        Says whether one has failed on a channel that has been failing for longer than
        ``fallback-after``.
    """
    new: list[Delivery] = []
    spare: list[Delivery] = []
    for rows in messages:
        arrived = [row for row in rows if row.state == "sent"]
        if arrived:
            spare += _needless(arrived, [r for r in rows if r.state == "pending" and waits(r)])
        elif all(_given_up(row, waits, lost) for row in rows):
            # One of its own channels, where there still is one.
            meant = min(rows, key=lambda row: bool(row.fallback_of))
            used = {row.channel for row in rows}
            others = (
                other
                for other in _next(rows, section)
                if other not in used and _is_for(section, other, meant)
            )
            if (channel := next(others, None)) is not None:
                new.append(redirected(meant, channel, section, local()))
    return Plan(new, spare)


def _needless(arrived: Sequence[Delivery], waiting: Sequence[Delivery]) -> list[Delivery]:
    """Return what nobody needs any more: its own channels, or its fallbacks, have delivered."""
    by = arrived[0].channel
    instead = all(row.fallback_of for row in arrived)
    why = Failure.FALLBACK_SENT if instead else Failure.CHANNEL_SENT
    return [
        expired(row, why, channel=by)
        for row in waiting
        if (instead or row.fallback_of) and not is_held(row)
    ]


def _given_up(
    row: Delivery, waits: Callable[[Delivery], bool], lost: Callable[[Delivery], bool]
) -> bool:
    if row.state == "failed":
        return state_of(row) is State.FAILED
    return row.error is not None and not is_held(row) and waits(row) and lost(row)


def _next(rows: Collection[Delivery], section: PolicySection) -> tuple[str, ...]:
    """Return the channels that may stand in for those of a message.

    The regular ones, too, where its own were taken out of the settings while it waited.
    """
    gone = all(row.code is Failure.NOT_CONFIGURED for row in rows)
    return (*section.channels, *section.fallback) if gone else section.fallback


def _is_for(section: PolicySection, channel: str, meant: Delivery) -> bool:
    """Say whether a channel stands in for messages like this; for an end, where the rest went.

    A digest has channels of its own: it is no news that somebody has to hear.
    """
    least = section.severity.get(channel, "info")
    message = meant.message
    if message.notice == "digest":
        return False
    return message.notice == "resolved" or RANK[message.severity] >= RANK[least]


def digest(deliveries: Sequence[Delivery], now_s: float) -> Message:
    """Return one message for several that could not be delivered in their time.

    Its id follows from theirs, so that a repetition is recognised as the same mail.
    """
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon with nothing to tell

    ordered = sorted(deliveries, key=lambda delivery: delivery.created_at_s)
    names = "|".join(sorted(delivery.message.id for delivery in ordered))
    worst = max((delivery.message.severity for delivery in ordered), key=RANK.__getitem__)
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
