"""The pop-up channel: desktop-notifier, with what it leaves open closed.

The library never raises: without a bus or a server it logs a warning and returns an id as if all
were well, and after the death of the bus it fails for ever. So here a pop-up counts as delivered
only when the library has reported it dispatched and has logged nothing; after any failure the
library object is thrown away, built anew, and the send repeated once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatchd import text
from gpuwatchd.errors import NotifyError
from gpuwatchd.model import Availability
from gpuwatchd.notify import render
from gpuwatchd.notify.loop import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from desktop_notifier import DesktopNotifier as Library

    from gpuwatchd.model import ButtonName, Message

log = logging.getLogger(__name__)

REBUILD_AFTER = 200
"""Sends per library object: it remembers every notification that it ever showed."""
_CLEAR_S = 2.0
_LEAVE_S = 1.0
_MAX_LOST = 2
_ICONS = {"info": "dialog-information", "warning": "dialog-warning", "critical": "dialog-error"}
_LIBRARY_LOG = "desktop_notifier"
_NO_BUS_HINT = "needs a graphical session; on a machine without one use [notify.email]"


class DesktopNotifier:
    """Show one pop-up per message; a later one of the same incident replaces the earlier.

    Parameters
    ----------
    timeout
        Seconds for a whole delivery, its one repetition included.
    buttons
        Whether the buttons of a message are shown where the server has them.
    terminal
        For whoever answers the button "Show"; not used here.

    Attributes
    ----------
    pressed
        Called in the thread of the bus when a button is pressed.

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
        self.pressed: Callable[[ButtonName, Message], None] | None = None
        self._buttons = buttons
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._lost: list[LoopThread] = []
        self._link: _Link | None = None

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
            raise NotifyError("another pop-up is still being sent", permanent=False)
        try:
            return self._loop_now().call(work, self.timeout_s)
        except TimeoutError:
            self._leave()
            raise NotifyError(
                f"the notification server did not answer within {self.timeout_s:g} s",
                permanent=False,
                hint="restart the notification server",
            ) from None
        finally:
            self._lock.release()

    def _loop_now(self) -> LoopThread:
        if self._loop is None:
            self._lost = [loop for loop in self._lost if loop.is_alive()]
            if len(self._lost) >= _MAX_LOST:
                raise NotifyError("the session bus hangs", permanent=False)
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
        link = _Link()
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
            if self._link is not None and self._link.sends >= REBUILD_AFTER:
                await self._drop()
            if self._link is None:
                self._link = _Link()
                await self._link.open()
            return await self._link.show(message)
        except NotifyError:
            await self._drop()
            raise

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class _Link:
    """One object of the library, and what is known about the server behind it."""

    def __init__(self) -> None:
        self.sends = 0
        self.server = "the desktop"
        self._markup = sys.platform == "linux"
        self._shown: dict[str, str] = {}
        self._library: Library | None = None

    async def open(self) -> None:
        """Connect and see whether anybody is there.

        Raises
        ------
        NotifyError
            In the words of :func:`_explain`; permanent for the library's dummy.
        """
        _find_bus()
        try:
            self._library = _build()
            capabilities = await self._library.get_capabilities()
        except ImportError:
            raise NotifyError(
                "the desktop-notifier library is missing",
                permanent=True,
                hint="pip install desktop-notifier",
            ) from None
        except Exception as error:
            raise _explain(error) from error
        if not capabilities:
            # The library's dummy backend: it would report success and show nothing.
            raise NotifyError(
                "pop-ups are not available here",
                permanent=True,
                hint="on macOS they need a signed app bundle; use [notify.email] or a command",
            )
        await self._ask_server()

    async def _ask_server(self) -> None:
        """Learn the server's name and whether it reads markup; both are optional."""
        interface = getattr(getattr(self._library, "_backend", None), "interface", None)
        information = getattr(interface, "call_get_server_information", None)
        capabilities = getattr(interface, "call_get_capabilities", None)
        with contextlib.suppress(Exception):
            if information is not None and capabilities is not None:
                name, _, version, *_ = await information()
                number = str(version).split(" ", 1)[0]
                self.server = text.clean(f"{name} {number}", limit=80).strip() or self.server
                self._markup = "body-markup" in await capabilities()

    async def show(self, message: Message) -> str:
        """Show the message, then remove the earlier one of its incident.

        Raises
        ------
        NotifyError
            Transient, when the library has not dispatched it or has complained.
        """
        from desktop_notifier import Icon, Notification, Urgency  # noqa: PLC0415 (55 ms)

        library = self._library
        if library is None:
            raise NotifyError("not connected", permanent=False)
        urgencies = {
            "info": Urgency.Low,
            "warning": Urgency.Normal,
            "critical": Urgency.Critical,
        }
        # Good news must not stay on the screen until it is clicked away.
        urgent = "warning" if message.notice == "resolved" else message.severity
        icon = "info" if message.notice == "resolved" else message.severity
        incident = message.thread or message.id
        dispatched = threading.Event()
        notification = Notification(
            title=render.subject(message),
            message=render.popup(message, markup=self._markup),
            urgency=urgencies[urgent],
            icon=Icon(name=_ICONS[icon]),
            thread=incident,
            on_dispatched=dispatched.set,
        )
        self.sends += 1
        with _complaints() as heard:
            identifier = await library.send_notification(notification)
            current = await library.get_current_notifications()
        if heard or not (dispatched.is_set() or identifier in current):
            raise _explain(heard[0] if heard else None)
        await self._remove(self._shown.get(incident))
        self._shown[incident] = identifier
        return f"accepted by {self.server}"

    async def _remove(self, identifier: str | None) -> None:
        if identifier is None or self._library is None:
            return
        # Gone already is as good; the new one is on the screen in any case.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._library.clear(identifier), _CLEAR_S)

    async def close(self) -> str:
        """Disconnect; never raises."""
        library, self._library = self._library, None
        bus = getattr(getattr(library, "_backend", None), "bus", None)
        if bus is not None:
            with contextlib.suppress(Exception):
                bus.disconnect()
                await asyncio.wait_for(bus.wait_for_disconnect(), _CLEAR_S)
        return ""


