"""Each source is read with a deadline: a hung driver delays nobody.

That is done in a thread of its own, but for a source that has answered and keeps to the deadline by
itself: handing it over would cost a tenth of a tick.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import GpuwatchdError, SourceUnavailable, StoreError
from gpuwatchd.core.model import Fault, Sample
from gpuwatchd.core.ports import OwnClock
from gpuwatchd.pipeline.clock import STEP_S
from gpuwatchd.pipeline.tick import SourceTick
from gpuwatchd.store import live

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from gpuwatchd.core.ports import Source
    from gpuwatchd.pipeline.live_state import Inputs
    from gpuwatchd.pipeline.tick import Problem

log = logging.getLogger("gpuwatchd")

REPLACE_AFTER_S = 60.0
"""A worker that has not answered for this long is given up, once, for a fresh source."""
_RETRY_FIRST_S = 5.0
_RETRY_LAST_S = 300.0
_READ, _END = "read", "end"
_LEFT_ALONE = frozenset({"asleep", "released"})


class SourceWorker:
    """Reads one source; never longer than the deadline."""

    def __init__(
        self, source: Source, *, deadline_s: float, fresh: Callable[[], Source] | None = None
    ) -> None:
        self.source = source
        self._deadline_s = deadline_s
        # Used once at most, when the thread of the old source is stuck for good.
        self._fresh = fresh
        self._busy_since_s: float | None = None
        # A replayed world older than the machine's boot has a monotonic clock below zero.
        self._retry_at_s = -math.inf
        self._retry_step_s = _RETRY_FIRST_S
        self._is_prompt = False
        """Whether it has answered and keeps to the deadline by itself."""
        self.absent: Fault | None = None
        """Why the source gives nothing at present."""
        self._start()

    def _start(self) -> None:
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Sample | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve,
            args=(self.source, self._asked, self._answers),
            name=f"read-{self.source.name}",
            daemon=True,
        )
        self._thread.start()
        self.answer_within(self._deadline_s)

    def answer_within(self, deadline_s: float) -> None:
        """Wait so long at most for one read; a source may keep to it by itself."""
        self._deadline_s = deadline_s
        answer_within = getattr(self.source, "answer_within", None)
        if answer_within is not None:
            answer_within(deadline_s)

    @property
    def stuck(self) -> bool:
        """Whether a read has begun and not ended."""
        return self._busy_since_s is not None

    def read(self, now_mono_s: float) -> Sample | Fault | None:
        """Return a sample, a fault, or None while the source is known to be absent."""
        if self._busy_since_s is None:
            if now_mono_s < self._retry_at_s:
                return None
            if self._is_prompt and not self.source.may_wait():  # type: ignore[attr-defined]
                return self._take(_answer(self.source), now_mono_s)
            self._asked.put(_READ)
            self._busy_since_s = now_mono_s
            wait_s = self._deadline_s
        else:
            wait_s = 0.0
        try:
            answer = self._answers.get(timeout=wait_s) if wait_s else self._answers.get_nowait()
        except queue.Empty:
            return self._late(now_mono_s)
        self._busy_since_s = None
        return self._take(answer, now_mono_s)

    def _take(self, answer: Sample | Exception, now_mono_s: float) -> Sample | Fault | None:
        """Take over what a read came to."""
        if isinstance(answer, Sample):
            self.absent = self._whole(answer)
            self._retry_step_s = _RETRY_FIRST_S
            self._is_prompt = hasattr(self.source, "may_wait")
            return answer
        self._is_prompt = False
        return self._failed(answer, now_mono_s)

    def _whole(self, sample: Sample) -> Fault | None:
        """Return what a sample says of the source as a whole: it answers, but not for its GPUs."""
        if sample.readings and all(each.state in _LEFT_ALONE for each in sample.readings):
            return None  # on purpose: nothing is wrong with it
        for fault in sample.faults:
            if fault.device_uid is None and fault.where == self.source.name:
                return fault
        return None

    @property
    def needs_restart(self) -> bool:
        """Whether only a new process can read this source again."""
        return bool(getattr(self.source, "needs_restart", False))

    def release_driver(self, duration_s: float) -> None:
        """Let go of the driver for so long with the next read, where the source holds one."""
        let_go = getattr(self.source, "release_driver", None)
        if let_go is not None:
            let_go(duration_s)
        # At the end of it a source that knew no GPU is asked again at once.
        self._retry_at_s = -math.inf
        self._retry_step_s = _RETRY_FIRST_S

    def _late(self, now_mono_s: float) -> Fault:
        stuck_s = now_mono_s - (self._busy_since_s or now_mono_s)
        if stuck_s > REPLACE_AFTER_S and self._fresh is not None:
            # The old thread stays stuck in the driver; a second replacement would only join it.
            self.source, self._fresh = self._fresh(), None
            self._busy_since_s = None
            self._start()
        why = f"no answer for {max(stuck_s, self._deadline_s):.0f} s"
        self.absent = Fault(where=self.source.name, why=f"{why}; the driver may hang")
        return Fault(where=self.source.name, why=why)

    def _failed(self, error: Exception, now_mono_s: float) -> Fault | None:
        hint = error.hint if isinstance(error, GpuwatchdError) else ""
        why = str(error) or type(error).__name__
        brief = getattr(error, "brief", "") or why
        full = f"{why} ({hint})" if hint else why
        self.absent = Fault(where=self.source.name, why=full, brief=brief)
        if isinstance(error, SourceUnavailable):
            self._retry_at_s = now_mono_s + self._retry_step_s
            self._retry_step_s = min(2 * self._retry_step_s, _RETRY_LAST_S)
            return None
        return Fault(where=self.source.name, why=why)

    def close(self) -> None:
        """Let go of the source; a thread that is stuck is left behind."""
        self._asked.put(_END)
        if self._busy_since_s is None:
            self._thread.join(timeout=1.0)
            self.source.close()


def _serve(
    source: Source,
    asked: queue.SimpleQueue[str],
    answers: queue.SimpleQueue[Sample | Exception],
) -> None:
    while asked.get() == _READ:
        answers.put(_answer(source))


def _answer(source: Source) -> Sample | Exception:
    try:
        return source.read()
    except Exception as error:  # noqa: BLE001 - whatever a driver throws is this tick's fault row
        return error


def labelled(sources: Sequence[Source]) -> list[tuple[str, Source]]:
    """Return sources with a name that is each one's own: two logs may be replayed at once."""
    names: dict[str, int] = {}
    out = []
    for source in sources:
        number = names[source.name] = names.get(source.name, 0) + 1
        out.append((source.name if number == 1 else f"{source.name} {number}", source))
    return out


