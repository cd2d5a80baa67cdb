"""AMD and Intel GPUs on Linux, through sysfs and DRM fdinfo; no library and no rights needed.

A card is its chip's serial number or, where the driver tells none, its PCI address. A card that
sleeps is never woken. amdgpu says how much memory is in use; Intel's drivers do not, so that the
sum of what processes hold stands in: a lower bound where the open files of others are hidden.

**Not verified on hardware.** Written from the kernel's documentation; the tests read trees of
plain files of the same shape.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.collect.device_threads import Lanes
from gpuwatchd.collect.drm import sysfs
from gpuwatchd.collect.drm.card import Card, blank, measure, news, nothing, reading_of
from gpuwatchd.collect.drm.processes import Holders, Names, Processes, is_contained
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Availability, Fault, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.core.model import Device, DeviceReading, Event, ProcessInfo

UNREAD: Final = "everybody's open files could not be looked through in time"
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
    proc_root, sys_root
        Where /proc and /sys are.
    clock, monotonic
        Wall clock and monotonic clock, seconds.
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
        self._lanes = Lanes()
        self._names = Names(self._proc) if is_contained(self._proc) else None
        self._scan_at_mono_s = float("-inf")
        self._looks = 0

    # ---- the protocol ---------------------------------------------------------------------------

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
        """Read every card once.

        Raises
        ------
        SourceUnavailable
            When no such card was ever seen.
        """
        taken_at_s, mono_s = self._clock(), self._monotonic()
        if mono_s >= self._scan_at_mono_s:
            self._scan()
            self._scan_at_mono_s = mono_s + self._rescan_s
        if not self._cards:
            absence = self._absence()
            raise SourceUnavailable(absence.reason, hint=absence.hint)
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
                why = "the kernel does not list it any more"
                readings.append(blank(card, "lost", why, faults))
            elif uid not in awake:
                card.state = "asleep"
                readings.append(nothing(card))
            elif uid not in answers:
                readings.append(blank(card, "hung", self._hangs(uid), faults))
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
        free = {lane: work for lane, work in jobs.items() if lane not in self._lanes.busy}
        return self._lanes.run(free, DEADLINE_S)

    def _hangs(self, uid: str) -> str:
        stuck_s = self._lanes.busy_s(uid) or DEADLINE_S
        return f"the driver has not answered for {max(1, round(stuck_s))} s"

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

    # ---- cards ----------------------------------------------------------------------------------

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
            return Availability(ok=False, reason="not for this system: it reads Linux's /sys")
        drivers = [
            driver
            for _, folder in sysfs.card_folders(self._sys)
            if (driver := sysfs.driver_of(folder))
        ]
        listed = f" (here: {', '.join(dict.fromkeys(drivers))})" if drivers else ""
        left_out = any(driver in sysfs.DRIVERS for driver in drivers)
        return Availability(
            ok=False,
            reason=f"no AMD GPU, no Intel GPU with its own memory: the kernel lists none{listed}",
            hint="to watch integrated graphics: [sources.drm] integrated = true"
            if left_out
            else "amdgpu, i915 and xe are read: lspci -k says which driver a card has",
        )
