"""NVIDIA GPUs, through the library of the driver (NVML).

The only file that imports pynvml.

NVML is initialised once and held for life: initialising it wakes cards and, repeated for hours,
hangs. A card is its UUID; index and handle are not identity. Whatever one query, one process list
or one card refuses is a fault of that part alone: the rest of the sample is complete.

No call to the driver is made in the caller's thread: one that hangs holds up its own card (see
:mod:`gpuwatchd.collect.device_threads`), and :meth:`NvmlSource.read` always returns.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

from gpuwatchd.collect.nvml.calls import GLOBAL_CODES, Calls, Card, code_of, state_of
from gpuwatchd.collect.nvml.driver_files import KernelFiles, read_text
from gpuwatchd.collect.nvml.events import EventWatch, StateChanges
from gpuwatchd.collect.nvml.lifecycle import NvmlSession
from gpuwatchd.collect.nvml.reader import Reader
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import DeviceReading, Fault, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Availability, Device, DeviceState, Event

NVMLError: type[Exception] = pynvml.NVMLError

START_S = 8.0
"""How long the first read waits for a driver that has to start its cards."""
_EVENTS = "events"
"""The lane in which the driver is asked for events."""


class _Part(NamedTuple):
    """What one card gave in one read."""

    card: Card
    reading: DeviceReading | None
    code: int
    """NVML's code of what ended the read, 0 when it came to its end."""
    faults: list[Fault]
    handle: Any = None
    """A fresh handle of a card that had none."""


