"""One AMD or Intel card: what /sys says of it, put together with what its processes hold."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.collect.drm import sysfs
from gpuwatchd.collect.drm.sysfs import FoundCard, Gauges, Memory
from gpuwatchd.core.model import Device, DeviceReading, Event, Fault

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.drm.processes import Holders
    from gpuwatchd.core.model import DeviceState, EventKind

HIDDEN: Final = "the memory in use is the sum of the processes that can be read: a lower bound"
_SILENT: Final = frozenset({"lost", "hung"})
_NO_RIGHTS: Final = frozenset({errno.EACCES, errno.EPERM})


class Measured(NamedTuple):
    """What /sys says of one card."""

    memory: Memory
    busy_pct: int | None
    traffic_pct: int | None
    gauges: Gauges | None
    """None: not asked for in this look."""


class Card:
    """One card: who it is, and what is carried from look to look."""

    __slots__ = ("device", "energy", "found", "gauges", "state")

    def __init__(self, found_card: FoundCard, index: int) -> None:
        self.found = found_card
        self.gauges = Gauges()
        self.energy: tuple[float, int] | None = None
        self.state: DeviceState = "ok"
        self.device = Device(
            uid=found_card.uid,
            vendor=found_card.vendor,
            index=index,
            name=found_card.name,
            memory_total_bytes=None,
            memory_kind="unified" if found_card.unified else "dedicated",
            source="drm",
            pci_bus=found_card.pdev,
        )


def measure(found_card: FoundCard, proc: Path, slow: bool) -> Measured | OSError:  # noqa: FBT001
    """Read what /sys says of one card; runs in the card's lane and changes nothing."""
    total, available = sysfs.host_memory(proc) if found_card.unified else (None, None)
    try:
        if found_card.vendor == "amd":
            memory = sysfs.amd_memory(found_card, available)
        else:
            sysfs.read_word(found_card.folder / "vendor")  # raises where the card is gone
            known = sysfs.intel_total_bytes(found_card.folder)
            memory = Memory(None, available, total if found_card.unified else known)
    except OSError as error:
        return error
    return Measured(
        memory=memory,
        busy_pct=sysfs.number(f"{found_card.folder}/gpu_busy_percent"),
        traffic_pct=sysfs.number(f"{found_card.folder}/mem_busy_percent"),
        gauges=sysfs.gauges(found_card) if slow else None,
    )


def reading_of(
    card: Card, answer: Measured | OSError, held: Holders, mono_s: float, faults: list[Fault]
) -> DeviceReading:
    """Put together what a card and everybody's open files say."""
    if not isinstance(answer, Measured):
        number = getattr(answer, "errno", None)
        state: DeviceState = "no-permission" if number in _NO_RIGHTS else "lost"
        words = getattr(answer, "strerror", None) or str(answer) or "no answer"
        return blank(card, state, f"its memory cannot be read: {words}", faults)
    found_card, memory, reason = card.found, answer.memory, held.reason
    card.state = "ok"
    if found_card.vendor == "intel":
        memory, reason = _of_processes(memory, held, unified=found_card.unified)
    elif memory.used_bytes is None:
        faults.append(_fault(card, "memory", "its memory figures are no numbers"))
    if answer.gauges is not None:
        card.gauges = _with_power(card, answer.gauges, mono_s)
    util = _percent(answer.busy_pct)
    if found_card.vendor == "intel" and held.reason is None:
        util = held.busy_pct
    if memory.total_bytes is not None:
        card.device = msgspec.structs.replace(card.device, memory_total_bytes=memory.total_bytes)
    return DeviceReading(
        device_uid=found_card.uid,
        used_bytes=memory.used_bytes,
        free_bytes=memory.free_bytes,
        total_bytes=memory.total_bytes,
        util_pct=util,
        memory_util_pct=_percent(answer.traffic_pct),
        temp_c=card.gauges.temp_c,
        power_w=card.gauges.power_w,
        clock_mhz=card.gauges.clock_mhz,
        ecc_errors=card.gauges.ecc_errors,
        uses=held.uses,
        uses_reason=reason,
        memory_api=_api(found_card),
    )


def _of_processes(memory: Memory, held: Holders, *, unified: bool) -> tuple[Memory, str | None]:
    """Return the memory of a card whose driver does not tell it: what its processes hold."""
    amounts = [use.used_bytes for use in held.uses or ()]
    known = [amount for amount in amounts if amount is not None]
    used = sum(known) if held.uses is not None and len(known) == len(amounts) else None
    total = memory.total_bytes
    if held.uses is None:
        return Memory(None, None, total), held.reason
    if held.reason is not None:
        # More may be in use: what is left would be too much.
        return Memory(used, None, total), f"{held.reason}; {HIDDEN}"
    free = None if total is None or used is None else max(0, total - used)
    return Memory(used, memory.free_bytes if unified else free, total), None


def _with_power(card: Card, gauges: Gauges, mono_s: float) -> Gauges:
    """Return the gauges, with the power that an energy counter stands for."""
    before, card.energy = card.energy, None
    if gauges.energy_uj is None:
        return gauges
    card.energy = (mono_s, gauges.energy_uj)
    if gauges.power_w is not None or before is None or mono_s <= before[0]:
        return gauges
    used_uj = gauges.energy_uj - before[1]
    # The counter starts anew with the driver.
    power_w = used_uj / 1e6 / (mono_s - before[0]) if used_uj >= 0 else None
    return gauges._replace(power_w=power_w)


def _percent(value: int | None) -> float | None:
    return None if value is None else min(100.0, float(value))


def blank(card: Card, state: DeviceState, why: str, faults: list[Fault]) -> DeviceReading:
    """Return the reading of a card that does not answer, and say why."""
    card.state = state
    card.energy = None
    faults.append(_fault(card, "", why))
    return nothing(card, "the GPU does not answer")


def nothing(card: Card, why: str = "the GPU is asleep and is left so") -> DeviceReading:
    """Return the reading of a card that was not read."""
    return DeviceReading(
        device_uid=card.found.uid,
        used_bytes=None,
        free_bytes=None,
        total_bytes=card.device.memory_total_bytes,
        uses=None,
        uses_reason=why,
        state=card.state,
    )


def _api(found_card: FoundCard) -> str:
    if found_card.vendor == "intel":
        return "fdinfo"
    return "sysfs vram+gtt" if found_card.unified else "sysfs vram"


def _fault(card: Card, field: str, why: str) -> Fault:
    where = f"drm/{card.found.pdev}"
    return Fault(where=f"{where}/{field}" if field else where, why=why, device_uid=card.found.uid)


def news(card: Card, before: DeviceState, at_s: float) -> list[Event]:
    """Return what has happened to a card since the last look."""
    kind: EventKind
    if card.state == "lost" and before != "lost":
        kind, text = "gpu-lost", "the kernel does not answer for it any more"
    elif card.state == "hung" and before != "hung":
        kind, text = "gpu-hung", "its driver does not answer in time"
    elif before in _SILENT and card.state not in _SILENT:
        kind, text = "gpu-back", "it answers again"
    else:
        return []
    hardware = None if kind == "gpu-back" else True
    return [Event(at_s=at_s, kind=kind, device_uid=card.found.uid, text=text, hardware=hardware)]
