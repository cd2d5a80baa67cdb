"""Reading one card: memory, processes, gauges; what one of them refuses leaves the others alone.

Nothing here imports pynvml: the module is handed in.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.collect import control_groups
from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    OK,
    TIMEOUT,
    CardCalls,
    state_of,
)
from gpuwatchd.collect.nvml.events import ERRORS_EVERY_S, DeviceHealth
from gpuwatchd.collect.nvml.events import MOST_EVENTS as MOST_HEALTH_EVENTS
from gpuwatchd.collect.nvml.memory import NOT_CREDIBLE, MemoryReader, ProcessLists
from gpuwatchd.core import units
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import DeviceReading, Event, MemoryLimit
from gpuwatchd.core.state_log import StateLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect.nvml.calls import Calls, Card
    from gpuwatchd.collect.nvml.driver_files import KernelFiles, Memory
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
        calls: Calls,
        files: KernelFiles,
        *,
        slow_every: int,
        fresh_s: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._files = files
        self._slow_every = slow_every
        self._fresh_s = fresh_s
        self._clock = clock
        self._tick = 0
        """Number of the read; the slow gauges of different cards take turns."""
        self._worse: deque[Event] = deque(maxlen=MOST_HEALTH_EVENTS)
        """What has become worse and was not fetched yet."""
        self._accounting = Accounting(clock)
        self._limits = GroupLimits(files)
        self._fault_logs = defaultdict[str, FaultLog](lambda: FaultLog(monotonic))

    def end_round(self) -> tuple[Event, ...]:
        """End one read of all cards; return what has become worse, and who has ended, since."""
        self._tick += 1
        events: list[Event] = []
        for heap in (self._worse, self._accounting.happened):
            while heap:
                events.append(heap.popleft())
        return tuple(events)

    def read(self, card: Card, mono_s: float, faults: list[Fault]) -> DeviceReading:
        """Return one look at a card; what could not be read is added to ``faults``.

        Raises
        ------
        NVMLError
            Only when the card or NVML itself is gone.
        """
        reader: CardReader | None = card.reader
        if reader is None or not reader.asked.are_by(card.handle):
            asked = CardCalls(self._calls, card)
            health = DeviceHealth(asked, self._clock, self._worse)
            reader = CardReader(asked, self._files, health, self._accounting, self._limits)
            card.reader = reader
        turn = (self._tick + (card.device.index or 0)) % self._slow_every == 0
        reading = reader.read(mono_s, faults, turn=turn, fresh_s=self._fresh_s)
        if faults or card.uid in self._fault_logs:
            self._fault_logs[card.uid].note(mono_s, faults)
        return reading


class FaultLog:
    """Logs the faults of a card that are new, and those that are over."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._states = StateLog(monotonic)
        self._faulty: dict[str, float] = {}
        """When (monotonic) a fault was met last, by where it is; without those that are over."""

    def note(self, mono_s: float, faults: Iterable[Fault]) -> None:
        """Take over the faults of a read."""
        for fault in faults:
            self._faulty[fault.where] = mono_s
            if self._states.change(fault.where, "faulty", first="well") is not None:
                log.warning("fault where=%s why=%r", fault.where, fault.why)
        for where in [text for text, met_s in self._faulty.items() if mono_s - met_s >= OVER_S]:
            change = self._states.change(where, "well")
            if change is not None:
                log.info("fault over where=%s%s", where, change.fields)
            if self._states.logged(where) == "well":
                del self._faulty[where]


class Gauges(NamedTuple):
    """What changes slowly, as last asked for; None where it is unknown."""

    temp_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    """Why the clocks are held down, in words."""


