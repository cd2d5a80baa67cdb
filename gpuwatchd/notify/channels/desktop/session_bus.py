"""The session bus: where it may be, who is on it, and what its failures mean."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.core import text
from gpuwatchd.core.errors import NotifyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "DBUS_SESSION_BUS_ADDRESS"
SERVER: Final = "org.freedesktop.Notifications"
LIBRARY_LOG: Final = "desktop_notifier"
NO_BUS: Final = "no session bus"
_BUS: Final = "org.freedesktop.DBus"
_ASK_S: Final = 2.0
_NO_BUS_HINT: Final = (
    "needs a graphical session; on a machine without one: gpuwatchctl notify add email"
)
_NEWEST: Final = 3
"""Sessions of dbus-launch that are tried; older ones are rarely alive."""


def addresses(environ: Mapping[str, str], home: Path | None = None) -> list[str]:
    """Return where the session bus may be, the likeliest first.

    The variable may be missing (cron, ssh, a service of an old systemd), or be that of a session
    that is long over. The user's own bus has its usual place; and where a desktop was started with
    dbus-launch, that has left a note at home.
    """
    found = [environ[VARIABLE]] if environ.get(VARIABLE) else []
    if sys.platform != "linux":
        return found
    path = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "bus"
    with contextlib.suppress(OSError):
        status = path.stat()
        if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid():
            found.append(f"unix:path={path}")
    with contextlib.suppress(OSError, RuntimeError):
        notes = ((home or Path.home()) / ".dbus/session-bus").iterdir()
        newest = sorted(notes, key=lambda note: -note.stat().st_mtime)[:_NEWEST]
        found += filter(None, map(_noted, newest))
    return list(dict.fromkeys(found))


def _noted(note: Path) -> str:
    """Return the address in a note of dbus-launch."""
    for line in note.read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name == VARIABLE:
            return value.strip("'\"")
    return ""


class _Variable:
    """The variable, which the library reads its address from, while several try addresses.

    It belongs to the whole process: threads that connect at the same time must not take what
    another one tries for what was there before, nor must a child that is started meanwhile find
    it missing that was there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._named: str | None = None

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        """Leave the variable as it was before the first, once the last is done."""
        with self._lock:
            if not self._users:
                self._named = os.environ.get(VARIABLE)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._named is None:
                    os.environ.pop(VARIABLE, None)
                elif not self._users and self._named is not None:
                    os.environ[VARIABLE] = self._named


variable: Final = _Variable()


async def ask(bus: Any, question: str, *words: str) -> Any:
    """Ask the bus itself; None when it does not answer as it should. Never raises."""
    if not getattr(bus, "connected", False):
        return None
    from dbus_fast import Message, MessageType  # noqa: PLC0415 - comes with the library

    call = Message(
        destination=_BUS,
        path="/org/freedesktop/DBus",
        interface=_BUS,
        member=question,
        signature="s" * len(words),
        body=list(words),
    )
    try:
        reply = await asyncio.wait_for(bus.call(call), _ASK_S)
    except Exception:
        # Whatever is wrong with the connection, there is no answer.
        logging.getLogger(__name__).debug("the bus does not answer", exc_info=True)
        return None
    answered = reply is not None and reply.message_type is MessageType.METHOD_RETURN
    return reply.body[0] if answered and reply.body else None


async def owner(bus: Any) -> str:
    """Return who the notification server is at this moment: a name that is never used twice."""
    return str(await ask(bus, "GetNameOwner", SERVER) or "")


async def identity(bus: Any) -> str:
    """Return the same, told apart from every server of any other session; "" when unknown."""
    who, where = await owner(bus), await ask(bus, "GetId")
    return f"{where} {who}" if who and where else ""


class _ComplaintListener(logging.Handler):
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
def complaints() -> Iterator[list[BaseException | str]]:
    """Collect what the library complains about meanwhile."""
    ear = _ComplaintListener()
    logger = logging.getLogger(LIBRARY_LOG)
    logger.addHandler(ear)
    try:
        yield ear.heard
    finally:
        logger.removeHandler(ear)


def failure(why: str, *, permanent: bool = False, hint: str = "") -> NotifyError:
    """Return the error for a pop-up that was not shown."""
    return NotifyError(why, permanent=permanent, hint=hint, page="errors#pop-up")


class NoBusError(NotifyError):
    """Nobody answers where a session bus may be."""

    def __init__(self) -> None:
        super().__init__(NO_BUS, hint=_NO_BUS_HINT, page="errors#pop-up")


def explain(cause: BaseException | str | None) -> NotifyError:
    """Return a failure in our words: what is missing, and how to get it. Always transient."""
    if cause is None:
        return failure("the notification was not dispatched")
    if isinstance(cause, str):
        return failure(text.clean(cause))
    kind = str(getattr(cause, "type", "")).rpartition(".")[2]
    if kind in {"ServiceUnknown", "NameHasNoOwner"} or "Spawn" in str(getattr(cause, "type", "")):
        return failure(
            "no notification server on the session bus",
            hint="start one, for example dunst or mako, or log in to a desktop",
        )
    if type(cause).__name__ in {"InvalidAddressError", "AuthError"} or isinstance(
        # Without an address the library asks for HOME, to look where a desktop left a note.
        cause,
        (FileNotFoundError, ConnectionError, PermissionError, EOFError, KeyError),
    ):
        return NoBusError()
    value = text.clean(str(cause), limit=160) or type(cause).__name__
    return failure(f"the pop-up failed: {value}")
