"""Asking a job to save its work, in the way that the user has set up.

What is certain afterwards is that the job was asked. Many jobs look at such a wish only between two
steps, and some never; that it has saved is seen by a newer checkpoint alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.core import run_program, text
from gpuwatchd.core.config import SECRET_VARIABLES, expanded
from gpuwatchd.core.errors import ActionError, NotAllowed, TargetChanged, TargetGone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from gpuwatchd.core.model import Finding, ProcessKey

SCHEMA_VERSION: Final = 1
COMMAND_S: Final = 30.0
"""A program of the user's that has not ended by then is ended."""
DECLARED: Final = "GPUWATCHD_CHECKPOINT_SIGNAL"
"""Variable of a job: the signal on which it saves, as whoever started it has said."""
_ENVIRON_BYTES: Final = 1 << 20
_SIGNALS: Final = frozenset({b"USR1", b"USR2", b"HUP"})
_OFF = "[act] checkpoint is off"
_OFF_HINT = 'set [act] checkpoint = "signal" or "command"'


class Checkpoint:
    """Ask a job to save; the section ``[act]`` is the call of this class."""

    name = "checkpoint"

    def __init__(
        self,
        checkpoint: Literal["off", "signal", "command"] = "off",
        signal: Literal["USR1", "USR2", "HUP"] = "USR1",
        argv: Sequence[str] = (),
        *,
        timeout_s: float = COMMAND_S,
        booted_at_s: float | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._way = checkpoint
        self._signal = signal
        self._argv = tuple(argv)
        self._timeout_s = timeout_s
        self._booted_at_s = booted_at_s
        self._proc = proc

    def offered(self, key: ProcessKey | None) -> bool:
        """Say whether this process can be asked now. Some file reads; never raises."""
        if key is None:
            return False
        try:
            with self._target(key) as target:
                self._way_for(target, self._chosen(key))
        except (ActionError, OSError):
            return False
        return True

    def run(self, finding: Finding, *, dry_run: bool) -> str:
        """Ask the process that a finding is about; return what happened, in one line.

        Raises
        ------
        NotAllowed
            It is switched off, the process has no handler for the signal or is not the user's own,
            or the program could not do it.
        TargetGone, TargetChanged
            The process has ended, or the pid is another one's.
        """
        key = finding.subject.process
        if key is None:
            raise NotAllowed("it concerns no single process, so there is none to ask")
        return self.ask(key, {"finding": msgspec.to_builtins(finding.public)}, dry_run=dry_run)

    def ask(self, key: ProcessKey, facts: dict[str, Any] | None = None, *, dry_run: bool) -> str:
        """Ask one process, as :meth:`run`; a program of the user's is told ``facts`` besides."""
        with self._target(key) as target:
            chosen = self._chosen(key)
            way = self._way_for(target, chosen)
            if dry_run:
                return f"would ask {target.name} to save: {way}"
            if chosen:
                number = _number(chosen)
                target.send(number)
                how = "" if target.held else " (compared just before, not held by the kernel)"
                return f"asked {target.name} to save by {number.name}{how}, not confirmed"
            target.check()
            process = {"pid": key.pid, "started_at_s": key.started_at_s, "name": target.name}
            content = {"schema_version": SCHEMA_VERSION, "ask": "checkpoint", "process": process}
            # What the program reads on standard input: one JSON object and a line feed.
            self._run(target.name, msgspec.json.encode(content | (facts or {})) + b"\n")
        return f"asked {target.name} to save by {self._program}, not confirmed"

    def _target(self, key: ProcessKey) -> Target:
        return Target(key, booted_at_s=self._booted_at_s, proc=self._proc)

    @property
    def _program(self) -> str:
        return text.clean(Path(self._argv[0]).name) if self._argv else ""

    def _chosen(self, key: ProcessKey) -> str:
        """Return the signal to ask it by, its own before that of [act]; "" for a program."""
        found = b""
        with (
            contextlib.suppress(OSError),
            (self._proc / str(key.pid) / "environ").open("rb") as file,
        ):
            found = file.read(_ENVIRON_BYTES)
        start = f"{DECLARED}=".encode()
        for word in found.split(b"\0"):
            if word.startswith(start) and word[len(start) :] in _SIGNALS:
                return word[len(start) :].decode()
        if self._way == "off":
            raise NotAllowed(_OFF, hint=_OFF_HINT, page="errors#asking-off")
        return self._signal if self._way == "signal" else ""

    def _way_for(self, target: Target, chosen: str) -> str:
        """Return how the process can be asked; raise NotAllowed where it cannot be."""
        if not chosen:
            if not self._argv:
                raise NotAllowed(
                    "no program is set up to ask with",
                    hint='set [act] argv = ["/path/to/program"]',
                    page="errors#asking-program",
                )
            if _found(self._argv[0]) is None:
                raise NotAllowed(
                    f"{text.clean(self._argv[0])}: no such program, or not executable",
                    hint="give an absolute path and chmod +x",
                    page="errors#asking-program",
                )
            return f"runs {self._program}"
        number = _number(chosen)
        handles = target.handles(number)
        if handles is None:
            raise NotAllowed(
                f"it cannot be known here whether {target.name} has a handler for {number.name};"
                " without one it would be ended",
                hint='use [act] checkpoint = "command"',
                page="errors#no-handler",
            )
        if not handles:
            raise NotAllowed(
                f"{target.name} has no handler for {number.name} and would be ended by it",
                hint="let it install one, or choose another [act] signal",
                page="errors#no-handler",
            )
        return f"sends {number.name}, which it has a handler for"

    def _run(self, target: str, data: bytes) -> None:
        """Run the user's program to its end; raise NotAllowed unless it exits with 0."""
        executable = _found(self._argv[0]) or self._argv[0]
        try:
            code, value = run_program.run(
                [executable, *self._argv[1:]],
                data,
                environ={k: v for k, v in os.environ.items() if k not in SECRET_VARIABLES},
                timeout_s=self._timeout_s,
            )
        except (OSError, ValueError) as error:
            why = text.clean(getattr(error, "strerror", None) or str(error))
            raise NotAllowed(
                f"{self._program} could not be run for {target}: {why}",
                page="errors#asking-program",
            ) from error
        if code == 0:
            return
        why = f"{self._program} refused with {code}"
        if code is None:
            why = f"{self._program} did not end within {self._timeout_s:g} s and was ended"
        raise NotAllowed(f"{why}: {value}" if value else why, page="errors#asking-program")


def _number(name: str) -> signal.Signals:
    return signal.Signals[f"SIG{name}"]


def _found(program: str) -> str | None:
    return shutil.which(str(expanded(program)))


# One process that something is to be done to, held so that it cannot become another one.
# The kernel's descriptor of the process (a pidfd) is opened first; only then is it looked at,
# and what is sent goes through the descriptor. So a pid that was given to another process
# meanwhile is never hit: a descriptor of the old one gives an error instead.

SAME_S: Final = 0.5
"""Two start times that are nearer are one."""
SAME_LOOSELY_S: Final = 2.5
"""The same for the times of psutil, which reckons with whole seconds on some systems."""
_MANY: Final = 1024
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
        self, key: ProcessKey, *, booted_at_s: float | None, proc: Path = Path("/proc")
    ) -> None:
        self.key = key
        self.name = f"pid {key.pid}"
        self._booted_at_s = booted_at_s
        self._proc = proc
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        if self.key.pid <= 2:
            raise NotAllowed("pid 1 and 2 belong to the system")
        self._descriptor = _open(self.key.pid)
        try:
            self.check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def held(self) -> bool:
        """Whether the kernel holds it for us; if not, it is compared just before it is used."""
        return self._descriptor is not None

    def check(self) -> None:
        """See again whether it is the process that is meant, and ours; raise as on entering."""
        pid = self.key.pid
        by_psutil = _without_proc(self._proc)
        if pid == os.getpid() or pid in _parents(self._proc):
            raise NotAllowed(f"pid {pid} is gpuwatchd itself, or what it was started from")
        uid, started_at_s, name = self._seen_by_psutil() if by_psutil else self._seen()
        self.name = f"{name}[{pid}]"
        if self.key.started_at_s is None:
            raise TargetChanged(f"it is not known when pid {pid} was started, nor who it is")
        # Written so that a time that is no number is nobody's, either.
        same_s = SAME_LOOSELY_S if by_psutil else SAME_S
        if not abs(started_at_s - self.key.started_at_s) <= same_s:
            raise TargetChanged(f"pid {pid} belongs to another process now: {self.name}")
        if uid != os.getuid():
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
        rest = stat[stat.rfind(b")") + 1 :].split()
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
        try:
            status = (self._proc / str(self.key.pid) / "status").read_bytes()
        except OSError:
            return None
        caught = _CAUGHT.search(status)
        return None if caught is None else bool(int(caught[1], 16) >> (number - 1) & 1)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process and no other, looked at as on entering once more first."""
        self.check()
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
            pid = int(stat[stat.rfind(b")") + 1 :].split()[1])
    return found
