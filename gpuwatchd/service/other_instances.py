"""Who watches already: a second instance would say and write everything twice."""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core.errors import ServiceError
from gpuwatchd.store.private_files import LOCK_NAME

if TYPE_CHECKING:
    from pathlib import Path

_KEG = re.compile(r"/Cellar/gpuwatchd/|/opt/gpuwatchd/libexec/")
_BREW = re.compile(r"/(?:homebrew|\.?linuxbrew|Cellar)/")


class Rival(NamedTuple):
    """Why a service of our own is not wanted."""

    why: str
    hint: str
    """The command that mends it."""
    certain: bool = False
    """Both cannot run at all; otherwise a user may want it in spite of the reason."""


HOMEBREW = Rival(
    "the Homebrew service of gpuwatchd is running already",
    "brew services stop gpuwatchd",
    certain=True,
)
KEG = Rival(
    "Homebrew installed this gpuwatchd and removes its directory at the next upgrade",
    "brew services start gpuwatchd; --anyway writes a service all the same",
)


def in_a_keg(executable: str) -> bool:
    """Say whether Homebrew keeps this program: the path of a version does not live long.

    Examples
    --------
    >>> in_a_keg("/opt/homebrew/Cellar/gpuwatchd/1.0.0/libexec/bin/python")
    True
    >>> in_a_keg("/opt/gpuwatchd/bin/python3"), in_a_keg("/opt/homebrew/bin/python3")
    (False, False)
    """
    return bool(_KEG.search(executable) and _BREW.search(executable))


def lock_holder(runtime_dir: Path) -> int | None:
    """Return the pid of the daemon that holds the lock of this directory; None when it is free.

    0 when somebody holds it and does not say who. The lock is tried for an instant only, and
    shared: two who look do not see each other.
    """
    try:
        handle = os.open(
            runtime_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except OSError:  # there is none, or it is not ours to look at
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.read(handle, 32).decode("ascii", "replace").strip()
        return int(words) if words.isascii() and words.isdigit() else 0
    except OSError:
        return None
    finally:
        os.close(handle)
    return None


def by_hand(pid: int, install: str) -> Rival:
    """Return what is to be said of a daemon (pid 0: unknown) that no service manager started.

    ``install`` is our verb as a person types it.
    """
    who = f"pid {pid}" if pid else "pid unknown"
    stop = f"kill {pid}" if pid else "stop it"
    return Rival(
        f"a daemon that was started by hand is already running ({who})",
        f"{stop}, then {install}",
        certain=True,
    )


def refuse(rival: Rival | None, manager: str, *, anyway: bool) -> None:
    """Refuse to install a second instance.

    Raises
    ------
    ServiceError
        When there is one; with ``anyway`` only when both cannot run at all.
    """
    if rival is not None and (rival.certain or not anyway):
        raise ServiceError(
            manager,
            "service install",
            rival.why,
            hint=rival.hint,
            page="errors#second-service",
        )


def refuse_purge(runtime_dir: Path, manager: str, uninstall: str) -> None:
    """Refuse to remove the files of a daemon that runs without the service.

    Raises
    ------
    ServiceError
        When there is one.
    """
    holder = lock_holder(runtime_dir)
    if holder is not None:
        hand = by_hand(holder, f"{uninstall} --purge --yes")
        raise ServiceError(manager, "service uninstall --purge", hand.why, hint=hand.hint)


def of_the_machine(user: str, group: str) -> Rival:
    """Return what is to be said where the machine's own service watches already."""
    return Rival(
        "the service of this machine watches every GPU already, and members of the group"
        f" {group} see all of it",
        f"sudo usermod -aG {group} {user} (and log in again);"
        " for one of your own besides: gpuwatchctl service install --anyway",
    )
