"""What ``doctor`` looks at: one file a subject, the slow ones side by side, none without end."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.cli.doctor import checks
from gpuwatchd.cli.doctor.checks import Check, CheckContext, PendingCheck, failed
from gpuwatchd.core import config, registry, text
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.cli.global_flags import Globals


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
        for check in asked.answers(checks.DEADLINE_S + _SLACK_S):
            yield check if check.id else msgspec.structs.replace(check, id=name)


def _asked(machine: CheckContext, name: str) -> PendingCheck:
    row = CHECKS[name]

    def work() -> Iterator[Check]:
        answers = registry.load({name: f"{__name__}.{row.where}"}, name)(machine)
        return checks.named(answers, row.printed[0] if len(row.printed) == 1 else name)

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
