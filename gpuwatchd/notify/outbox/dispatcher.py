"""The dispatcher: one worker thread per channel, so that a hung one delays nobody.

``submit`` and ``results`` never block and are called by the sampling loop. What must survive a
crash (which message, which state, when next) lives in the store; the dispatcher only tries.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import text
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config.channels import unknown
from gpuwatchd.core.errors import GpuwatchdError, NotifyError
from gpuwatchd.core.model import Availability
from gpuwatchd.core.registry import load
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.notify.outbox.states import digest, leaves_with_others, refused, sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.core.config import NotifySection
    from gpuwatchd.core.model import ButtonName, Delivery, Message
    from gpuwatchd.core.ports import Notifier


MAX_STUCK = 2
"""The worker and its one replacement; after that nothing is started until one comes back."""
_CLOSE_S = 0.2
"""What a channel that is idle has at least to let go of what it has open."""
_GATHER_S = 0.1
"""What was late already can wait so long for company, to leave as one message."""


class ChannelWorker:
    """The queue of one channel; its worker sends what the dispatcher was given for it."""

    def __init__(
        self,
        dispatcher: MessageDispatcher,
        notifier: Notifier,
        *,
        limit_s: float,
        size: int,
        monotonic: Callable[[], float],
    ) -> None:
        self.limit_s = limit_s
        self._dispatcher = dispatcher
        self._notifier = notifier
        self._monotonic = monotonic
        self._size = size
        self._queue: deque[Delivery] = deque()
        self._lock = threading.Condition()
        self._worker: _Worker | None = None
        self._stuck: set[_Worker] = set()
        self._stopped = False

    @property
    def down(self) -> bool:
        """True while both the worker and its replacement are stuck."""
        with self._lock:
            return len(self._stuck) >= MAX_STUCK

    def put(self, delivery: Delivery) -> bool:
        """Queue a delivery; False when the queue is full. Starts the worker when there is none."""
        with self._lock:
            if len(self._queue) >= self._size:
                return False
            self._queue.append(delivery)
            self._lock.notify_all()
            self._ensure_worker()
        return True

    def check(self) -> list[Delivery]:
        """Give up a worker that hangs or has died, replace it, and return what was lost with it.

        When the replacement is stuck too, everything that waits is returned: nobody is left to
        work on it.
        """
        with self._lock:
            lost: list[Delivery] = []
            self._stuck = {one for one in self._stuck if one.is_alive()}
            worker = self._worker
            hangs = worker is not None and worker.overdue(self._monotonic(), self.limit_s)
            if worker is not None and (hangs or not worker.is_alive()):
                if hangs:
                    log.warning("channel %s hangs; its worker is left behind", self._notifier.name)
                    self._stuck.add(worker)
                self._worker = None
                lost += worker.job
                lost += worker.aside
                worker.aside.clear()
            if len(self._stuck) >= MAX_STUCK:
                lost.extend(self._drain())
            elif self._queue:
                self._ensure_worker()
            return lost

    def stop(self) -> None:
        """Ask the worker to end after the attempt it is in."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def join(self, timeout_s: float) -> tuple[list[Delivery], list[Delivery]]:
        """Wait for the worker, at most so long; then let the channel close what it has open.

        Return what the worker is still busy with, and what only waits.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        with self._lock:
            unfinished = self._drain()
            busy: list[Delivery] = []
            if worker is not None:
                # What a worker had only just taken when it was told to stop was not tried.
                busy = list(worker.job) if worker.trying else []
                unfinished[:0] = [*([] if busy else worker.job), *worker.aside]
            idle = not busy and not self._stuck
        if idle:
            # In a thread too: a bus that hangs holds up neither a reload nor the end.
            closer = threading.Thread(target=self._close, name="notify close", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had
                closer.start()
                closer.join(max(_CLOSE_S, deadline_s - time.monotonic()))
        return busy, unfinished

    def _close(self) -> None:
        close = getattr(self._notifier, "close", None)
        try:
            if callable(close):
                close()
        except Exception:
            # On the way out; there is nobody left to tell.
            log.debug("channel %s cannot be closed", self._notifier.name, exc_info=True)

    def _ensure_worker(self) -> None:
        if self._worker is not None or len(self._stuck) >= MAX_STUCK or self._stopped:
            return
        worker = _Worker(self)
        try:
            worker.start()
        except RuntimeError as error:
            # No thread to be had at this moment: what waits is there for the next look.
            log.debug("channel %s: %s", self._notifier.name, error)
        else:
            self._worker = worker

    def _drain(self) -> list[Delivery]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def work(self, worker: _Worker) -> None:
        """Run a worker's life: one message after the other, until stopped or given up."""
        while self._take(worker):
            results = self._dispatcher.attempt(worker.job, self._notifier)
            # In one step: whoever looks finds a message with the worker or among the results.
            with self._lock:
                worker.rest()
                abandoned = worker in self._stuck
                self._stuck.discard(worker)
                for result in results:
                    self._dispatcher.report(result, abandoned=abandoned)
            if abandoned:
                return

    def _take(self, worker: _Worker) -> bool:
        """Wait for the next job; False when there will be none."""
        with self._lock:
            self._lock.wait_for(lambda: worker.aside or self._queue or self._stopped)
            if self._stopped:
                return False
            first = worker.aside.popleft() if worker.aside else self._queue.popleft()
            worker.job.append(first)
            if self._dispatcher.is_late(first):
                self._lock.wait_for(lambda: self._stopped, _GATHER_S)
                if self._stopped:
                    return False
                waiting = [*worker.aside, *self._drain()]
                worker.aside.clear()
                for delivery in waiting:
                    late = self._dispatcher.is_late(delivery)
                    (worker.job if late else worker.aside).append(delivery)
            worker.begin(self._monotonic())
            return True


