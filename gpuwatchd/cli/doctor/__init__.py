"""What ``doctor`` looks at: one file a subject, the slow ones side by side, none without end."""

from __future__ import annotations

import difflib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.cli.doctor import answer
from gpuwatchd.cli.doctor.answer import Check, CheckContext, PendingCheck, failed, select_checks
from gpuwatchd.cli.doctor.answer import every as every_name
from gpuwatchd.core import config
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuwatchd.cli.flags import Globals

CHECKS = {
    "program": "program:check",
    "config": "program:configuration",
    "gpus": "gpus:check",
    "host": "program:surroundings",
    "daemon": "running:check",
    "instances": "running:instances",
    "service": "running:service",
    "disk": "places:check",
    "history": "places:history",
    "clock": "program:clock",
    "prices": "program:prices",
    "session": "channels:desktop_session",
    "channels": "channels:check",
    "mail": "channels:mail_server",
    "web": "web:check",
}
"""Name -> module and function, in the order in which they are told."""
_SLOW = {"gpus", "service", "channels", "mail"}
"""Those that wait for somebody else; they wait together, the others take their turn."""
_SLACK_S = 2.0
"""A check whose parts have their own deadline gets that much more for itself."""


def every(flags: Globals, names: Sequence[str] = (), *, offline: bool = False) -> Iterator[Check]:
    """Yield what the checks answer, in order; one that breaks or hangs is itself an answer.

    Parameters
    ----------
    flags
        Global flags.
    names
        Only these: of ``CHECKS``, or what one prints, or an id; all when empty.
    offline
        Whether nothing may go over the network.

    Raises
    ------
    GpuwatchdError
        When no check has such a name.
    """
    wanted: list[str] = []
    for name in names:
        meant = select_checks(name, tuple(CHECKS))
        wanted += meant
        if not meant:
            near = difflib.get_close_matches(name, every_name(tuple(CHECKS)), n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise GpuwatchdError(
                f"no such check: {name}{guess}",
                hint=f"known: {', '.join(CHECKS)}",
                page="errors#unknown-name",
            )
    yield from ask(around(flags, offline=offline), wanted)


def around(flags: Globals, *, offline: bool = False) -> CheckContext:
    """Return this machine and the configuration in force."""
    try:
        loaded = flags.load_config()
    except GpuwatchdError as error:
        nothing = config.load(Path(os.devnull), environ={})
        return CheckContext(flags, nothing, faulty=(error.message, error.hint), offline=offline)
    return CheckContext(flags, loaded, offline=offline)


def ask(machine: CheckContext, names: Sequence[str] = ()) -> Iterator[Check]:
    """Yield what the checks answer about a machine."""
    machine.read()
    wanted = [name for name in CHECKS if not names or name in names]
    early = {name: _asked(machine, name) for name in wanted if name in _SLOW}
    for name in wanted:
        asked = early.get(name) or _asked(machine, name)
        for check in asked.answers(answer.DEADLINE_S + _SLACK_S):
            yield check if check.id else msgspec.structs.replace(check, id=name)


def _asked(machine: CheckContext, name: str) -> PendingCheck:
    def work() -> Iterable[Check]:
        module, _, function = CHECKS[name].partition(":")
        checks: Iterable[Check] = getattr(
            importlib.import_module(f"{__name__}.{module}"), function
        )(machine)
        return checks

    hung = failed(
        "check-hangs", name, "does not come to an end", f"gpuwatchctl doctor {name} --debug"
    )
    return PendingCheck(work, hung)
