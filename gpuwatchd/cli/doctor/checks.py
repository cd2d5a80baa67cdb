"""What a check answers, and how it is asked: in a thread of its own, for so long and no longer."""

from __future__ import annotations

import os
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwatchd.core import text
from gpuwatchd.view.answers.program import CheckShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config, Loaded
    from gpuwatchd.service.runner import Runner
    from gpuwatchd.store.live import LiveState

DEADLINE_S = 8.0
"""A probe that has not answered by then hangs; doctor goes on without it."""
ROOT = Path("/")
"""Where /proc, /dev, /sys, /etc and /run are looked for."""
PAGE = "troubleshoot"
Level = Literal["ok", "warning", "failed"]
Check = CheckShape
"""One answer."""


class CheckContext:
    """What every check may look at.

    Attributes
    ----------
    flags
        Global flags.
    loaded
        The configuration in force; the defaults where it cannot be read.
    faulty
        Why it cannot be read: (message, hint); None where it can.
    root
        Where the system's files are looked for.
    environ
        The environment.
    offline
        Whether nothing may go over the network.
    run
        Runs a command of the service manager.
    """

    def __init__(
        self,
        flags: Globals,
        loaded: Loaded,
        *,
        faulty: tuple[str, str] | None = None,
        root: Path | None = None,
        environ: Mapping[str, str] | None = None,
        offline: bool = False,
        run: Runner | None = None,
    ) -> None:
        self.flags = flags
        self.loaded = loaded
        self.faulty = faulty
        self.root = ROOT if root is None else root
        self.environ = dict(os.environ if environ is None else environ)
        self.offline = offline
        self._run = run

    @cached_property
    def state(self) -> tuple[LiveState | None, list[tuple[str, str]]]:
        """The live state and what is wrong with it."""
        from gpuwatchd.view.queries import current_state  # noqa: PLC0415

        return current_state.read_state()

    @cached_property
    def alive(self) -> bool:
        """Whether the daemon that wrote the live state runs."""
        from gpuwatchd.view.queries import current_state  # noqa: PLC0415

        state, _ = self.state
        return state is not None and current_state.alive(state)

    @property
    def denied(self) -> bool:
        """Whether a service of this machine watches, and its state may not be read."""
        return any(code == "system-denied" for code, _ in self.state[1])

    @cached_property
    def released_until_s(self) -> float | None:
        """Until when the GPUs are let go on request (epoch seconds); None where they are not."""
        from gpuwatchd.view.queries import current_state  # noqa: PLC0415

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
    def run(self) -> Runner:
        """Runs a command; built when it is first wanted."""
        if self._run is None:
            from gpuwatchd.service.runner import CommandRunner  # noqa: PLC0415
            from gpuwatchd.service.unit_files import with_runtime_dir  # noqa: PLC0415

            self._run = CommandRunner(with_runtime_dir(self.environ))
        return self._run

    @property
    def with_systemd(self) -> bool:
        """Whether systemd is what started this machine."""
        return (self.root / "run/systemd/system").is_dir()


def ok(name: str, words: str) -> Check:
    """Return that all is well, or that something is so and needs no mending."""
    return _check("", name, "ok", words, "")


def warning(fault: str, name: str, words: str, hint: str = "") -> Check:
    """Return what should be mended; ``fault`` is its id, see docs/how-to/troubleshoot.md."""
    return _check(fault, name, "warning", words, hint)


def failed(fault: str, name: str, words: str, hint: str = "") -> Check:
    """Return what must be mended; ``fault`` is its id, see docs/how-to/troubleshoot.md."""
    return _check(fault, name, "failed", words, hint)


def _check(fault: str, name: str, level: Level, words: str, hint: str) -> Check:
    return Check(
        name=name,
        level=level,
        text=text.clean(words, limit=1024),
        hint=text.clean(hint, limit=1024),
        id=fault,
        page=f"{PAGE}#{fault}" if fault else "",
    )


class PendingCheck:
    """A check that has been asked and answers in its own time.

    Parameters
    ----------
    work
        The check. One that breaks is an answer too: that it failed, and of what.
    hung
        The answer when it does not return (a driver, a bus); then it is left behind.
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
            self._found.append(failed("check-breaks", hung.name, f"breaks with {why}", hung.hint))

    def answers(self, within_s: float | None = None) -> list[Check]:
        """Return what it answers within so many seconds after it was asked."""
        within_s = DEADLINE_S if within_s is None else within_s
        self._thread.join(max(0.0, self._began_s + within_s - time.monotonic()))
        checks = list(self._found)
        return [*checks, self._hung] if self._thread.is_alive() else checks
