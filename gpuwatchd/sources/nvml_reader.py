"""Reading one card: memory, processes, gauges; what one of them refuses leaves the others alone.

Nothing here imports pynvml: the module is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.model import DeviceReading
from gpuwatchd.sources.nvml_card import ABSENT_CODES, GLOBAL_CODES, GONE_CODES, code_of, state_of
from gpuwatchd.sources.nvml_processes import ProcessLists
from gpuwatchd.sources.nvml_system import Memory, host_memory
from gpuwatchd.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.model import Fault, ProcessUse
    from gpuwatchd.sources.nvml_card import Card

NO_PERMISSION, TIMEOUT = 4, 10


class Reader:
    """Reads cards through nvidia-ml-py.

    Cards share nothing here that a read changes, so several may be read at once.

    Parameters
    ----------
    api
        The pynvml module, initialised.
    proc
        Where /proc is.
    slow_every
        Temperature, power and clock are asked for every so many ticks.
    fresh_s
        A carried value older than this is asked for again.
    """

    def __init__(self, api: Any, proc: Path, *, slow_every: int, fresh_s: float) -> None:
        self._api = api
        self._error: type[Exception] = api.NVMLError
        self._proc = proc
        self._slow_every = slow_every
        self._fresh_s = fresh_s
        self._lists: ProcessLists | None = None
        self.tick = 0
        """Number of the read; the slow gauges of different cards take turns."""

    def attach(self) -> None:
        """Use the library, which nvidia-ml-py has loaded by now."""
        if self._lists is None:
            self._lists = ProcessLists(self._api.nvmlLib, self._error, self._proc)

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
        memory = self._memory(card, faults)
        uses: tuple[ProcessUse, ...] | None = None
        reason: str | None = "memory is read per MIG instance"
        if self._lists is not None and not card.is_parent:
            total = memory.total_bytes if memory and card.memory_api != "unified" else None
            uses, reason = self._lists.read(card, total)
            # A driver that has no such list at all is no fault: ``uses_reason`` says so.
            if reason is not None and "C" not in card.refused:
                faults.append(card.fault(reason, "processes"))
        if card.memory_api == "unified":
            memory = host_memory(self._proc, uses)
            if uses is None:
                card.state = "unsupported"
        rates = self._ask(card, "util", self._api.nvmlDeviceGetUtilizationRates, faults)
        total = memory.total_bytes if memory else None
        if total is not None and card.device.memory_total_bytes != total:
            card.learn_total(total)
        temperature = self._slow(card, "temp", self._temperature, mono_s, faults)
        power = self._slow(card, "power", self._api.nvmlDeviceGetPowerUsage, mono_s, faults)
        clock = self._slow(card, "clock", self._sm_clock, mono_s, faults)
        return DeviceReading(
            device_uid=card.uid,
            used_bytes=memory.used_bytes if memory else None,
            free_bytes=memory.free_bytes if memory else None,
            total_bytes=total,
            reserved_bytes=memory.reserved_bytes if memory else None,
            util_pct=float(rates.gpu) if rates else None,
            memory_util_pct=float(rates.memory) if rates else None,
            temp_c=temperature,
            power_w=power / 1000 if power is not None else None,
            clock_mhz=clock,
            uses=uses,
            uses_reason=reason if uses is None else None,
            state=card.state,
        )

    def _ask(
        self, card: Card, field: str, call: Callable[[Any], Any], faults: list[Fault]
    ) -> Any | None:
        """Return one gauge; None when refused, and no second question when it does not exist."""
        if field in card.refused:
            return None
        try:
            return call(card.handle)
        except self._error as error:
            code = code_of(error)
            if code in GLOBAL_CODES or code in GONE_CODES:
                raise
            if code in ABSENT_CODES:
                card.refused.add(field)
            else:
                faults.append(card.fault(self.text(code), field))
            return None

    def _slow(
        self,
        card: Card,
        field: str,
        call: Callable[[Any], Any],
        mono_s: float,
        faults: list[Fault],
    ) -> float | None:
        """Return a gauge that changes slowly: asked for now and then, carried while fresh."""
        asked_at_s, value = card.carried.get(field, (float("-inf"), None))
        turn = (self.tick + (card.device.index or 0)) % self._slow_every == 0
        if not turn and mono_s - asked_at_s <= self._fresh_s:
            return value
        answer = self._ask(card, field, call, faults)
        value = float(answer) if answer is not None else None
        card.carried[field] = (mono_s, value)
        return value

    # ---- memory ---------------------------------------------------------------------------------

    def _memory(self, card: Card, faults: list[Fault]) -> Memory | None:
        """Return the card's memory, always by the same call for one device."""
        try:
            if card.memory_api is None:
                return self._choose_memory(card)
            return self._memory_by(card, card.memory_api)
        except self._error as error:
            code = code_of(error)
            if code in GLOBAL_CODES or code in GONE_CODES:
                raise
            if code in {NO_PERMISSION, TIMEOUT}:
                card.state = state_of(code)
            faults.append(card.fault(self.text(code), "memory"))
            return None

    def _choose_memory(self, card: Card) -> Memory | None:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        "not supported" and a total of zero mean shared memory: a lost or forbidden card does not.
        """
        memory = None
        for api in ("v2", "v1"):
            try:
                memory = self._memory_by(card, api)
            except self._error as error:
                if code_of(error) not in ABSENT_CODES:
                    raise
                continue
            if memory is not None:
                card.memory_api = api
            break
        if memory is None and not card.is_parent and card.device.parent_uid is None:
            card.memory_api = "unified"
            card.device = msgspec.structs.replace(card.device, memory_kind="unified")
        return memory

    def _memory_by(self, card: Card, api: str) -> Memory | None:
        """Return what one version says; None for a total of zero."""
        if api == "unified":
            return None
        if api == "v1":
            raw = self._api.nvmlDeviceGetMemoryInfo(card.handle)
            reserved = None
        else:
            raw = self._api.nvmlDeviceGetMemoryInfo(card.handle, self._api.nvmlMemory_v2)
            reserved = raw.reserved
        total, free = raw.total, raw.free
        if total == 0:
            return None
        # Whether version 2's "used" holds the reserve differs between drivers: count it ourselves.
        used = total - free - (reserved or 0)
        return Memory(used if used >= 0 else total - free, free, total, reserved)

    def _temperature(self, handle: Any) -> Any:
        return self._api.nvmlDeviceGetTemperature(handle, self._api.NVML_TEMPERATURE_GPU)

    def _sm_clock(self, handle: Any) -> Any:
        return self._api.nvmlDeviceGetClockInfo(handle, self._api.NVML_CLOCK_SM)
