"""Messages on their way: handed to the courier, tried again, written down."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from gpuwatchd.notify import backlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.model import Delivery
    from gpuwatchd.store.writer import History

log = logging.getLogger("gpuwatchd")


class Courier(Protocol):
    """Who carries messages to the channels, in threads of its own."""

    def submit(self, delivery: Delivery) -> bool:
        """Take a delivery; never blocks. False when its queue is full."""

    def results(self) -> list[Delivery]:
        """Return the attempts that have ended since the last call."""

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        """Stop, and return what was taken and has not ended."""


class Post:
    """What has been decided to tell, until it is known to have arrived.

    Parameters
    ----------
    courier
        None tells nobody.
    history
        Where the state of each delivery is written; None writes nothing.
    """

    def __init__(self, courier: Courier | None, history: History | None) -> None:
        self.courier = courier
        self._history = history
        self._waiting: dict[tuple[str, str], Delivery] = {}
        self._failing: dict[str, str] = {}

    def send(self, deliveries: Iterable[Delivery]) -> None:
        """Hand deliveries over; what the courier has no room for waits."""
        for delivery in deliveries:
            if self.courier is not None and not self.courier.submit(delivery):
                self.later([delivery])

    def later(self, deliveries: Iterable[Delivery]) -> None:
        """Take what an earlier courier, or an earlier run, did not finish."""
        for delivery in deliveries:
            self._waiting[delivery.message.id, delivery.channel] = delivery

    def replace(self, courier: Courier) -> None:
        """Go on with another courier; what the old one has in hand is not lost, nor sent again."""
        old, self.courier = self.courier, courier
        # A channel that failed may have been mended, or taken out: the next attempt tells.
        self._failing.clear()
        if old is not None:
            self.later(old.close(timeout_s=0.1))
            self._take_in(old)

    def close(self, timeout_s: float) -> None:
        """Let the courier end, and write down what became of its last attempts."""
        if self.courier is not None:
            self.courier.close(timeout_s=timeout_s)
            self._take_in(self.courier)

    def _take_in(self, courier: Courier) -> None:
        for done in courier.results():
            self._ended(done)

    def collect(self, now_s: float) -> None:
        """Take in what has ended, and try again what is due."""
        if self.courier is None:
            return
        self._take_in(self.courier)
        planned = backlog.plan(self._waiting.values(), now_s)
        for old in planned.drop:
            self._waiting.pop((old.message.id, old.channel), None)
            self._write(old)
        for waiting in planned.submit:
            if self.courier.submit(waiting):
                self._waiting.pop((waiting.message.id, waiting.channel), None)

    def _ended(self, done: Delivery) -> None:
        self._waiting.pop((done.message.id, done.channel), None)
        if done.state == "sent":
            self._failing.pop(done.channel, None)
        else:
            why = done.error or "unknown error"
            if self._failing.get(done.channel) != why:
                log.warning("delivery failed channel=%s error=%r", done.channel, why)
            self._failing[done.channel] = why
            if done.state == "pending":
                self.later([done])
        self._write(done)

    def _write(self, delivery: Delivery) -> None:
        if self._history is not None:
            self._history.update_delivery(delivery)

    def problems(self) -> list[str]:
        """Return one sentence per channel whose last attempt failed."""
        return [
            f"channel {channel} does not deliver: {why}" for channel, why in self._failing.items()
        ]
