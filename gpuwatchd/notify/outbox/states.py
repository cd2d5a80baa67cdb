"""The states of a row of the outbox, and what leads from one to the next. Pure.

The table is in the docstring of the package.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts
from gpuwatchd.core import text
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import validation

if TYPE_CHECKING:
    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.errors import NotifyError
    from gpuwatchd.core.model import Delivery, Message
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
