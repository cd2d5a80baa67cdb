"""The pop-up channel: a notification on the session bus, or through macOS.

By desktop-notifier, with what it leaves open closed.

The library never raises: without a bus or a server it logs a warning and returns an id as if all
were well, and after the death of the bus it fails for ever. So here a pop-up counts as delivered
only when the library has reported it dispatched and has logged nothing; after any failure the
library object is thrown away, built anew, and the send repeated once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuwatchd.core import config, text
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability
from gpuwatchd.notify.channels.desktop import session_bus
from gpuwatchd.notify.channels.desktop.connection import Link, Shown, title

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from desktop_notifier import DesktopNotifier as Library
    from desktop_notifier import Notification

    from gpuwatchd.core.model import Button, ButtonName, Message

log = logging.getLogger(__name__)

_CLEAR_S = 2.0
_LEAVE_S = 1.0
_MAX_LOST = 2
_ICONS = {"info": "dialog-information", "warning": "dialog-warning", "critical": "dialog-error"}
_BUTTONS: frozenset[ButtonName] = frozenset({"snooze", "show", "checkpoint", "act"})


class DesktopNotifier:
    """Show one pop-up per message; a later one of the same incident replaces the earlier.

    Notes
    -----
    Everything that touches the bus runs in a thread of its own with its own event loop, started
    at the first use. Some servers (GNOME Shell) remove a program's pop-ups when it disconnects,
    so the connection is kept between messages.
    """

    name = "desktop"

    def __init__(
        self,
        timeout: float = 20.0,
        *,
        buttons: bool = True,
        terminal: Sequence[str] = (),  # noqa: ARG002 (the whole section is this call)
    ) -> None:
        self.timeout_s = float(timeout)
        self._pressed: Callable[[ButtonName, Message], None] | None = None
        self._buttons = buttons
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._lost: list[LoopThread] = []
        self._link: Link | None = None
        self._shown = Shown(None)

    @property
    def on_action(self) -> Callable[[ButtonName, Message], None] | None:
        """Who is told, in the thread of the bus, that a button was pressed."""
        return self._pressed

    @on_action.setter
    def on_action(self, hearer: Callable[[ButtonName, Message], None] | None) -> None:
        # Only who hears of buttons has pop-ups that are worth knowing again. Those that an earlier
        # run left on the screen have buttons, too, where the server tells everybody of a press.
        path = config.runtime_dir() / "popups.json"
        self._pressed, self._shown = hearer, Shown(path if hearer is not None else None)
        if hearer is not None and path.exists():
            threading.Thread(target=self._listen, name="desktop start", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(NotifyError):
            self._run(self._hear)

    async def _connect(self) -> Link:
        if self._link is None:
            link = Link(_Library(), self._shown, self._press)
            await link.open()
            self._link = link
        return self._link

    async def _hear(self) -> str:
        return (await self._connect()).server

    def probe(self) -> Availability:
        """Ask the notification server for its capabilities, over a connection of its own."""
        try:
            server = self._run(self._ask)
        except NotifyError as error:
            return Availability(ok=False, reason=error.message, hint=error.hint)
        return Availability(ok=True, reason=server)

    def send(self, message: Message) -> str:
        """Show the message and return which server accepted it.

        Raises
        ------
        NotifyError
            Transient without a bus or a server, since both may come back; permanent where this
            system has no way to show anything.
        """
        return self._run(lambda: self._deliver(message))

    def close(self) -> None:
        """Disconnect and end the thread. May be called twice; a later send starts anew."""
        with self._lock:
            loop, self._loop = self._loop, None
            link, self._link = self._link, None
            if loop is None:
                return
            if link is not None:
                with contextlib.suppress(Exception):
                    loop.call(link.close, _CLEAR_S)
            loop.stop()

    def _run(self, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Run in the loop's thread, for at most the timeout whatever happens there."""
        if not self._lock.acquire(timeout=self.timeout_s):
            raise session_bus.failure("another pop-up is still being sent")
        try:
            return self._loop_now().call(work, self.timeout_s)
        except TimeoutError:
            self._leave()
            raise session_bus.failure(
                f"the notification server did not answer within {self.timeout_s:g} s",
                hint="restart the notification server",
            ) from None
        finally:
            self._lock.release()

    def _loop_now(self) -> LoopThread:
        if self._loop is None:
            self._lost = [loop for loop in self._lost if loop.is_alive()]
            if len(self._lost) >= _MAX_LOST:
                raise session_bus.failure("the session bus hangs")
            self._loop = LoopThread()
        return self._loop

    def _leave(self) -> None:
        """Leave the loop behind: it may be stuck in a call that cannot be interrupted."""
        self._link = None
        if self._loop is not None:
            self._loop.stop(wait_s=_LEAVE_S)
            self._lost.append(self._loop)
            self._loop = None

    async def _ask(self) -> str:
        link = Link(_Library())
        try:
            await link.open()
            return link.server
        finally:
            await link.close()

    async def _deliver(self, message: Message) -> str:
        try:
            return await self._attempt(message)
        except NotifyError as error:
            if error.permanent:
                raise
            log.debug("pop-up: %s; once more over a new connection", error.message)
        return await self._attempt(message)

    async def _attempt(self, message: Message) -> str:
        try:
            if self._link is not None and (self._link.worn or not await self._link.same()):
                await self._drop()
            link = await self._connect()
            return await link.show(message, buttons=self._buttons, within_s=self.timeout_s / 2)
        except NotifyError:
            await self._drop()
            raise

    def _press(self, name: str, message: Message) -> None:
        known = next((button for button in _BUTTONS if button == name), None)
        if known is not None and self._pressed is not None:
            self._pressed(known, message)

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class _Library:
    """What is wanted of the library; the one place that names it."""

    @staticmethod
    def build() -> Library:
        """Return a new object, its log kept out of ours: it prints tracebacks."""
        from desktop_notifier import DesktopNotifier as Library  # noqa: PLC0415 (55 ms)

        for name in (session_bus.LIBRARY_LOG, "dbus_fast"):
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.setLevel(logging.WARNING)
            if not logger.handlers:
                logger.addHandler(logging.NullHandler())
        return Library(app_name="gpuwatchd", app_icon=None)

    @staticmethod
    def notification(
        message: Message,
        *,
        body: str,
        buttons: Sequence[Button],
        pressed: Callable[[str], None] | None,
        dispatched: Callable[[], None],
    ) -> Notification:
        """Return a message as the library wants it."""
        from desktop_notifier import Button, Icon, Notification, Urgency  # noqa: PLC0415 (55 ms)

        urgencies = {"info": Urgency.Low, "warning": Urgency.Normal, "critical": Urgency.Critical}
        # Good news must not stay on the screen until it is clicked away; what somebody has just
        # asked for (a test, an answer) must be seen, and some desktops hide what is of low urgency.
        # What ran out of memory is over and critical: that is no good news.
        good = message.notice == "resolved" and message.severity == "info"
        urgent = "warning" if good or message.notice == "test" else message.severity
        icon = "info" if message.notice == "test" else message.severity
        return Notification(
            title=title(message),
            message=body,
            urgency=urgencies[urgent],
            icon=Icon(name=_ICONS[icon]),
            buttons=tuple(
                Button(
                    title=text.clean(button.label, limit=40),
                    identifier=button.name,
                    on_pressed=partial(pressed, button.name) if pressed is not None else None,
                )
                for button in buttons
            ),
            on_clicked=partial(pressed, "show") if pressed is not None else None,
            thread=message.thread or message.id,
            on_dispatched=dispatched,
        )


# An event loop in a thread of its own, for a library that wants one and may hang.

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
