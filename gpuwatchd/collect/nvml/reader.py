"""Reading one card: memory, processes, gauges; what one of them refuses leaves the others alone.

Nothing here imports pynvml: the module is handed in.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.collect import control_groups
from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    CLOCK_SM,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    OK,
    TEMPERATURE_GPU,
    TEMPERATURE_V1,
    TIMEOUT,
    CardCalls,
    ErrorCounts,
    Rates,
    Temperature,
    state_of,
)
from gpuwatchd.collect.nvml.events import (
    ACCOUNTING,
    ERRORS_EVERY_S,
    EXHAUSTED,
    HARDWARE,
    RESET_DUE,
    Accounting,
    DeviceHealth,
    throttle_words,
)
from gpuwatchd.collect.nvml.memory import NOT_CREDIBLE, MemoryReader, ProcessLists
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import DeviceReading, Event, MemoryLimit
from gpuwatchd.core.state_log import StateLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect.nvml.calls import Answer, Calls, Card
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

_MOST: Final = {
    "util": 100,
    "temp": 200,
    "power": 10_000_000,
    "clock": 20_000,
    "ecc": 2**48,
    "retired": 2**24,
    "remapped": 2**24,
}
"""More than any card says, in the driver's units (%, °C, mW, MHz, and counts)."""

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # a verb that reads cards tells their faults itself


