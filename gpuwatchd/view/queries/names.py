"""What people type for a process or an alert: whatever is shown of it names it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuwatchd import alerts
from gpuwatchd.core.errors import Ambiguous
from gpuwatchd.core.model import AlertSubject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.core.model import Alert, ProcessInfo

LONGEST: Final = 200
"""Characters of a name that are shown again."""
_LISTED: Final = 12
_PID: Final = re.compile(
    r"(?:.*[^-]\[(?P<shown>[0-9]{1,10})\](?: .*)?|(?:(?:.* )?pid )?(?P<said>[0-9]{1,10}))"
)


def pid_in(word: str) -> int | None:
    """Return the pid that is written alone, or in a process as it is shown.

    Examples
    --------
    >>> pid_in("4711"), pid_in("python train.py[4711] of alice"), pid_in("bob - vLLM - pid 7")
    (4711, 4711, 7)
    >>> pid_in("train.py"), pid_in("GPU-[01]*")
    (None, None)
    """
    match = _PID.fullmatch(word.strip())
    return None if match is None else int(match["shown"] or match["said"])


def names_process(word: str, info: ProcessInfo) -> bool:
    """Say whether a word or a glob is the program, user, job, model or container of a process."""
    shown = (
        info.name,
        info.label,
        info.entry_point[1],
        info.user,
        info.framework,
        info.model,
        info.short_container,
        info.unit,
        info.attribution,
        *[part for job in (info.job, info.group) if job for part in _job(job)],
    )
    return bool(word) and alerts.fits(word, *(name for name in shown if name))


def _job(job: str) -> Iterator[str]:
    """Yield "slurm 42.0" and "slurm 42", with and without the scheduler."""
    for name in (job, job.partition(".")[0]):
        yield from (name, name.rpartition(" ")[2])


def names_alert(word: str, alert: Alert) -> bool:
    """Say whether a word or a glob is the title of an alert, its GPU, or names its process."""
    about = alert.about or AlertSubject()
    shown = (
        alert.title,
        alert.program,
        alert.subject.device_uid,
        about.process,
        about.user,
        about.framework,
        about.model,
        about.container,
        about.unit,
        *(f"{kind}{about.gpu}" for kind in ("GPU ", "GPU", "MIG ", "MIG") if about.gpu),
        *_job(about.job),
    )
    return bool(word) and alerts.fits(word, *shown)


def ambiguous(word: str, what: str, choices: Mapping[str, str] | Mapping[int, str]) -> Ambiguous:
    """Return the refusal of a name that fits several: each with what to type for it, a line."""
    listed = [f"{typed} ({shown})" for typed, shown in list(choices.items())[:_LISTED]]
    listed += [f"and {len(choices) - _LISTED} more"] if len(choices) > _LISTED else []
    hint = "\n".join(["type one of", *listed])
    return Ambiguous(f"{word[:LONGEST]!r} fits {len(choices)} {what}", hint=hint)
