"""Is there a desktop session for the pop-ups, and why not."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from gpuwatchd.cli import ruleset
from gpuwatchd.cli.doctor.answer import Check, ok, warning
from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.cli.doctor.answer import Around

_NAME = "session"
_CONNECT_S = 1.0
_ELSE = 'or, on a machine without a desktop: [policy] channels = ["email"]'


def check(around: Around) -> Iterator[Check]:
    """Yield where the session bus is; nothing where no pop-up is wanted."""
    if "desktop" not in ruleset.used_channels(around.settings) or os.uname().sysname != "Linux":
        return
    from gpuwatchd.notify.channels.desktop import session_bus  # noqa: PLC0415

    names = session_bus.addresses(around.environ)
    alive = [value for value in names if answers(value)]
    if alive:
        yield ok(_NAME, f"the session bus is at {text.clean(alive[0])}")
        return
    foreign = _why_foreign(around.environ)
    if foreign is not None:
        yield warning("session-foreign", _NAME, *foreign)
    elif names:
        yield warning(
            "session-dead", _NAME,
            f"nobody answers at the session bus {text.clean(names[0])}: that session is over",
            "unset DBUS_SESSION_BUS_ADDRESS and log in again",
        )  # fmt: skip
    else:
        yield warning(
            "session-none", _NAME,
            "DBUS_SESSION_BUS_ADDRESS is not set and there is no bus in /run/user: no desktop "
            "session is seen from here",
            f"log in to a desktop, or install dbus-user-session; {_ELSE}",
        )  # fmt: skip


def _why_foreign(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return words and hint where this shell is not the one of a desktop session."""
    if environ.get("SUDO_USER") and os.geteuid() == 0:
        name = text.clean(environ["SUDO_USER"])
        words = f"sudo: root has no desktop session; that of {name} belongs to {name}"
        return words, f"run it as {name}: gpuwatchctl doctor"
    home = environ.get("XDG_RUNTIME_DIR", "")
    if home.startswith("/run/user/") and home != f"/run/user/{os.getuid()}":
        words = f"su: XDG_RUNTIME_DIR={text.clean(home)} is another user's"
        return words, "log in as this user itself (su -l, ssh or machinectl shell)"
    if environ.get("SSH_CONNECTION"):
        words = "ssh: this login has no desktop session, and nobody is logged in to a desktop"
        return words, f"have the daemon run in the session of a desktop, {_ELSE}"
    return None


def answers(address: str) -> bool:
    """Say whether somebody listens at a D-Bus address; of several the first that does counts.

    Examples
    --------
    >>> answers("unix:path=/nowhere")
    False
    """
    for value in address.split(";"):
        kind, _, rest = value.partition(":")
        values = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        if kind != "unix":
            return bool(kind)  # tcp, launchd, autolaunch: only the library can tell
        path = values.get("path") or (f"\0{values['abstract']}" if "abstract" in values else "")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            tried.settimeout(_CONNECT_S)
            try:
                tried.connect(path)
            except (OSError, ValueError):
                continue
            return True
    return False
