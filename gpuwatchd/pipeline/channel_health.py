"""How the channels do, who stands in for them, and which open alerts have reached nobody."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import validation
from gpuwatchd.core.model import ChannelHealth
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.notify import backlog
from gpuwatchd.store.live import UndeliveredAlert

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.config import PolicySection
    from gpuwatchd.core.model import Delivery, Message
    from gpuwatchd.store.writer import History

# Alerts that were over, badly, before anybody could be told.


class UndeliveredAlerts:
    """What nobody was told of in time: where memory probably ran out, or it was critical.

    What came back by itself is no longer of interest. The history knows it over restarts; it is
    asked only when something has changed.
    """

    def __init__(self, history: History | None, reach: Reach) -> None:
        self._history = history
        self._reach = reach
        self._found: tuple[UndeliveredAlert, ...] = ()
        self._asked_at: int | None = None

    def lost(self, now_s: float) -> tuple[UndeliveredAlert, ...]:
        """Return those of the last day, oldest first; the same object until something changes."""
        changes = self._reach.changes
        if self._asked_at != changes and self._history is not None:
            alerts = self._history.undelivered_since(now_s - SAID_FOR_S)
            if alerts is not None:
                self._asked_at = changes
                self._found = tuple(
                    UndeliveredAlert(
                        key=alert.key, code=alert.code, title=alert.title, severity=alert.severity,
                        ended=alert.ended, ended_at_s=alert.resolved_at_s,
                    )
                    for alert in alerts
                    if alert.resolved_at_s is not None
                    and (alert.ran_out or alert.severity == "critical")
                )  # fmt: skip
        if any(now_s - alert.ended_at_s >= SAID_FOR_S for alert in self._found):
            self._found = tuple(
                alert for alert in self._found if now_s - alert.ended_at_s < SAID_FOR_S
            )
        return self._found


_MOST = 2000


class _DeliveryRecord(msgspec.Struct, eq=False):
    """Whether anybody was told of one alert, and whether somebody could not be."""

    opened_at_s: float | None
    told: bool = False
    failed: bool = False


class Reach:
    """Which alerts have been told to at least one channel."""

    def __init__(self, opened: Callable[[str], float | None] | None) -> None:
        # Alert key -> since when it is open, None when it is not. Where nobody knows, an alert
        # counts as open until its end is told.
        self._opened = opened
        self.changes = 0
        """Counts what may change whom nobody was told of."""
        self._words: dict[str, _DeliveryRecord] = {}

    def note(self, delivery: Delivery) -> None:
        """Take in how a delivery stands now."""
        self.changes += 1
        if backlog.is_dropped(delivery):
            return
        for key in (delivery.alert_key, *delivery.message.also):
            if key:
                self._note(key, delivery)

    def _note(self, key: str, delivery: Delivery) -> None:
        opened_at_s = None if self._opened is None else self._opened(key)
        over = delivery.message.notice == "resolved" if self._opened is None else not opened_at_s
        if over:
            self._words.pop(key, None)
            return
        word = self._words.get(key)
        if word is None or word.opened_at_s != opened_at_s:
            word = self._words[key] = _DeliveryRecord(opened_at_s)
            if len(self._words) > _MOST:
                del self._words[next(iter(self._words))]
        word.told |= delivery.state == "sent"
        word.failed |= delivery.error is not None and delivery.state != "sent"

    def untold(self) -> tuple[str, ...]:
        """Return the keys of open alerts that were to be told and have reached nobody."""
        texts: list[str] = []
        for key, word in list(self._words.items()):
            if self._opened is not None and self._opened(key) != word.opened_at_s:
                del self._words[key]
                self.changes += 1
            elif word.failed and not word.told:
                texts.append(key)
        return tuple(texts)


class _Channel(msgspec.Struct, eq=False):
    """What is known of one channel since the start."""

    ok: bool | None = None
    why: str = ""
    kind: tuple[Failure | None, Facts] | None = None
    since_s: float | None = None
    since_mono_s: float | None = None
    delivered_at_s: float | None = None


class Channels:
    """How each channel does, by what became of its deliveries."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}

    def delivered(self, name: str, at_s: float | None) -> bool:
        """Note a delivery; return whether the channel had been failing."""
        channel = self._channels.setdefault(name, _Channel())
        mended = channel.ok is False
        channel.ok, channel.why, channel.delivered_at_s = True, "", at_s
        channel.since_s = channel.since_mono_s = None
        return mended

    def failed(
        self,
        name: str,
        why: str,
        *,
        at_s: float,
        mono_s: float,
        kind: tuple[Failure | None, Facts] | None = None,
    ) -> bool:
        """Note a failure; return whether it is news: the first one, or one of another kind."""
        channel = self._channels.setdefault(name, _Channel())
        news = channel.ok is not False or channel.kind != kind
        channel.ok, channel.why, channel.kind = False, why, kind
        if channel.since_mono_s is None:
            channel.since_s, channel.since_mono_s = at_s, mono_s
        return news

    def remember(self, delivered: dict[str, float]) -> None:
        """Take over when channels delivered before the start."""
        for name, at_s in delivered.items():
            self._channels.setdefault(name, _Channel()).delivered_at_s = at_s

    def failing_since(self, name: str, *, at_s: float, mono_s: float) -> None:
        """Take over since when a channel was failing before the start; the earliest counts."""
        channel = self._channels.setdefault(name, _Channel())
        if channel.since_mono_s is None or mono_s < channel.since_mono_s:
            channel.since_s, channel.since_mono_s = at_s, mono_s

    def forgive(self) -> None:
        """Forget failures: the settings have changed."""
        for channel in self._channels.values():
            channel.since_s = channel.since_mono_s = None
            if channel.ok is False:
                channel.ok, channel.why = None, ""

    def failing_for_s(self, name: str, mono_s: float) -> float | None:
        """Return for how long a channel has been failing; None when it is not."""
        channel = self._channels.get(name)
        if channel is None or channel.since_mono_s is None:
            return None
        return mono_s - channel.since_mono_s

    def problems(self) -> list[str]:
        """Return one sentence per channel whose last attempt failed."""
        return [
            f"channel {name} does not deliver: {channel.why}"
            for name, channel in self._channels.items()
            if channel.ok is False
        ]

    def channel_health(
        self, configured: Iterable[str], waiting: Iterable[Delivery]
    ) -> tuple[ChannelHealth, ...]:
        """Return how the channels do: those in use, and others that are failing or have work."""
        counts = Counter(delivery.channel for delivery in waiting)
        failing = [name for name, channel in self._channels.items() if channel.ok is False]
        healths = []
        for name in dict.fromkeys((*configured, *failing, *counts)):
            channel = self._channels.get(name) or _Channel()
            healths.append(
                ChannelHealth(
                    name=name,
                    ok=channel.ok,
                    why=channel.why,
                    failing_since_s=channel.since_s if channel.ok is False else None,
                    delivered_at_s=channel.delivered_at_s,
                    waiting=counts[name],
                )
            )
        return tuple(healths)


# A letter is one message with every channel that it was given to. Its own channels all get it; a
# fallback gets it when each of them has failed for good, or has been failing for longer than
# ``fallback-after``; the next fallback when that one has failed as well. What a fallback delivered
# is told: it is not sent again when its own channel comes back. A fallback keeps to its own quiet
# hours, and to the severity that it is for. Pure.


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
                # One of its own channels, where there still is one.
                meant = min(letter.values(), key=lambda delivery: bool(delivery.fallback_of))
                others = [
                    other
                    for other in _next(letter.values(), section)
                    if other not in letter and _is_for(section, other, meant)
                ]
                if others:
                    new.append(_redirected(meant, others[0], section, local()))
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
