"""Reading one card: memory, processes, gauges; what one of them refuses leaves the others alone.

Nothing here imports pynvml: the module is handed in.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.collect import control_groups
from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    FATAL_CODES,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    OK,
    TIMEOUT,
    Calls,
    HandleBuffers,
    state_of,
)
from gpuwatchd.collect.nvml.events import ERRORS_EVERY_S, DeviceHealth
from gpuwatchd.collect.nvml.memory import NOT_CREDIBLE, MemoryReader, ProcessLists
from gpuwatchd.core import units
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import DeviceReading, Event, MemoryLimit
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import Answer, Card
    from gpuwatchd.collect.nvml.driver_files import Memory
    from gpuwatchd.collect.nvml.memory import Uses
    from gpuwatchd.core.model import Fault, ProcessUse

_TOO_LARGE: Final = "the driver's process list is not credible (more than the GPU has)"
BLIND: Final = (
    "the driver does not list processes, so the GPU is monitored as a whole: the kernel manages "
    "its memory, and pages of processes that have ended count as used"
)
OVER_S: Final = 2 * ERRORS_EVERY_S
"""A fault that was not met for so long is over: what is asked for now and then is asked again."""

log = logging.getLogger(__name__)


class Reader:
    """Reads cards through the library that nvidia-ml-py has loaded.

    Cards share nothing here that a read changes, so several may be read at once.

    Temperature, power and clock are asked for every ``slow_every`` ticks, and again when what is
    carried of them is older than ``fresh_s``.
    """

    def __init__(
        self,
        api: Any,
        proc: Path,
        sys: Path,
        *,
        slow_every: int,
        fresh_s: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._monotonic = monotonic
        self._error: type[Exception] = api.NVMLError
        self._proc = proc
        self._sys = sys
        self._slow_every = slow_every
        self._fresh_s = fresh_s
        self._clock = clock
        self._attached = False
        self.tick = 0
        """Number of the read; the slow gauges of different cards take turns."""

    def attach(self) -> None:
        """Use the library, which nvidia-ml-py has loaded by now."""
        if self._attached:
            return
        self._attached = True
        self._calls = Calls(self._api.nvmlLib)
        self._lists = ProcessLists(self._calls, self._error, self._proc)
        self._memory = MemoryReader(self._calls, self._proc, self._sys)
        self._health = DeviceHealth(self._calls, self._gauge, self._refused, self._clock)
        self._accounting = Accounting(self._calls, self._error, self._clock)
        self._limits = GroupLimits(self._calls, self._error, self._proc, self._sys)

    def happened(self) -> tuple[Event, ...]:
        """Return what has become worse, and who has ended, since this was last asked."""
        events: list[Event] = []
        for heap in (self._health.happened, self._accounting.happened) if self._attached else ():
            while heap:
                events.append(heap.popleft())
        return tuple(events)

    def text(self, code: int) -> str:
        """Return NVML's words for a code."""
        return f"{clean(str(self._api.NVMLError(code)))} (code {code})"

    def read(self, card: Card, mono_s: float, faults: list[Fault]) -> DeviceReading:
        """Return one look at a card; what could not be read is added to ``faults``.

        Raises
        ------
        NVMLError
            Only when the card or NVML itself is gone.
        """
        desk = card.desk
        if desk is None or not desk.belongs_to(card.handle):
            desk = card.desk = HandleBuffers(card.handle)
        turn = (self.tick + (card.device.index or 0)) % self._slow_every == 0
        memory = self._read_memory(card, desk, faults)
        busy, memory_busy = self._rates(card, desk, faults)
        memory, uses, reason = self._processes(
            card, desk, memory, mono_s=mono_s, busy_pct=busy, turn=turn, faults=faults
        )
        total = memory.total_bytes if memory else None
        if total is not None and card.device.memory_total_bytes != total:
            card.learn_total(total)
        if turn or mono_s - desk.slow_at_s > self._fresh_s:
            self._look_slowly(card, desk, mono_s, faults)
        if mono_s - desk.errors_at_s >= ERRORS_EVERY_S and card.device.parent_uid is None:
            desk.errors_at_s = mono_s
            desk.errors = self._health.errors(card, desk, faults)
        if faults or card.faulty:
            self._log(card, mono_s, faults)
        return DeviceReading(
            device_uid=card.uid,
            used_bytes=memory.used_bytes if memory else None,
            free_bytes=memory.free_bytes if memory else None,
            total_bytes=total,
            reserved_bytes=memory.reserved_bytes if memory else None,
            util_pct=busy,
            memory_util_pct=memory_busy,
            temp_c=desk.temp_c,
            power_w=desk.power_w,
            clock_mhz=desk.clock_mhz,
            uses=uses,
            uses_reason=reason,
            per_instance=card.is_parent,
            state=card.state,
            memory_api="coherent" if card.device.memory_kind == "coherent" else card.memory_api,
            throttle=desk.throttle,
            ecc_errors=desk.errors[0],
            retired_pages=desk.errors[1],
            limits=self._limits.read(card, desk, mono_s) if desk.by_pid else (),
        )

    def _processes(
        self,
        card: Card,
        desk: HandleBuffers,
        memory: Memory | None,
        *,
        mono_s: float,
        busy_pct: float | None,
        turn: bool,
        faults: list[Fault],
    ) -> tuple[Memory | None, Uses | None, str | None]:
        """Return the memory, the processes, and why they or their memory are unknown."""
        if card.is_parent:
            return memory, None, "memory is read per MIG instance"
        uses, reason = self._lists.read(card, desk, mono_s, turn=turn, busy_pct=busy_pct)
        if uses is not None and "accounting" not in card.refused:
            self._accounting.follow(card, desk)
        if uses is None:
            # A driver that has no such list at all is no fault: ``uses_reason`` says so.
            if "C" not in card.unlisted or desk.raw.get("C"):
                faults.append(card.fault(reason or "", "processes"))
            elif card.device.memory_kind == "coherent":
                faults.append(card.fault(BLIND, "processes"))
        elif uses and memory is not None and self._memory.doubt(card, desk, memory):
            faults.append(card.fault(NOT_CREDIBLE, "memory"))
            if desk.largest_bytes <= (memory.total_bytes or 0):
                memory = None
            else:
                uses, reason = None, _TOO_LARGE
        if card.memory_api == "unified":
            memory = self._memory.shared(card, uses)
        return memory, uses, reason

    def _log(self, card: Card, mono_s: float, faults: list[Fault]) -> None:
        """Log the faults that are new, and those that are over."""
        states = card.fault_log = card.fault_log or StateLog(self._monotonic)
        for fault in faults:
            card.faulty[fault.where] = mono_s
            if states.change(fault.where, "faulty", first="well") is not None:
                log.warning("fault where=%s why=%r", fault.where, fault.why)
        for where in [text for text, met_s in card.faulty.items() if mono_s - met_s >= OVER_S]:
            change = states.change(where, "well")
            if change is not None:
                log.info("fault over where=%s%s", where, change.fields)
            if states.logged(where) == "well":
                del card.faulty[where]

    def _refused(self, card: Card, field: str, code: int, faults: list[Fault]) -> None:
        """Deal with a refusal: no second question about what does not exist, else a fault."""
        if code in FATAL_CODES:
            raise self._error(code)
        if code in ABSENT_CODES:
            card.refused.add(field)
        else:
            faults.append(card.fault(self.text(code), field))

    def _rates(
        self, card: Card, desk: HandleBuffers, faults: list[Fault]
    ) -> tuple[float | None, float | None]:
        """Return how busy compute units and memory are, per cent."""
        if "util" in card.refused:
            return None, None
        code = self._calls.rates(desk)
        if code == OK:
            return float(desk.rates.gpu), float(desk.rates.memory)
        self._refused(card, "util", code, faults)
        return None, None

    def _look_slowly(
        self, card: Card, desk: HandleBuffers, mono_s: float, faults: list[Fault]
    ) -> None:
        """Ask for what changes slowly: now and then; until the next time it is carried."""
        calls = self._calls
        desk.temp_c = self._gauge(card, desk, "temp", calls.temperature, faults)
        power_mw = self._gauge(card, desk, "power", calls.power, faults)
        desk.power_w = None if power_mw is None else power_mw / 1000
        desk.clock_mhz = self._gauge(card, desk, "clock", calls.clock, faults)
        if card.device.parent_uid is None:
            desk.throttle = self._health.throttle(card, desk, mono_s, faults)
        desk.slow_at_s = mono_s

    def _gauge(
        self,
        card: Card,
        desk: HandleBuffers,
        field: str,
        call: Callable[[HandleBuffers], Answer],
        faults: list[Fault],
    ) -> float | None:
        """Return one gauge; None when refused, and no second question when it does not exist."""
        if field in card.refused:
            return None
        code, number = call(desk)
        if code == OK:
            return float(number)
        self._refused(card, field, code, faults)
        return None

    def _read_memory(self, card: Card, desk: HandleBuffers, faults: list[Fault]) -> Memory | None:
        """Return the card's memory, always by the same call for one device."""
        code, memory, fault = self._memory.read(card, desk)
        if code == OK:
            if fault is not None:
                faults.append(card.fault(fault, "memory"))
            return memory
        if code in FATAL_CODES:
            raise self._error(code)
        if code in {NO_PERMISSION, TIMEOUT}:
            card.state = state_of(code)
        faults.append(card.fault(self.text(code), "memory"))
        return None


