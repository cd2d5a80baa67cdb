"""What probes in prepared jobs write (:mod:`gpuwatchd.probe`): read with distrust, and asked.

A mailbox is another program's file. It counts only where it is a regular file of the process's own
user, closed to others, small, of the type that is expected, and of the very process that it names.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from gpuwatchd.core import directories
from gpuwatchd.core.codes import MailboxFault
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.model import FunctionCalls

MOST_BYTES: Final = 64 * 1024
MOST_ANSWER_BYTES: Final = 1 << 20
MOST_FILES: Final = 4096
"""Of so many names in a directory of mailboxes is looked at."""
_MOST_ENVIRON_BYTES: Final = 8 << 20
_PRIVATE: Final = 0o600
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
VARIABLE: Final = "GPUWATCHD_PROBE_DIR"
BOOT: Final = Path(__file__).parents[2] / "probe" / "boot"
"""What a job has first in its path."""
_KEPT_S: Final = 7 * 86400.0
_MOST_KEPT: Final = 1000
"""How long the last words of an ended job are kept, and in a directory of how many files."""
_OOM: Final = "oom-"
_BAD_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The last: nested too deeply."""
_Content = TypeVar("_Content")
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""What floats and a database take: Python's own numbers have no end."""
Instant = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Spans = Annotated[tuple[FunctionCalls, ...], msgspec.Meta(max_length=50)]


class Counters(msgspec.Struct, kw_only=True):
    """What a framework's allocator says of one device; bytes, None where it has no such figure."""

    uid: str | None = None
    index: Number | None = None
    number: Number | None = None
    """Of a device without a ``uid``, counted over all of the machine as CUDA orders them."""
    allocated: Number | None = None
    reserved: Number | None = None
    active: Number | None = None
    inactive_split: Number | None = None
    limit: Number | None = None
    peak: Number | None = None
    retries: Number | None = None
    ooms: Number | None = None


class Framework(msgspec.Struct, kw_only=True):
    """Whose allocator it is."""

    name: str
    version: str | None = None


class Mailbox(msgspec.Struct, kw_only=True):
    """What a prepared process says of itself."""

    v: Literal[1]
    pid: Number
    started_ticks: Number | None
    boot_id: str | None
    seq: Number
    at_s: Instant
    python: str
    framework: Framework
    rank: Number | None = None
    devices: tuple[Counters, ...] = ()
    spans: Spans = ()
    counters_only: bool = False
    inspect_on_alert: bool = False
    """Its owner agrees that the daemon has it inspected when its alert opens."""
    recording: bool = False
    failure: str | None = None
    last: msgspec.Raw = msgspec.Raw(b"null")
    """What was last found: apart, for a wrong figure in it costs no counters."""

    @property
    def census(self) -> Census | None:
        """What was last found; None where that cannot be."""
        try:
            return decode(bytes(self.last), Census)
        except _BAD_JSON:
            return None


class Holder(msgspec.Struct, kw_only=True):
    """A variable that keeps what grows."""

    name: str
    kind: str
    len: Number | None = None
    bound: Number | None = None
    file: str | None = None
    line: Number | None = None


class Frame(msgspec.Struct, kw_only=True):
    """A call, as py-spy and torch name its parts."""

    name: str
    filename: str
    line: Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]


class Group(msgspec.Struct, kw_only=True):
    """Alike tensors that became more with every census; of an OOM, counted once."""

    group: str
    counts: Annotated[tuple[Number, ...], msgspec.Meta(min_length=1)]
    bytes: Number
    bounded_at_bytes: Number | None = None
    """What it takes once its holder is as full as it may be."""
    holder: Holder | None = None
    line: Frame | None = None
    graph: bool = False
    """They have one, and are kept in a variable without a bound."""
    sure: str = "unknown"


class Census(msgspec.Struct, kw_only=True):
    """The answer to an inspection."""

    id: str
    at_s: Instant | None = None
    """When the last census was taken."""
    groups: tuple[Group, ...] = ()
    censuses: Number = 0
    every_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400.0)] = 10.0
    error: str | None = None


