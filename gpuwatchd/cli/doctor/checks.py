"""What a check answers, and how it is asked: in a thread of its own, for so long and no longer."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import CheckShape
from gpuwatchd.view.queries import current_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config, Loaded
    from gpuwatchd.service.unit_files import Runner
    from gpuwatchd.store.live import LiveState

DEADLINE_S = 8.0
"""A probe that has not answered by then hangs; doctor goes on without it."""
ROOT = Path("/")
"""Where /proc, /dev, /sys, /etc and /run are looked for."""
PAGE = "troubleshoot"
Level = Literal["ok", "warning", "failed"]
Check = CheckShape
"""One answer."""


@dataclass
class CheckContext:
    """What every check may look at."""

    flags: Globals
    loaded: Loaded
    """The configuration in force; the defaults where it cannot be read."""
    _: KW_ONLY
    faulty: tuple[str, str] | None = None
    """Why it cannot be read: message and hint; None where it can."""
    root: Path = ROOT
    """Where the system's files are looked for."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    offline: bool = False
    """Whether nothing may go over the network."""
    run: Runner | None = None
    """Runs a command of the service manager; None: the usual one."""

    @cached_property
    def state(self) -> tuple[LiveState | None, list[tuple[str, str]]]:
        """The live state and what is wrong with it."""
        return current_state.read_state()

    @cached_property
    def alive(self) -> bool:
        """Whether the daemon that wrote the live state runs."""
        state, _ = self.state
        return state is not None and current_state.alive(state)

    @property
    def denied(self) -> bool:
        """Whether a service of this machine watches, and its state may not be read."""
        return any(code == "system-denied" for code, _ in self.state[1])

    @cached_property
    def released_until_s(self) -> float | None:
        """Until when the GPUs are let go on request (epoch seconds); None where they are not."""
        return current_state.released_until_s()

    def read(self) -> None:
        """Read the files of the daemon, before there are threads.

        msgspec learns a type when it is first decoded, and two threads that make it learn one at
        the same time crash the whole program.
        """
        _ = self.state, self.alive, self.released_until_s

    @property
    def settings(self) -> Config:
        """All settings."""
        return self.loaded.config

    @property
    def with_systemd(self) -> bool:
        """Whether systemd is what started this machine."""
        return (self.root / "run/systemd/system").is_dir()


def ok(words: str, *, name: str = "") -> Check:
    """Return that all is well, or that something is so and needs no mending.

    Without a name it gets the one under which its check is told, as the next two do.
    """
    return _check("", name, "ok", words, "")


def warning(fault: str, words: str, hint: str = "", *, name: str = "") -> Check:
    """Return what should be mended; ``fault`` is its id, see docs/how-to/troubleshoot.md."""
    return _check(fault, name, "warning", words, hint)


def failed(fault: str, words: str, hint: str = "", *, name: str = "") -> Check:
    """Return what must be mended; ``fault`` is its id, see docs/how-to/troubleshoot.md."""
    return _check(fault, name, "failed", words, hint)


def _check(fault: str, name: str, level: Level, words: str, hint: str) -> Check:
    page = f"{PAGE}#{fault}" if fault else ""
    return fill(Check, (), name=name, level=level, text=words, hint=hint, id=fault, page=page)


def named(checks: Iterable[Check], name: str) -> Iterator[Check]:
    """Yield answers; those that have no name get this one."""
    for check in checks:
        yield check if check.name else msgspec.structs.replace(check, name=name)


class PendingCheck:
    """A check that has been asked and answers in its own time.

    Parameters
    ----------
    work
        The check. One that breaks is an answer too: that it failed, and of what.
    hung
        The answer when it does not return (a driver, a bus); then it is left behind. Answers
        that have no name get its name.
    """

    def __init__(self, work: Callable[[], Iterable[Check]], hung: Check) -> None:
        self._work = work
        self._hung = hung
        self._found: list[Check] = []
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._answer, name=hung.name, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            for check in self._work():
                self._found.append(check)
        except Exception as error:  # noqa: BLE001 - the edge of this thread; the others are asked on
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hung = self._hung
            self._found.append(
                failed("check-breaks", f"breaks with {why}", hung.hint, name=hung.name)
            )

    def answers(self, within_s: float | None = None) -> list[Check]:
        """Return what it answers within so many seconds after it was asked."""
        within_s = DEADLINE_S if within_s is None else within_s
        self._thread.join(max(0.0, self._began_s + within_s - time.monotonic()))
        hung = [self._hung] if self._thread.is_alive() else []
        return [*named(tuple(self._found), self._hung.name), *hung]
