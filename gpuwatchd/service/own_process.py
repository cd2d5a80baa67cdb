"""The daemon's own process: descriptors, log, memory, manager, starting anew, and waiting."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import gc
import logging
import math
import os
import select
import signal
import socket
import stat
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpuwatchd
from gpuwatchd.core import registry, text
from gpuwatchd.core.text import MAX_CHARS, cut_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.config import Config


LOG_LEVELS: Final = ("debug", "info", "warning", "error")
BELL_FILE = "bell"
"""A named pipe in the runtime directory: who may write there may wake the daemon."""


class Wakeup:
    """Ends the wait of the main thread when a signal arrives or somebody rings.

    A handler runs between any two instructions of the main thread, so it must neither take a lock
    (``threading.Event.set`` does, and ``wait`` may hold it) nor last long enough to be interrupted
    by the next signal again and again. The interpreter itself writes the byte that wakes us.
    """

    def __init__(self) -> None:
        self._hears, self._rings = os.pipe()
        os.set_blocking(self._hears, False)
        os.set_blocking(self._rings, False)
        self._pipe: tuple[int, int] | None = None

    def ring_on_signals(self) -> None:
        """Let every signal that has a handler ring; only the main thread may ask for this."""
        # A full pipe has rung already.
        signal.set_wakeup_fd(self._rings, warn_on_full_buffer=False)

    def hang_up(self, directory: Path) -> None:
        """Let other programs ring through a pipe in this directory; again after it was made anew.

        Where that is impossible nobody can ring, and what they ask for is noticed a tick later.
        """
        self.take_down()
        path = directory / BELL_FILE
        flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            hears = os.open(path, os.O_RDONLY | flags)
            opened.callback(os.close, hears)
            # Held open for writing too: without a writer the pipe would be readable for ever.
            self._pipe = hears, os.open(path, os.O_WRONLY | flags)
            opened.pop_all()

    def take_down(self) -> None:
        """Close the pipe; the file stays and rings for nobody."""
        for handle in self._pipe or ():
            os.close(handle)
        self._pipe = None

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as it has rung."""
        # Not select(): a pipe that was made anew may have a number that it cannot take.
        heard = select.poll()
        for handle in (self._hears, *(self._pipe[:1] if self._pipe is not None else ())):
            heard.register(handle, select.POLLIN)
        for handle, _ in heard.poll(math.ceil(seconds * 1000)):
            os.read(handle, 65536)


def ring(directory: Path) -> bool:
    """Wake the daemon of this runtime directory; return whether one listens."""
    try:
        handle = os.open(
            directory / BELL_FILE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:  # no daemon, or nobody who reads
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(handle).st_mode):
            return False
        os.write(handle, b"!")
    except OSError:  # a full pipe has rung already
        return True
    finally:
        os.close(handle)
    return True


log = logging.getLogger("gpuwatchd")

