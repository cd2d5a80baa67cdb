"""Which pop-up is which incident's: what a server must be told so that it replaces, not adds.

The number of a pop-up means something to the server that gave it alone, as long as that lives. So
what is kept names the server by the bus and its connection, neither of which is ever used twice:
over a restart of ours the next notice still takes the place of the one on the screen, and a server
that was started anew is never told the number of somebody else's pop-up.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core import typed
from gpuwatchd.core.model import Message, Value

if TYPE_CHECKING:
    from pathlib import Path

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

    Parameters
    ----------
    path
        File in which they outlive us; None, or a directory that is not there, keeps nothing.
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
            return typed.decode(self._path.read_bytes(), _Kept)
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
