"""The daemon's own process: its descriptors, its log, and starting anew in its own place."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuwatchd.core.config import Config

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

    The next file that we open would otherwise get what libraries print.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)  # noqa: FBT003 - its only form
    os.close(handle)


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
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(handle)
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
