"""One connection to the desktop, by the library and past it where it leaves something open.

The library never replaces a pop-up, does not hear of buttons on those of an earlier run, and knows
the server's abilities from its first question for ever. All three are mended here, on a session
bus; elsewhere it is used as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.core import decoding, text
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message, Value
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.channels.desktop import session_bus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from gpuwatchd.core.model import Button

    Hearer = Callable[[str, Message], None]

REBUILD_AFTER = 200
"""Sends per library object: it remembers every notification that is not known to be closed."""
_CLEAR_S = 2.0


class Link:
    """One object of the library, and what is known about the server behind it.

    Parameters
    ----------
    library
        Makes the object (``build``), and the library's own form of a message (``notification``).
    shown
        Which pop-up is which incident's.
    pressed
        Told of a button, by its name, and of the message that it was on.
    """

    def __init__(
        self, library: Any, shown: Shown | None = None, pressed: Hearer | None = None
    ) -> None:
        self._maker = library
        self.sends = 0
        self.server = "the desktop"
        self._markup = sys.platform == "linux"
        self._has_buttons = False
        self._shown = shown if shown is not None else Shown(None)
        self._pressed = pressed
        self._library: Any = None
        self._by_script = False
        self._identifiers: dict[str, str] = {}
        self._owner = ""
        self._notify: Callable[..., Awaitable[int]] | None = None
        self._replaces = 0
        self._number = 0

    async def open(self) -> None:
        """Connect, at the first place where somebody answers.

        Raises
        ------
        NotifyError
            In the words of :func:`gpuwatchd.notify.channels.desktop.session_bus.explain`; permanent
            where this system has no way to show anything.
        """
        failure: NotifyError | None = None
        # Where it is now need not be where it is next time.
        with session_bus.variable.tried():
            for address in session_bus.addresses(os.environ) or [""]:
                if address:
                    # The library looks nowhere else.
                    os.environ[session_bus.VARIABLE] = address
                try:
                    await self._open()
                except NotifyError as error:
                    await self.close()
                    if error.permanent:
                        raise
                    # That nobody answers on a bus says more than that there is none elsewhere.
                    if failure is None or isinstance(failure, session_bus.NoBusError):
                        failure = error
                else:
                    return
        raise failure or session_bus.explain(None)

    async def _open(self) -> None:
        try:
            self._library = self._maker.build()
            capabilities = await self._library.get_capabilities()
        except ImportError:
            if sys.platform == "darwin":
                self._by_script = True
                return
            raise session_bus.failure(
                "the desktop-notifier library is missing",
                permanent=True,
                hint="pip install desktop-notifier",
            ) from None
        except Exception as error:
            raise session_bus.explain(error) from error
        if not capabilities:
            # The library's dummy backend: it would report success and show nothing.
            if sys.platform != "darwin":
                raise session_bus.failure(
                    "pop-ups are not available here",
                    permanent=True,
                    hint="use [notify.email] or a command",
                )
            self.server, self._by_script = "macOS", True
            return
        self._has_buttons = any(
            getattr(capability, "name", "") == "BUTTONS" for capability in capabilities
        )
        await self._ask_server()

    @property
    def worn(self) -> bool:
        """Whether the library remembers so many pop-ups that it must be made anew.

        As rarely as can be: some desktops take down all that was shown over the old connection.
        """
        kept = self._remembered
        return self.sends >= REBUILD_AFTER and (kept is None or len(kept) > MOST)

    @property
    def _remembered(self) -> dict[str, Any] | None:
        cache = self._part("_notification_cache")
        return cache if isinstance(cache, dict) else None

    def _part(self, name: str) -> Any:
        return getattr(getattr(self._library, "_backend", None), name, None)

    async def _ask_server(self) -> None:
        """Learn the server's name and whether it reads markup; take part in how it is called."""
        interface, bus = self._part("interface"), self._part("bus")
        information = getattr(interface, "call_get_server_information", None)
        capabilities = getattr(interface, "call_get_capabilities", None)
        with contextlib.suppress(Exception):
            if information is not None and capabilities is not None:
                name, _, version, *_ = await information()
                number = str(version).split(" ", 1)[0]
                self.server = text.clean(f"{name} {number}", limit=80).strip() or self.server
                self._markup = "body-markup" in await capabilities()
        self._owner = await session_bus.owner(bus)
        self._shown.serve(await session_bus.identity(bus))
        self._notify = getattr(interface, "call_notify", None)
        if self._notify is None:
            return
        # The library always asks for a pop-up more, and does not tell which one it got.
        interface.call_notify = self._call_notify
        for signal, hear in (
            ("on_action_invoked", self._on_action),
            ("on_notification_closed", lambda number, _: self._shown.closed(number)),
        ):
            if hasattr(interface, signal):
                getattr(interface, signal)(hear)

    async def _call_notify(self, application: str, _: int, *rest: Any) -> int:
        if self._notify is None:
            raise session_bus.failure("not connected")
        self._number = await self._notify(application, self._replaces, *rest)
        return self._number

    def _on_action(self, number: int, key: str) -> None:
        message = self._shown.message(number)
        if message is None or self._pressed is None:
            return
        # Any program on the bus may own the server's name: what it did not get cannot be pressed.
        name = "show" if key == "default" else key
        if name == "show" or any(button.name == name for button in message.buttons):
            self._pressed(name, message)

    async def same(self) -> bool:
        """Say whether the server is still the one that was asked what it can do."""
        return not self._owner or await session_bus.owner(self._part("bus")) == self._owner

    async def show(self, message: Message, *, buttons: bool, within_s: float) -> str:
        """Show the message, in the place of the earlier one of its incident.

        Raises
        ------
        NotifyError
            Transient, when the library has not dispatched it or has complained.
        """
        wanted = message.buttons if buttons and message.notice != "test" else ()
        body = plain_text.popup(message, markup=self._markup)
        if self._by_script:
            plain = plain_text.popup(message, markup=False)
            return show(title(message), _typed(plain, wanted), within_s)
        if wanted and not self._has_buttons:
            body = _typed(body, wanted, markup=self._markup)
            wanted = ()
        library = self._library
        if library is None:
            raise session_bus.failure("not connected")
        incident = self._shown.incident(message)
        dispatched = threading.Event()
        hearer = self._pressed if self._notify is None else None  # on a bus we hear it ourselves
        notification = self._maker.notification(
            message,
            body=body,
            buttons=wanted,
            pressed=None if hearer is None else lambda name: hearer(name, message),
            dispatched=dispatched.set,
        )
        self.sends += 1
        earlier = self._replaces = self._shown.number(incident)
        self._number = 0
        with session_bus.complaints() as heard:
            identifier = await library.send_notification(notification)
            current = await library.get_current_notifications()
        if heard or not (dispatched.is_set() or identifier in current):
            raise session_bus.explain(heard[0] if heard else None)
        last, self._identifiers[incident] = self._identifiers.get(incident), identifier
        if self._notify is None:
            await self._remove(last)
        else:
            self._forget(last)
            self._shown.put(incident, self._number, message)
            if earlier and earlier != self._number:
                await self._take_down(earlier)
        return f"accepted by {self.server}"

    def _forget(self, identifier: str | None) -> None:
        """Let the library forget one that was replaced: it would remember it for ever."""
        kept = self._remembered
        if identifier is not None and kept is not None:
            kept.pop(identifier, None)
        while len(self._identifiers) > MOST:
            del self._identifiers[next(iter(self._identifiers))]

    async def _take_down(self, number: int) -> None:
        """Close one that the server has not replaced, as it was asked to."""
        with contextlib.suppress(Exception):
            interface = self._part("interface")
            await asyncio.wait_for(interface.call_close_notification(number), _CLEAR_S)

    async def _remove(self, identifier: str | None) -> None:
        if identifier is None or self._library is None:
            return
        # Gone already is as good; the new one is on the screen in any case.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._library.clear(identifier), _CLEAR_S)

    async def close(self) -> str:
        """Disconnect; never raises."""
        connection, self._library, self._notify = self._part("bus"), None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()
                await asyncio.wait_for(connection.wait_for_disconnect(), _CLEAR_S)
        return ""