class _Ear(logging.Handler):
    """Hears what the library complains about in this thread, instead of raising it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[BaseException | str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            error = record.exc_info[1] if record.exc_info else None
            self.heard.append(error if error is not None else record.getMessage())


@contextlib.contextmanager
def _complaints() -> Iterator[list[BaseException | str]]:
    ear = _Ear()
    logger = logging.getLogger(_LIBRARY_LOG)
    logger.addHandler(ear)
    try:
        yield ear.heard
    finally:
        logger.removeHandler(ear)


def _build() -> Library:
    """Return a new library object, its log kept out of ours: it prints tracebacks."""
    from desktop_notifier import DesktopNotifier as Library  # noqa: PLC0415 (55 ms)

    for name in (_LIBRARY_LOG, "dbus_fast"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    return Library(app_name="gpuwatchd", app_icon=None)


def _explain(cause: BaseException | str | None) -> NotifyError:
    """Return a failure in our words: what is missing, and how to get it. Always transient."""
    if cause is None:
        return NotifyError("the notification was not dispatched", permanent=False)
    if isinstance(cause, str):
        return NotifyError(text.clean(cause), permanent=False)
    kind = str(getattr(cause, "type", "")).rpartition(".")[2]
    if kind in {"ServiceUnknown", "NameHasNoOwner"} or "Spawn" in str(getattr(cause, "type", "")):
        return NotifyError(
            "no notification server on the session bus",
            permanent=False,
            hint="start one, for example dunst or mako, or log in to a desktop",
        )
    if type(cause).__name__ in {"InvalidAddressError", "AuthError"} or isinstance(
        cause, (FileNotFoundError, ConnectionError, PermissionError, EOFError)
    ):
        return NotifyError("no session bus", permanent=False, hint=_NO_BUS_HINT)
    said = text.clean(str(cause), limit=160) or type(cause).__name__
    return NotifyError(f"the pop-up failed: {said}", permanent=False)


def _find_bus() -> None:
    """Use the session bus's usual place where no variable names it, as other programs do.

    A shell of cron, ssh or su has no ``DBUS_SESSION_BUS_ADDRESS`` although the bus is there.
    """
    if sys.platform != "linux" or os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "bus"
    with contextlib.suppress(OSError):
        status = path.stat()
        if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid():
            os.environ["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={path}"
