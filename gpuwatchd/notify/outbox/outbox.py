"""The outbox: holds the rows, hands them to the channels, and writes down what becomes of them.

So it knows how the channels do, and which open alerts have reached nobody.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gpuwatchd.core.config import PolicySection
from gpuwatchd.core.model import ChannelHealth
from gpuwatchd.core.units import Local
from gpuwatchd.notify.outbox import states
from gpuwatchd.notify.outbox.states import CLOCK_STEP_S, State, is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.core.codes import Facts, Failure
    from gpuwatchd.core.model import Alert, Delivery
    from gpuwatchd.notify.outbox.states import Key

log = logging.getLogger("gpuwatchd")

LEASE_S = 120.0
"""Written with a claim; longer than any attempt that is not given up."""

_VERIFIED = frozenset({"email", "command", *(("desktop",) if sys.platform == "linux" else ())})


class Dispatcher(Protocol):
    """Who carries messages to the channels, in threads of its own."""

    def submit(self, delivery: Delivery) -> bool:
        """Take a delivery; never blocks. False when its queue is full."""

    def results(self) -> list[Delivery]:
        """Return the attempts that have ended since the last call."""

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        """Stop, and return what was taken and has not ended; leased: what is being tried."""


class Store(Protocol):
    """Where rows outlive the daemon; :class:`~gpuwatchd.store.writer.History` says what each is."""

    def apply(self, alerts: Sequence[Alert], deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Write how they stand now; return the deliveries with their rows."""

    def pending_deliveries(self) -> list[Delivery]:
        """Return the deliveries that are not done, oldest first."""

    def deliveries_of_open(self) -> list[Delivery]:
        """Return every delivery about alerts that are open now, oldest first."""

    def last_delivered(self) -> dict[str, float]:
        """Return channel -> when it last delivered, epoch seconds."""

    def opened_at_s(self, alert_key: str) -> float | None:
        """Return since when an alert is open; None when it is not."""


_MOST_ALERTS = 2000


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
        self.failures = 0
        """Counts what may have left an alert that ended undelivered."""
        self.arrivals = 0
        """Counts messages that have arrived."""
        self._records: dict[str, _DeliveryRecord] = {}

    def note(self, delivery: Delivery) -> None:
        """Take in how a delivery stands now."""
        if self._opened is not None and delivery.state == "pending" and delivery.error is None:
            return  # nothing has become of it yet
        self.arrivals += delivery.state == "sent"
        self.failures += delivery.state != "sent"
        if delivery.state == "failed" and states.state_of(delivery) is State.EXPIRED:
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
            if len(self._records) > _MOST_ALERTS:
                del self._records[next(iter(self._records))]
        record.delivered |= delivery.state == "sent"
        record.failed |= delivery.error is not None and delivery.state != "sent"

    def undelivered(self) -> tuple[str, ...]:
        """Return the keys of open alerts of which a message failed and none arrived."""
        keys: list[str] = []
        for key, record in list(self._records.items()):
            if record.delivered or not record.failed:
                continue
            if self._opened is not None and self._opened(key) != record.opened_at_s:
                del self._records[key]
                self.failures += 1
            else:
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


class _Row(msgspec.Struct, frozen=True, eq=False):
    """One message on one channel; one that has ended stays while others of its message wait."""

    key: Key
    delivery: Delivery
    holder: Dispatcher | None = None
    """Who has it at this moment."""
    until_mono_s: float = 0.0
    """Of a holder from before a reload: until when its answer is waited for."""
    tried: bool = False
    """It failed in this run: what failed in an earlier one is tried first, for there may be a
    session now."""

    @property
    def waits(self) -> bool:
        """Whether it is in nobody's hands and still to be sent."""
        return self.holder is None and self.delivery.state == "pending"