def title(message: Message) -> str:
    """Return the title of a pop-up, which has room for some 40 characters.

    How bad it is tells its picture.
    """
    subject = plain_text.subject(message)
    for lead, instead in (("CRITICAL: ", ""), ("Now CRITICAL: ", "Now: ")):
        if subject.startswith(lead):
            return instead + subject.removeprefix(lead)
    return subject


def _typed(body: str, buttons: Sequence[Button], *, markup: bool = False) -> str:
    """Return a text with what to type instead of pressing; what "Show" does is there already."""
    lines = [f"{button.label}: {button.command}" for button in buttons if button.name != "show"]
    safe = [text.clean(line) for line in lines]
    return "\n".join([body, *map(text.for_pango, safe)] if markup else [body, *safe])


# Notices on macOS without an app bundle: by the script interpreter that every Mac has.
# The pop-up library can do nothing there, and says that it could. Text is handed over as
# arguments of the script, never as a part of it, so no name of a process can become a command.
# Such a notice has no buttons and cannot be taken back; what is typed instead is in its text.
# Not verified on hardware: the one call is :func:`_call`.

PROGRAM: Final = "/usr/bin/osascript"
_SCRIPT: Final = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)
_HINT: Final = "use [notify.email] or a command"


def argv(title: str, body: str) -> list[str]:
    """Return the whole call.

    Examples
    --------
    >>> argv("-e", "b")[-2:]
    [' -e', 'b']
    """
    script = [word for line in _SCRIPT for word in ("-e", line)]
    # What begins with a dash would be taken for an option.
    return [PROGRAM, *script, *(f" {it}" if it.startswith("-") else it for it in (title, body))]


