"""An event loop in a thread of its own, for a library that wants one and may hang."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

_GRACE_S = 1.0


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_note)
        self._thread = threading.Thread(target=self._live, name="desktop", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Say whether the thread has not ended."""
        return self._thread.is_alive()

    def call(self, work: Callable[[], Coroutine[Any, Any, str]], timeout_s: float) -> str:
        """Run a coroutine in the loop and return its result.

        Raises
        ------
        TimeoutError
            When it, or the loop itself, has not answered in time.
        """

        async def bounded() -> str:
            return await asyncio.wait_for(work(), timeout_s)

        future = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        try:
            return future.result(timeout_s + _GRACE_S)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self, wait_s: float = 2.0) -> None:
        """End the loop; one that is stuck is left to end when it comes back."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_s)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep the loop's own complaints (a bus that died under a reader) out of the log."""
    log.debug("event loop: %s", context.get("message"))