class Outbox:
    """Every message on every channel, from the decision until it is known to have arrived.

    Used by the loop's thread alone. ``store`` None: nothing outlives the daemon.
    """

    def __init__(
        self,
        message_dispatcher: Dispatcher | None,
        store: Store | None,
        *,
        policy: PolicySection | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.message_dispatcher = message_dispatcher
        self.reach = Reach(None if store is None else store.opened_at_s)
        self.made_mono_s: deque[float] = deque(maxlen=1000)
        """When messages were made lately: so many an hour are allowed."""
        self.policy = policy or PolicySection()
        """The rules in force."""
        self._store = store
        self._wall = wall
        # A wait for a retry is not changed by a step of the wall clock.
        self._mono = mono
        self._offset_s = wall() - mono()
        self._rows: dict[Key, _Row] = {}
        self._former: list[Dispatcher] = []
        """Those of before a reload that are still busy with something."""
        self._changed: list[Delivery] = []
        """To be written with the next claim."""
        self._channels = Channels()
        self._health: tuple[ChannelHealth, ...] | None = None
        self._awaited: dict[str, bool] = {}
        """Message that somebody waits for -> whether it has arrived."""

    def take_rules(self, section: PolicySection) -> None:
        """Take over new rules, also for what waits for the end of quiet hours."""
        before, self.policy = self.policy, section
        if before.quiet_hours == section.quiet_hours:
            return
        here = Local.at(self._wall())
        for row in list(self._waiting()):
            if is_held(row.delivery):
                delivery = states.with_quiet_hours(row.delivery, section, here)
                self._set(row, delivery)
                self._changed.append(delivery)

    def resume(self, now_s: float) -> None:
        """Take up what an earlier daemon did not finish; its leases are void."""
        self._offset_s = now_s - self._mono()
        if self._store is None:
            return
        self._channels.remember(self._store.last_delivered())
        pending = self._store.pending_deliveries()
        under_way = {delivery.message.id for delivery in pending}
        for delivery in self._store.deliveries_of_open():
            self.reach.note(delivery)
            if delivery.message.id in under_way and delivery.state != "pending":
                self._note(delivery)
        mono_s = self._mono()
        for delivery in pending:
            if delivery.error is not None and delivery.created_at_s <= now_s:
                since_mono_s = mono_s - (now_s - delivery.created_at_s)
                self._channels.failing_since(
                    delivery.channel, at_s=delivery.created_at_s, mono_s=since_mono_s
                )
            self._note(states.inherited(delivery, now_s))
        self._revive(now_s)

    def wait_for(self, message_ids: Iterable[str]) -> set[str]:
        """Return which of these messages have arrived; others are not looked after any more.

        Arrived is what a mail server or a program has accepted, or a desktop has shown; what macOS
        has accepted, or a chat service, may have been seen by nobody.
        """
        self._awaited = {name: self._awaited.get(name, False) for name in message_ids}
        return {name for name, arrived in self._awaited.items() if arrived}

    def send(self, deliveries: Sequence[Delivery], alerts: Sequence[Alert] = ()) -> None:
        """Write deliveries and the alerts that they are about, then hand over what leaves now.

        All of it, the claims too, is one transaction with what was decided. What is held, and what
        the dispatcher has no room for, waits.
        """
        if self.message_dispatcher is None:
            self._written(deliveries, alerts)
            return
        now_s = self._wall()
        self._follow_clock(now_s)
        incidents = {incident_of(delivery) for delivery in self._under_way()}
        # One that follows what has not arrived is sent by a later ``collect``: it drops the older;
        # nobody is to hear of an end first and of its beginning when that is tried again.
        rows = self._written(
            [
                delivery
                if incident_of(delivery) in incidents or is_held(delivery)
                else states.claimed(delivery, now_s + LEASE_S)
                for delivery in deliveries
            ],
            alerts,
        )
        for delivery in rows:
            self._note(delivery)
        self._hand_over([row for row in rows if row.lease_until_s is not None])

    def replace(self, message_dispatcher: Dispatcher) -> None:
        """Go on with another dispatcher; what the old one holds is not lost, nor sent again."""
        old, self.message_dispatcher = self.message_dispatcher, message_dispatcher
        # A channel that failed may have been mended, or taken out: the next attempt tells.
        self._channels.forgive()
        self._health = None
        now_s = self._wall()
        if old is not None:
            for left in old.close(timeout_s=0.1):
                row = self._rows.get(key_of(left))
                # It is not there, or not held, where an earlier attempt has had success after all.
                if row and row.holder is old and left.lease_until_s is not None:
                    wait_s = min(max(0.0, left.lease_until_s - now_s), LEASE_S)
                    self._set(row, until_mono_s=self._mono() + wait_s)
            self._former.append(old)
            self._look_after_former()
        for row in list(self._waiting()):
            if not is_held(row.delivery):
                at_s = min(row.delivery.next_try_at_s or now_s, now_s)
                self._set(row, msgspec.structs.replace(row.delivery, next_try_at_s=at_s))
        self._written([])  # what has just failed is revived by its row
        self._revive(now_s)

    def close(self, timeout_s: float) -> None:
        """Let the dispatcher end, and write down what became of its last attempts."""
        if self.message_dispatcher is None:
            return
        unfinished = self.message_dispatcher.close(timeout_s=timeout_s)
        # What was not even begun waits; what was may have arrived.
        self._changed += [one for one in unfinished if states.state_of(one) is State.PENDING]
        self._take_in(self.message_dispatcher)
        self._look_after_former()
        self._written([])

    def collect(self, now_s: float) -> None:
        """Take in what has ended, and try again what is due."""
        if self.message_dispatcher is None:
            return
        self._follow_clock(now_s)
        self._take_in(self.message_dispatcher)
        if self._former:
            self._look_after_former()
        due: list[Delivery] = []
        if all(row.delivery.state == "sent" for row in self._rows.values()):
            self._rows.clear()  # as nearly always: nobody has to stand in, or to wait
        else:
            self._fall_back(now_s)
            busy = {incident_of(row.delivery) for row in self._rows.values() if row.holder}
            waiting = [row.delivery for row in self._waiting()]
            plan = states.plan([it for it in waiting if incident_of(it) not in busy], now_s)
            for old in plan.expired:
                self._expire(old)
            due = plan.submit
        self._submit(due, now_s)

    def channel_health(self) -> tuple[ChannelHealth, ...]:
        """Return how each channel does; the same object until something has changed."""
        if self._health is None:
            configured = (*self.policy.channels, *self.policy.fallback)
            self._health = self._channels.channel_health(configured, self._under_way())
        return self._health

    def problems(self) -> list[str]:
        """Return one sentence per channel whose last attempt failed."""
        return self._channels.problems()

    def _waiting(self) -> Iterator[_Row]:
        return (row for row in self._rows.values() if row.waits)

    def _under_way(self) -> Iterator[Delivery]:
        return (row.delivery for row in self._rows.values() if row.delivery.state == "pending")

    def _set(self, row: _Row, delivery: Delivery | None = None, **changes: Any) -> None:
        delivery = delivery or row.delivery
        self._rows[row.key] = msgspec.structs.replace(row, delivery=delivery, **changes)

    def _note(self, delivery: Delivery) -> None:
        """Take in how a delivery that nobody holds stands now."""
        key = key_of(delivery)
        before = self._rows.get(key)
        self._rows[key] = _Row(key, delivery, tried=before is not None and before.tried)
        # A fallback is not asked again for what has expired there; its own channels do not count.
        if (
            delivery.state == "failed"
            and not delivery.fallback_of
            and states.state_of(delivery) is State.EXPIRED
        ):
            del self._rows[key]
        self.reach.note(delivery)
        self._health = None

    def _submit(self, deliveries: Sequence[Delivery], now_s: float) -> None:
        """Claim deliveries and hand them over; what has changed is written along with it."""
        claims = [states.claimed(delivery, now_s + LEASE_S) for delivery in deliveries]
        self._hand_over(self._written(claims))

    def _hand_over(self, claims: Iterable[Delivery]) -> None:
        """Give the dispatcher what is claimed."""
        for claim in claims:
            # In memory its holder says that it is claimed.
            delivery = msgspec.structs.replace(claim, lease_until_s=None)
            to = self.message_dispatcher
            taken = to is not None and to.submit(delivery)
            self._set(self._rows[key_of(claim)], delivery, holder=to if taken else None)
            self._health = None

    def _written(
        self, deliveries: Sequence[Delivery], alerts: Sequence[Alert] = ()
    ) -> Sequence[Delivery]:
        """Write deliveries, and what else has changed, in one commit; return with their rows."""
        changed, self._changed = self._changed, []
        if self._store is None or not (deliveries or changed or alerts):
            return deliveries
        return self._store.apply(alerts, [*changed, *deliveries])[len(changed) :]

    def _take_in(self, message_dispatcher: Dispatcher) -> None:
        for done in message_dispatcher.results():
            self._ended(done)

    def _look_after_former(self) -> None:
        """Hear what dispatchers of before a reload still say; give up waiting for them in time."""
        mono_s = self._mono()
        before = len(self._changed)
        for former in list(self._former):
            self._take_in(former)
            held = [row for row in self._rows.values() if row.holder is former]
            for row in held:
                if mono_s >= row.until_mono_s:
                    self._note(row.delivery)
            if all(mono_s >= row.until_mono_s for row in held):
                self._former.remove(former)
        if any(one.state == "failed" for one in self._changed[before:]):
            # Refused under the settings of before: those of now may be right.
            self._written([])
            self._revive(self._wall())

    def _ended(self, done: Delivery) -> None:
        row = self._rows.get(key_of(done))
        now_s, mono_s = self._wall(), self._mono()
        if row is not None and row.holder and row.delivery.created_at_s != done.created_at_s:
            done = states.made_at(done, row.delivery.created_at_s, now_s)
        self._note(done)
        self._changed.append(done)
        if done.state == "sent":
            if done.message.id in self._awaited and not done.dry_run and done.channel in _VERIFIED:
                self._awaited[done.message.id] = True
            if not done.dry_run and self._channels.delivered(done.channel, done.sent_at_s):
                log.info("channel %s delivers again", done.channel)
            return
        self._set(self._rows[key_of(done)], tried=done.state == "pending")
        why = done.error or "unknown error"
        if self._channels.failed(
            done.channel, why, at_s=now_s, mono_s=mono_s, kind=(done.code, done.facts)
        ):
            log.warning("delivery failed channel=%s error=%r", done.channel, why)

    def _expire(self, delivery: Delivery) -> None:
        log.info("message dropped channel=%s why=%r", delivery.channel, delivery.error)
        self._note(delivery)
        self._changed.append(delivery)

    def _fall_back(self, now_s: float) -> None:
        """Hand messages to other channels, and forget those of which nothing waits any more."""
        messages: dict[str, list[Delivery]] = defaultdict(list)
        for row in self._rows.values():
            messages[row.delivery.message.id].append(row.delivery)
        mono_s = self._mono()

        def lost(delivery: Delivery) -> bool:
            for_s = self._channels.failing_for_s(delivery.channel, mono_s)
            late = for_s is not None and for_s >= self.policy.fallback_after
            return late and self._rows[key_of(delivery)].tried

        new, spare = states.fallbacks(
            messages.values(),
            self.policy,
            lambda: Local.at(now_s),
            waits=lambda delivery: self._rows[key_of(delivery)].holder is None,
            lost=lost,
        )
        for delivery in spare:
            self._expire(delivery)
        for delivery in new:
            log.warning(
                "channel=%s stands in for channel=%s", delivery.channel, delivery.fallback_of
            )
            self._note(delivery)
        # Committed with the failures that made them necessary; what leaves now, by its claim.
        held = [it for it in new if is_held(it) and (it.next_try_at_s or 0) > now_s]
        for delivery in self._written(held) if held else ():
            self._note(delivery)
        live = {delivery.message.id for delivery in self._under_way()}
        for name in messages.keys() - live:
            for delivery in messages[name]:
                self._rows.pop(key_of(delivery), None)

    def _revive(self, now_s: float) -> None:
        """Try again what failed for good about alerts that are open and have reached nobody.

        Of each incident on each channel only the newest message, as with everything that waits.
        """
        undelivered = set(self.reach.undelivered())
        if self._store is None or not undelivered:
            return
        for delivery in self._store.deliveries_of_open():
            row = self._rows.get(key_of(delivery))
            if row and row.holder:
                continue  # on its way: a disk that is full has how it stood before
            given_up = states.state_of(delivery) is State.FAILED
            if given_up and undelivered & {delivery.alert_key, *delivery.message.also}:
                self._note(states.revived(delivery, now_s))

    def _follow_clock(self, now_s: float) -> None:
        """Keep waits as long as they were when the wall clock is set."""
        offset_s = now_s - self._mono()
        before_s, self._offset_s = self._offset_s, offset_s
        if abs(offset_s - before_s) <= CLOCK_STEP_S:
            return
        for row in list(self._rows.values()):
            self._set(row, states.clock_moved(row.delivery, offset_s - before_s, now_s))


def key_of(row: Delivery) -> Key:
    """Return the key of a row."""
    return row.message.id, row.channel


def incident_of(row: Delivery) -> Key:
    """Return what the rows about one incident on one channel have in common."""
    return row.message.thread or row.message.id, row.channel