class SourceClocks:
    """The clock of each source: see :mod:`gpuwatchd.pipeline.clock`."""

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {}
        self._last: dict[str, tuple[float, float]] = {}

    def expect(self, source: str, ahead_s: float) -> None:
        """Note how far the wall clock was ahead of the monotonic one before the first sample."""
        self._offsets[source] = ahead_s

    def stamp(self, source: str, sample: Sample, mono_s: float) -> tuple[float, float | None]:
        """Return the time of a sample, and by how much the wall clock was stepped before it."""
        difference = sample.taken_at_s - sample.taken_mono_s
        step = difference - self._offsets.setdefault(source, difference)
        stepped = abs(step) > STEP_S
        if stepped:
            self._offsets[source] = difference
        now_s = sample.taken_mono_s + self._offsets[source]
        self._last[source] = (now_s, mono_s)
        return now_s, step if stepped else None

    def now(self, source: str, mono_s: float) -> float | None:
        """Return the time of a source without a sample; None when it never gave one."""
        last = self._last.get(source)
        return None if last is None else last[0] + (mono_s - last[1])


class Sources:
    """Everything that is read each tick."""

    def __init__(self, inputs: Inputs, mono: Callable[[], float], deadline_s: float) -> None:
        self._mono, self._absences, fresh = mono, inputs.absences, inputs.fresh
        self._clock = SourceClocks()
        self.workers = {
            label: SourceWorker(
                source,
                deadline_s=deadline_s,
                fresh=partial(fresh, position) if fresh is not None else None,
            )
            for position, (label, source) in enumerate(labelled(inputs.sources))
        }
        self.answered = 0
        """How many answered in the last tick."""
        self.problems: list[Problem] = []
        """Why sources gave nothing in the last tick, one sentence each."""

    def expect(self, ahead_s: float) -> None:
        """Compare first samples with the clock by which history was restored: a step may follow."""
        for label, worker in self.workers.items():
            if not isinstance(worker.source, OwnClock):
                self._clock.expect(label, ahead_s)

    def read(self) -> Iterator[SourceTick]:
        """Read one source after the other; one of which nothing was ever known is left out."""
        answered = 0
        for label, worker in self.workers.items():
            sample = self._sample(label, worker)
            if sample is None:
                now_s = self._clock.now(label, self._mono())
                if now_s is not None:
                    absent = worker.absent or Fault(where="", why="no answer")
                    yield SourceTick(label, now_s, absent=absent)
                continue
            answered += 1
            now_s, step_s = self._clock.stamp(label, sample, self._mono())
            if step_s is not None:
                log.warning("clock stepped source=%s by_s=%.1f", label, step_s)
            yield SourceTick(label, now_s, sample, worker.source.devices, step_s)
        self.answered = answered
        faults = [worker.absent for worker in self.workers.values()]
        if self._absences is not None:
            self.problems = self._absences(faults)
        else:
            self.problems = [(fault.text, ProblemCode.OTHER) for fault in faults if fault]

    def _sample(self, label: str, worker: SourceWorker) -> Sample | None:
        try:
            answer = worker.read(self._mono())
        except Exception:
            # Making a source anew may fail in any way; the tick goes on without it.
            log.debug("failed part=%s", label, exc_info=True)
            return None
        return answer if isinstance(answer, Sample) else None

    def set_deadline(self, deadline_s: float) -> None:
        """Wait for each source for so many seconds from now on."""
        for worker in self.workers.values():
            worker.answer_within(deadline_s)


