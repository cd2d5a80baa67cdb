"""Reading one card: memory, processes, gauges; what one of them refuses leaves the others alone.

Nothing here imports pynvml: the module is handed in.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.collect.nvml.accounting import Accounting
from gpuwatchd.collect.nvml.calls import Calls, Desk
from gpuwatchd.collect.nvml.card import ABSENT_CODES, GLOBAL_CODES, GONE_CODES, OK, state_of
from gpuwatchd.collect.nvml.device_health import ERRORS_EVERY_S, DeviceHealth
from gpuwatchd.collect.nvml.memory import NOT_CREDIBLE, MemoryReader
from gpuwatchd.collect.nvml.processes import ProcessLists
from gpuwatchd.core.model import DeviceReading
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import Answer
    from gpuwatchd.collect.nvml.card import Card
    from gpuwatchd.collect.nvml.processes import Uses
    from gpuwatchd.collect.nvml.system import Memory
    from gpuwatchd.core.model import Event, Fault

NO_PERMISSION, TIMEOUT = 4, 10
_TOO_LARGE: Final = "the driver's process list is not credible (more than the GPU has)"
BLIND: Final = (
    "the driver does not list processes, so the GPU is judged as a whole: the kernel manages its "
    "memory, and pages of processes that have ended count as used"
)
OVER_S: Final = 2 * ERRORS_EVERY_S
"""A fault that was not met for so long is over: what is asked for now and then is asked again."""

log = logging.getLogger(__name__)


class Reader:
    """Reads cards through the library that nvidia-ml-py has loaded.

    Cards share nothing here that a read changes, so several may be read at once.

    Parameters
    ----------
    api
        The pynvml module, initialised.
    proc, sys
        Where /proc and /sys are.
    slow_every
        Temperature, power and clock are asked for every so many ticks.
    fresh_s
        A carried value older than this is asked for again.
    clock
        Wall clock, seconds.
    monotonic
        Monotonic clock, seconds.
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
            desk = card.desk = Desk(card.handle)
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
            desk.errors = self._health.errors(card, desk, mono_s, faults)
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
        )

    def _processes(
        self,
        card: Card,
        desk: Desk,
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
        if code in GLOBAL_CODES or code in GONE_CODES:
            raise self._error(code)
        if code in ABSENT_CODES:
            card.refused.add(field)
        else:
            faults.append(card.fault(self.text(code), field))

    def _rates(
        self, card: Card, desk: Desk, faults: list[Fault]
    ) -> tuple[float | None, float | None]:
        """Return how busy compute units and memory are, per cent."""
        if "util" in card.refused:
            return None, None
        code = self._calls.rates(desk)
        if code == OK:
            return float(desk.rates.gpu), float(desk.rates.memory)
        self._refused(card, "util", code, faults)
        return None, None

    def _look_slowly(self, card: Card, desk: Desk, mono_s: float, faults: list[Fault]) -> None:
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
        desk: Desk,
        field: str,
        call: Callable[[Desk], Answer],
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

    def _read_memory(self, card: Card, desk: Desk, faults: list[Fault]) -> Memory | None:
        """Return the card's memory, always by the same call for one device."""
        code, memory, fault = self._memory.read(card, desk)
        if code == OK:
            if fault is not None:
                faults.append(card.fault(fault, "memory"))
            return memory
        if code in GLOBAL_CODES or code in GONE_CODES:
            raise self._error(code)
        if code in {NO_PERMISSION, TIMEOUT}:
            card.state = state_of(code)
        faults.append(card.fault(self.text(code), "memory"))
        return None