def show(title: str, body: str, timeout_s: float) -> str:
    """Show a notice; return what is known of it.

    Raises
    ------
    NotifyError
        Transient when it took too long, else permanent, so that another channel is used.
    """
    try:
        code, value = _call(argv(title, body), timeout_s)
    except subprocess.TimeoutExpired:
        raise session_bus.failure("osascript did not answer in time") from None
    except OSError as error:
        why = text.clean(error.strerror or "cannot be run")
        raise session_bus.failure(f"osascript: {why}", permanent=True, hint=_HINT) from error
    if code:
        why = text.clean(value, limit=160).strip() or f"exit code {code}"
        raise session_bus.failure(f"macOS refused the notice: {why}", permanent=True, hint=_HINT)
    return "accepted by macOS"


def _call(words: list[str], timeout_s: float) -> tuple[int, str]:
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stderr.decode("utf-8", "replace")


# Which pop-up is which incident's: what a server must be told so that it replaces, not adds.
# The number of a pop-up means something to the server that gave it alone, as long as that lives.
# So what is kept names the server by the bus and its connection, neither of which is ever used
# twice: over a restart of ours the next notice still takes the place of the one on the screen,
# and a server that was started anew is never told the number of somebody else's pop-up.

log = logging.getLogger(__name__)

MOST: Final = 64
"""Pop-ups that are remembered; the oldest goes first."""


class _Popup(Value, frozen=True, kw_only=True):
    number: int
    message: Message


def _keys(message: Message) -> set[str]:
    return {message.alert_key, *message.also}


class _Kept(Value, frozen=True, kw_only=True):
    server: str
    popups: dict[str, _Popup]


class Shown:
    """The pop-ups of one server that are, or were, on the screen.

    They outlive us in the file ``path``; without it, or where there is no such directory, they do
    not.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._server = ""
        self._popups: dict[str, _Popup] = {}

    def serve(self, server: str) -> None:
        """Forget what another server than this has shown; "" is a server that nobody knows."""
        if server and server == self._server:
            return
        self._server, self._popups = server, {}
        kept = self._read()
        if kept is not None and server and kept.server == server:
            self._popups = kept.popups

    def incident(self, message: Message) -> str:
        """Return in whose place a message comes: not of one that tells of other alerts, too."""
        thread = message.thread or message.id
        own = f"{thread} {message.alert_key}"
        for name in (own, thread):
            popup = self._popups.get(name)
            if popup is not None and _keys(popup.message) <= _keys(message):
                return name
        return own if thread in self._popups else thread

    def number(self, incident: str) -> int:
        """Return the number of an incident's pop-up; 0, which no server gives, without one."""
        popup = self._popups.get(incident)
        return 0 if popup is None else popup.number

    def message(self, number: int) -> Message | None:
        """Return what a pop-up is about, without its text."""
        messages = (popup.message for popup in self._popups.values() if popup.number == number)
        return next(messages, None)

    def put(self, incident: str, number: int, message: Message) -> None:
        """Note what is on the screen now."""
        self._popups = {k: v for k, v in self._popups.items() if v.number != number}
        self._popups.pop(incident, None)
        while len(self._popups) >= MOST:
            del self._popups[next(iter(self._popups))]
        slim = msgspec.structs.replace(message, body="", facts={}, finding=None, chart=None)
        self._popups[incident] = _Popup(number=number, message=slim)
        self._write()

    def closed(self, number: int) -> None:
        """Forget one that is not on the screen any more."""
        left = {k: v for k, v in self._popups.items() if v.number != number}
        if len(left) != len(self._popups):
            self._popups = left
            self._write()

    def _read(self) -> _Kept | None:
        if self._path is None:
            return None
        try:
            return decoding.decode(self._path.read_bytes(), _Kept)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self) -> None:
        if self._path is None or not self._server:
            return
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            data = msgspec.json.encode(_Kept(server=self._server, popups=self._popups))
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
            beside.touch(mode=0o600)
            beside.write_bytes(data)
            beside.replace(self._path)
        except (OSError, ValueError) as error:
            # Then a restart leaves one pop-up more on the screen.
            log.debug("pop-ups are not kept: %s", error)
