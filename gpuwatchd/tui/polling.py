"""The state, looked at once per interval in a thread of its own, so that no key ever waits."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import TYPE_CHECKING

from textual.message import Message

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import live
from gpuwatchd.view.queries import current_state as look
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.store.live import LiveProcess
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

UNCHANGED_S = 2.0
"""How long the same state file is believed without asking whether its daemon still lives."""
DIRECT_S = 5.0
"""At least between two looks where no daemon writes: they open the history, or the driver."""
LOOK_SHARE = 0.02
"""Of a core: a look that gives what is known already takes no more than this."""
FAILED = "look-failed"
"""Code of the warning that nothing new is known."""
_Mark = tuple[int, int, int] | None


class ViewRead(Message):
    """A new view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view


class Failed(Message):
    """A look that gave nothing; the last view stays."""

    def __init__(self, error: GpuwatchdError) -> None:
        super().__init__()
        self.error = error


class Feed:
    """Looks again and again until it is stopped; ``post`` is called in its thread."""

    def __init__(self, query: Query, post: Callable[[Message], object], *, every_s: float) -> None:
        self._query = query
        self._post = post
        self._every_s = every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._mark: _Mark = None
        self._looked_mono_s = 0.0
        self._direct = False
        self._took_s = 0.0
        self._known: dict[bytes, LiveProcess] = {}

    def start(self, first: View | None = None) -> None:
        """Begin; ``first`` is what has been seen already."""
        if first is not None:
            self._direct = first.source != "state-file"
            self._looked_mono_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a look that takes long is not waited for."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=0.5)
        gc.unfreeze()

    def _run(self) -> None:
        frozen = False
        while not self._over.wait(self._every_s):
            if not frozen:
                # What was loaded and laid out by now stays: going through it for garbage again and
                # again took a quarter of a refresh.
                gc.collect()
                gc.freeze()
                frozen = True
            message = self.read()
            if message is not None and not self._over.is_set():
                self._post(message)

    def read(self) -> Message | None:
        """Return what is new; None where nothing is."""
        mark, now_s = _mark(), time.monotonic()
        pause_s = max(DIRECT_S if self._direct else UNCHANGED_S, self._took_s / LOOK_SHARE)
        if mark == self._mark and now_s - self._looked_mono_s < pause_s:
            return None
        self._mark, self._looked_mono_s = mark, now_s
        begun_s = time.thread_time()
        message = self._read()
        self._took_s = time.thread_time() - begun_s
        return message

    def _read(self) -> Message:
        try:
            view = look.load_view(self._query, known=self._known)
        except GpuwatchdError as error:
            return Failed(error)
        except Exception as error:  # noqa: BLE001 - said on the screen, which goes on
            text = f"internal error: {type(error).__name__}: {error}"
            return Failed(GpuwatchdError(text, page="errors#internal"))
        self._direct = view.source != "state-file"
        return ViewRead(view)


def _mark() -> _Mark:
    """Return what changes whenever the live state is written; None where there is none."""
    try:
        stat_result = os.stat(state_location.runtime_dir() / live.FILE_NAME)  # noqa: PTH116 - once a second
    except OSError:
        return None
    return stat_result.st_mtime_ns, stat_result.st_ino, stat_result.st_size
