"""Where secrets come from: the service manager, a file, the environment, a keyring.

A secret is read when it is needed and kept nowhere; no message names it. Only one that came by the
environment stays in memory: it is taken out of there, so that no program that we start inherits it.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import extras, run_program, text
from gpuwatchd.core.config import SECRET_VARIABLES, expanded
from gpuwatchd.core.errors import NotifyError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYRING_S = 5.0
"""A keyring that is locked asks its user, who may not be there."""
KEYRING_EXTRA = extras.install("keyring")
_KEYRING_PROGRAM = ("-m", "gpuwatchd.notify.keyring_ask")
_MAX_BYTES = 4096
_NOT_FOR_CHILDREN = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS"})
"""A child that pinged the service manager would keep a hung daemon alive."""
_withheld: dict[str, str] = {}


def refusal(why: str, *, hint: str = "") -> NotifyError:
    """Return the error for a secret that cannot be had, or that others can read."""
    return NotifyError(why, permanent=True, hint=hint, page="errors#secret-file")


def withhold() -> None:
    """Take secrets out of our environment: programs that are started later have none of them."""
    for name in SECRET_VARIABLES:
        value = os.environ.pop(name, None)
        if value is not None:
            _withheld[name] = value


def environment() -> dict[str, str]:
    """Return our environment as it was before :func:`withhold`."""
    return {**os.environ, **_withheld}


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what is ours alone: secrets, the service manager's socket."""
    ours = SECRET_VARIABLES | _NOT_FOR_CHILDREN
    return {name: value for name, value in environ.items() if name not in ours}


def read(
    what: str = "password",
    *,
    credential: str,
    file: str = "",
    variable: str = "",
    keyring: tuple[str, str] | None = None,
) -> str | None:
    """Return a secret of one line from the first place that is set; None where none is.

    Parameters
    ----------
    what
        What messages call it.
    credential
        Name of a file in ``$CREDENTIALS_DIRECTORY``; it wins when it is there.
    file
        Path, ``~`` is expanded; "" for none. It must be its owner's alone.
    variable
        Name of an environment variable; an empty one is none.
    keyring
        Service and user name.

    Raises
    ------
    NotifyError
        Permanent when the place that is set has none, or others can read it; transient when a
        keyring does not answer.
    """
    environ = environment()
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if directory and (Path(directory) / credential).is_file():
        # The service manager guards this directory; its files may be 0440 with an ACL.
        return read_secret(Path(directory) / credential, what, guarded=True)
    if file:
        return read_secret(expanded(file), what, guarded=False)
    if variable and environ.get(variable):
        return environ[variable].split("\n", 1)[0].rstrip("\r")
    return None if keyring is None else ask_keyring(*keyring)


def read_secret(path: Path, what: str = "password", *, guarded: bool) -> str:
    """Return the first line of a secret file; the checks are made on the opened file itself.

    Its mode does not matter where the service manager has ``guarded`` its directory.

    Raises
    ------
    NotifyError
        Permanent: missing, no regular file, readable by group or others, empty, not UTF-8.
    """
    name = f"{what} file {text.clean(str(path))}"
    hint = f"write the {what} into it and chmod 600"
    data = read_private(path, _MAX_BYTES, guarded=guarded, name=name, hint=hint)
    try:
        secret = data.decode("utf-8").split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise refusal(
            f"{name}: no {what} in it", hint=f"the {what} is its first line, as plain text"
        )
    return secret


def read_private(path: Path, most_bytes: int, *, guarded: bool, name: str, hint: str) -> bytes:
    """Return what a file has that is its owner's alone; nothing of what is no regular file.

    Complaints call it ``name``; ``hint`` is what to do where it cannot be read.

    Raises
    ------
    NotifyError
        Permanent: missing, or readable by group or others.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            data = file.read(most_bytes) if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise refusal(f"{name}: {why}", hint=hint) from None
    if not guarded and status.st_mode & 0o077:
        raise refusal(
            f"{name}: others can read it (mode {status.st_mode & 0o777:04o})",
            hint=f"chmod 600 {text.clean(str(path))}",
        )
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a writer: a FIFO planted in the file's place must not hang us."""
    return os.open(path, flags | os.O_NONBLOCK)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that asks a keyring says; its repr never shows the secret."""

    secret: str | None = None
    why: str = ""

    def __repr__(self) -> str:
        return f"Answer({self.why or text.MASK})"


def ask_keyring(service: str, user: str, *, timeout_s: float = KEYRING_S) -> str:
    """Return a password from the desktop's keyring, asked for by a process of its own.

    Keyrings prompt, hang and crash in the libraries below them; none of that may reach us.

    Raises
    ------
    NotifyError
        Permanent: the extra is missing, or there is no such entry. Transient: no answer in time.
    """
    name = text.clean(service)
    if importlib.util.find_spec("keyring") is None:
        raise NotifyError(
            "password-keyring: keyring is not installed",
            permanent=True,
            hint=KEYRING_EXTRA,
            page="errors#keyring",
        )
    answer = _ask(service, user, timeout_s)
    if answer is None:
        raise NotifyError(
            f"keyring {name}: no answer within {timeout_s:g} s",
            hint="it may be locked; a daemon without a desktop wants password-file",
            page="errors#keyring",
        )
    if answer.why:
        raise NotifyError(
            f"keyring {name}: {text.clean(answer.why)}",
            hint="keyring diagnose; a daemon without a desktop wants password-file",
            page="errors#keyring",
        )
    if not answer.secret:
        raise NotifyError(
            f"keyring {name}: no password of {text.clean(user)} in it",
            permanent=True,
            hint=f"keyring set {name} {text.clean(user)}",
            page="errors#keyring",
        )
    return answer.secret


def _ask(service: str, user: str, timeout_s: float) -> Answer | None:
    try:
        answer = run_program.ask(
            [sys.executable, *_KEYRING_PROGRAM],
            msgspec.json.encode((service, user)),
            environ=for_children(os.environ),
            timeout_s=timeout_s,
        )
        return None if answer.code is None else msgspec.json.decode(answer.out, type=Answer)
    except OSError as error:
        return Answer(why=error.strerror or "cannot be asked")
    except msgspec.MsgspecError:
        return Answer(why="its library failed")