class Reader:
    """Reads cards through the library that nvidia-ml-py has loaded.

    Cards share nothing here that a read changes, so several may be read at once. What has become
    worse, and which process has ended, is added to ``happened``.

    What is carried of temperature, power and clock for longer than ``fresh_s`` is asked for again.
    """

    def __init__(
        self,
        calls: Calls,
        files: KernelFiles,
        happened: deque[Event],
        *,
        fresh_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._calls = calls
        self.files = files
        self.happened = happened
        self.fresh_s = fresh_s
        self.clock = clock
        self.accounting = Accounting(clock, happened)
        self.limits = GroupLimits(files)
        self._fault_logs = defaultdict[str, FaultLog](lambda: FaultLog(monotonic))

    def read(self, card: Card, mono_s: float, faults: list[Fault], *, slow: bool) -> DeviceReading:
        """Return one look at a card; what could not be read is added to ``faults``.

        ``slow``: it is time for what is not asked every tick.

        Raises
        ------
        NVMLError
            Only when the card or NVML itself is gone.
        """
        reader: CardReader | None = card.reader
        if reader is None or (
            card.handle is not reader.asked.handle and not reader.asked.are_by(card.handle)
        ):
            reader = card.reader = CardReader(CardCalls(self._calls, card), self)
        reading = reader.read(mono_s, faults, slow=slow)
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


_QUESTIONS: Final = {
    "util": "nvmlDeviceGetUtilizationRates",
    "temp": "nvmlDeviceGetTemperature",
    "power": "nvmlDeviceGetPowerUsage",
    "clock": "nvmlDeviceGetClockInfo",
    "throttle": "nvmlDeviceGetCurrentClocksEventReasons",
    "older throttle": "nvmlDeviceGetCurrentClocksThrottleReasons",
}
"""Field -> entry point."""


class CardReader:
    """Reads one card by one handle, and keeps what it answered last."""

    def __init__(self, asked: CardCalls, shared: Reader) -> None:
        self.asked = asked
        self._card = asked.card
        self._shared = shared
        self._memory = MemoryReader(asked, shared.files)
        self._lists = ProcessLists(asked, shared.files.proc)
        self._health = DeviceHealth(asked.card.uid, shared.clock, shared.happened)
        self._ask = {field: asked.calls.find(name) for field, name in _QUESTIONS.items()}
        self._rates = Rates()
        self._rates_ref = ctypes.byref(self._rates)
        self._gauges = Gauges()
        self._gauges_at_s = self._errors_at_s = float("-inf")

    def read(self, mono_s: float, faults: list[Fault], *, slow: bool) -> DeviceReading:
        """Return one look at the card; see :meth:`Reader.read`."""
        card = self._card
        busy, memory_busy = self._read_rates(faults)
        memory, uses, reason = self._read_memory(mono_s, busy, faults, slow=slow)
        total = memory.total_bytes if memory else None
        if total is not None and card.device.memory_total_bytes != total:
            card.learn_total(total)
        if slow or mono_s - self._gauges_at_s > self._shared.fresh_s:
            self._gauges = self._read_gauges(mono_s, faults)
            self._gauges_at_s = mono_s
        if mono_s - self._errors_at_s >= ERRORS_EVERY_S and card.device.parent_uid is None:
            self._errors_at_s = mono_s
            card.errors = self._read_errors(faults)
        gauges, by_pid = self._gauges, self._lists.by_pid
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
            limits=self._shared.limits.read(self.asked, by_pid, mono_s) if by_pid else (),
        )

    def _read_memory(
        self, mono_s: float, busy_pct: float | None, faults: list[Fault], *, slow: bool
    ) -> tuple[Memory | None, Uses | None, str | None]:
        """Return the memory, the processes, and why they or their memory are unknown."""
        card, lists = self._card, self._lists
        # Always by the same call for one device.
        code, memory, fault = self._memory.read()
        if code != OK or fault is not None:
            self._memory_fault(code, fault, faults)
        if card.is_parent:
            return memory, None, "memory is read per MIG instance"
        uses, reason = lists.read(mono_s, slow=slow, busy_pct=busy_pct)
        if uses is not None and ACCOUNTING not in card.refused:
            self._shared.accounting.follow(self.asked, lists.by_pid)
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

    def _memory_fault(self, code: int, why: str | None, faults: list[Fault]) -> None:
        """Note what is wrong with the memory: a code instead of it, or with its figures."""
        if code != OK:
            self.asked.calls.check(code)
            why = self.asked.calls.text(code)
        if code in {NO_PERMISSION, TIMEOUT}:
            self._card.state = state_of(code)
        faults.append(self._card.fault(why or "", "memory"))

    def _read_rates(self, faults: list[Fault]) -> tuple[float | None, float | None]:
        """Return how busy compute units and memory are, per cent."""
        if "util" in self._card.refused:
            return None, None
        code, rates = self._ask["util"](self.asked.handle, self._rates_ref), self._rates
        if self._number("util", (code, max(rates.gpu, rates.memory)), faults) is None:
            return None, None
        return float(rates.gpu), float(rates.memory)

    def _read_gauges(self, mono_s: float, faults: list[Fault]) -> Gauges:
        """Ask for what changes slowly: now and then; until the next time it is carried."""
        temp_c = self._gauge("temp", self._temperature, faults)
        power_mw = self._gauge("power", partial(self._plain, "power"), faults)
        clock_mhz = self._gauge("clock", partial(self._plain, "clock", CLOCK_SM), faults)
        bits = None
        if self._card.device.parent_uid is None:
            bits = self._gauge("throttle", self._reasons, faults)
        if bits is not None and (bits & HARDWARE or self._health.slow_since_s is not None):
            self._health.throttled(mono_s, bits & HARDWARE)
        return Gauges(
            None if temp_c is None else float(temp_c),
            None if power_mw is None else power_mw / 1000,
            None if clock_mhz is None else float(clock_mhz),
            None if bits is None else throttle_words(bits),
        )

    def _read_errors(self, faults: list[Fault]) -> ErrorCounts:
        """Ask for the errors of the memory: pages or rows, whichever the card counts."""
        asked, what, due, rows = self.asked, "row", 0, None
        before, refused = self._card.errors, self._card.refused
        fresh = self._gauge("ecc", asked.ecc, faults)
        if "remapped" not in refused:
            code, number, pending, failed = asked.remapped()
            rows = self._number("remapped", (code, number), faults)
            due = 0 if rows is None else EXHAUSTED if failed else RESET_DUE if pending else 0
        if rows is None and ("remapped" in refused or before.what != "row"):
            what, rows = "page", self._gauge("retired", asked.retired, faults)
        # What gave no answer this time is compared with the last one when it gives one again.
        if fresh is None and "ecc" not in refused:
            fresh = before.uncorrected
        if rows is None and before.what == what and not {"remapped", "retired"} <= refused:
            rows, due = before.retired, before.due
        counts = ErrorCounts(fresh, rows, due, what)
        self._health.compare(before, counts)
        return counts

    def _gauge(self, field: str, ask: Callable[[], Answer], faults: list[Fault]) -> int | None:
        """Ask for one number; None when it is refused."""
        return None if field in self._card.refused else self._number(field, ask(), faults)

    def _number(self, field: str, answer: Answer, faults: list[Fault]) -> int | None:
        """Return a number as it is; None when it is refused, or no card can have said it.

        What does not exist is not asked for again; else that is a fault.

        Raises
        ------
        NVMLError
            The card or NVML itself is gone.
        """
        code, number = answer
        if code == OK:
            if number <= _MOST.get(field, number):
                return number
            why = f"the driver says {number}: not credible"
        else:
            self.asked.calls.check(code)
            if code in ABSENT_CODES:
                self._card.refused.add(field)
                return None
            why = self.asked.calls.text(code)
        faults.append(self._card.fault(why, field))
        return None

    def _temperature(self) -> Answer:
        """Return degrees Celsius."""
        code, degrees = self._plain("temp", TEMPERATURE_GPU)
        if code != FUNCTION_NOT_FOUND:
            return code, degrees
        # The next libraries leave the older question out.
        answer = Temperature(version=TEMPERATURE_V1, sensor=TEMPERATURE_GPU)
        ask = self.asked.calls.find("nvmlDeviceGetTemperatureV")
        return ask(self.asked.handle, ctypes.byref(answer)), answer.value

    def _plain(self, field: str, *words: int) -> Answer:
        """Return one number as NVML gives it."""
        asked = self.asked
        return self._ask[field](asked.handle, *words, asked.number_ref), asked.number.value

    def _reasons(self) -> Answer:
        """Return the bits that say why clocks are held down."""
        asked = self.asked
        code = self._ask["throttle"](asked.handle, asked.wide_ref)
        if code == FUNCTION_NOT_FOUND:  # It is under its older name then.
            code = self._ask["older throttle"](asked.handle, asked.wide_ref)
        return code, asked.wide.value


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
            found = map(partial(self._ask_for, asked), sorted(filter(None, places)))
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
        if hard is None and soft is None:
            return None
        kind = LimitKind.DRIVER
        return MemoryLimit(kind=kind, name=group, hard_bytes=hard, soft_bytes=soft, used_bytes=used)