class CardReader:
    """Reads one card by one handle, and keeps what it answered last."""

    def __init__(
        self,
        asked: CardCalls,
        files: KernelFiles,
        health: DeviceHealth,
        accounting: Accounting,
        limits: GroupLimits,
    ) -> None:
        self.asked = asked
        self._card = asked.card
        self._memory = MemoryReader(asked, files)
        self._lists = ProcessLists(asked, files.proc)
        self._health = health
        self._accounting = accounting
        self._limits = limits
        self._gauges = Gauges()
        self._gauges_at_s = self._errors_at_s = float("-inf")

    def read(
        self, mono_s: float, faults: list[Fault], *, turn: bool, fresh_s: float
    ) -> DeviceReading:
        """Return one look at the card; see :meth:`Reader.read`.

        ``turn``: it is time for what is not asked every tick.
        """
        card, lists = self._card, self._lists
        memory = self._read_memory(faults)
        busy, memory_busy = self._rates(faults)
        memory, uses, reason = self._processes(memory, mono_s, busy, faults, turn=turn)
        total = memory.total_bytes if memory else None
        if total is not None and card.device.memory_total_bytes != total:
            card.learn_total(total)
        if turn or mono_s - self._gauges_at_s > fresh_s:
            self._gauges = self._look_slowly(mono_s, faults)
            self._gauges_at_s = mono_s
        if mono_s - self._errors_at_s >= ERRORS_EVERY_S and card.device.parent_uid is None:
            self._errors_at_s = mono_s
            card.errors = self._health.errors(faults)
        gauges = self._gauges
        return DeviceReading(
            device_uid=card.uid,
            used_bytes=memory.used_bytes if memory else None,
            free_bytes=memory.free_bytes if memory else None,
            total_bytes=total,
            reserved_bytes=memory.reserved_bytes if memory else None,
            util_pct=busy,
            memory_util_pct=memory_busy,
            temp_c=gauges.temp_c,
            power_w=gauges.power_w,
            clock_mhz=gauges.clock_mhz,
            uses=uses,
            uses_reason=reason,
            per_instance=card.is_parent,
            state=card.state,
            memory_api="coherent" if card.device.memory_kind == "coherent" else card.memory_api,
            throttle=gauges.throttle,
            ecc_errors=card.errors.uncorrected,
            retired_pages=card.errors.retired,
            limits=self._limits.read(self.asked, lists.by_pid, mono_s) if lists.by_pid else (),
        )

    def _processes(
        self,
        memory: Memory | None,
        mono_s: float,
        busy_pct: float | None,
        faults: list[Fault],
        *,
        turn: bool,
    ) -> tuple[Memory | None, Uses | None, str | None]:
        """Return the memory, the processes, and why they or their memory are unknown."""
        card, lists = self._card, self._lists
        if card.is_parent:
            return memory, None, "memory is read per MIG instance"
        uses, reason = lists.read(mono_s, turn=turn, busy_pct=busy_pct)
        if uses is not None and "accounting" not in card.refused:
            self._accounting.follow(self.asked, lists.by_pid)
        if uses is None:
            # A driver that has no such list at all is no fault: ``uses_reason`` says so.
            if "C" not in card.unlisted or lists.raw.get("C"):
                faults.append(card.fault(reason or "", "processes"))
            elif card.device.memory_kind == "coherent":
                faults.append(card.fault(BLIND, "processes"))
        elif uses and memory is not None and self._memory.doubt(memory, lists.largest_bytes):
            faults.append(card.fault(NOT_CREDIBLE, "memory"))
            # A card does not shrink: what fits in the size known so far doubts the new one.
            before_bytes = card.device.memory_total_bytes or 0
            if lists.largest_bytes <= max(memory.total_bytes or 0, before_bytes):
                memory = None
            else:
                uses, reason = None, _TOO_LARGE
        if card.memory_api == "unified":
            memory = self._memory.shared(uses)
        return memory, uses, reason

    def _rates(self, faults: list[Fault]) -> tuple[float | None, float | None]:
        """Return how busy compute units and memory are, per cent."""
        if "util" in self._card.refused:
            return None, None
        code, rates = self.asked.rates()
        if code == OK:
            if self.asked.believed("util", max(rates.gpu, rates.memory), faults) is None:
                return None, None
            return float(rates.gpu), float(rates.memory)
        self.asked.refused("util", code, faults)
        return None, None

    def _look_slowly(self, mono_s: float, faults: list[Fault]) -> Gauges:
        """Ask for what changes slowly: now and then; until the next time it is carried."""
        asked = self.asked
        temp_c = asked.gauge("temp", asked.temperature, faults)
        power_mw = asked.gauge("power", asked.power, faults)
        clock_mhz = asked.gauge("clock", asked.clock, faults)
        whole = self._card.device.parent_uid is None
        return Gauges(
            None if temp_c is None else float(temp_c),
            None if power_mw is None else power_mw / 1000,
            None if clock_mhz is None else float(clock_mhz),
            self._health.throttle(mono_s, faults) if whole else None,
        )

    def _read_memory(self, faults: list[Fault]) -> Memory | None:
        """Return the card's memory, always by the same call for one device."""
        card = self._card
        code, memory, fault = self._memory.read()
        if code == OK:
            if fault is not None:
                faults.append(card.fault(fault, "memory"))
            return memory
        self.asked.calls.check(code)
        if code in {NO_PERMISSION, TIMEOUT}:
            card.state = state_of(code)
        faults.append(card.fault(self.asked.calls.text(code), "memory"))
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

    def __init__(self, files: KernelFiles) -> None:
        self._places = str(files.proc), str(files.sys / "fs/cgroup")
        self._asked: dict[str, tuple[float, frozenset[int] | None, tuple[MemoryLimit, ...]]] = {}
        """UUID -> when (monotonic) it was asked about which processes, and what it said."""

    def read(
        self, asked: CardCalls, by_pid: dict[int, ProcessUse], mono_s: float
    ) -> tuple[MemoryLimit, ...]:
        """Return the limits of the processes that there are; runs in the card's lane."""
        card = asked.card
        if LIMITS in card.refused or card.device.parent_uid is not None:
            return ()
        since_s, pids, limits = self._asked.get(card.uid, (-LIMITS_EVERY_S, None, ()))
        if pids != by_pid.keys() or mono_s - since_s >= LIMITS_EVERY_S:
            places = {control_groups.group_of(pid, *self._places) for pid in by_pid}
            found = [self._ask_for(asked, place) for place in sorted(filter(None, places))]
            limits = tuple([limit for limit in found if limit is not None])
            self._asked[card.uid] = mono_s, frozenset(by_pid), limits
        return limits

    def _ask_for(self, asked: CardCalls, group: str) -> MemoryLimit | None:
        found, code = _Limits(group=os.fsencode(group)), FUNCTION_NOT_FOUND
        if LIMITS not in asked.card.refused:
            ask = asked.calls.find("nvmlDeviceGetMemoryLimits_v1")
            code = ask(asked.handle, ctypes.byref(found))
        asked.calls.check(code)
        if code in ABSENT_CODES or code == NO_PERMISSION:
            asked.card.refused.add(LIMITS)
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


