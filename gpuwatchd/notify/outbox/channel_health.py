"""How the channels do, and which open alerts have reached nobody."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import ChannelHealth
from gpuwatchd.notify.outbox.states import State, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.core.codes import Facts, Failure
    from gpuwatchd.core.model import Delivery

_MOST = 2000


class _DeliveryRecord(msgspec.Struct, eq=False):
    """Whether a message about one alert arrived, and whether one failed."""

    opened_at_s: float | None
    delivered: bool = False
    failed: bool = False


class Reach:
    """Which open alerts at least one channel has delivered, by alert key."""

    def __init__(self, opened: Callable[[str], float | None] | None) -> None:
        # Alert key -> since when it is open, None when it is not. Without it an alert counts as
        # open until a message says that it is resolved.
        self._opened = opened
        self.changes = 0
        """Counts what may change :meth:`undelivered`."""
        self._records: dict[str, _DeliveryRecord] = {}

    def note(self, delivery: Delivery) -> None:
        """Take in how a delivery stands now."""
        self.changes += 1
        if state_of(delivery) is State.EXPIRED:
            return
        for key in (delivery.alert_key, *delivery.message.also):
            if key:
                self._note(key, delivery)

    def _note(self, key: str, delivery: Delivery) -> None:
        opened_at_s = None if self._opened is None else self._opened(key)
        over = delivery.message.notice == "resolved" if self._opened is None else not opened_at_s
        if over:
            self._records.pop(key, None)
            return
        record = self._records.get(key)
        if record is None or record.opened_at_s != opened_at_s:
            record = self._records[key] = _DeliveryRecord(opened_at_s)
            if len(self._records) > _MOST:
                del self._records[next(iter(self._records))]
        record.delivered |= delivery.state == "sent"
        record.failed |= delivery.error is not None and delivery.state != "sent"

    def undelivered(self) -> tuple[str, ...]:
        """Return the keys of open alerts of which a message failed and none arrived."""
        keys: list[str] = []
        for key, record in list(self._records.items()):
            if self._opened is not None and self._opened(key) != record.opened_at_s:
                del self._records[key]
                self.changes += 1
            elif record.failed and not record.delivered:
                keys.append(key)
        return tuple(keys)


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
