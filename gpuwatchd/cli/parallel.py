"""Work on many things with all cores: in order, with a progress bar, and gone at Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwatchd.cli import options
from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[T, Callable[[float], None]], R]
_POLL_S = 0.1
_NAME_WIDTH = 40
_shares: Any = None
"""In a worker: how much of each item is done, shared with the program that started it."""


@dataclass(frozen=True)
class Lost:
    """What stands for the result of an item whose worker was killed, or failed."""

    why: str
    memory: bool = False
    """There was too little memory for it, or so it seems."""
    trace: str = field(default="", compare=False)
    """Where it failed, for ``--debug``."""

    def error(self, what: str) -> GpuwatchdError:
        """Return the error of something that could not be replayed."""
        if options.current().debug:
            sys.stderr.write(self.trace)
        return GpuwatchdError(
            f"{what} could not be replayed: {self.why}",
            hint="a shorter --since needs less memory" if self.memory else "gpuwatchctl doctor",
            page="errors#not-replayed",
        )


class Bar:
    """A progress bar on standard error; nothing at all where ``shown`` is false."""

    def __init__(self, *, shown: bool) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._told_s = 0.0
        if shown:
            from rich.console import Console  # noqa: PLC0415 - 30 ms, for terminals only
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                Progress,
                TaskProgressColumn,
                TextColumn,
                TimeRemainingColumn,
            )

            # No thread that redraws: workers are forked while it stands.
            self._progress = Progress(
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True, highlight=False, emoji=False),
                transient=True,
                auto_refresh=False,
            )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, share: float, what: str = "") -> None:
        """Show a share (0-1) and what is being worked on."""
        now_s = time.monotonic()
        if self._progress is None or now_s - self._told_s < _POLL_S:
            return
        self._told_s = now_s
        words = text.cut(text.clean(what), _NAME_WIDTH)
        self._progress.update(self._task, completed=share, description=words, refresh=True)


def spread(
    work: Work[T, R],
    items: Sequence[T],
    name: Callable[[T], str],
    *,
    shown: bool,
    weights: Sequence[float] | None = None,
    cores: int | None = None,
) -> list[R | Lost]:
    """Return the result of each item, in their order; what fails costs no other its result.

    Parameters
    ----------
    work
        A function of a module: called with an item and with a function that takes the share done.
    name
        What an item is called on the bar.
    shown
        Whether to show a bar, where that can be seen.
    weights
        Expected cost of each item, in any unit: those of most weight are begun first.
    cores
        How many processes; by default one for each core that this program may use.
    """
    weights = weights or [1.0] * len(items)
    costs = [weight / (sum(weights) or 1.0) for weight in weights]
    cores = min(cores or usable_cores(), len(items))
    with Bar(shown=shown and on_terminal()) as bar:
        if cores < 2:
            return list(_one_by_one(work, items, name, bar, costs))
        return _by_many(work, items, name, bar, costs, cores)


def _one_by_one(
    work: Work[T, R], items: Sequence[T], name: Callable[[T], str], bar: Bar, costs: list[float]
) -> Iterator[R | Lost]:
    done = 0.0
    for at, (item, cost) in enumerate(zip(items, costs, strict=True)):
        words = _counted(at, len(items), name(item))

        def progress(
            share: float, begun: float = done, cost: float = cost, words: str = words
        ) -> None:
            bar.show(begun + cost * share, words)

        progress(0.0)
        yield _tried(work, item, progress)
        done += cost


def _counted(done: int, count: int, name: str) -> str:
    return f"{done:,} of {count:,}  {name}" if count > 1 else name


def _by_many(  # noqa: PLR0917 - all that is known of the items
    work: Work[T, R],
    items: Sequence[T],
    name: Callable[[T], str],
    bar: Bar,
    costs: list[float],
    cores: int,
) -> list[R | Lost]:
    import multiprocessing  # noqa: PLC0415 - for those who have much to do
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait  # noqa: PLC0415

    shares = multiprocessing.Array("d", len(items), lock=False)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(cores, initializer=_begin, initargs=(shares,))
    try:
        order = sorted(range(len(items)), key=lambda k: -costs[k])
        with _unheard():
            jobs = {k: pool.submit(_run, work, items[k], k) for k in order}
        open_jobs = set(jobs.values())
        while open_jobs:
            _, open_jobs = wait(open_jobs, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            current = next((k for k in order if not jobs[k].done()), order[-1])
            done = sum(cost * share for cost, share in zip(costs, shares, strict=True))
            bar.show(done, _counted(len(items) - len(open_jobs), len(items), name(items[current])))
        pool.shutdown()
    except BaseException:
        # Ctrl-C: whatever they are at, nobody waits for it any more. Its thread must have ended
        # before the interpreter ends, which would wake it through a pipe that it closes.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(cancel_futures=True)
        raise
    return [_result(jobs[k], work, item) for k, item in enumerate(items)]


def _result(job: Future[R | Lost], work: Work[T, R], item: T) -> R | Lost:
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor  # noqa: PLC0415

    try:
        return job.result()
    except BrokenProcessPool:
        # One killed worker breaks the whole pool: each unfinished item gets a pool of its own.
        with ProcessPoolExecutor(1, initializer=_begin, initargs=(None,)) as alone:
            try:
                return alone.submit(_run, work, item, 0).result()
            except BrokenProcessPool:
                return Lost("its process was killed; is there too little memory?", memory=True)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Hold Ctrl-C back while workers begin: they do not know yet that it is not for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def usable_cores() -> int:
    """Return how many cores this program may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_terminal() -> bool:
    """Say whether a bar can be seen: standard error is a terminal that can move its cursor."""
    with contextlib.suppress(ValueError):
        return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
    return False


def _begin(shares: Any) -> None:
    global _shares  # noqa: PLW0603 - the one thing that a worker knows
    # Ctrl-C reaches the whole group: the parent tells the workers to go.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shares = shares
    import multiprocessing  # noqa: PLC0415
    import threading  # noqa: PLC0415

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent.join,), daemon=True).start()


def _leave_after(ended: Callable[[], None]) -> None:
    """Leave when the parent is gone: one that was killed tells its workers nothing."""
    ended()
    os._exit(1)


def _run(work: Work[T, R], item: T, position: int) -> R | Lost:
    def report(share: float) -> None:
        if _shares is not None:
            _shares[position] = share

    result = _tried(work, item, report)
    report(1.0)
    return result


def _tried(work: Work[T, R], item: T, tell: Callable[[float], None]) -> R | Lost:
    try:
        return work(item, tell)
    except GpuwatchdError as error:
        return Lost(error.message)
    except MemoryError:
        return Lost("there is too little memory for it", memory=True)
    except Exception as error:  # noqa: BLE001 - one bad item never stops the others
        return Lost(f"{type(error).__name__}: {error}", trace=traceback.format_exc())
