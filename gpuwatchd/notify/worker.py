"""One channel's queue and the thread that works on it, replaced once when it is stuck.

A thread that hangs in a system call cannot be ended; it is left behind, and what it still
delivers is noticed when it comes back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Delivery
    from gpuwatchd.core.ports import Notifier

log = logging.getLogger(__name__)

MAX_STUCK = 2
"""The worker and its one replacement; after that nothing is started until one comes back."""
_CLOSE_S = 0.2
"""What a channel that is idle has at least to let go of what it has open."""
_GATHER_S = 0.1
"""What was late already can wait so long for company, to leave as one message."""


class ChannelWorker:
    """The queue of one channel.

    Parameters
    ----------
    late
        Says of a delivery whether it is so late that it may be merged with others.
    attempt
        Called in the worker: tries once and returns the deliveries in their new state; never
        raises. More than one are sent as one message.
    report
        Called in the worker with each result and whether the worker had been given up meanwhile.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        limit_s: float,
        size: int,
        monotonic: Callable[[], float],
        late: Callable[[Delivery], bool],
        attempt: Callable[[list[Delivery], Notifier], list[Delivery]],
        report: Callable[[Delivery, bool], None],
    ) -> None:
        self.limit_s = limit_s
        self._notifier = notifier
        self._monotonic = monotonic
        self._late = late
        self._attempt = attempt
        self._report = report
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

        Returns
        -------
        tuple of list of Delivery
            What was not finished: what the worker is still busy with, and what only waits.
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
            results = self._attempt(worker.job, self._notifier)
            # In one step: whoever looks finds a message with the worker or among the results.
            with self._lock:
                worker.job, worker.trying = [], False
                abandoned = worker in self._stuck
                self._stuck.discard(worker)
                for result in results:
                    self._report(result, abandoned)
            if abandoned:
                return

    def _take(self, worker: _Worker) -> bool:
        """Wait for the next job; False when there will be none."""
        with self._lock:
            self._lock.wait_for(lambda: worker.aside or self._queue or self._stopped)
            if self._stopped:
                return False
            first = worker.aside.popleft() if worker.aside else self._queue.popleft()
            worker.job = [first]
            if self._late(first):
                self._lock.wait_for(lambda: self._stopped, _GATHER_S)
                if self._stopped:
                    return False
                waiting = [*worker.aside, *self._drain()]
                worker.job += [delivery for delivery in waiting if self._late(delivery)]
                worker.aside = deque(delivery for delivery in waiting if not self._late(delivery))
            worker.since_s, worker.trying = self._monotonic(), True
            return True


class _Worker(threading.Thread):
    """The thread, since when it has been busy with what, and what it has set aside."""

    def __init__(self, lane: ChannelWorker) -> None:
        super().__init__(name="notify", daemon=True)
        self._lane = lane
        self.job: list[Delivery] = []
        self.trying = False
        self.aside: deque[Delivery] = deque()
        self.since_s = 0.0

    def overdue(self, now_s: float, limit_s: float) -> bool:
        """Say whether it has been busy with one job for too long."""
        return self.trying and now_s - self.since_s > limit_s

    def run(self) -> None:
        self._lane.work(self)
