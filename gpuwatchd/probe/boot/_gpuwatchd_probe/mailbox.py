"""The files by which a job and gpuwatchd speak: ``PID.json``, ``PID.req``, ``PID.ID.json``.

All are the job's user's own: regular, mode 0600, in a directory of mode 0700, replaced in one
step. No socket, no signal, no pickle.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from typing import Any

REQUEST_BYTES = 4096
"""A request is a line; what is longer is not ours."""
MAILBOX_BYTES = 64 * 1024
"""Readers take no longer one."""
ANSWER_BYTES = 1 << 20
"""Most bytes of an answer."""


def directory() -> str | None:
    """Return where mailboxes lie: as ``gpuwatchctl run`` says, else where gpuwatchctl looks."""
    env = os.environ
    folder = env.get("GPUWATCHD_PROBE_DIR")
    if folder:
        return folder if os.path.isabs(folder) else None  # no reader believes another
    if env.get("GPUWATCHD_RUNTIME_DIR"):
        return os.path.join(env["GPUWATCHD_RUNTIME_DIR"], "probe")
    home = env.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    state = env.get("GPUWATCHD_STATE_DIR") or os.path.join(home, "gpuwatchd")
    base = env.get("XDG_RUNTIME_DIR") or "/run/user/%d" % os.getuid()
    if os.path.isdir(base):
        return os.path.join(base, "gpuwatchd", "probe")
    # Under cron, su or in a container no login has made one.
    return os.path.join(state, "run", "probe") if os.path.isdir(state) else None


def started_ticks() -> int | None:
    """Return when this process was started, in kernel ticks since boot; None without /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str | None:
    """Return the kernel's name for this boot; None without /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


class Mailbox:
    """The mailbox of this process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.head = {
            "v": 1,
            "pid": self.pid,
            "started_ticks": started_ticks(),
            "boot_id": boot_id(),
            "python": "%d.%d.%d" % sys.version_info[:3],
            "rank": _number("RANK"),
            "local_rank": _number("LOCAL_RANK"),
        }
        self._seq = 0

    def write(self, **content: Any) -> None:
        """Replace the mailbox; OSError where its place is not ours alone."""
        self._seq += 1
        whole = dict(self.head, seq=self._seq, at_s=time.time(), **content)
        text = encoded(whole)
        if len(text) > MAILBOX_BYTES:
            text = encoded(dict(whole, last=None, spans=[]))
        self._replace("%d.json" % self.pid, text)

    def remove(self) -> None:
        """Take the mailbox away."""
        try:
            os.unlink(os.path.join(self.folder, "%d.json" % self.pid))
        except OSError:
            pass

    def request(self) -> dict[str, Any] | None:
        """Return what was asked of this process and take it away; None where nothing was."""
        path = os.path.join(self.folder, "%d.req" % self.pid)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            about = os.fstat(handle)
            trusted = stat.S_ISREG(about.st_mode) and about.st_uid in (os.getuid(), 0)
            small = about.st_size <= REQUEST_BYTES
            text = os.read(handle, REQUEST_BYTES) if trusted and small else b""
        finally:
            os.close(handle)
        try:
            os.unlink(path)
            asked = json.loads(text)
            fits = all(asked.get(key) == self.head[key] for key in ("boot_id", "started_ticks"))
            late = time.time() > float(asked["until_s"])
            named = str(asked["id"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        plain = 0 < len(named) <= 32 and all(letter in "0123456789abcdef" for letter in named)
        return asked if fits and not late and plain else None

    def answer(self, request_id: str, content: dict[str, Any]) -> None:
        """Leave the answer to a request; OSError as in :meth:`write`."""
        text = encoded(dict(content, id=request_id))
        if len(text) > ANSWER_BYTES:
            text = encoded({"id": request_id, "error": "too-long"})
        self.leave(request_id, text)

    def leave(self, name: str, text: bytes) -> None:
        """Write ``PID.NAME.json``, which outlives the process; OSError as in :meth:`write`."""
        self._replace("%d.%s.json" % (self.pid, name), text)

    def _replace(self, name: str, text: bytes) -> None:
        for folder in (os.path.dirname(self.folder) or ".", self.folder):  # each of this mode
            os.makedirs(folder, mode=0o700, exist_ok=True)
        about = os.lstat(self.folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise OSError("the directory of the mailbox is not this user's alone")
        path = os.path.join(self.folder, name)
        fresh = "%s.new" % path
        try:
            os.unlink(fresh)
        except OSError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(fresh, flags, 0o600)
        try:  # not by open(), which a job may have replaced: the handle would stay open
            if os.write(handle, text) < len(text):
                raise OSError("no room for a mailbox")
        finally:
            os.close(handle)
        os.replace(fresh, path)


def encoded(content: dict[str, Any]) -> bytes:
    """Return JSON; of a file's name that is no UTF-8, what JSON cannot hold is a question mark."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


def _number(name: str) -> int | None:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None
