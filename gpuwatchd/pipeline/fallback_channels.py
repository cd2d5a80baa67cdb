"""Which message goes to the next channel, since none of its own could deliver it. Pure.

A letter is one message with every channel that it was given to. Its own channels all get it; a
fallback gets it when each of them has failed for good, or has been failing for longer than
``fallback-after``; the next fallback when that one has failed as well. What a fallback delivered
is told: it is not sent again when its own channel comes back. A fallback keeps to its own quiet
hours, and to the severity that it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import validation
from gpuwatchd.notify import backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.model import Delivery, Message

_MOST = 2000


class Turn(NamedTuple):
    """What to do about letters that are under way."""

    new: list[Delivery]
    """By a fallback: to be written down and sent."""
    spare: list[Delivery]
    """No longer wanted: state "failed" and why; to be written down."""


class Fallbacks:
    """Messages that are under way, until nothing of them waits any more."""

    def __init__(self) -> None:
        self._letters: dict[str, dict[str, Delivery]] = {}

    def __len__(self) -> int:
        return len(self._letters)

    def note(self, delivery: Delivery) -> None:
        """Take in how a delivery stands now."""
        if backlog.is_dropped(delivery):
            self._forget(delivery)
            return
        self._letters.setdefault(delivery.message.id, {})[delivery.channel] = delivery
        if len(self._letters) > _MOST:
            del self._letters[next(iter(self._letters))]

    def _forget(self, delivery: Delivery) -> None:
        letter = self._letters.get(delivery.message.id)
        if letter is not None:
            letter.pop(delivery.channel, None)
            if not letter:
                del self._letters[delivery.message.id]

    def turn(
        self,
        section: PolicySection,
        local: Callable[[], alerts.Local],
        *,
        waits: Callable[[Delivery], bool],
        lost: Callable[[Delivery], bool],
    ) -> Turn:
        """Return what has become necessary, and what needless.

        ``waits`` says whether a pending delivery is in nobody's hands at this moment; ``lost``
        whether one has failed on a channel that has been failing for longer than
        ``fallback-after``.
        """
        new: list[Delivery] = []
        spare: list[Delivery] = []
        for name, letter in list(self._letters.items()):
            pending = [delivery for delivery in letter.values() if delivery.state == "pending"]
            arrived = [delivery for delivery in letter.values() if delivery.state == "sent"]
            if arrived:
                spare += _needless(arrived, [delivery for delivery in pending if waits(delivery)])
            elif all(_given_up(delivery, waits, lost) for delivery in letter.values()):
                meant = next(
                    (delivery for delivery in letter.values() if not delivery.fallback_of), None
                )
                meant = meant or next(iter(letter.values()))
                following = next(
                    (
                        name
                        for name in _next(letter.values(), section)
                        if name not in letter and _is_for(section, name, meant)
                    ),
                    None,
                )
                if following is not None:
                    new.append(_redirected(meant, following, section, local()))
                    continue
            if not pending:
                del self._letters[name]
        return Turn(new, spare)


def _needless(arrived: Sequence[Delivery], waiting: Sequence[Delivery]) -> list[Delivery]:
    """Return what nobody needs any more: its own channels, or its fallbacks, have delivered."""
    by = arrived[0].channel
    instead = all(delivery.fallback_of for delivery in arrived)
    why = Failure.FALLBACK_SENT if instead else Failure.CHANNEL_SENT
    return [
        backlog.dropped(delivery, why, channel=by)
        for delivery in waiting
        if (instead or delivery.fallback_of) and not backlog.is_held(delivery)
    ]


def _given_up(
    delivery: Delivery, waits: Callable[[Delivery], bool], lost: Callable[[Delivery], bool]
) -> bool:
    if delivery.state == "failed":
        return True
    tried = delivery.error is not None and not backlog.is_held(delivery)
    return tried and waits(delivery) and lost(delivery)


def _next(letter: Collection[Delivery], section: PolicySection) -> tuple[str, ...]:
    """Return the channels that may stand in for those of a letter.

    The regular ones, too, where its own were taken out of the settings while it waited.
    """
    gone = all(delivery.code is Failure.NOT_CONFIGURED for delivery in letter)
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


def _redirected(
    meant: Delivery, channel: str, section: PolicySection, local: alerts.Local
) -> Delivery:
    """Return the same message by a fallback; in its quiet hours, for their end."""
    until = _quiet_until(meant.message, channel, section, local)
    return msgspec.structs.replace(
        meant,
        channel=channel,
        state="pending",
        attempts=0,
        next_try_at_s=local.now_s if until is None else until.at_s,
        sent_at_s=None,
        error=None,
        code=None,
        facts={},
        known="",
        held=meant.held if until is None else f"quiet hours until {until.clock}",
        lease_until_s=None,
        fallback_of=meant.fallback_of or meant.channel,
        row=None,
    )


def quieted(delivery: Delivery, section: PolicySection, local: alerts.Local) -> Delivery:
    """Return what is held back as it is under quiet hours that have been changed."""
    until = _quiet_until(delivery.message, delivery.channel, section, local)
    if until is None:
        return msgspec.structs.replace(delivery, next_try_at_s=local.now_s)
    held = f"quiet hours until {until.clock}"
    return msgspec.structs.replace(delivery, next_try_at_s=until.at_s, held=held)


def _quiet_until(
    message: Message, channel: str, section: PolicySection, local: alerts.Local
) -> alerts.Until | None:
    ranges = (*section.quiet_hours.get(channel, ()), *section.quiet_hours.get("all", ()))
    urgent = message.severity == "critical" and message.notice != "resolved"
    if urgent or not ranges:
        return None
    return alerts.quiet_until([validation.parse(text) for text in ranges], local)