class NvmlSource:
    """Every NVIDIA GPU and MIG instance of this machine.

    Parameters
    ----------
    slow_every
        Temperature, power and clock are asked for every so many reads.
    fresh_s
        A carried value older than this is unknown.
    rescan_s
        Time between two looks for new cards and MIG instances.
    deadline_s
        A card that has not answered after so many seconds is hung; the others are not delayed.
    """

    name = "nvml"

    def __init__(  # noqa: PLR0913 - the last four are for tests
        self,
        *,
        slow_every: int = 3,
        fresh_s: float = 30.0,
        rescan_s: float = 60.0,
        deadline_s: float = 1.0,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        files, self._calls = KernelFiles(Path(proc_root), Path(sys_root)), Calls(pynvml)
        self._deadline_s = self._most_s = deadline_s
        self._clock = clock
        self._monotonic = monotonic
        self._boot_id = read_text(files.proc / "sys/kernel/random/boot_id")
        self._happened: deque[Event] = deque(maxlen=512)
        """What is in the next sample: events of the driver, of processes and of cards."""
        self._slow_every, self._reads = max(1, slow_every), 0
        self._reader = Reader(
            self._calls, files, self._happened, fresh_s=fresh_s, clock=clock, monotonic=monotonic
        )
        self._events = EventWatch(pynvml, self._happened, clock, monotonic)
        news = StateChanges(self._calls, self._happened, clock)
        self._life = NvmlSession(
            self._calls, files, rescan_s=rescan_s, news=news, events=self._events
        )
        self._lanes = self._life.lanes

    def probe(self) -> Availability:
        """Say whether there is an NVIDIA GPU here and, if not, what is missing. Never raises."""
        if not self._life.is_open and not self._life.cards:
            self._life.drive(self._monotonic(), START_S)
        return self._life.why

    def devices(self) -> list[Device]:
        """Return the cards known now by index, each followed by its MIG instances."""
        return [card.device for card in self._life.cards.values()]

    def read(self) -> Sample:
        """Read every card once, in the thread of a ``pipeline.source_workers.SourceWorker``.

        Returns within the deadline (``START_S`` while no card is known), whatever hangs.

        Raises
        ------
        SourceUnavailable
            No GPU is known.
        """
        taken_at_s, mono_s = self._clock(), self._monotonic()
        life = self._life
        faults: list[Fault] = []
        is_between, is_due = False, mono_s >= life.due_mono_s
        if is_due:
            life.drive(mono_s, self._deadline_s if life.cards else START_S)
            if not life.cards:
                raise SourceUnavailable(life.why.reason, hint=life.why.hint, brief=life.why.brief)
            if not life.is_open and not life.why.ok:
                faults.append(Fault(where="nvml", why=life.why.reason, brief=life.why.brief))
            elif life.is_open and (stuck_s := life.stuck_s) > self._deadline_s:
                why = f"the search for new GPUs has not ended for {stuck_s:.0f} s"
                faults.append(Fault(where="nvml", why=why))
            is_between = life.is_between
        if is_between:
            # Never absent: who is not in a sample might as well be idle, or gone.
            readings = [card.blank("hung", life.why.reason) for card in life.cards.values()]
        else:
            readings = self._read_cards(mono_s, faults)
        all_well = all(card.state == "ok" for card in life.cards.values())
        if is_due or not (all_well and life.news.all_well):
            life.after(taken_at_s, mono_s, readings)
        self._reads += 1
        # Lanes may still add to it.
        events = tuple([self._happened.popleft() for _ in range(len(self._happened))])
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=mono_s,
            boot_id=self._boot_id,
            readings=tuple(readings),
            faults=tuple(faults),
            events=events,
        )

    def close(self) -> None:
        """Let go of the driver; one that hangs is left behind."""
        self._life.close(self._monotonic())

    @property
    def needs_restart(self) -> bool:
        """True when the library file was replaced: only a new process can load the new one."""
        return self._life.driver.needs_restart

    def answer_within(self, seconds: float) -> None:
        """Take so long for a read at most: half of it for a card, so that one is never late."""
        self._deadline_s = min(self._most_s, seconds / 2)
        self._life.scanner.answer_within(self._deadline_s)

    def may_wait(self) -> bool:
        """Say whether the next read opens files of the driver: none has a deadline of its own."""
        return self._monotonic() >= self._life.due_mono_s

    def release_driver(self, duration_s: float) -> None:
        """Let go of the driver for so long, so that a GPU can be reset or a module unloaded.

        Takes effect with the next read. 0 ends it early.
        """
        self._life.release_until(self._monotonic() + duration_s)

    def _read_cards(self, mono_s: float, faults: list[Fault]) -> list[DeviceReading]:
        """Return a reading of every card, a blank one of those that do not answer."""
        # A lane is the thread of one card, by its UUID; MIG instances are read in their card's.
        life = self._life
        lanes: dict[str, list[Card]] = {}
        for card in life.cards.values():
            lane = card.device.parent_uid or card.uid
            if card.handle is not None:
                lanes.setdefault(lane, []).append(card)
            elif life.is_open and card.state not in {"asleep", "released"}:
                if not card.is_placeholder and life.again.is_due(card.uid, mono_s):
                    lanes.setdefault(lane, []).append(card)
                else:
                    faults.append(card.fault(card.why()))
        readings: dict[str, DeviceReading] = {}
        began_s = time.monotonic()
        back, gone = self._round(lanes, mono_s, self._deadline_s, readings, faults)
        if back and not gone:
            left_s = self._deadline_s - (time.monotonic() - began_s)
            _, gone = self._round(back, mono_s, max(left_s, self._deadline_s / 4), readings, faults)
        if gone:
            life.lose_all(mono_s, gone)
            faults.append(Fault(where="nvml", why=life.why.reason, brief=life.why.brief))
        return [readings.get(uid) or card.blank() for uid, card in life.cards.items()]

    def _round(
        self,
        lanes: dict[str, list[Card]],
        mono_s: float,
        deadline_s: float,
        readings: dict[str, DeviceReading],
        faults: list[Fault],
    ) -> tuple[dict[str, list[Card]], int]:
        """Ask every lane once; return the cards to read again, and NVML's code if it is gone."""
        # Of all cards at once: what is not asked every tick is then not even touched in most.
        slow = self._reads % self._slow_every == 0
        jobs: dict[str, Callable[[], Any]] = {
            lane: partial(self._read_lane, cards, mono_s, slow=slow)
            for lane, cards in lanes.items()
        }
        if jobs:
            jobs[_EVENTS] = self._events.poll
        answers = self._lanes.run(jobs, deadline_s)
        back: dict[str, list[Card]] = {}
        gone = 0
        for lane, cards in lanes.items():
            answer = answers.get(lane)
            if isinstance(answer, list):
                gone = self._take(answer, mono_s, readings, faults) or gone
                again = [part.card for part in answer if part.handle is not None]
                if again:
                    back[lane] = again
            else:
                self._hangs(lane, cards, answer, faults)
        return back, gone

    def _read_lane(self, cards: list[Card], mono_s: float, *, slow: bool) -> list[_Part]:
        """Read one card and its MIG instances; runs in a lane."""
        parts: list[_Part] = []
        for card in cards:
            faults: list[Fault] = []
            try:
                if card.handle is None:
                    handle = pynvml.nvmlDeviceGetHandleByUUID(card.uid)
                    parts.append(_Part(card, None, 0, faults, handle))
                    continue
                card.state = "ok"
                reading = self._reader.read(card, mono_s, faults, slow=slow)
                parts.append(_Part(card, reading, 0, faults))
            except NVMLError as error:
                code = code_of(error)
                parts.append(_Part(card, None, code, faults))
                if card is cards[0]:
                    # What its handle is no good for, its instances' handles are not either.
                    parts += [_Part(one, None, code, []) for one in cards[1:]]
                    break
        return parts

    def _take(
        self,
        parts: list[_Part],
        mono_s: float,
        readings: dict[str, DeviceReading],
        faults: list[Fault],
    ) -> int:
        """Take over what a lane gave; return NVML's code when NVML itself is gone, else 0."""
        gone = 0
        again = self._life.again
        for part in parts:
            card = part.card
            faults += part.faults
            if part.handle is not None:
                card.handle = part.handle
            elif part.reading is not None:
                again.tries.pop(card.uid, None)
                readings[card.uid] = part.reading
                card.code = None
            elif part.code in GLOBAL_CODES:
                gone = part.code
            elif card.handle is None:
                again.failed(card.uid, mono_s)
                card.state = state_of(part.code) if card.state == "hung" else card.state
                faults.append(card.fault(card.why()))
            else:
                # Calls on the handle of a lost card may crash: it is found again by its UUID.
                again.failed(card.uid, mono_s)
                card.handle, card.state = None, state_of(part.code)
                card.code = part.code
                faults.append(card.fault(self._calls.text(part.code)))
        return gone

    def _hangs(self, lane: str, cards: list[Card], answer: Any, faults: list[Fault]) -> None:
        stuck_s = self._lanes.busy_s(lane)
        state: DeviceState = "hung"
        if isinstance(answer, Exception):
            # A fault of ours, not of the driver's: nobody is to look for broken hardware.
            state = "unsupported"
            why = f"cannot be read: {str(answer) or type(answer).__name__}"
        elif stuck_s is None:
            why = "answered too late"
        else:
            why = f"no answer for {max(stuck_s, self._deadline_s):.0f} s"
        for card in cards:
            card.state, card.code = state, None
            faults.append(card.fault(why))
