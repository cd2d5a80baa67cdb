"""Questions to the verbs, asked in a few threads: what is slow keeps nothing else waiting."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS: Final = 4
MOST_WAITING: Final = 32
LONGEST_S: Final = 30.0
Answer = TypeVar("Answer")


class Busy(Exception):
    """More was asked at once than will be answered."""


class Workers:
    """A few threads, and one more for what writes.

    Writing is done one after the other: root writes as the owner of the history, and these rights
    are the whole program's.
    """

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="web-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="web-write")
        self._asked = 0

    async def do(self, work: Callable[[], Answer], *, writes: bool = False) -> Answer:
        """Return what the work returns.

        Raises
        ------
        Busy
            When too much waits already, or it takes too long; it is then done all the same.
        """
        if self._asked >= THREADS + MOST_WAITING:
            raise Busy
        self._asked += 1
        pool = self._writer if writes else self._readers
        future = asyncio.get_running_loop().run_in_executor(pool, work)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), LONGEST_S)
        except TimeoutError:
            raise Busy from None

    def _done(self, future: asyncio.Future[Answer]) -> None:
        self._asked -= 1
        if not future.cancelled():
            future.exception()  # whoever waited has it; who gave up must not be told again

    def close(self) -> None:
        """Begin nothing any more."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)
