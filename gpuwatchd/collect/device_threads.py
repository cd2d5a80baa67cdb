"""One lane per GPU: a call that does not return holds up its own GPU and nothing else.

While all is well one thread walks every lane of a round, so that nothing is handed over per GPU.
When a round takes longer than a short patience, another thread takes over the lanes that nobody
has begun; the thread that is stuck serves its own lane until the driver lets it go. A lane whose
call has not returned is never entered again, so a hung GPU costs one sleeping thread and no CPU.
Nothing here knows what a GPU is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BRIEF_S = 5.0
"""How long one is waited for that may never return."""
PATIENCE_S = 0.1
"""After this a round that is not over gets one more thread, at most one per lane."""


class ReadRound:
    """Work on several lanes, and the answers so far."""

    def __init__(self, jobs: Mapping[str, Callable[[], Any]]) -> None:
        self.left = deque(jobs.items())
        self.total = len(jobs)
        self.answers: dict[str, Any] = {}
        """Lane -> what its work returned, or the exception that ended it."""
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.over = False

    def wait(self, seconds: float) -> bool:
        """Wait until every lane has answered; return whether they have."""
        if len(self.answers) < self.total:
            with suppress(queue.Empty):
                self.done.get(timeout=max(0.0, seconds))
        return len(self.answers) == self.total


class DeviceThreads:
    """The threads, and the lanes: names, under each of which one call runs at a time."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[ReadRound | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False
        self.busy: dict[str, float] = {}
        """Lane -> when the work began (``time.monotonic``) that has not returned."""

    def busy_s(self, lane: str) -> float | None:
        """Return for how long a lane has not returned; None when it is free."""
        since_s = self.busy.get(lane)
        return None if since_s is None else time.monotonic() - since_s

    def begin(self, lane: str, work: Callable[[], Any]) -> ReadRound:
        """Start work on one lane and return at once; the answer counts however late it comes."""
        task = ReadRound({lane: work})
        # Entered here, so that nobody sees the lane free before its thread runs.
        self.busy[lane] = time.monotonic()
        self._send(task)
        return task

    def run(self, jobs: Mapping[str, Callable[[], Any]], deadline_s: float) -> dict[str, Any]:
        """Return lane -> answer of the lanes that answered in time; a later answer is dropped.

        A lane that is busy is not entered: its last call has not returned. One that has been
        worked on for longer than ``deadline_s`` is left behind: with n lanes the call returns
        within this and n times the patience.
        """
        free = {lane: work for lane, work in jobs.items() if lane not in self.busy}
        if not free:
            return {}
        turn = ReadRound(free)
        self._send(turn)
        patience_s = min(PATIENCE_S, deadline_s / (2 * turn.total))
        until_s = time.monotonic() + deadline_s
        wait_s = patience_s
        while not turn.wait(wait_s):
            now_s = time.monotonic()
            if turn.left:
                self._send(turn)
                until_s, wait_s = now_s + deadline_s, patience_s
            elif now_s < until_s:
                wait_s = until_s - now_s
            else:
                break
        with self._lock:
            # From here on nobody begins work on it: what has no answer is busy, or stays free.
            turn.over = True
        return dict(turn.answers)

    def wait_for_others(self, lane: str, *, briefly: str = "") -> None:
        """Wait until no lane but this one is busy; to be called from within it.

        The lane ``briefly`` is waited for :data:`BRIEF_S` at most.
        """
        until_s = time.monotonic() + BRIEF_S
        while others := self.busy.copy().keys() - {lane}:
            if others == {briefly} and time.monotonic() >= until_s:
                return
            time.sleep(0.5)

    def close(self) -> None:
        """End the threads that wait; one that is stuck ends when the driver lets it go."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._asked.put(None)

    def _send(self, turn: ReadRound) -> None:
        with self._lock:
            waiting = self._idle > 0
            if waiting:
                self._idle -= 1
        if waiting:
            self._asked.put(turn)
        else:
            threading.Thread(target=self._serve, args=(turn,), name="nvml", daemon=True).start()

    def _serve(self, turn: ReadRound | None) -> None:
        while turn is not None:
            self._walk(turn)
            del turn  # a round that is over must not live on with its answers
            with self._lock:
                # One thread that waits is enough: those that stood in for a stuck one end.
                if self._closed or self._idle:
                    return
                self._idle += 1
            turn = self._asked.get()

    def _walk(self, turn: ReadRound) -> None:
        while True:
            with self._lock:
                if turn.over or not turn.left:
                    return
                lane, work = turn.left.popleft()
                self.busy[lane] = time.monotonic()
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - whoever asked looks at it
                answer = error
            # Free before it has answered: whoever has the answer may enter the lane at once.
            del self.busy[lane]
            turn.answers[lane] = answer
            if len(turn.answers) == turn.total:
                turn.done.put(None)
