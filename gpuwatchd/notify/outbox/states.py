"""The states of a row of the outbox, what leads from one to the next, what is sent when. Pure.

The table is in the docstring of the package.
"""

from __future__ import annotations

import enum
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import validation
from gpuwatchd.core.model import Message
from gpuwatchd.notify import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.errors import NotifyError
    from gpuwatchd.core.model import Delivery
    from gpuwatchd.core.units import Local

log = logging.getLogger("gpuwatchd")

RETRY_S = (30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
GIVE_UP_S = 48 * 3600.0
CLOCK_STEP_S = 2.0
_RETRIED_AT_ONCE = 2
"""Attempts that a daemon may die in before the next one waits: no loop of crashes sends on."""
_EXPIRED = {
    Failure.OVERTAKEN: "overtaken by a later message of the same incident",
    Failure.OVER_BEFORE_SENT: "resolved before it was sent",
    Failure.FALLBACK_SENT: "delivered by {channel} instead",
    Failure.CHANNEL_SENT: "delivered by {channel} after all",
}

Key = tuple[str, str]
"""Message id and channel: the key of a row; its number may change while the disk is full."""


class State(enum.Enum):
    """How a row stands."""

    PENDING = enum.auto()
    """It waits for its time, or for its channel."""
    SENDING = enum.auto()
    """Its channel has it."""
    SENT = enum.auto()
    FAILED = enum.auto()
    """The channel refused it for good, or for two days."""
    EXPIRED = enum.auto()
    """Not sent on purpose: nobody needs it any more."""


def state_of(row: Delivery) -> State:
    """Return the state of a row."""
    if row.state == "pending":
        return State.PENDING if row.lease_until_s is None else State.SENDING
    if row.state == "sent":
        return State.SENT
    return State.EXPIRED if row.code in _EXPIRED else State.FAILED


def is_held(row: Delivery) -> bool:
    """Say whether a message has been kept waiting on purpose and not been tried since."""
    return bool(row.held) and row.state == "pending" and not row.attempts


def retry_at(attempts: int, created_at_s: float, now_s: float) -> float | None:
    """Return when to try again after ``attempts`` failures, or None to give up.

    A message of the future (the clock was set back) counts as made now.

    Examples
    --------
    >>> [retry_at(n, 0, 0) for n in (1, 2, 3, 4, 5, 6, 7)]
    [30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 3600.0]
    >>> retry_at(60, 0, 48 * 3600) is None
    True
    """
    delay_s = RETRY_S[min(max(attempts, 1), len(RETRY_S)) - 1]
    age_s = max(0.0, now_s - created_at_s)
    return None if age_s + delay_s > GIVE_UP_S else now_s + delay_s


def claimed(row: Delivery, until_s: float | None) -> Delivery:
    """Return a row that its channel is about to get; written before it does."""
    return msgspec.structs.replace(row, lease_until_s=until_s)


def sent(row: Delivery, now_s: float, value: str) -> Delivery:
    """Return a row that has arrived, with what its channel says of that."""
    return msgspec.structs.replace(
        row,
        state="sent",
        attempts=row.attempts + (not row.dry_run),
        sent_at_s=now_s,
        next_try_at_s=None,
        lease_until_s=None,
        error=None,
        code=None,
        facts={},
        known=value,
    )


def refused(
    row: Delivery, error: NotifyError, now_s: float, *, code: Failure = Failure.REFUSED
) -> Delivery:
    """Return a row that was refused: tried again later, or failed for good."""
    attempts = row.attempts + 1
    again_s = None if error.permanent else retry_at(attempts, row.created_at_s, now_s)
    why = text.clean(error.message) + (f" ({text.clean(error.hint)})" if error.hint else "")
    log.debug("%s: attempt %d: %s", row.channel, attempts, why)
    given_up = again_s is None and not error.permanent
    return msgspec.structs.replace(
        row,
        state="failed" if again_s is None else "pending",
        attempts=attempts,
        next_try_at_s=again_s,
        lease_until_s=None,
        error=f"gave up after two days: {why}" if given_up else why,
        code=Failure.GIVEN_UP if given_up else code,
        facts={"error": why},
    )


def made_at(row: Delivery, created_at_s: float, now_s: float) -> Delivery:
    """Return the end of an attempt with the message's age as it is, should the clock have been set.

    By the clock as it goes now it was made at ``created_at_s``. A message that seemed to be two
    days old all at once is not given up.
    """
    if row.code is Failure.GIVEN_UP:
        again_s = retry_at(row.attempts, created_at_s, now_s)
        if again_s is not None:
            row = msgspec.structs.replace(
                row,
                state="pending",
                next_try_at_s=again_s,
                error=str(row.facts.get("error", row.error)),
                code=Failure.REFUSED,
            )
    return msgspec.structs.replace(row, created_at_s=created_at_s)


def expired(row: Delivery, why: Failure, **facts: float | str) -> Delivery:
    """Return a row that will not be sent, and why."""
    return msgspec.structs.replace(
        row,
        state="failed",
        next_try_at_s=None,
        lease_until_s=None,
        error=f"not sent: {_EXPIRED[why].format_map(facts)}",
        code=why,
        facts=facts,
    )


def inherited(row: Delivery, now_s: float) -> Delivery:
    """Return what a dead daemon left pending as it is to go on; its lease is void."""
    if row.created_at_s > now_s + CLOCK_STEP_S:
        row = clock_moved(row, now_s - row.created_at_s, now_s)
    if row.lease_until_s is None:
        if row.next_try_at_s is None or is_held(row):
            return row
        soon_s = min(row.next_try_at_s, now_s + RETRY_S[0])
        return msgspec.structs.replace(row, next_try_at_s=soon_s)
    log.info("interrupted channel=%s id=%s", row.channel, row.message.id)
    attempts = row.attempts + 1
    again_s: float | None = now_s
    if attempts > _RETRIED_AT_ONCE:
        again_s = retry_at(attempts - _RETRIED_AT_ONCE, row.created_at_s, now_s)
    return msgspec.structs.replace(
        row, attempts=attempts, next_try_at_s=again_s, lease_until_s=None
    )


def revived(row: Delivery, now_s: float) -> Delivery:
    """Return what had failed as it is tried again now."""
    return msgspec.structs.replace(row, state="pending", next_try_at_s=now_s)


def clock_moved(row: Delivery, by_s: float, now_s: float) -> Delivery:
    """Return a waiting row after the wall clock was set forward ``by_s`` (negative: back).

    What waits for a retry waits as long as it would have. What is held until an hour of the day
    waits for that hour on the new clock, but never longer than it would have.
    """
    at_s = row.next_try_at_s
    if at_s is not None:
        at_s = min(at_s, at_s + by_s) if is_held(row) else at_s + by_s
    return msgspec.structs.replace(
        row, created_at_s=min(row.created_at_s + by_s, now_s), next_try_at_s=at_s
    )


def redirected(row: Delivery, channel: str, section: PolicySection, local: Local) -> Delivery:
    """Return the same message by a fallback; in its quiet hours, for their end."""
    until = _quiet_until(row.message, channel, section, local)
    return msgspec.structs.replace(
        row,
        channel=channel,
        state="pending",
        attempts=0,
        next_try_at_s=local.now_s if until is None else until.at_s,
        sent_at_s=None,
        error=None,
        code=None,
        facts={},
        known="",
        held=row.held if until is None else f"quiet hours until {until.clock}",
        lease_until_s=None,
        fallback_of=row.fallback_of or row.channel,
        row=None,
    )


def with_quiet_hours(row: Delivery, section: PolicySection, local: Local) -> Delivery:
    """Return what is held back as it is under quiet hours that have been changed."""
    until = _quiet_until(row.message, row.channel, section, local)
    if until is None:
        return msgspec.structs.replace(row, next_try_at_s=local.now_s)
    held = f"quiet hours until {until.clock}"
    return msgspec.structs.replace(row, next_try_at_s=until.at_s, held=held)


def _quiet_until(
    message: Message, channel: str, section: PolicySection, local: Local
) -> alerts.Until | None:
    ranges = (*section.quiet_hours.get(channel, ()), *section.quiet_hours.get("all", ()))
    urgent = message.severity == "critical" and message.notice != "resolved"
    if urgent or not ranges:
        return None
    return alerts.quiet_until([validation.parse(value) for value in ranges], local)


# What each ``Outbox.collect`` sends, gives up, or hands to another channel.
#
# Eight hours without a mail server must not end in a hundred mails, nor a login in the morning in
# pop-ups about jobs that recovered at night.
#
# A message is sent by all of its own channels. A fallback sends it when each of them has failed for
# good, or has been failing for longer than ``fallback-after``; the next fallback when that one has
# failed as well. What a fallback has sent is not sent again when its own channel comes back. A
# fallback keeps to its own quiet hours, and to the severity that it is for.

LATE_S = 3600.0
"""From this age on, undelivered messages of one channel leave as one."""
# Messages that one merged message lists; of more, the newest.
MAX_LINES = 40


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
    return at_s <= now_s or (not is_held(delivery) and at_s > now_s + RETRY_S[-1])


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