# What the driver allows control groups (driver 615 and later). Not verified on hardware.

LIMITS: Final = "limits"
LIMITS_EVERY_S: Final = 60.0
_MOST_BYTES: Final = 1 << 60


class _Limits(ctypes.Structure):
    """``nvmlGetMemoryLimits_v1_t``."""

    _fields_ = (
        ("group", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GroupLimits:
    """Asks for the limits of each control group that has a process on a card.

    When a process comes or goes, and again after some time. Where the driver has no such limits
    that is asked once per card.
    """

    def __init__(self, calls: Calls, error: type[Exception], proc: Path, sys: Path) -> None:
        self._ask = calls.find("nvmlDeviceGetMemoryLimits_v1")
        self._error = error
        self._places = str(proc), str(sys / "fs/cgroup")
        self._asked: dict[str, tuple[float, frozenset[int] | None, tuple[MemoryLimit, ...]]] = {}
        """UUID -> when (monotonic) it was asked about which processes, and what it said."""

    def read(self, card: Card, desk: HandleBuffers, mono_s: float) -> tuple[MemoryLimit, ...]:
        """Return the limits that there are; runs in the card's lane."""
        if LIMITS in card.refused or card.device.parent_uid is not None:
            return ()
        since_s, pids, limits = self._asked.get(card.uid, (-LIMITS_EVERY_S, None, ()))
        if pids != desk.by_pid.keys() or mono_s - since_s >= LIMITS_EVERY_S:
            places = {control_groups.group_of(pid, *self._places) for pid in desk.by_pid}
            found = [self._ask_for(card, desk, place) for place in sorted(filter(None, places))]
            limits = tuple([limit for limit in found if limit is not None])
            self._asked[card.uid] = mono_s, frozenset(desk.by_pid), limits
        return limits

    def _ask_for(self, card: Card, desk: HandleBuffers, group: str) -> MemoryLimit | None:
        found, code = _Limits(group=os.fsencode(group)), FUNCTION_NOT_FOUND
        if LIMITS not in card.refused:
            code = self._ask(desk.handle, ctypes.byref(found))
        if code in FATAL_CODES:
            raise self._error(code)
        if code in ABSENT_CODES or code == NO_PERMISSION:
            card.refused.add(LIMITS)
        hard, soft, used = (
            size if code == OK and 0 < size < _MOST_BYTES else None
            for size in (found.hard, found.soft, found.used)
        )
        kind = LimitKind.DRIVER
        limit = MemoryLimit(
            kind=kind, name=group, hard_bytes=hard, soft_bytes=soft, used_bytes=used
        )
        return None if hard is None and soft is None else limit


# What a process held at most, from the driver's own accounting, once it has ended.
# A bonus where an administrator has switched accounting mode on (``nvidia-smi -am 1``); nothing
# here switches it. It is off under MIG. Between two samples a process may have held far more
# than was seen: the driver knows. Nothing here imports pynvml. Not verified on hardware.

FIELD: Final = "accounting"
"""What it is called among a card's refusals."""
TRIES: Final = 3
"""A process leaves the list before the driver has closed its account: it is asked so often."""
MOST_EVENTS: Final = 64
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
    """

    def __init__(self, calls: Calls, error: type[Exception], clock: Callable[[], float]) -> None:
        self._mode = calls.find("nvmlDeviceGetAccountingMode")
        self._stats = calls.find("nvmlDeviceGetAccountingStats")
        self._error = error
        self._clock = clock
        self._listed: dict[str, Listed] = {}
        self.happened: deque[Event] = deque(maxlen=MOST_EVENTS)
        """What was found and not fetched yet."""

    def follow(self, card: Card, desk: HandleBuffers) -> None:
        """Look who has left the list that was just read; runs in the card's lane."""
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

    def _ask(self, card: Card, desk: HandleBuffers, listed: Listed) -> None:
        account = Account()
        for pid, (tries, held, since_s) in tuple(listed.asking.items()):
            code = self._stats(desk.handle, ctypes.c_uint(pid), ctypes.byref(account))
            if code in FATAL_CODES:
                raise self._error(code)
            if code in ABSENT_CODES or code == NO_PERMISSION:
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

    def _is_on(self, card: Card, desk: HandleBuffers) -> bool:
        """Return whether the driver keeps accounts; where it does not, it is asked no more."""
        mode = ctypes.c_uint()
        code = self._mode(desk.handle, ctypes.byref(mode))
        if code in FATAL_CODES:
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
    ``held_bytes`` is 0 where that is unknown; ``since_s`` is when it was first listed (epoch).
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
