"""Real history, outbox and dispatcher on a clock that only moves when told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core.config import PolicySection, Seconds
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability, Delivery, Message
from gpuwatchd.notify.outbox.dispatcher import MessageDispatcher
from gpuwatchd.notify.outbox.outbox import Outbox
from gpuwatchd.pipeline.live_state import UndeliveredAlerts
from tests.making import alert, delivery, message
from tests.store.world import T0, Time, opened

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpuwatchd.core.ports import Notifier


class Channel:
    """Does what ``answer`` says: None delivers, an error is raised, an event is waited for."""

    def __init__(
        self, name: str = "channel", answer: NotifyError | threading.Event | None = None
    ) -> None:
        self.name = name
        self.answer = answer
        self.tries = 0
        self.got: list[Message] = []

    def probe(self) -> Availability:
        return Availability(ok=True, reason="made up")

    def send(self, message: Message) -> str:
        self.tries += 1
        if isinstance(self.answer, NotifyError):
            raise self.answer
        if self.answer is not None:
            self.answer.wait(30)
        self.got.append(message)
        return f"shown by {self.name}"

    @property
    def ids(self) -> list[str]:
        """Ids of what arrived, in order."""
        return [message.id for message in self.got]


DOWN = NotifyError("no session bus", permanent=False)
WRONG = NotifyError("wrong password", permanent=True)


class Office:
    """One daemon's delivery side; :meth:`die` and :meth:`begin` are a crash and a new start."""

    def __init__(
        self, folder: Path, notifiers: Iterable[Notifier], rules: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.notifiers = {one.name: one for one in notifiers}
        self.time = Time()
        values: dict[str, Any] = {
            "channels": tuple(self.notifiers),
            "fallback_after": Seconds(120),
            **(rules or {}),
        }
        self.policy = PolicySection(**values)
        self.begin()

    def begin(self) -> None:
        """Start: open the history, take up what is left."""
        self.history = opened(self.folder, self.time)
        self.message_dispatcher = self.new_courier()
        self.post = Outbox(
            self.message_dispatcher,
            self.history,
            policy=self.policy,
            wall=self.time.clock,
            mono=self.time.monotonic,
        )
        self.undelivered = UndeliveredAlerts(self.history, self.post.reach)
        self.post.resume(self.time.now_s)

    def new_courier(self) -> MessageDispatcher:
        return MessageDispatcher(
            self.notifiers, clock=self.time.clock, monotonic=self.time.monotonic
        )

    def die(self) -> None:
        """Be gone: nothing more is heard of the dispatcher, nothing more is written."""
        self.message_dispatcher.close(timeout_s=0.0)
        self.history._drop_connection()  # as a killed process does: without a last flush

    def crash(self) -> None:
        """Die, and start again."""
        self.die()
        self.begin()

    def reload(self) -> None:
        """Take new settings: another dispatcher, the same outbox."""
        self.message_dispatcher = self.new_courier()
        self.post.replace(self.message_dispatcher)

    def close(self) -> None:
        self.post.close(timeout_s=1.0)
        self.history.close()

    def tell(self, name: str, *channels: str, thread: str | None = None, **fields: Any) -> None:
        """Decide to tell; ``name`` is the id of the message and, by its thread, the alert's key."""
        held, until_s = fields.pop("held", ""), fields.pop("until_s", None)
        about_s = fields.pop("about_s", T0)
        key = thread or name
        said = message(
            id=name, subject=f"about {name}", body="b", thread=thread, alert_key=key, **fields
        )
        made = [
            delivery(
                alert_key=key,
                channel=channel,
                message=said,
                created_at_s=self.time.now_s,
                next_try_at_s=until_s or self.time.now_s,
                held=held,
            )
            for channel in channels or self.policy.channels
        ]
        told = alert(key=key, opened_at_s=about_s, firing_at_s=about_s, changed_at_s=about_s)
        if said.notice == "resolved":
            told = msgspec.structs.replace(told, state="resolved", resolved_at_s=self.time.now_s)
        self.post.send(made, [told])

    def send(self, name: str, *channels: str, **fields: Any) -> None:
        """Decide to tell, and wait until it has left the channels' hands."""
        self.tell(name, *channels, **fields)
        self.turn()

    def turn(self, pass_s: float = 0.0) -> None:
        """Let time go by, then do what is due, until nothing is in a channel's hands."""
        self.time.pass_s(pass_s)
        until_s = time.monotonic() + 60.0
        quiet = 0
        while quiet < 2:
            assert time.monotonic() < until_s, self.leased()
            self.post.collect(self.time.now_s)
            quiet = 0 if self.leased() else quiet + 1
            time.sleep(0.001)

    def step(self, pass_s: float = 0.0) -> None:
        """Let time go by, and do what is due once: a channel may hang."""
        self.time.pass_s(pass_s)
        self.post.collect(self.time.now_s)

    def leased(self) -> list[Delivery]:
        """Return what is in a channel's hands, by the history."""
        return [one for one in self.history.pending_deliveries() if one.lease_until_s is not None]

    def waiting(self) -> dict[str, float | None]:
        """Return id -> seconds until the next try of what waits."""
        now_s = self.time.now_s
        return {
            one.message.id: None if one.next_try_at_s is None else one.next_try_at_s - now_s
            for one in self.history.pending_deliveries()
        }

    def rows(self, key: str) -> list[Delivery]:
        """Return what the file says of an alert."""
        from gpuwatchd.store.reader import Reader

        with Reader.open(self.folder) as reader:
            return reader.deliveries(key)


NewOffice = Callable[..., Office]
