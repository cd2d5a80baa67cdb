"""Can the channels in use reach anybody: their own probes, asked side by side."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.cli import rules_text
from gpuwatchd.cli.doctor.checks import Check, PendingCheck, ok, warning
from gpuwatchd.core import text
from gpuwatchd.core.errors import NotifyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.cli.doctor.checks import CheckContext
    from gpuwatchd.core.ports import Notifier


def check(around: CheckContext) -> Iterator[Check]:
    """Yield what each channel says of itself."""
    from gpuwatchd.notify import NOTIFIERS, dispatcher  # noqa: PLC0415

    used = rules_text.used_channels(around.settings)
    names = [name for name in NOTIFIERS if name in used]
    built = dispatcher.build(around.settings.notify, names)
    asked = [_ask(name, notifier) for name, notifier in built.items()]
    for one in asked:
        yield from one.answers()


def _ask(name: str, notifier: Notifier) -> PendingCheck:
    test = f"gpuwatchctl notify test {name}"
    hung = warning("channel-hangs", f"channel {name}", "does not answer", test)

    def probe() -> list[Check]:
        availability = notifier.probe()
        if availability.ok:
            return [ok(f"channel {name}", availability.reason)]
        return [
            warning(
                f"channel-{name}", f"channel {name}", availability.reason, availability.hint or test
            )
        ]

    return PendingCheck(probe, hung)


# Does the mail server answer, as far as one comes without sending anything.

_MAIL = "mail server"
WITHIN_S = 4.0
"""For the whole conversation."""
NAMES_S = 1.0
"""More for finding the address of a name, which cannot be interrupted."""


def mail_server(around: CheckContext) -> Iterator[Check]:
    """Yield whether the server of [notify.email] answers; nothing where no mail is wanted."""
    section = around.settings.notify.email
    if "email" not in rules_text.used_channels(around.settings) or not section.host:
        return
    if around.offline:
        yield ok(_MAIL, "not asked (--offline)")
        return
    host = section.host
    hung = warning(
        "mail-unreachable",
        _MAIL,
        f"{host} does not answer within {WITHIN_S + NAMES_S:g} s",
        f"getent hosts {host}; is the port open from here?",
    )
    yield from PendingCheck(lambda: [_reach(around)], hung).answers(WITHIN_S + NAMES_S)


def _reach(around: CheckContext) -> Check:
    from gpuwatchd.notify.channels.email.channel import Reach  # noqa: PLC0415

    values = msgspec.structs.asdict(around.settings.notify.email)
    server = Reach(**{**values, "timeout": WITHIN_S})
    try:
        return ok(_MAIL, server.reach())
    except NotifyError as error:
        hint = error.hint or "gpuwatchctl notify test email"
        return warning(server.fault, _MAIL, error.message, hint)


# Is there a desktop session for the pop-ups, and why not.

_SESSION = "session"
_CONNECT_S = 1.0
_ELSE = 'or, on a machine without a desktop: [policy] channels = ["email"]'


def desktop_session(around: CheckContext) -> Iterator[Check]:
    """Yield where the session bus is; nothing where no pop-up is wanted."""
    if "desktop" not in rules_text.used_channels(around.settings) or os.uname().sysname != "Linux":
        return
    from gpuwatchd.notify.channels.desktop import session_bus  # noqa: PLC0415

    names = session_bus.addresses(around.environ)
    alive = [value for value in names if answers(value)]
    if alive:
        yield ok(_SESSION, f"the session bus is at {text.clean(alive[0])}")
        return
    foreign = _why_foreign(around.environ)
    if foreign is not None:
        yield warning("session-foreign", _SESSION, *foreign)
    elif names:
        yield warning(
            "session-dead",
            _SESSION,
            f"no answer from the session bus {text.clean(names[0])}: that session has ended",
            "unset DBUS_SESSION_BUS_ADDRESS and log in again",
        )
    else:
        yield warning(
            "session-none",
            _SESSION,
            "DBUS_SESSION_BUS_ADDRESS is not set and there is no bus in /run/user: no desktop "
            "session is seen from here",
            f"log in to a desktop, or install dbus-user-session; {_ELSE}",
        )


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
        words = "ssh: this login has no desktop session, and no user is logged in to a desktop"
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