class _Worker(threading.Thread):
    """The thread, since when it has been busy with what, and what it has set aside."""

    def __init__(self, channel: ChannelWorker) -> None:
        super().__init__(name="notify", daemon=True)
        self._channel = channel
        self.job: list[Delivery] = []
        self.trying = False
        self.aside: deque[Delivery] = deque()
        self.since_s = 0.0

    def overdue(self, now_s: float, limit_s: float) -> bool:
        """Say whether it has been busy with one job for too long."""
        return self.trying and now_s - self.since_s > limit_s

    def begin(self, now_s: float) -> None:
        """Note that it tries to send its job from now on."""
        self.since_s, self.trying = now_s, True

    def rest(self) -> None:
        """Note that its job is done."""
        self.job, self.trying = [], False

    def run(self) -> None:
        self._channel.work(self)


log = logging.getLogger(__name__)

GRACE_S = 5.0
"""A channel's own timeout speaks first, because it can say what it waited for."""
_REMEMBERED = 256


class BrokenChannel:
    """Stands in for a channel that could not be built, and says why to everybody who asks."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        self.name = name
        self._reason = reason
        self._hint = hint

    def probe(self) -> Availability:
        """Say why it does not work."""
        return Availability(ok=False, reason=self._reason, hint=self._hint)

    def send(self, message: Message) -> str:  # noqa: ARG002 (the port's signature)
        """Refuse.

        Raises
        ------
        NotifyError
            Always, permanent.
        """
        raise NotifyError(self._reason, permanent=True, hint=self._hint)


def build(section: NotifySection, channels: Iterable[str]) -> dict[str, Notifier]:
    """Return the named channels, built from their sections, in order.

    A channel that cannot be built (unknown name, missing library) becomes a
    :class:`BrokenChannel`; the others are not touched by it.
    """
    return {name: _build_one(section, name) for name in channels}


def _build_one(section: NotifySection, name: str) -> Notifier:
    if name not in NOTIFIERS:
        return BrokenChannel(text.clean(name), unknown(name, tuple(NOTIFIERS)))
    try:
        kind = load(NOTIFIERS, name)
        settings = getattr(section, name.replace("-", "_"))
        arguments = {field: getattr(settings, field) for field in settings.__struct_fields__}
        notifier: Notifier = kind(**arguments)
    except GpuwatchdError as error:
        return BrokenChannel(text.clean(name), error.message, error.hint)
    except Exception as error:
        # Whatever is wrong with one channel, the others are built.
        log.debug("channel %s cannot be built", name, exc_info=True)
        return BrokenChannel(
            text.clean(name), f"cannot be used: {text.clean(str(error))}", "gpuwatchctl doctor"
        )
    return notifier


class MessageDispatcher:
    """Delivers without ever keeping its caller waiting.

    Parameters
    ----------
    deadline_s
        A channel that has not answered by then (or by its own longer ``timeout_s``), plus a
        grace of 5 s, is stuck: its worker is abandoned, and replaced at most once until it
        comes back.
    pressed
        Told, in a thread of the channel's, of a button that was pressed on one of its messages.
    """

    def __init__(
        self,
        notifiers: Mapping[str, Notifier],
        *,
        deadline_s: float = 20.0,
        queue_size: int = 64,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        pressed: Callable[[ButtonName, Message], None] | None = None,
    ) -> None:
        for notifier in notifiers.values():
            if hasattr(notifier, "on_action"):
                notifier.on_action = pressed
        self._clock = clock
        self._lock = threading.Lock()
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        """Channel -> the ids of its messages that are in hand."""
        self._done: list[Delivery] = []
        self._closed = False
        self._late: defaultdict[str, dict[str, Delivery]] = defaultdict(dict)
        """Channel -> message id -> one that an abandoned worker has sent after all."""
        self._channels = {
            name: ChannelWorker(
                self,
                notifier,
                limit_s=max(deadline_s, float(getattr(notifier, "timeout_s", 0.0))) + GRACE_S,
                size=queue_size,
                monotonic=monotonic,
            )
            for name, notifier in notifiers.items()
        }

    def submit(self, delivery: Delivery) -> bool:
        """Accept a delivery for sending; never blocks.

        True when it is (or already was) in hand: its result will come. False when the channel's
        queue is full or the dispatcher is closed: submit it again later.
        """
        held, name = self._held[delivery.channel], delivery.message.id
        with self._lock:
            if self._closed:
                return False
            if name in held:
                return True
            held.add(name)
        channel = self._channels.get(delivery.channel)
        if channel is None:
            why = f"channel {text.clean(delivery.channel)} is not configured"
            error, code = NotifyError(why, permanent=True), Failure.NOT_CONFIGURED
            self.report(refused(delivery, error, self._clock(), code=code))
            return True
        if delivery.dry_run:
            self.report(sent(delivery, self._clock(), "dry run"))
            return True
        self._look_after(channel)
        if channel.down:
            self.report(refused(delivery, _hanging(channel), self._clock()))
            return True
        if channel.put(delivery):
            return True
        with self._lock:
            held.discard(name)
        return False

    def results(self) -> list[Delivery]:
        """Return what was finished since the last call; never blocks.

        State ``sent``; or ``pending`` with ``next_try_at_s``: submit it again then; or
        ``failed`` for good. ``error`` says why, without secrets.
        """
        if not self._closed:
            for channel in self._channels.values():
                self._look_after(channel)
        with self._lock:
            done, self._done = self._done, []
            for delivery in done:
                self._held[delivery.channel].discard(delivery.message.id)
        return done

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        """Stop within ``timeout_s``; return what was taken and not reported. May be called twice.

        That is for the next dispatcher, or for the next start, since the store still calls it
        pending. One whose attempt is still running is among it, with ``lease_until_s``: until then
        it may still arrive, and trying it again can send it twice. ``results`` still gives what has
        ended, also later.
        """
        with self._lock:
            if self._closed:
                return []
            self._closed = True
        deadline = time.monotonic() + timeout_s
        for channel in self._channels.values():
            channel.stop()
        unfinished: list[Delivery] = []
        now_s = self._clock()
        for channel in self._channels.values():
            busy, waiting = channel.join(max(0.0, deadline - time.monotonic()))
            leased = {"lease_until_s": now_s + channel.limit_s}
            unfinished += [msgspec.structs.replace(delivery, **leased) for delivery in busy]
            unfinished += waiting
        return unfinished

    def is_late(self, delivery: Delivery) -> bool:
        """Say whether it is so late that it may be merged with others."""
        return leaves_with_others(delivery, self._clock())

    def attempt(self, deliveries: list[Delivery], notifier: Notifier) -> list[Delivery]:
        """Send once, in a worker; several late ones as one message. Never raises.

        Returns the deliveries in their new state.
        """
        with self._lock:
            late = self._late[deliveries[0].channel]
            done = [late[it.message.id] for it in deliveries if it.message.id in late]
            rest = [delivery for delivery in deliveries if delivery.message.id not in late]
        if not rest:
            return done
        value, failure = "", None
        try:
            message = rest[0].message if len(rest) == 1 else digest(rest, self._clock())
            value = text.clean(notifier.send(message))
            log.info("%s: %s", rest[0].channel, value)
        except NotifyError as error:
            failure = error
        except Exception as error:
            # A bug in a channel must not end its worker.
            log.debug("channel %s raised", rest[0].channel, exc_info=True)
            failure = NotifyError(f"{type(error).__name__} in the channel")
        now_s = self._clock()
        if failure is None:
            if len(rest) > 1:
                value = f"{value} (one of {len(rest)} messages in one)"
            return done + [sent(delivery, now_s, value) for delivery in rest]
        failed = [refused(delivery, failure, now_s) for delivery in rest]
        with self._lock:  # an abandoned worker may have had success after all
            return done + [late.get(delivery.message.id, delivery) for delivery in failed]

    def report(self, delivery: Delivery, *, abandoned: bool = False) -> None:
        """Take a result; ``abandoned``: of a worker that had been given up meanwhile."""
        with self._lock:
            if abandoned:
                if delivery.state != "sent":
                    return  # its failure was reported when the worker was given up
                late = self._late[delivery.channel]
                while len(late) >= _REMEMBERED:
                    late.pop(next(iter(late)))
                late[delivery.message.id] = delivery
            self._done.append(delivery)

    def _look_after(self, channel: ChannelWorker) -> None:
        for stuck in channel.check():
            self.report(refused(stuck, _hanging(channel), self._clock()))


def _hanging(channel: ChannelWorker) -> NotifyError:
    return NotifyError(f"no answer within {channel.limit_s:g} s")
