"""``[metrics]``: the last tick for Prometheus, served or written, in threads of their own.

The loop hands over what it saw and waits for nobody: neither for a scrape nor for a disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import extras, registry
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import expanded, listening, runtime_dir
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.notify import credentials
from gpuwatchd.service import metrics_server, sockets
from gpuwatchd.store import private_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.config import MetricsSection
    from gpuwatchd.store.live import LiveState

log = logging.getLogger("gpuwatchd")

_RENDER: Final = {"metrics": "gpuwatchd.view.metrics:render"}
_SERVER: Final = sockets.Server("gpuwatchd", "[metrics] listen names another")
_PAGE: Final = "errors#metrics-listen"
_EVERY_S: Final = 15.0
"""Between two writes of the file, and two tries to listen."""
_CLOSE_S: Final = 1.0


class MetricsPublisher:
    """What one ``[metrics]`` section asks for, from :meth:`start` to :meth:`close`."""

    def __init__(self, section: MetricsSection) -> None:
        self._section = section
        self._seen: tuple[LiveState, dict[str, float]] | None = None
        self._sampled_at_s: dict[str, float] = {}
        self._page: tuple[LiveState | None, bytes] = (None, b"")
        self._rendering = threading.Lock()
        self._ended = threading.Event()
        self._listens = False
        self._thread: threading.Thread | None = None
        self.problems: tuple[tuple[str, ProblemCode], ...] = ()
        """Why it is not served or written now, one sentence each with its code."""

    def publish(self, state: LiveState) -> None:
        """Take over what a tick saw; begin at the first one."""
        for item in state.devices:
            if item.used_bytes is not None:
                self._sampled_at_s[item.device.uid] = state.taken_at_s
        self._seen = state, self._sampled_at_s.copy()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the last state and stop listening; a disk that hangs is not waited for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def page(self) -> bytes:
        """Return the page of the last tick, made once for all who ask."""
        with self._rendering:
            if self._seen is not None and self._page[0] is not self._seen[0]:
                state, sampled_at_s = self._seen
                render = registry.load(_RENDER, "metrics")
                compat = self._section.compat
                self._page = state, render(state, compat=compat, sampled_at_s=sampled_at_s)
            return self._page[1]

    def _work(self) -> None:
        wait_s = 0.0
        with contextlib.ExitStack() as opened:
            while not self._ended.wait(wait_s):
                wait_s = _EVERY_S
                self.problems = (
                    *self._try("listen", lambda: self._listen(opened)),
                    *self._try("file", self._write),
                )
            self._try("file", self._write)

    def _try(self, key: str, work: Callable[[], None]) -> list[tuple[str, ProblemCode]]:
        """Do what a key asks for; return why it cannot be done."""
        if not getattr(self._section, key):
            return []
        try:
            extras.need("metrics", "it", "prometheus_client", page="errors#metrics-extra")
            work()
        except GpuwatchdError as error:
            why = f"{error.message}; {error.hint}" if error.hint else error.message
        except Exception as error:
            # This thread goes on, and says why it cannot.
            log.debug("failed part=metrics", exc_info=True)
            why = str(error) or type(error).__name__
        else:
            return []
        return [(f"[metrics] {key}: {why}", ProblemCode(f"metrics-{key}"))]

    def _write(self) -> None:
        """Replace the file; node_exporter reads the old or the new one, never half of it."""
        path = expanded(self._section.file)
        page, fresh = self.page(), f"{path}.new"  # which does not end in .prom
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(fresh, flags, 0o644)
            with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor
                os.fchmod(handle, 0o644)
                file.write(page)
            os.replace(fresh, path)  # noqa: PTH105
        except OSError as error:
            hint = "gpuwatchctl doctor metrics"
            raise GpuwatchdError(f"{path}: {error.strerror}", hint=hint, page=_PAGE) from error

    def _listen(self, opened: contextlib.ExitStack) -> None:
        if self._listens:
            return
        section = self._section
        address = listening.parse(
            section.listen, remote=section.remote, socket=listening.METRICS_SOCKET
        )
        token = credentials.read("token", credential="metrics-token", file=section.token_file)
        if token is None and not address.loopback:
            why = f"{address.hosts[0]} can be reached from elsewhere, and there is no token"
            raise GpuwatchdError(why, hint="[metrics] token-file names one", page=_PAGE)
        self.page()  # loads what renders it, before anybody asks
        # Who may read the state may read the page.
        shared = private_files.file_mode(runtime_dir()) == private_files.SHARED_FILE
        server = _SERVER._replace(shared=shared)
        opened.enter_context(metrics_server.serving(address, self.page, server, token))
        self._listens = True
        log.info("metrics listen=%s", section.listen)
