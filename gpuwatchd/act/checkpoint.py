"""Asking a job to save its work, in the way that the user has set up.

What is certain afterwards is that the job was asked. Many jobs look at such a wish only between two
steps, and some never; that it has saved is seen by a newer checkpoint alone.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.act.target import Target
from gpuwatchd.core import run_program, text
from gpuwatchd.core.config import SECRET_VARIABLES, expanded
from gpuwatchd.core.errors import ActionError, NotAllowed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpuwatchd.core.model import Finding, ProcessKey

SCHEMA_VERSION: Final = 1
COMMAND_S: Final = 30.0
"""A program of the user's that has not ended by then is ended."""
DECLARED: Final = "GPUWATCHD_CHECKPOINT_SIGNAL"
"""Variable of a job: the signal on which it saves, as whoever started it has said."""
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
                self._way_for(target, self.signal_of(target))
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
            chosen = self.signal_of(target)
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

    def signal_of(self, target: Target) -> str:
        """Return the signal to ask it by, its own before that of [act]; "" for a program."""
        start = f"{DECLARED}=".encode()
        for word in target.read("environ").split(b"\0"):
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
