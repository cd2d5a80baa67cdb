"""Whose live state and history are meant: the user's own, or those of the machine's service.

The environment wins; then the user's own daemon, if one runs; then the service of this machine,
where the user may read it; else what his own daemon left. Nothing is remembered between two
questions: a screen that repeats itself follows a daemon that starts or stops.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import sys
import time
from _thread import RLock
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.core import decoding, directories
from gpuwatchd.core.errors import NotAllowed, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.store.live import LiveState
    from gpuwatchd.view.blocks import Page


Scope = Literal["user", "system"]
NOTE: Final = ("system", "from the service of this machine (gpuwatchd of the system)")
"""Code and sentence: what is shown is not of a daemon of the user's own."""
REFUSED: Final = (
    "the service of this machine watches its GPUs; only members of its group may read its data"
)
_DIRECTORIES: Final = ("GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR")
_STATE: Final = "state.json"
_HISTORY: Final = "history.db"
"""As in store.schema, whose import costs more than a look."""
_MAX_BYTES: Final = 64 * 2**20


class Place:
    """Two directories, and whose they are."""

    __slots__ = ("runtime_dir", "scope", "state_dir")

    def __init__(self, scope: Scope, state_dir: Path, runtime_dir: Path) -> None:
        self.scope: Scope = scope
        self.state_dir = state_dir
        self.runtime_dir = runtime_dir


class _Source(msgspec.Struct):
    source: str = ""


class _HeadDevice(msgspec.Struct):
    device: _Source


class _Head(msgspec.Struct):
    """As much of a live state as says whether its daemon runs."""

    pid: int
    taken_at_s: float
    stopped: bool = False
    devices: tuple[_HeadDevice, ...] = ()


def chosen() -> Place:
    """Return whose state and history this call is about."""
    own = Place("user", directories.state_dir(), directories.runtime_dir())
    if any(map(os.environ.get, _DIRECTORIES)) or not _readable():
        return own
    return own if runs(own.runtime_dir) else _system()


def service_warnings() -> list[tuple[str, str]]:
    """Return code and sentence where what is shown is of the service of this machine."""
    return [NOTE] if chosen().scope == "system" else []


def head(out: Page) -> None:
    """Write that sentence, where it is so, above a table."""
    for _, sentence in service_warnings():
        out.line((sentence, "dim"))


def state_dir() -> Path:
    """Return the directory of the history that this call is about."""
    return chosen().state_dir


def runtime_dir() -> Path:
    """Return the directory of the live state that this call is about."""
    return chosen().runtime_dir


def recorded(directory: Path) -> bool:
    """Say whether there is a history to be opened; False also where one may not look."""
    return os.path.exists(directory / _HISTORY)  # noqa: PTH110 - Path.exists may raise


def _system() -> Place:
    return Place("system", directories.SYSTEM_STATE_DIR, directories.SYSTEM_RUNTIME_DIR)


def _readable() -> bool:
    """Say whether there is a service of this machine whose state or history we may read."""
    place = _system()
    return os.access(place.runtime_dir / _STATE, os.R_OK) or os.access(
        place.state_dir / _HISTORY, os.R_OK
    )


def is_denied() -> bool:
    """Say whether a service of this machine runs whose state this user may not read."""
    directory = directories.SYSTEM_RUNTIME_DIR
    try:
        stat_result = os.stat(directory)  # noqa: PTH116 - status must start quickly
    except OSError:
        return False
    closed = not os.access(directory, os.R_OK | os.X_OK)
    return closed and stat_result.st_mode & 0o050 == 0o050 and _has_processes(stat_result.st_uid)