@dataclass(slots=True)
class Listed:
    """What is remembered of the processes on one card."""

    before: dict[int, ProcessUse] = field(default_factory=dict)
    """Who was last listed, by pid."""
    since_s: dict[int, float] = field(default_factory=dict)
    """pid -> when (epoch seconds) it was first listed."""
    asking: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """pid that has left -> (tries left, what it held last, when it was first listed)."""

    def compare(self, present: dict[int, ProcessUse], now_s: float) -> None:
        """Take over who has left, and who is new."""
        for pid in self.before.keys() - present.keys():
            held = self.before[pid].used_bytes or 0
            self.asking[pid] = (TRIES, held, self.since_s.pop(pid, now_s))
        for pid in present.keys() - self.before.keys():
            self.since_s[pid] = now_s
            self.asking.pop(pid, None)  # It is back, or another one has its number.


class Accounting:
    """Asks for the account of every process that leaves a card's list.

    While no process leaves, nothing is asked. Where the driver keeps no accounts that is asked
    once per card, and nothing is done from then on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listed: dict[str, Listed] = {}
        self.happened: deque[Event] = deque(maxlen=MOST_EVENTS)
        """What was found and not fetched yet."""

    def follow(self, asked: CardCalls, present: dict[int, ProcessUse]) -> None:
        """Look who has left the list that was just read; runs in the card's lane."""
        card = asked.card
        if FIELD in card.refused or card.is_parent or card.device.parent_uid is not None:
            return
        listed = self._listed.get(card.uid)
        if listed is None:
            if not present or not self._is_on(asked):
                return
            listed = self._listed[card.uid] = Listed()
        before = listed.before
        if present is not before:
            if present.keys() != before.keys():
                listed.compare(present, self._clock())
            listed.before = present
        if listed.asking:
            self._ask(asked, listed)

    def _ask(self, asked: CardCalls, listed: Listed) -> None:
        card, account = asked.card, Account()
        stats = asked.calls.find("nvmlDeviceGetAccountingStats")
        for pid, (tries, held, since_s) in tuple(listed.asking.items()):
            code = stats(asked.handle, ctypes.c_uint(pid), ctypes.byref(account))
            asked.calls.check(code)
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

    def _is_on(self, asked: CardCalls) -> bool:
        """Return whether the driver keeps accounts; where it does not, it is asked no more."""
        mode = ctypes.c_uint()
        ask = asked.calls.find("nvmlDeviceGetAccountingMode")
        code = ask(asked.handle, ctypes.byref(mode))
        asked.calls.check(code)
        if code == OK and mode.value == 1:
            return True
        asked.card.refused.add(FIELD)
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
