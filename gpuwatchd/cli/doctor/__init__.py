"""What ``doctor`` looks at: a check is a function and a row of ``CHECKS``.

The slow ones are asked side by side, each in a thread of its own, and none without end.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from gpuwatchd.core import config, registry, text
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import CheckShape
from gpuwatchd.view.queries import current_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config, Loaded
    from gpuwatchd.service.unit_files import Runner
    from gpuwatchd.store.live import LiveState


class Row(NamedTuple):
    """One check."""

    where: str
    """Module and function."""
    faults: str
    """The ids of what it can find, with spaces between them."""
    printed: tuple[str, ...] = ()
    """What it is called where it answers, beside its own name."""
    slow: bool = False
    """It waits for somebody else; these wait together, the others take their turn."""


CHECKS: Final = {
    "program": Row(
        "program:check",
        "python-untested sqlite-old terminal-encoding",
        printed=("python", "sqlite", "terminal", "extras", "shell"),
    ),
    "config": Row(
        "program:configuration",
        "config-consequence config-error config-problem config-readable config-variable "
        "config-writable",
    ),
    "gpus": Row(
        "gpus:check",
        "driver-container driver-library driver-library-unusable driver-mismatch "
        "driver-nodes driver-not-loaded driver-nouveau gpu-none gpu-unread source-empty "
        "source-hangs source-unusable",
        printed=("gpu", "driver", "source"),
        slow=True,
    ),
    "host": Row(
        "gpus:surroundings",
        "device-files gpu-unread processes-hidden server-silent",
        printed=("device files", "processes", "container", "servers"),
    ),
    "daemon": Row(
        "running:check",
        "daemon-absent daemon-denied daemon-late daemon-newer daemon-problem "
        "daemon-state daemon-version",
    ),
    "instances": Row(
        "running:instances",
        "instance-homebrew instance-second instance-system path-differs path-several",
    ),
    "service": Row(
        "running:service",
        "linger-missing service-broken service-disabled service-failed service-memory "
        "service-none service-old service-other service-reload service-restarts",
        printed=("machine's service", "linger"),
        slow=True,
    ),
    "probe": Row("running:probes", "probe-ignored"),
    "disk": Row(
        "places:check",
        "directory-closed directory-foreign directory-network directory-none "
        "directory-open directory-relative disk-full disk-low disk-quota disk-read-only "
        "disk-small disk-unknown",
        printed=("history directory", "live directory"),
    ),
    "history": Row("places:history", "history-damaged history-unreadable"),
    "clock": Row("program:clock", "clock-behind clock-unsynchronised clock-zone"),
    "prices": Row("program:prices", "price-doubtful", printed=("price",)),
    "session": Row("channels:desktop_session", "session-dead session-foreign session-none"),
    "channels": Row(
        "channels:check",
        "channel-chat channel-command channel-desktop channel-email channel-hangs channel-unused",
        printed=("channel",),
        slow=True,
    ),
    "mail": Row(
        "channels:mail_server",
        "mail-certificate mail-login mail-name mail-refuses mail-tls mail-unreachable",
        printed=("mail server",),
        slow=True,
    ),
    "web": Row(
        "channels:live_page", "web-extra web-listen web-remote web-token", printed=("live page",)
    ),
    "metrics": Row("channels:metrics", "metrics-extra metrics-file metrics-listen metrics-token"),
}
"""Name -> check, in the order in which they are told."""
ANY: Final = ("check-breaks", "check-hangs")
"""Ids that every check may answer with."""
_ONE_OF: Final = (
    (re.compile(r"source \S+"), ("gpus",)),
    (re.compile(r"(GPU|MIG)( \S+)?"), ("gpus", "host")),
    (re.compile(r"server \S.*"), ("host",)),
    (re.compile(r"channel \S+"), ("channels",)),
)
"""What is called after a thing of this machine."""
_SLACK_S = 2.0
"""A check whose parts have their own deadline gets that much more for itself."""


def every(flags: Globals, names: Sequence[str] = (), *, offline: bool = False) -> Iterator[Check]:
    """Yield what the checks answer, in order; one that breaks or hangs is itself an answer.

    ``names`` are those of ``CHECKS``, of what one prints, or ids; all checks where there is none.
    ``offline`` keeps them from the network.
    """
    wanted: list[str] = []
    for name in names:
        meant = select_checks(name)
        wanted += meant
        if not meant:
            raise GpuwatchdError(
                f"no such check: {name}{text.guess(name, every_name())}",
                hint=f"known: {', '.join(CHECKS)}",
                page="errors#unknown-name",
            )
    try:
        machine = CheckContext(flags, flags.load_config(), offline=offline)
    except GpuwatchdError as error:
        nothing, faulty = config.load(Path(os.devnull), environ={}), (error.message, error.hint)
        machine = CheckContext(flags, nothing, faulty=faulty, offline=offline)
    yield from ask(machine, wanted)


def ask(machine: CheckContext, names: Sequence[str] = ()) -> Iterator[Check]:
    """Yield what the checks answer about a machine."""
    machine.read()
    if names and machine.faulty is not None:  # the others then look at the defaults
        names = [*names, "config"]
    wanted = [name for name in CHECKS if not names or name in names]
    early = {name: _asked(machine, name) for name in wanted if CHECKS[name].slow}
    for name in wanted:
        asked = early.get(name) or _asked(machine, name)
        for check in asked.answers(DEADLINE_S + _SLACK_S):
            yield check if check.id else msgspec.structs.replace(check, id=name)


def _asked(machine: CheckContext, name: str) -> PendingCheck:
    row = CHECKS[name]

    def work() -> Iterator[Check]:
        answers = registry.load({name: f"{__name__}.{row.where}"}, name)(machine)
        return named(answers, row.printed[0] if len(row.printed) == 1 else name)

    hint = f"gpuwatchctl doctor {name} --debug"
    return PendingCheck(work, failed("check-hangs", "does not come to an end", hint, name=name))


# By which names a check may be asked for: its own, what it prints, the id of what it finds.


def select_checks(name: str) -> tuple[str, ...]:
    """Return which of the checks a name means; none where it means nothing.

    Examples
    --------
    >>> select_checks("extras"), select_checks("gpu-none")
    (('program',), ('gpus',))
    """
    if name in CHECKS:
        return (name,)
    things = [check for pattern, meant in _ONE_OF if pattern.fullmatch(name) for check in meant]
    return tuple(
        check
        for check, row in CHECKS.items()
        if name in ANY or name in row.printed or name in row.faults.split() or check in things
    )


def every_name() -> list[str]:
    """Return every name that can be listed: checks first, then what they print, then ids."""
    from gpuwatchd.collect import SOURCES  # noqa: PLC0415
    from gpuwatchd.notify import NOTIFIERS  # noqa: PLC0415 - only to complete a name

    words = [word for row in CHECKS.values() for word in row.printed]
    words += [fault for row in CHECKS.values() for fault in row.faults.split()]
    words += [f"source {source}" for source in SOURCES]
    words += [f"channel {notifier}" for notifier in NOTIFIERS]
    return list(dict.fromkeys([*CHECKS, *words, *ANY]))


# How a check answers, and how it is asked.

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