def _has_processes(user: int) -> bool:
    """Say whether a user has a process: a service that stopped leaves its directory.

    True where nobody says: without /proc, and where it shows one's own processes only (hidepid).
    """
    try:
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return True
    seen = set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            seen.add(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
    return user in seen or seen <= {os.geteuid()}


def access_error() -> tuple[str, str] | None:
    """Return code and sentence for a user who may not read the service of this machine.

    None where there is no such service, where he may, or where he has a daemon of his own.
    """
    named = any(map(os.environ.get, _DIRECTORIES))
    if named or not is_denied() or runs(directories.runtime_dir()):
        return None
    return "system-denied", f"{REFUSED}: {access_instructions()}"


def require_read_access() -> None:
    """Refuse what would need the service of this machine, where this user may not read it.

    Raises
    ------
    StoreError
        With the command that lets him.
    """
    if access_error() is not None:
        raise StoreError(
            REFUSED, hint=access_instructions(), page="errors#not-a-reader"
        ) from PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def access_instructions() -> str:
    """Return what lets this user read it."""
    return f"sudo usermod -aG {directories.SYSTEM_GROUP} {name_of(os.getuid())}, then log in again"


def name_of(uid: int) -> str:
    """Return the name of a user; his number where he has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def now_s() -> float:
    """Return now: the machine's clock, or the newest sample where a simulation ran ahead of it."""
    state = _head(runtime_dir())
    if state is None:
        return time.time()
    recorded = any(one.device.source in {"replay", "simulate"} for one in state.devices)
    return max(time.time(), state.taken_at_s) if recorded else time.time()


def runs(directory: Path) -> bool:
    """Say whether the daemon whose live state is in a directory runs."""
    state = _head(directory)
    return state is not None and alive(state)


def _head(directory: Path) -> _Head | None:
    path = os.path.join(directory, _STATE)  # noqa: PTH118 - status must start quickly
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor
            return decoding.decode(file.read(_MAX_BYTES), _Head)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def alive(state: LiveState | _Head) -> bool:
    """Return whether the daemon that wrote this state still runs."""
    if state.stopped:
        return False
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # somebody else's process: it exists
    zombie, started_at_s = _proc_stat(state.pid)
    # A process younger than the state inherited the pid of the daemon, not its work.
    return not zombie and (started_at_s is None or started_at_s <= state.taken_at_s + 1.0)


def _proc_stat(pid: int) -> tuple[bool, float | None]:
    """Return whether a process is a zombie, and its start in epoch seconds, from /proc.

    (False, None) where that cannot be read.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - Path costs start-up time
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/uptime", "rb") as file:  # noqa: PTH123
            uptime_s = float(file.read().split()[0])
        started_at_s = time.time() - uptime_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False, None
    return fields[0] in {b"Z", b"X"}, started_at_s


RIGHTS: Final = RLock()
"""Held while the rights of the whole program are another user's, or must not be."""


@contextmanager
def writing(*words: str) -> Iterator[Place]:
    """Yield where something is to be written, as the user that owns it.

    Root writes as the owner of the directory: a file of root's would lock the daemon out, and a
    link that the owner had planted there could lead anywhere.

    Parameters
    ----------
    words
        The verb that writes the same, and its arguments: for the hint of a refusal, where no person
        has typed that verb.

    Raises
    ------
    NotAllowed
        When it is the history of somebody else and we are not root.
    StoreError
        When it is that of a service of this machine which this user may not even read.
    """
    with RIGHTS:
        yield from _writing(words)


def _writing(words: tuple[str, ...]) -> Iterator[Place]:
    place = chosen()
    if not recorded(place.state_dir):
        require_read_access()
    try:
        stat_result = os.stat(place.state_dir)  # noqa: PTH116
    except OSError:
        stat_result = None  # whoever opens it says what is wrong
    mine = os.geteuid()
    if stat_result is None or stat_result.st_uid == mine:
        yield place
        return
    if mine != 0:
        raise _not_yours(place, stat_result.st_uid, words)
    with _acting_as(stat_result, place.state_dir):
        yield place


@contextmanager
def _acting_as(owner: os.stat_result, directory: Path) -> Iterator[None]:
    """Let root have the rights of a directory's owner for a while, and no others."""
    group, groups = os.getegid(), os.getgroups()
    try:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    except OSError as error:  # root of a container that has no such rights
        user = name_of(owner.st_uid)
        raise NotAllowed(
            f"{directory} belongs to {user}, and root may not act as that user here",
            hint=f"run it as {user}",
        ) from error
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _not_yours(place: Place, owner: int, words: tuple[str, ...]) -> NotAllowed:

    from gpuwatchd.service import account  # noqa: PLC0415 - 28 ms

    user = name_of(owner)
    if place.scope == "user":
        why = f"{place.state_dir} belongs to {user}: only that user and root may write to it"
    else:
        why = (
            "you may read the data of the service of this machine; only its user and root may "
            "write to it"
        )
    own = os.path.basename(sys.argv[0]) == "gpuwatchctl"  # noqa: PTH119
    typed = sys.argv[1:] if own else ["..."]
    if words and words[0] not in typed:  # the live screen or the page asks
        typed = list(words)
    # sudo takes these away, and the verb would be about another place.
    named = [f"{name}={os.environ[name]}" for name in _DIRECTORIES if os.environ.get(name)]
    program = shlex.join([*(["env", *named] if named else []), account.ourselves()])
    # Not as that user: what is said of a process only its owner and root may say.
    return NotAllowed(why, hint=f"an administrator may: sudo {program} {shlex.join(typed)}")
