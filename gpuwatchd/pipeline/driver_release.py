"""Letting go of the GPUs when the user asks: from the request's file to the sources."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.core.errors import StoreError
from gpuwatchd.store import driver_release

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from gpuwatchd.pipeline.source_workers import SourceWorker

log = logging.getLogger("gpuwatchd")


class DriverRelease:
    """Looks for a request at every tick and passes it on.

    Parameters
    ----------
    directory
        The runtime directory.
    workers
        Whose sources let go.
    monotonic
        Monotonic clock, seconds: a clock that is set back makes no request longer.
    """

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
        self._monotonic = monotonic

    def update(self, now_s: float) -> bool:
        """Take over what has changed; return whether a tick should follow at once.

        Parameters
        ----------
        now_s
            Epoch seconds.
        """
        stamp = driver_release.stamp(self._directory)
        if stamp == self._stamp:
            return self._is_over(now_s) and self._end()
        self._stamp = stamp
        try:
            request = driver_release.read(self._directory, now_s)
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
            driver_release.end(self._directory)
        self._stamp = driver_release.stamp(self._directory)
        for worker in self._workers:
            worker.release_driver(0.0)
        log.info("release has ended")
        return True
