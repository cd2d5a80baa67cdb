"""AMD and Intel GPUs on Linux, through sysfs and DRM fdinfo; no library and no rights needed.

A card is its chip's serial number or, where the driver tells none, its PCI address. A card that
sleeps is never woken. amdgpu says how much memory is in use; Intel's drivers do not, so that the
sum of what processes hold stands in: a lower bound where the open files of others are hidden.

**Not verified on hardware.** Written from the kernel's documentation; the tests read trees of
plain files of the same shape.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd.collect.device_threads import DeviceThreads
from gpuwatchd.collect.drm import sysfs
from gpuwatchd.collect.drm.processes import Holders, Names, Processes, is_contained
from gpuwatchd.collect.drm.sysfs import FoundCard, Gauges, Memory
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Availability, Device, DeviceReading, Event, Fault, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.core.model import DeviceState, EventKind, ProcessInfo

UNREAD: Final = "the open files of all users could not be read in time"
DEADLINE_S: Final = 1.0
"""A card that has not answered by then hangs; the others do not wait for it."""
_OPEN_FILES: Final = "open files"
_NAMED: Final = 4
"""So many cards are named when it is asked what is here."""


class DrmSource:
    """Every AMD card and every Intel card with memory of its own.

    Parameters
    ----------
    integrated
        Watch integrated graphics too that as a rule only draw: Intel's, and AMD's beside a card.
    slow_every
        Temperature, power and memory errors are read at every so many looks.
    rescan_s
        Time between two looks for new cards and for processes that have opened one.
    """

    name = "drm"

    def __init__(
        self,
        *,
        integrated: bool = False,
        slow_every: int = 3,
        rescan_s: float = 30.0,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._integrated = integrated
        self._slow_every = max(1, slow_every)
        self._rescan_s = rescan_s
        self._proc = Path(proc_root)
        self._sys = Path(sys_root)
        self._clock = clock
        self._monotonic = monotonic
        self._boot_id = sysfs.word(self._proc / "sys/kernel/random/boot_id")
        self._cards: dict[str, Card] = {}
        self._processes = Processes(self._proc, self._sys, rescan_s=rescan_s)
        self._lanes = DeviceThreads()
        self._names = Names(self._proc) if is_contained(self._proc) else None
        self._scan_at_mono_s = float("-inf")
        self._looks = 0

    def probe(self) -> Availability:
        """Say whether there is an AMD or Intel GPU to watch. Never raises."""
        self._scan()
        cards = [card.found for card in self._cards.values()]
        if not cards:
            return self._absence()
        named = ", ".join(
            f"{found_card.name} at {found_card.pdev} ({found_card.driver})"
            for found_card in cards[:_NAMED]
        )
        more = f" and {len(cards) - _NAMED} more" if len(cards) > _NAMED else ""
        return Availability(ok=True, reason=f"the kernel lists {named}{more}")

    def devices(self) -> list[Device]:
        """Return the cards known now, in the kernel's order."""
        return [card.device for card in self._cards.values()]

    def read(self) -> Sample:
        """Read every card once."""
        taken_at_s, mono_s = self._clock(), self._monotonic()
        if mono_s >= self._scan_at_mono_s:
            self._scan()
            self._scan_at_mono_s = mono_s + self._rescan_s
        if not self._cards:
            absence = self._absence()
            raise SourceUnavailable(absence.reason, hint=absence.hint, brief=absence.brief)
        faults: list[Fault] = []
        events: list[Event] = []
        awake = {
            uid: card
            for uid, card in self._cards.items()
            if not sysfs.is_suspended(card.found.folder)
        }
        answers = self._ask(awake, mono_s)
        holders = answers.get(_OPEN_FILES)
        readings = []
        for uid, card in self._cards.items():
            before = card.state
            if not os.path.isdir(card.found.folder):  # noqa: PTH112 - once per card and look
                why = "the kernel no longer lists it"
                readings.append(blank(card, "lost", why, faults))
            elif uid not in awake:
                card.state = "asleep"
                readings.append(nothing(card))
            elif uid not in answers:
                stuck_s = self._lanes.busy_s(uid) or DEADLINE_S
                why = f"the driver has not answered for {max(1, round(stuck_s))} s"
                readings.append(blank(card, "hung", why, faults))
            else:
                known = holders.get(card.found.pdev) if isinstance(holders, dict) else None
                held = known or Holders(None, UNREAD, None)
                readings.append(reading_of(card, answers[uid], held, mono_s, faults))
            events += news(card, before, taken_at_s)
        self._looks += 1
        people = self._name(readings)
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=mono_s,
            boot_id=self._boot_id,
            readings=tuple(readings),
            processes=people,
            faults=tuple(faults),
            events=tuple(events),
        )

    def close(self) -> None:
        """End the threads; no file is kept open between two looks."""
        self._lanes.close()

    def _ask(self, awake: Mapping[str, Card], mono_s: float) -> dict[str, Any]:
        """Return what the cards and everybody's open files answer in time, each in its lane."""
        if not awake:
            return {}  # nobody computes: not even open files are looked through
        cards = [(card.found.pdev, card.found.unified) for card in awake.values()]
        jobs: dict[str, Callable[[], Any]] = {
            uid: partial(
                measure, card.found, self._proc, (self._looks + turn) % self._slow_every == 0
            )
            for turn, (uid, card) in enumerate(awake.items())
        }
        jobs[_OPEN_FILES] = partial(self._processes.holders, mono_s, cards)
        return self._lanes.run(jobs, DEADLINE_S)

    def _name(self, readings: list[DeviceReading]) -> tuple[ProcessInfo, ...]:
        """Say who the processes are where nobody else can: in a container."""
        if self._names is None:
            return ()
        people = self._names.of({use.key.pid for reading in readings for use in reading.uses or ()})
        for position, reading in enumerate(readings):
            # One that has just ended is not listed under a number alone.
            uses = tuple(
                msgspec.structs.replace(use, key=people[use.key.pid].key)
                for use in reading.uses or ()
                if use.key.pid in people
            )
            if reading.uses:
                readings[position] = msgspec.structs.replace(reading, uses=uses)
        return tuple(people.values())

    def _scan(self) -> None:
        """Look for cards; one that has gone is kept, so that its loss is seen."""
        for number, folder in sysfs.card_folders(self._sys):
            found_card = sysfs.identify(number, folder, self._sys, integrated=self._integrated)
            if found_card is None:
                continue
            card = self._cards.get(found_card.uid)
            if card is None:
                # NVIDIA's are numbered from 0 by another source: no number is given twice.
                first = sysfs.nvidia_count(self._sys)
                self._cards[found_card.uid] = Card(found_card, first + len(self._cards))
            else:
                card.found = found_card  # it may be another number after it was plugged in again

    def _absence(self) -> Availability:
        if not sys.platform.startswith("linux") and not (self._sys / "class/drm").is_dir():
            brief = "not for this system"
            return Availability(ok=False, reason=f"{brief}: it reads Linux's /sys", brief=brief)
        drivers = [
            driver
            for _, folder in sysfs.card_folders(self._sys)
            if (driver := sysfs.driver_of(folder))
        ]
        listed = f" (here: {', '.join(dict.fromkeys(drivers))})" if drivers else ""
        left_out = any(driver in sysfs.DRIVERS for driver in drivers)
        brief = "no AMD GPU, no Intel GPU with its own memory"
        return Availability(
            ok=False,
            reason=f"{brief}: the kernel lists none{listed}",
            brief=brief,
            hint="to watch integrated graphics: [sources.drm] integrated = true"
            if left_out
            else "amdgpu, i915 and xe are read: lspci -k says which driver a card has",
        )


# One AMD or Intel card: what /sys says of it, put together with what its processes hold.

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
    api = "sysfs vram+gtt" if found_card.unified else "sysfs vram"
    if found_card.vendor == "intel":
        api = "fdinfo"
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
        memory_api=api,
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


def _fault(card: Card, field: str, why: str) -> Fault:
    where = f"drm/{card.found.pdev}"
    return Fault(where=f"{where}/{field}" if field else where, why=why, device_uid=card.found.uid)


def news(card: Card, before: DeviceState, at_s: float) -> list[Event]:
    """Return what has happened to a card since the last look."""
    kind: EventKind
    if card.state == "lost" and before != "lost":
        kind, text = "gpu-lost", "the kernel no longer answers for it"
    elif card.state == "hung" and before != "hung":
        kind, text = "gpu-hung", "its driver does not answer in time"
    elif before in _SILENT and card.state not in _SILENT:
        kind, text = "gpu-back", "it answers again"
    else:
        return []
    hardware = None if kind == "gpu-back" else True
    return [Event(at_s=at_s, kind=kind, device_uid=card.found.uid, text=text, hardware=hardware)]
