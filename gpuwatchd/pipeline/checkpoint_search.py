"""Looking for checkpoints of jobs that have an alert: in a thread of its own, with a deadline."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.host import checkpoint_files
from gpuwatchd.store.checkpoints import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.collect.host.checkpoint_files import Saved
    from gpuwatchd.core.model import ProcessInfo

log = logging.getLogger("gpuwatchd")

DEADLINE_S: Final = 30.0
"""A look that takes longer is stuck, as a rule in a file server that does not answer."""


def _newest(patterns: Sequence[str], info: ProcessInfo, now_s: float) -> Saved | None:
    return checkpoint_files.newest(patterns, info, now_s=now_s)


class Saves:
    """One thread that looks, when there is something to look for.

    Parameters
    ----------
    look
        Finds the newest file of one process.
    mono
        Monotonic clock, seconds.
    """

    def __init__(
        self,
        look: Callable[[Sequence[str], ProcessInfo, float], Saved | None] = _newest,
        *,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._mono = mono
        self._wishes: queue.SimpleQueue[
            tuple[tuple[str, ...], tuple[ProcessInfo, ...], float] | None
        ] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[list[Checkpoint]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked_s: float | None = None

    @property
    def problem(self) -> str:
        """What is wrong, in one sentence; "" when nothing is."""
        if self._asked_s is not None and self._mono() - self._asked_s > DEADLINE_S:
            return (
                "[checkpoints] paths: looking for files has not come back for "
                f"{self._mono() - self._asked_s:.0f} s; checkpoints are unknown until it does"
            )
        return ""

    @property
    def busy(self) -> bool:
        """Whether a look is under way."""
        return self._asked_s is not None

    def ask(self, patterns: tuple[str, ...], infos: tuple[ProcessInfo, ...], now_s: float) -> None:
        """Have these processes looked for; nothing happens while a look is under way."""
        if self._asked_s is not None or not patterns or not infos:
            return
        if self._thread is None:
            # A daemon thread: one that hangs in a file server must not keep the program from
            # ending.
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()
        self._asked_s = self._mono()
        self._wishes.put((patterns, infos, now_s))

    def collect(self) -> list[Checkpoint]:
        """Return what the last look found, once it is back."""
        try:
            checkpoints = self._found.get_nowait()
        except queue.Empty:
            return []
        self._asked_s = None
        return checkpoints

    def close(self) -> None:
        """Let the thread end when it comes back."""
        if self._thread is not None:
            self._wishes.put(None)

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not None:
            patterns, infos, now_s = wish
            checkpoints = []
            for info in infos:
                try:
                    saved = self._look(patterns, info, now_s)
                except Exception:
                    # A file system may fail in any way; the other jobs are looked for all the same.
                    log.debug("failed part=checkpoints pid=%d", info.key.pid, exc_info=True)
                    continue
                if saved is not None:
                    checkpoints.append(
                        Checkpoint(
                            process=info.key,
                            saved_at_s=saved.at_s,
                            said_by="file",
                            detail=saved.path,
                        )
                    )
            self._found.put(checkpoints)