class Thread(msgspec.Struct, kw_only=True):
    """A thread and its calls, the innermost first."""

    thread_name: str | None = None
    frames: tuple[Frame, ...] = ()


class Oom(msgspec.Struct, kw_only=True):
    """What was there when an allocation failed; what comes last may be missing."""

    started_ticks: Number | None
    at_s: Instant
    device: Number
    requested: Number
    limit: Number
    free: Number
    devices: tuple[Counters, ...] = ()
    threads: tuple[Thread, ...] = ()
    groups: tuple[Group, ...] = ()


class Request(msgspec.Struct, kw_only=True):
    """What somebody has asked, and nobody has taken yet."""

    id: str


class Functions(msgspec.Struct, kw_only=True):
    """The answer to what the functions of a job do."""

    id: str
    functions: Spans = ()
    error: str | None = None


Kind = TypeVar("Kind", Census, Functions)


def folder(uid: int) -> Path:
    """Return where the mailboxes of a user lie."""
    if uid == os.getuid():
        return directories.runtime_dir() / "probe"
    return Path(f"/run/user/{uid}/gpuwatchd/probe")


def folder_of(pid: int, uid: int) -> Path:
    """Return where a process writes its mailbox: as ``run`` said, else where its user's lie."""
    place = _told(pid)
    return Path(os.fsdecode(place)) if place else folder(uid)


def pids(uid: int) -> list[int]:
    """Return the processes of a user that have written a mailbox, also those that have ended."""
    try:
        with os.scandir(folder(uid)) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
    except OSError:
        return []
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [int(stem) for stem in stems if stem.isdecimal()]


def is_prepared(pid: int) -> bool:
    """Say whether a process was started with ``gpuwatchctl run``, or by one that was."""
    return bool(_told(pid))


def _told(pid: int) -> bytes:
    with suppress(OSError), Path(f"/proc/{pid}/environ").open("rb") as file:
        for entry in file.read(_MOST_ENVIRON_BYTES).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == VARIABLE.encode() and value[:1] == b"/":
                return value
    return b""


def read(place: Path, pid: int, uid: int) -> Mailbox | MailboxFault:
    """Return the mailbox of a process of this user, or why there is none to be believed."""
    mailbox = last_words(place, pid, uid)
    if isinstance(mailbox, MailboxFault):
        return mailbox
    same = mailbox.pid == pid and mailbox.started_ticks == _started_ticks(pid)
    return mailbox if same and mailbox.boot_id == _boot_id() else MailboxFault.OTHER_PROCESS


def last_words(place: Path, pid: int, uid: int) -> Mailbox | MailboxFault:
    """Return the mailbox of a process whether or not it still runs."""
    return _content(place / f"{pid}.json", uid, MOST_BYTES, Mailbox)


def last_oom(place: Path, pid: int, uid: int) -> Oom | None:
    """Return the newest record of an allocation of this process that failed, if there is one."""
    files = place.glob(f"{pid}.{_OOM}?.json")
    read = [_content(file, uid, MOST_ANSWER_BYTES, Oom) for file in files]
    ticks = _started_ticks(pid)
    records = [oom for oom in read if isinstance(oom, Oom) and ticks in (None, oom.started_ticks)]
    return max(records, key=lambda oom: oom.at_s, default=None)


