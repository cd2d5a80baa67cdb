"""Is the clock right: synchronised, with a time zone, and not behind what is recorded."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.answer import Check, ok, warning
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

_NAME = "clock"
_SYNCHRONIZED = "run/systemd/timesync/synchronized"
_UNSYNCHRONIZED_BIT = 0x40
"""STA_UNSYNC of adjtimex(2): nobody has disciplined the clock for a while."""
_OWN_CLOCK = {"simulate", "replay"}
_AHEAD_S = 60.0
"""A record as far ahead of the clock is no rounding any more."""


class _Timex(ctypes.Structure):
    """The first fields of struct timex of Linux, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )  # fmt: skip


def disciplined() -> bool | None:
    """Say whether the kernel holds the clock for synchronised; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        about = _Timex()
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(about)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not about.status & _UNSYNCHRONIZED_BIT


def check(around: Around) -> Iterator[Check]:
    """Yield what is wrong with the clock."""
    checks = [*_synchronised(around), *_zone(around), *_ahead(around)]
    yield from checks
    if not checks:
        offset = time.strftime("%Z")
        yield ok(_NAME, f"{units.clock(time.time())} {offset}")


def _synchronised(around: Around) -> Iterator[Check]:
    # In a container the host's services keep the clock, and their files are not seen.
    if not around.with_systemd or (around.root / "run/systemd/container").exists():
        return
    if (around.root / _SYNCHRONIZED).exists() or disciplined() is not False:
        return
    yield warning(
        "clock-unsynchronised", _NAME,
        "is set by nobody: the times of alerts and of other machines' logs drift apart",
        "sudo timedatectl set-ntp true (or install chrony)",
    )  # fmt: skip


def _zone(around: Around) -> Iterator[Check]:
    zone = around.environ.get("TZ", "").lstrip(":")
    database = around.root / "usr/share/zoneinfo"
    if "/" not in zone or zone.startswith("/") or not database.is_dir():
        return
    if not (database / zone).exists():
        yield warning(
            "clock-zone", _NAME, f"the time zone TZ={zone} is not known here: UTC is shown",
            "timedatectl list-timezones",
        )  # fmt: skip


def _ahead(around: Around) -> Iterator[Check]:
    """Yield when what is recorded lies in the future: the clock was set back.

    A source with a clock of its own (a recording, a simulation) may be there already.
    """
    kinds = {word.partition(":")[0] for word in around.settings.sources.enabled}
    if kinds & _OWN_CLOCK:
        return
    now_s = time.time()
    latest_s = 0.0
    state, _ = around.state
    if state is not None:
        latest_s = state.taken_at_s
    latest_s = max(latest_s, _recorded_s(now_s))
    if latest_s > now_s + _AHEAD_S:
        ahead = units.duration(latest_s - now_s)
        yield warning(
            "clock-behind", _NAME,
            f"is {ahead} behind what is recorded already: it was set back, or was wrong before",
            "timedatectl; what is recorded from the future is judged once its time comes",
        )  # fmt: skip


def _recorded_s(now_s: float) -> float:
    """Return the latest instant of the history that lies ahead; 0 where none does."""
    from gpuwatchd.cli import history_query, locations  # noqa: PLC0415

    if not locations.recorded(locations.state_dir()):
        return 0.0
    try:
        with history_query.reader() as history:
            found = [
                rows[-1].at_s
                for device in history.devices()
                if (rows := history.device_rows(device.uid, now_s + _AHEAD_S, now_s + 1e9))
            ]
    except GpuwatchdError:
        return 0.0  # the check of the history says so
    return max(found, default=0.0)