# Letting go of the GPUs when the user asks: from the request's file to the sources.


class DriverRelease:
    """Looks for a request at every tick and passes it on."""

    def __init__(
        self,
        directory: Path,
        workers: Collection[SourceWorker],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._workers = workers
        self._stamp: tuple[int, int, int] | None = None
        self._until_s: float | None = None
        self._until_mono_s = 0.0
        # A clock that is set back makes no request longer.
        self._monotonic = monotonic

    def update(self, now_s: float) -> bool:
        """Take over what has changed; return whether a tick should follow at once."""
        stamp = live.release_stamp(self._directory)
        if stamp == self._stamp:
            return self._is_over(now_s) and self._end()
        self._stamp = stamp
        try:
            request = live.read_release(self._directory, now_s)
        except StoreError as error:
            log.warning(
                "release request ignored: %s; see: gpuwatchctl docs %s", error.message, error.page
            )
            return False
        if request is None:
            # Taken back, or left by an earlier daemon and over.
            return (stamp is not None or self._until_s is not None) and self._end()
        self._until_s = request.until_at_s
        left_s = request.left_s(now_s)
        self._until_mono_s = self._monotonic() + left_s
        for worker in self._workers:
            worker.release_driver(left_s)
        until = units.clock(now_s + left_s, now_s=now_s, seconds=True)
        log.info("release asked until=%s for=%s", until, units.duration(left_s))
        return True

    def _is_over(self, now_s: float) -> bool:
        # Either: the one goes on while the machine sleeps, the other while the clock is set.
        return self._until_s is not None and (
            now_s >= self._until_s or self._monotonic() >= self._until_mono_s
        )

    def _end(self) -> bool:
        self._until_s = None
        with contextlib.suppress(StoreError):
            live.end_release(self._directory)
        self._stamp = live.release_stamp(self._directory)
        for worker in self._workers:
            worker.release_driver(0.0)
        log.info("release has ended")
        return True
