"""One process that something is to be done to, held so that it cannot become another one.

The kernel's descriptor of the process (a pidfd) is opened first; only then is it looked at, and
what is sent goes through the descriptor. So a pid that was given to another process meanwhile is
never hit: a descriptor of the old one gives an error instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text
from gpuwatchd.core.errors import NotAllowed, TargetChanged, TargetGone

if TYPE_CHECKING:
    from typing import Self

    from gpuwatchd.core.model import ProcessKey

SAME_S: Final = 0.5
"""Two start times that are nearer are one."""
SAME_LOOSELY_S: Final = 2.5
"""The same for the times of psutil, which reckons with whole seconds on some systems."""
_MANY: Final = 1024
_NEVER: Final = "errors#never-ended"
_MOST_WAIT_S: Final = 1.0
"""A signal that comes just before a wait begins does not end it: Ctrl-C is then seen after this."""
_CAUGHT = re.compile(rb"^SigCgt:\s*([0-9a-fA-F]+)", re.MULTILINE)
_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)


class Target:
    """A process of the user's own, to be used in a ``with`` statement.

    Parameters
    ----------
    booted_at_s
        When the system was booted, epoch seconds, as it was taken for the start time of ``key``.
        None refuses the process where start times count from the boot, as on Linux: the kernel's
        present value moves with the clock, so it cannot say who a pid was.
    of_anyone
        Hold another user's process too, for a program of the site's to act on: it gets no signal.

    Raises
    ------
    TargetGone
        On entering: there is no such process, or it has ended and only waits for its parent.
    TargetChanged
        On entering: the pid belongs to another process now, or that cannot be known.
    NotAllowed
        On entering: it is not the user's own, or it is gpuwatchd, one of its parents or init.
    """

    def __init__(
        self,
        key: ProcessKey,
        *,
        booted_at_s: float | None,
        proc: Path = Path("/proc"),
        of_anyone: bool = False,
    ) -> None:
        self.key = key
        self.name = f"pid {key.pid}"
        self._booted_at_s = booted_at_s
        self._proc = proc
        self._of_anyone = of_anyone
        self._descriptor: int | None = None
        self._claimed: int | None = None

    def __enter__(self) -> Self:
        refuse_first(self.key.pid)
        self._descriptor = _open(self.key.pid)
        try:
            self.check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._descriptor, self._claimed):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._claimed = None

    @property
    def held(self) -> bool:
        """Whether the kernel holds it for us; if not, it is compared just before it is used."""
        return self._descriptor is not None

    def claim(self) -> None:
        """Keep every other gpuwatchd, of any user, from a step on it until this is left.

        By a lock on its file in /proc, which goes with whoever has it and with the process. With
        another mount of /proc, as a container has, it is another file. Anyone can hold that lock:
        then no step is taken, and who holds it is said.

        Raises
        ------
        NotAllowed
            Another one takes a step on it now, and has not started this command for that.
        """
        if not self.held:
            return
        # Where that file cannot be had, what is checked besides says why.
        with contextlib.suppress(OSError):
            self._claimed = os.open(f"/proc/{self.key.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(self._claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _lock_holder(self._claimed)
                if holder in _parents(self._proc):
                    return  # a program of the site's ends it by `gpuwatchctl reap`
                raise NotAllowed(
                    f"another one takes a step on {self.name} now: pid {holder or 'unknown'}",
                    hint=f"ps -o user,args -p {holder}" if holder else "",
                    page="errors#step-under-way",
                ) from None

    def check(self) -> None:
        """See again whether it is the process that is meant, and ours; raise as on entering."""
        pid = self.key.pid
        by_psutil = _without_proc(self._proc)
        if pid == os.getpid() or pid in _parents(self._proc):
            raise NotAllowed(
                f"pid {pid} is gpuwatchd itself, or what it was started from",
                hint=f"kill -TERM {pid}",
                page=_NEVER,
            )
        uid, started_at_s, name = self._seen_by_psutil() if by_psutil else self._seen()
        self.name = f"{name}[{pid}]"
        if self.key.started_at_s is None:
            raise TargetChanged(f"it is not known when pid {pid} was started, nor who it is")
        # Written so that a time that is no number is nobody's, either.
        same_s = SAME_LOOSELY_S if by_psutil else SAME_S
        if not abs(started_at_s - self.key.started_at_s) <= same_s:
            raise TargetChanged(f"pid {pid} belongs to another process now: {self.name}")
        if uid != os.getuid() and not self._of_anyone:
            raise NotAllowed(
                f"{self.name} is another user's",
                hint="only its owner can ask it for something",
                page="errors#not-yours",
            )

    def _seen(self) -> tuple[int, float, str]:
        """Return the user, the start time and the name of the process behind the pid."""
        folder = self._proc / str(self.key.pid)
        try:
            stat = (folder / "stat").read_bytes()
            status = (folder / "status").read_bytes()
        except OSError as error:
            raise TargetGone(f"pid {self.key.pid} has ended") from error
        rest = _after_name(stat)
        uid = _UID.search(status)
        if len(rest) < 20 or uid is None or rest[0] in {b"Z", b"X"}:
            raise TargetGone(f"pid {self.key.pid} has ended")
        if self._booted_at_s is None:
            raise TargetChanged(
                "it is not known when the system was booted, so it cannot be known whether "
                f"pid {self.key.pid} is still the same process"
            )
        started_at_s = self._booted_at_s + int(rest[19]) / os.sysconf("SC_CLK_TCK")
        name = stat[stat.find(b"(") + 1 : stat.rfind(b")")]
        return int(uid[1]), started_at_s, text.clean(name, limit=64)

    def _seen_by_psutil(self) -> tuple[int, float, str]:
        """Return the same where there is no /proc. Not verified on macOS."""
        import psutil  # noqa: PLC0415 - Linux needs none

        try:
            process = psutil.Process(self.key.pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    raise TargetGone(f"pid {self.key.pid} has ended")
                name = text.clean(process.name(), limit=64)
                return process.uids().real, process.create_time(), name
        except psutil.NoSuchProcess as error:
            raise TargetGone(f"pid {self.key.pid} has ended") from error
        except psutil.AccessDenied as error:
            raise NotAllowed(
                f"pid {self.key.pid} is another user's", page="errors#not-yours"
            ) from error

    def handles(self, number: signal.Signals) -> bool | None:
        """Say whether it has a handler of its own for a signal; None where that cannot be known.

        Without one most signals end a process.
        """
        return handles(self._proc, self.key.pid, number)

    def read(self, name: str) -> bytes:
        """Return what one of its files under /proc says; b"" where that cannot be read."""
        return read(self._proc, self.key.pid, name)

    def fields(self) -> list[bytes]:
        """Return the fields of its stat after the name: state, parent, ...; [] where unreadable."""
        return _after_name(self.read("stat"))

    def wait(self, within_s: float) -> bool:
        """Wait until it has ended; False where it has not within this time, or is not held."""
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        end_s = time.monotonic() + within_s
        while not poll.poll(max(0.0, min(_MOST_WAIT_S, end_s - time.monotonic())) * 1000):
            if time.monotonic() >= end_s:
                return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process and no other, looked at as on entering once more first."""
        self.check()
        if self._of_anyone:
            raise NotAllowed(f"{self.name} is held for another program", page="errors#not-yours")
        try:
            if self._descriptor is None:
                # Between the look above and this call the pid could be given anew: microseconds.
                os.kill(self.key.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError as error:
            raise TargetGone(f"{self.name} has ended") from error
        except PermissionError as error:
            raise NotAllowed(
                f"{self.name} may not be signalled", page="errors#not-yours"
            ) from error


def refuse_first(pid: int) -> None:
    """Raise NotAllowed for the first process and for that of the kernel's threads."""
    if pid <= 2:
        raise NotAllowed(
            f"pid {pid} belongs to the system: nothing is ever done to it",
            hint="gpuwatchctl zombies lists what holds idle memory",
            page=_NEVER,
        )


def _lock_holder(descriptor: int) -> int | None:
    """Return the pid of who holds a lock on an open file; None where that cannot be seen."""
    status = os.fstat(descriptor)
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    place = rf" (\d+) {major:02x}:{minor:02x}:{status.st_ino} "
    with contextlib.suppress(OSError):
        if found := re.search(place, Path("/proc/locks").read_text(encoding="ascii")):
            return int(found[1])
    return None


def _open(pid: int) -> int | None:
    """Return a descriptor of the process; None where the system has none."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError) as error:
        raise TargetGone(f"pid {pid} has ended") from error
    except OSError:
        # An old kernel, a sandbox, or no descriptor to spare: the comparison must do.
        return None


def read(proc: Path, pid: int | str, name: str) -> bytes:
    """Return what a file of a process says; b"" where that cannot be read."""
    try:
        return (proc / str(pid) / name).read_bytes()
    except OSError:
        return b""


def handles(proc: Path, pid: int, number: signal.Signals) -> bool | None:
    """Say whether a process has a handler for a signal; None where that cannot be known."""
    caught = _CAUGHT.search(read(proc, pid, "status"))
    return None if caught is None else bool(int(caught[1], 16) >> (number - 1) & 1)


def _after_name(stat: bytes) -> list[bytes]:
    return stat[stat.rfind(b")") + 1 :].split()


def _without_proc(proc: Path) -> bool:
    return sys.platform != "linux" and proc == Path("/proc")


def _parents(proc: Path) -> set[int]:
    """Return the pids of our parents, up to the first process."""
    found: set[int] = set()
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1 and pid not in found and len(found) < _MANY:
            found.add(pid)
            stat = (proc / str(pid) / "stat").read_bytes()
            pid = int(_after_name(stat)[1])
    return found