def is_isolated(pid: int) -> bool:
    """Say whether Python was told to ignore its environment."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:]
    except OSError:
        return False
    for word in words:
        if not word.startswith(b"-") or word in (b"-c", b"-m"):
            break
        if re.match(rb"-[^-WXcm]*[IES]", word):
            return True
    return False


def ask(
    place: Path,
    mailbox: Mailbox,
    verb: str,
    *,
    uid: int,
    limit_s: float,
    patience_s: float = 0.0,
    **words: Any,
) -> str:
    """Leave a request to a prepared process of the user ``uid``; return its id.

    OSError where the directory is not ours to write to, or not that user's; where a request of
    somebody else is there that is not taken within ``patience_s``.
    """
    request_id = os.urandom(8).hex()
    request = {
        "id": request_id,
        "verb": verb,
        "until_s": time.time() + limit_s,
        "boot_id": mailbox.boot_id,
        "started_ticks": mailbox.started_ticks,
        **words,
    }
    fresh, path = f"{mailbox.pid}.req.{request_id}", f"{mailbox.pid}.req"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    within = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(within).st_uid != uid:  # else root would write where a link leads
            raise PermissionError(errno.EPERM, "the directory is not the user's", str(place))
        until_s = time.monotonic() + patience_s
        while _exists(path, within):
            if not patience_s:
                raise FileExistsError(errno.EEXIST, "somebody has just asked", str(place / path))
            if time.monotonic() > until_s:  # nobody takes it
                break
            time.sleep(0.05)
        handle = os.open(fresh, flags, _PRIVATE, dir_fd=within)
        with os.fdopen(handle, "wb") as file:
            if os.geteuid() != uid:
                os.fchown(handle, uid, -1)
            file.write(json.dumps(request).encode())
        os.replace(fresh, path, src_dir_fd=within, dst_dir_fd=within)
    finally:
        os.close(within)
    return request_id


def _exists(name: str, within: int) -> bool:
    try:
        os.stat(name, dir_fd=within, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def answer(
    place: Path, pid: int, uid: int, request_id: str, kind: type[Kind], *, limit_s: float
) -> Kind | MailboxFault:
    """Wait for the answer to a request, and take it away."""
    until_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < until_s:
            content = take(place, pid, uid, request_id, kind)
            if content is not MailboxFault.NONE:
                return content
            if not Path(f"/proc/{pid}").exists():
                return MailboxFault.GONE
            time.sleep(0.2)
        return MailboxFault.NO_ANSWER
    finally:  # also when whoever waits is interrupted; another's request stays
        request = _content(place / f"{pid}.req", uid, MOST_BYTES, Request)
        if isinstance(request, Request) and request.id == request_id:
            with suppress(OSError):
                (place / f"{pid}.req").unlink()


def take(place: Path, pid: int, uid: int, request_id: str, kind: type[Kind]) -> Kind | MailboxFault:
    """Take an answer away, if there is one."""
    path = place / f"{pid}.{request_id}.json"
    content = _content(path, uid, MOST_ANSWER_BYTES, kind)
    if content is not MailboxFault.NONE:
        with suppress(OSError):
            path.unlink()
    return content


def sweep(place: Path) -> None:
    """Remove what processes that have ended left in a directory of our own."""
    with suppress(OSError):
        paths = list(place.iterdir())
        for path in paths:
            pid, _, rest = path.name.partition(".")
            last_words = len(paths) < _MOST_KEPT and (rest == "json" or rest.startswith(_OOM))
            if last_words and time.time() - path.lstat().st_mtime < _KEPT_S:
                continue
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                with suppress(OSError):
                    path.unlink()


def _content(
    path: Path, uid: int, most_bytes: int, kind: type[_Content]
) -> _Content | MailboxFault:
    try:
        # Not to wait for a writer, where it is a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return MailboxFault.NONE
    except OSError:
        return MailboxFault.NOT_TRUSTED
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != uid:
            return MailboxFault.NOT_TRUSTED
        if about.st_mode & 0o077 or about.st_size > most_bytes:
            return MailboxFault.NOT_TRUSTED
        with os.fdopen(handle, "rb", closefd=False) as file:
            return decode(file.read(most_bytes), kind)
    except _BAD_JSON:
        return MailboxFault.NO_MAILBOX
    except OSError:
        return MailboxFault.NOT_TRUSTED
    finally:
        os.close(handle)


def _started_ticks(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
