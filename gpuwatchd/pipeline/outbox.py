"""Messages on their way: handed to the dispatcher, tried again, sent elsewhere, written down.

**At least once.** A message is a row of the history before anything is tried; each attempt is
claimed there first (a lease), and its end is written when the channel has spoken. A daemon that
dies in between leaves the lease behind: the next one holds the lock, so the lease is void, and
the message is sent again under its old id. So one crash can double a message, never lose it.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpuwatchd.core.config import PolicySection
from gpuwatchd.notify import backlog
from gpuwatchd.notify.dispatcher import RETRY_S, made_at, retry_at
from gpuwatchd.pipeline.channel_health import Channels, Fallbacks, Reach, UndeliveredAlerts, quieted
from gpuwatchd.pipeline.clock import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import ChannelHealth, Delivery
    from gpuwatchd.store.writer import History

log = logging.getLogger("gpuwatchd")

LEASE_S = 120.0
"""Written with a claim; longer than any attempt that is not given up."""
_CLOCK_STEP_S = 2.0
_RETRIED_AT_ONCE = 2
"""Attempts that a daemon may die in before the next one waits: no loop of crashes sends on."""

_VERIFIED = frozenset({"email", "command", *(("desktop",) if sys.platform == "linux" else ())})

Key = tuple[str, str]


class Dispatcher(Protocol):
    """Who carries messages to the channels, in threads of its own."""

    def submit(self, delivery: Delivery) -> bool:
        """Take a delivery; never blocks. False when its queue is full."""

    def results(self) -> list[Delivery]:
        """Return the attempts that have ended since the last call."""

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        """Stop, and return what was taken and has not ended; leased: what is being tried."""


class Outbox:
    """What has been decided to tell, until it is known to have arrived."""

    def __init__(
        self,
        message_dispatcher: Dispatcher | None,
        history: History | None,
        *,
        policy: PolicySection | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.message_dispatcher = message_dispatcher
        self._policy = policy or PolicySection()
        self._history = history
        self._wall = wall
        # A wait for a retry is not changed by a step of the wall clock.
        self._mono = mono
        self._offset_s = wall() - mono()
        self._waiting: dict[Key, Delivery] = {}
        self._in_hand: dict[Key, Delivery] = {}
        self._tried: set[Key] = set()
        self._former: list[tuple[Dispatcher, dict[Key, tuple[Delivery, float]]]] = []
        """Those of before a reload, and what each is still busy with until another tries it."""
        self._changed: list[Delivery] = []
        self._letters = Fallbacks()
        self._reach = Reach(None if history is None else history.opened_at_s)
        self.losses = UndeliveredAlerts(history, self._reach)
        self._channels = Channels()
        self._health: tuple[ChannelHealth, ...] | None = None
        self._awaited: dict[str, bool] = {}
        """Message that somebody waits for -> whether it has arrived."""

    @property
    def policy(self) -> PolicySection:
        """The rules in force; what waits for the end of quiet hours follows them."""
        return self._policy

    @policy.setter
    def policy(self, section: PolicySection) -> None:
        before, self._policy = self._policy, section
        if before.quiet_hours == section.quiet_hours:
            return
        here = local(self._wall())
        for key, delivery in self._waiting.items():
            if backlog.is_held(delivery):
                self._waiting[key] = quieted(delivery, section, here)
                self._changed.append(self._waiting[key])

    def resume(self, now_s: float) -> None:
        """Take up what an earlier daemon did not finish; its leases are void."""
        self._offset_s = now_s - self._mono()
        if self._history is None:
            return
        self._channels.remember(self._history.last_delivered())
        pending = self._history.pending_deliveries()
        under_way = {delivery.message.id for delivery in pending}
        for delivery in self._history.told_of_open():
            self._reach.note(delivery)
            if delivery.message.id in under_way:
                self._letters.note(delivery)
        mono_s = self._mono()
        for one in pending:
            if one.error is not None and one.created_at_s <= now_s:
                since_mono_s = mono_s - (now_s - one.created_at_s)
                self._channels.failing_since(
                    one.channel, at_s=one.created_at_s, mono_s=since_mono_s
                )
            self.later([_taken_over(one, now_s)])
        self._revive(now_s)

    def wait_for(self, message_ids: Iterable[str]) -> set[str]:
        """Return which of these messages have arrived; others are not looked after any more.

        Arrived is what a mail server or a program has accepted, or a desktop has shown; what macOS
        has accepted, or a chat service, may have been seen by nobody.
        """
        self._awaited = {name: self._awaited.get(name, False) for name in message_ids}
        return {name for name, arrived in self._awaited.items() if arrived}

    def send(self, deliveries: Iterable[Delivery]) -> None:
        """Hand deliveries over; what is held, and what the dispatcher has no room for, waits."""
        if self.message_dispatcher is None:
            return
        self._follow_clock(self._wall())
        incidents = {_incident(one) for one in (*self._waiting.values(), *self._in_hand.values())}
        at_once: list[Delivery] = []
        for delivery in deliveries:
            # One that follows what has not arrived is sent by a later turn, which drops the older:
            # nobody is to hear of an end first and of its beginning when that is tried again.
            if backlog.is_held(delivery) or _incident(delivery) in incidents:
                self.later([delivery])
            else:
                self._note(delivery)
                at_once.append(delivery)
        self._submit(at_once, self._wall())

    def later(self, deliveries: Iterable[Delivery]) -> None:
        """Take what is to wait for its time, or what another dispatcher did not finish."""
        for delivery in deliveries:
            self._note(delivery)
            self._waiting[_key(delivery)] = delivery

    def replace(self, message_dispatcher: Dispatcher) -> None:
        """Go on with another dispatcher; what the old one holds is not lost, nor sent again."""
        old, self.message_dispatcher = self.message_dispatcher, message_dispatcher
        # A channel that failed may have been mended, or taken out: the next attempt tells.
        self._channels.forgive()
        self._health = None
        if old is not None:
            now_s, mono_s = self._wall(), self._mono()
            busy: dict[Key, tuple[Delivery, float]] = {}
            for left in old.close(timeout_s=0.1):
                if left.lease_until_s is None:
                    self._in_hand.pop(_key(left), None)
                    self.later([left])
                else:
                    until_s = mono_s + min(max(0.0, left.lease_until_s - now_s), LEASE_S)
                    busy[_key(left)] = (msgspec.structs.replace(left, lease_until_s=None), until_s)
            self._former.append((old, busy))
            self._look_after_former()
        now_s = self._wall()
        self._waiting = {
            key: delivery
            if backlog.is_held(delivery)
            else msgspec.structs.replace(
                delivery, next_try_at_s=min(delivery.next_try_at_s or now_s, now_s)
            )
            for key, delivery in self._waiting.items()
        }
        self._written([])  # what has just failed is revived by its row
        self._revive(now_s)

    def close(self, timeout_s: float) -> None:
        """Let the dispatcher end, and write down what became of its last attempts."""
        if self.message_dispatcher is None:
            return
        unfinished = self.message_dispatcher.close(timeout_s=timeout_s)
        # What was not even begun is in nobody's hands; what was may have arrived.
        self._changed += [delivery for delivery in unfinished if delivery.lease_until_s is None]
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
        due: Sequence[Delivery] = ()
        if self._letters:
            self._fall_back(now_s)
        if self._waiting:
            busy = {_incident(delivery) for delivery in self._in_hand.values()}
            ready = (
                delivery for delivery in self._waiting.values() if _incident(delivery) not in busy
            )
            planned = backlog.plan(ready, now_s)
            for old in planned.drop:
                self._drop(old)
            due = planned.submit
        self._submit(due, now_s)

    def channel_health(self) -> tuple[ChannelHealth, ...]:
        """Return how each channel does; the same object until something has changed."""
        if self._health is None:
            configured = (*self.policy.channels, *self.policy.fallback)
            under_way = [*self._waiting.values(), *self._in_hand.values()]
            self._health = self._channels.channel_health(configured, under_way)
        return self._health

    def untold(self) -> tuple[str, ...]:
        """Return the keys of open alerts that were to be told and have reached nobody.

        Not those that wait on purpose, nor those whose first attempt is still under way.
        """
        return self._reach.untold()

    def problems(self) -> list[str]:
        """Return one sentence per channel whose last attempt failed."""
        return self._channels.problems()

    def _note(self, delivery: Delivery) -> None:
        self._letters.note(delivery)
        self._reach.note(delivery)
        self._health = None

    def _submit(self, deliveries: Iterable[Delivery], now_s: float) -> None:
        """Claim deliveries and hand them over; what has changed is written along with it."""
        for delivery in self._written(list(deliveries), now_s + LEASE_S):
            key = _key(delivery)
            self._health = None
            if self.message_dispatcher is not None and self.message_dispatcher.submit(delivery):
                self._waiting.pop(key, None)
                self._in_hand[key] = delivery
            else:
                self._waiting[key] = delivery

    def _written(
        self, deliveries: list[Delivery], lease_until_s: float | None = None
    ) -> list[Delivery]:
        """Write deliveries, and what else has changed, in one commit; return with their rows."""
        changed, self._changed = self._changed, []
        if self._history is None or not (deliveries or changed):
            return deliveries
        leased = [
            msgspec.structs.replace(delivery, lease_until_s=lease_until_s)
            for delivery in deliveries
        ]
        rows = self._history.apply((), [*changed, *leased])[len(changed) :]
        return [
            msgspec.structs.replace(delivery, row=written.row)
            for delivery, written in zip(deliveries, rows, strict=True)
        ]

    def _take_in(self, message_dispatcher: Dispatcher) -> None:
        for done in message_dispatcher.results():
            self._ended(done)

    def _look_after_former(self) -> None:
        """Hear what couriers of before a reload still say; give up waiting for them in time."""
        mono_s = self._mono()
        before = len(self._changed)
        for former in list(self._former):
            message_dispatcher, busy = former
            self._take_in(message_dispatcher)
            for key, (delivery, until_s) in list(busy.items()):
                if key not in self._in_hand:
                    del busy[key]
                elif mono_s >= until_s:
                    del busy[key]
                    del self._in_hand[key]
                    self.later([delivery])
            if not busy:
                self._former.remove(former)
        if any(one.state == "failed" for one in self._changed[before:]):
            # Refused under the settings of before: those of now may be right.
            self._written([])
            self._revive(self._wall())

    def _ended(self, done: Delivery) -> None:
        key = _key(done)
        delivery = self._in_hand.pop(key, None)
        if delivery is not None and delivery.created_at_s != done.created_at_s:
            done = made_at(done, delivery.created_at_s, self._wall())
        self._waiting.pop(key, None)
        self._tried.discard(key)
        self._note(done)
        self._changed.append(done)
        if done.state == "sent":
            if done.message.id in self._awaited and not done.dry_run and done.channel in _VERIFIED:
                self._awaited[done.message.id] = True
            if not done.dry_run and self._channels.delivered(done.channel, done.sent_at_s):
                log.info("channel %s delivers again", done.channel)
            return
        why = done.error or "unknown error"
        now_s, mono_s = self._wall(), self._mono()
        if self._channels.failed(
            done.channel, why, at_s=now_s, mono_s=mono_s, kind=(done.code, done.facts)
        ):
            log.warning("delivery failed channel=%s error=%r", done.channel, why)
        if done.state == "pending":
            self._waiting[key] = done
            self._tried.add(key)

    def _drop(self, delivery: Delivery) -> None:
        log.info("message dropped channel=%s why=%r", delivery.channel, delivery.error)
        self._waiting.pop(_key(delivery), None)
        self._tried.discard(_key(delivery))
        self._note(delivery)
        self._changed.append(delivery)

    def _fall_back(self, now_s: float) -> None:
        mono_s = self._mono()

        def lost(delivery: Delivery) -> bool:
            # What failed in an earlier run is tried first: there may be a session now.
            for_s = self._channels.failing_for_s(delivery.channel, mono_s)
            tried = _key(delivery) in self._tried
            return tried and for_s is not None and for_s >= self.policy.fallback_after

        turn = self._letters.turn(
            self.policy,
            lambda: local(now_s),
            waits=lambda one: _key(one) not in self._in_hand,
            lost=lost,
        )
        for spare in turn.spare:
            self._drop(spare)
        for new in turn.new:
            log.warning("channel=%s stands in for channel=%s", new.channel, new.fallback_of)
        # Committed with the failures that made them necessary; what leaves now, by its claim.
        held = [
            new for new in turn.new if backlog.is_held(new) and (new.next_try_at_s or 0) > now_s
        ]
        self.later(new for new in turn.new if new not in held)
        if held:
            self.later(self._written(held))

    def _revive(self, now_s: float) -> None:
        """Try again what nobody was told of although it is still so: the settings may be right now.

        Of each incident on each channel only the newest message, as with everything that waits.
        """
        untold = set(self._reach.untold())
        if self._history is None or not untold:
            return
        for delivery in self._history.told_of_open():
            given_up = delivery.state == "failed" and not backlog.is_dropped(delivery)
            if given_up and untold & {delivery.alert_key, *delivery.message.also}:
                self.later(
                    [msgspec.structs.replace(delivery, state="pending", next_try_at_s=now_s)]
                )

    def _follow_clock(self, now_s: float) -> None:
        """Keep waits as long as they were when the wall clock is set."""
        offset_s = now_s - self._mono()
        before_s, self._offset_s = self._offset_s, offset_s
        if abs(offset_s - before_s) <= _CLOCK_STEP_S:
            return
        by_s = offset_s - before_s
        for some in (self._waiting, self._in_hand):
            some.update(
                {key: backlog.moved(delivery, by_s, now_s) for key, delivery in some.items()}
            )


def _key(delivery: Delivery) -> Key:
    return delivery.message.id, delivery.channel


def _incident(delivery: Delivery) -> Key:
    return delivery.message.thread or delivery.message.id, delivery.channel


def _taken_over(delivery: Delivery, now_s: float) -> Delivery:
    """Return what a dead daemon left pending as it is to go on."""
    if delivery.created_at_s > now_s + _CLOCK_STEP_S:
        delivery = backlog.moved(delivery, now_s - delivery.created_at_s, now_s)
    if delivery.lease_until_s is None:
        if delivery.next_try_at_s is None or backlog.is_held(delivery):
            return delivery
        soon_s = min(delivery.next_try_at_s, now_s + RETRY_S[0])
        return msgspec.structs.replace(delivery, next_try_at_s=soon_s)
    log.info("interrupted channel=%s id=%s", delivery.channel, delivery.message.id)
    attempts = delivery.attempts + 1
    again_s: float | None = now_s
    if attempts > _RETRIED_AT_ONCE:
        again_s = retry_at(attempts - _RETRIED_AT_ONCE, delivery.created_at_s, now_s)
    return msgspec.structs.replace(
        delivery, attempts=attempts, next_try_at_s=again_s, lease_until_s=None
    )