EXIT_AGAIN: Final = 75
"""The process cannot go on and a new one can: service managers start it again on this."""
AGAIN_AFTER_S: Final = 600.0
"""A process does not start anew twice within this time."""
_LONGEST_LINE: Final = 4096
_PRIORITIES: Final = ((logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"))
_STAMP: Final = "started-anew"


def hold_standard_descriptors() -> None:
    """Open what is closed of the descriptors 0 to 2.

    The next file that we open would otherwise get what libraries print; and the interpreter has no
    streams for those that it was started without.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)  # noqa: FBT003 - its only form
    os.close(handle)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


class _OneLine(logging.Formatter):
    """Says a record in one line without escape sequences, whoever's words are in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line; a traceback follows on lines of its own."""
        record.message = text.clean(record.message, limit=_LONGEST_LINE)
        return super().formatMessage(record)


class _ForTheJournal(_OneLine):
    """Puts the level in front as the journal reads it, so that it can be asked for."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record; each line of a traceback has the level, too."""
        mark = next((m for level, m in _PRIORITIES if record.levelno >= level), "<7>")
        return "\n".join(f"{mark}{line}" for line in super().format(record).splitlines())


def logs_to_journal(environ: Mapping[str, str]) -> bool:
    """Say whether our standard error is the journal.

    The variable alone does not say so: what a desktop starts inherits it, whatever its output is.
    """
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def set_up_logging(level: str) -> None:
    """Log to standard error from this level on."""
    form = "%(levelname)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    # The journal keeps the time itself.
    if logs_to_journal(os.environ):
        handler.setFormatter(_ForTheJournal(form))
    else:
        handler.setFormatter(_OneLine(f"%(asctime)s {form}"))
    logging.basicConfig(handlers=[handler], level=level.upper())
    # Libraries speak only when something is wrong; desktop-notifier's warnings are our errors.
    for name in ("apscheduler", "desktop_notifier", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)


def may_start_anew(directory: Path, now_s: float | None = None) -> bool:
    """Say whether this process may give way to a new one now, and note that it does.

    The note is a file in the runtime directory, so that it outlives the process: a reason to start
    anew that does not go away must not become a loop.
    """
    file = directory / _STAMP
    now_s = time.time() if now_s is None else now_s
    try:
        age_s = now_s - file.lstat().st_mtime
    except OSError:
        age_s = AGAIN_AFTER_S
    # A clock that was set back makes the note one of the future: it says nothing then.
    if 0 <= age_s < AGAIN_AFTER_S:
        return False
    try:
        file.unlink(missing_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.utime(file, (now_s, now_s))
    except OSError:
        return False
    return True


def start_anew(environment: dict[str, str], program: str | None = None) -> int:
    """Become a new process of the same program, arguments and pid; return only when that fails.

    ``program`` is one that another interpreter runs: its own first line says which.

    What we hold open is closed on the way, the lock too; a thread that is stuck in a driver is
    ended with us.
    """
    words = [program, *sys.argv[1:]] if program else [sys.executable, *sys.orig_argv[1:]]
    logging.shutdown()
    try:
        os.execve(words[0], words, environment)  # noqa: S606 - our own words
    except OSError:
        return EXIT_AGAIN


def takes_restart(begun: Config, fresh: Config) -> list[str]:
    """Return one sentence for each section of new settings that this process cannot take over.

    Examples
    --------
    >>> from gpuwatchd.core.config import Config, DaemonSection, StoreSection
    >>> takes_restart(Config(), Config(store=StoreSection(max_db_mib=99), daemon=DaemonSection()))
    ['[store] has changed: restart gpuwatchd to use it']
    """
    changed = [f"[{n}]" for n in ("sources", "store") if getattr(begun, n) != getattr(fresh, n)]
    if begun.daemon.readers != fresh.daemon.readers:
        changed.append("[daemon] readers")
    return [f"{name} has changed: restart gpuwatchd to use it" for name in changed]


# Whether another version of the program has been installed over the running one.
# A package manager replaces files under a running daemon and leaves it running, as it should:
# but the daemon still imports parts of itself when they are first needed, and would then mix two
# versions.

SETTLED_S: Final = 60.0
"""An installation that has not changed for this long is complete."""


class Installed:
    """The installation that this process was started from.

    Parameters
    ----------
    files
        What tells one installation from another; by default the file of our version and of the day
        when modules moved last, and that of the virtual environment: a package notes its own there.
    program
        What was started; by default the script that this process runs. Homebrew puts every version
        into a folder of its own and lets this path lead to the newest.
    """

    def __init__(self, files: Sequence[Path] | None = None, program: Path | None = None) -> None:
        usual = (Path(gpuwatchd.__file__), Path(sys.prefix) / "pyvenv.cfg")
        self._files = tuple(usual if files is None else files)
        self._program = Path(sys.argv[0] if program is None else program).absolute()
        self._led_to = os.path.realpath(self._program)
        self._told = False
        self._marks = tuple(map(_mark, self._files))
        self._begun = self._content()

    def replaced(self, now_s: float | None = None) -> bool:
        """Say whether it is another one now, and complete; cheap, asked every tick.

        While a file that we had is missing nothing is complete: an upgrade is under way, or we were
        removed.
        """
        marks = tuple(map(_mark, self._files))
        moved = self.moved_to() is not None
        if (marks == self._marks and not moved) or self._begun is None:
            return False
        now_s = time.time() if now_s is None else now_s
        looked_at = (_mark(self._program),) if moved else marks
        ages = [now_s - ctime_ns / 1e9 for _, ctime_ns in filter(None, looked_at)]
        # A clock that was set back says nothing of the age.
        if any(0 <= age_s < SETTLED_S for age_s in ages):
            return False
        content = self._content()
        if content == self._begun:
            # Written again as it was: looked into once, not every tick from now on.
            self._marks = marks
        fresh = moved or content not in {None, self._begun}
        if fresh and not self._told:
            log.info("another version of gpuwatchd has been installed")
            self._told = True
        return fresh

    def moved_to(self) -> str | None:
        """Return the program to start where its path leads to another file than it did, or None."""
        leads_to = os.path.realpath(self._program)
        moved = leads_to != self._led_to and os.access(leads_to, os.X_OK)
        return str(self._program) if moved else None

    def _content(self) -> tuple[bytes | None, ...] | None:
        content = tuple(_bytes(file) for file in self._files)
        had = zip(self._marks, content, strict=True)
        gone = content[0] is None or any(mark and text is None for mark, text in had)
        return None if gone else content


def _mark(file: Path) -> tuple[int, int] | None:
    try:
        stat_result = file.stat()
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_ctime_ns


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


# The service manager's ear: sd_notify without a library.

_NEVER_S = 86_400.0


def watchdog_s(environ: Mapping[str, str]) -> float:
    """Return after how many seconds of silence we would be killed; a day when nobody watches.

    Examples
    --------
    >>> watchdog_s({"WATCHDOG_USEC": "60000000"})
    60.0
    """
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else _NEVER_S


class NotifySocket:
    """Where READY=1, STATUS= and WATCHDOG=1 go: ``NOTIFY_SOCKET``, empty when nobody listens."""

    def __init__(self, address: str) -> None:
        self.environment = {"NOTIFY_SOCKET": address} if address else {}
        """What a process that takes our place is to be given."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self._untold: dict[str, str] = {}
        """Name -> assignment that found the listener's queue full: it is sent with the next."""

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1. Never waits, and a listener that has gone is no fault.

        A manager that is busy has a full queue: what finds it so goes out with the next message.
        """
        if not self._address:
            return
        self._untold |= {line.partition("=")[0]: line for line in lines}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(0.0)
            try:
                channel.sendto("\n".join(self._untold.values()).encode(), self._address)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("notify socket error=%s", error)
        self._untold.clear()

    def status(self, text: str) -> None:
        """Show one line in ``systemctl status``, when it is news."""
        if text != self._status:
            self._status = text
            self.send(f"STATUS={cut_words(text, MAX_CHARS)}")


# Keeping our own memory small: a watcher must not be what it watches for.
# glibc gives every thread an arena of its own and keeps what was freed; for a process with a few
# mostly idle threads that is some 10 MiB of nothing. Elsewhere both functions do nothing.

_M_ARENA_MAX = -8
_YOUNG: Final = 10_000
"""So many new objects that stay begin a search for cycles."""


@cache
def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def one_arena() -> bool:
    """Let all threads share one arena; before threads are started. Returns whether it could."""
    library = _libc()
    return library is not None and library.mallopt(_M_ARENA_MAX, 1) == 1


def spare_openssl() -> None:
    """Load without OpenSSL (5 MiB) what needs none here; mail and HTTPS load it when they do.

    Digests have the interpreter's own code, and asyncio serves the session bus. Before either is
    loaded, and only where nobody else wants TLS of asyncio.
    """
    registry.import_without("hmac", "_hashlib")
    registry.import_without("asyncio", "ssl")


def rarely_look_for_cycles() -> None:
    """Spare a tick Python's search for cycles: it has next to none, and what is there now stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


def trim() -> bool:
    """Give freed memory back to the system; returns whether any was."""
    library = _libc()
    return library is not None and library.malloc_trim(0) == 1
