"""When this boot began, told the same way for as long as it lasts.

Linux counts the start of a process in ticks since boot, which nothing changes. What it says of the
boot itself is the clock's time less the time since: set the clock, and every process of the machine
seems to have started at another instant. For a daemon that is started again such a process would be
another one, and its alert would end and open anew. So the first answer of a boot is written down.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core import typed

if TYPE_CHECKING:
    from pathlib import Path

WRONG_CLOCK_S: Final = 86_400.0
"""A machine without a clock of its own boots in another year: such an answer is not kept."""


class _Anchor(msgspec.Struct):
    boot_id: str
    booted_at_s: float


def settled(path: Path, boot_id: str, booted_at_s: float, *, keep: bool = True) -> float:
    """Return the time of boot that was told first in this boot, epoch seconds.

    A step of the clock by more than a day makes a new beginning.

    Parameters
    ----------
    path
        Where it is written down; what cannot be read is written anew, and where nothing can be
        written the present answer is as good as any.
    boot_id
        Which boot this is; "" where the system does not say, then nothing is kept.
    booted_at_s
        What the kernel says now.
    keep
        Write the answer down where none is; who only looks must leave that to the daemon.
    """
    if not boot_id:
        return booted_at_s
    try:
        anchor = typed.decode(path.read_bytes(), _Anchor)
    except (OSError, msgspec.MsgspecError):
        anchor = None
    same = anchor is not None and anchor.boot_id == boot_id
    if anchor is not None and same and abs(anchor.booted_at_s - booted_at_s) <= WRONG_CLOCK_S:
        return anchor.booted_at_s
    if keep:
        _keep(path, _Anchor(boot_id, booted_at_s))
    return booted_at_s


def _keep(path: Path, anchor: _Anchor) -> None:
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            # A group that reads the history must date the start of a process as we do.
            if beside.parent.stat().st_mode & 0o077 == 0o050:
                os.fchmod(descriptor, 0o640)
            file.write(msgspec.json.encode(anchor))
        beside.replace(path)
    except OSError:
        return  # a full or read-only disk: the alert of a process may open anew, no more
