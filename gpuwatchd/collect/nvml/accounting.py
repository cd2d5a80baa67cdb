"""What a process held at most, from the driver's own accounting, once it has ended.

A bonus where an administrator has switched accounting mode on (``nvidia-smi -am 1``); nothing here
switches it. It is off under MIG. Between two samples a process may have held far more than was
seen: the driver knows. Nothing here imports pynvml. Not verified on hardware.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.nvml.card import ABSENT_CODES, GLOBAL_CODES, GONE_CODES, OK
from gpuwatchd.core import units
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.collect.nvml.calls import Calls, Desk
    from gpuwatchd.collect.nvml.card import Card
    from gpuwatchd.core.model import ProcessUse

FIELD: Final = "accounting"
"""What it is called among a card's refusals."""
TRIES: Final = 3
"""A process leaves the list before the driver has closed its account: it is asked so often."""
MOST_EVENTS: Final = 64
_NO_PERMISSION: Final = 4
_UNKNOWN: Final = 0xFFFF_FFFF_FFFF_FFFF
_EPOCH_US: Final = 10**15
"""A start above this (2001) counts from 1970; what a lower one counts from is not known."""
_SLACK_S: Final = 10.0
_LEAST_SHARE: Final = 0.9
"""An account that knows of less than this of what the process was seen to hold is another's."""


class Account(ctypes.Structure):
    """``nvmlAccountingStats_t``."""

    _fields_ = (
        ("util", ctypes.c_uint),
        ("memory_util", ctypes.c_uint),
        ("peak_bytes", ctypes.c_ulonglong),
        ("lasted_ms", ctypes.c_ulonglong),
        ("started_us", ctypes.c_ulonglong),
        ("running", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 5),
    )


class Listed:
    """What is remembered of the processes on one card."""

    __slots__ = ("asking", "before", "since_s")

    def __init__(self) -> None:
        self.before: dict[int, ProcessUse] = {}
        """Who was last listed, by pid."""
        self.since_s: dict[int, float] = {}
        """pid -> when (epoch seconds) it was first listed."""
        self.asking: dict[int, tuple[int, int, float]] = {}
        """pid that has left -> (tries left, what it held last, when it was first listed)."""


class Accounting:
    """Asks for the account of every process that leaves a card's list.

    While no process leaves, nothing is asked. Where the driver keeps no accounts that is asked
    once per card, and nothing is done from then on.

    Parameters
    ----------
    calls
        The library.
    error
        NVML's error class.
    clock
        Wall clock, seconds.
    """

    def __init__(self, calls: Calls, error: type[Exception], clock: Callable[[], float]) -> None:
        self._mode = calls.find("nvmlDeviceGetAccountingMode")
        self._stats = calls.find("nvmlDeviceGetAccountingStats")
        self._error = error
        self._clock = clock
        self._listed: dict[str, Listed] = {}
        self.happened: deque[Event] = deque(maxlen=MOST_EVENTS)
        """What was found and not fetched yet."""

    def follow(self, card: Card, desk: Desk) -> None:
        """Look who has left the list that was just read; runs in the card's lane.

        Raises
        ------
        Exception
            NVML's error when the card or NVML itself is gone.
        """
        if FIELD in card.refused or card.is_parent or card.device.parent_uid is not None:
            return
        present = desk.by_pid
        listed = self._listed.get(card.uid)
        if listed is None:
            if not present or not self._is_on(card, desk):
                return
            listed = self._listed[card.uid] = Listed()
        before = listed.before
        if present is not before:
            listed.before = present
            if present.keys() != before.keys():
                self._compare(listed, before)
        if listed.asking:
            self._ask(card, desk, listed)

    def _compare(self, listed: Listed, before: dict[int, ProcessUse]) -> None:
        now_s, present = self._clock(), listed.before
        for pid in before.keys() - present.keys():
            held = before[pid].used_bytes or 0
            listed.asking[pid] = (TRIES, held, listed.since_s.pop(pid, now_s))
        for pid in present.keys() - before.keys():
            listed.since_s[pid] = now_s
            listed.asking.pop(pid, None)  # It is back, or another one has its number.

    def _ask(self, card: Card, desk: Desk, listed: Listed) -> None:
        account = Account()
        for pid, (tries, held, since_s) in tuple(listed.asking.items()):
            code = self._stats(desk.handle, ctypes.c_uint(pid), ctypes.byref(account))
            if code in GLOBAL_CODES or code in GONE_CODES:
                raise self._error(code)
            if code in ABSENT_CODES or code == _NO_PERMISSION:
                # It was switched off, or the driver is a new one.
                card.refused.add(FIELD)
                del self._listed[card.uid]
                return
            if code == OK and not account.running:
                del listed.asking[pid]
                if _is_of(account, held, since_s):
                    self._report(card, pid, account.peak_bytes)
            elif tries > 1:
                listed.asking[pid] = (tries - 1, held, since_s)
            else:
                del listed.asking[pid]

    def _is_on(self, card: Card, desk: Desk) -> bool:
        """Return whether the driver keeps accounts; where it does not, it is asked no more."""
        mode = ctypes.c_uint()
        code = self._mode(desk.handle, ctypes.byref(mode))
        if code in GLOBAL_CODES or code in GONE_CODES:
            raise self._error(code)
        if code == OK and mode.value == 1:
            return True
        card.refused.add(FIELD)
        return False

    def _report(self, card: Card, pid: int, peak_bytes: int) -> None:
        self.happened.append(
            Event(
                at_s=self._clock(),
                kind="process-peak",
                device_uid=card.uid,
                text=units.peak_text(f"pid {pid}", peak_bytes),
                pid=pid,
                peak_bytes=peak_bytes,
            )
        )


def _is_of(account: Account, held_bytes: int, since_s: float) -> bool:
    """Say whether an account is that of the process that left, and tells its memory.

    The driver keeps one account per number: that of whoever ended last under it.

    Parameters
    ----------
    account
        As the driver gave it.
    held_bytes
        What the process was last seen to hold, 0 where that is unknown.
    since_s
        When it was first listed, epoch seconds.
    """
    peak: int = account.peak_bytes
    if peak in {0, _UNKNOWN} or peak < _LEAST_SHARE * held_bytes:
        return False
    started_us: int = account.started_us
    if started_us < _EPOCH_US or started_us == _UNKNOWN:
        return True
    # It was on the card when it was first listed: neither over by then nor yet to begin.
    started_s = started_us / 1e6
    ended_s = started_s + account.lasted_ms / 1e3
    return started_s <= since_s + _SLACK_S and ended_s >= since_s - _SLACK_S
