"""NVML's life: started once, looked through now and then, let go when asked or when cards sleep.

Whatever concerns the driver as a whole runs in a lane of its own. One that has not returned is
waited for, however long it takes: a second call would only join it. The cards that are known are
read on meanwhile. Nothing here imports pynvml.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.collect.device_threads import DeviceThreads, ReadRound
from gpuwatchd.collect.nvml.calls import code_of
from gpuwatchd.collect.nvml.driver import (
    VERSION_MISMATCH,
    Driver,
    Opened,
    Scanner,
    beside,
    merge,
    pending_call_message,
)
from gpuwatchd.collect.nvml.driver_files import PowerManagedCards
from gpuwatchd.collect.nvml.events import StateChanges
from gpuwatchd.core import units
from gpuwatchd.core.model import Availability, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import Card
    from gpuwatchd.collect.nvml.events import EventWatch
    from gpuwatchd.collect.nvml.reader import Reader
    from gpuwatchd.core.model import DeviceReading, DeviceState, EventKind

ABSENT_WAIT_S: Final = 5.0
"""Shortest time between tries where no GPU was ever seen; whoever reads paces beyond that."""
LOST_WAIT_S: Final = (1.0, 600.0)
"""First and longest pause between tries to start NVML where a GPU has answered before."""
VERSION_EVERY_S: Final = 5.0
"""Time between two looks whether the kernel module was exchanged."""
CLOSE_S: Final = 1.0
"""How long the end of NVML is waited for."""
FIRST_LOOK_S: Final = 6.0
"""How long the first look waits for a card that has to start."""
LOOK_S: Final = 1.0
"""How long a later one does."""
LATE_WAIT_S: Final = 5.0
"""Time to the next look when a card was late."""
WATCH_S: Final = 0.2
"""How long the wait for events has to begin before the cards are read."""
EVENTS_S: Final = 1.2
"""How long the wait for events has to end when the driver is to be let go at once."""
STUCK_S: Final = 5.0
"""The same when NVML is gone anyway; after this it is ended under it."""
_LANE: Final = "driver"


class NvmlSession:
    """Whether NVML is open, and the cards that it shows.

    New cards and MIG instances are looked for every ``rescan_s``. What the driver reports by itself
    is waited for where ``events`` is given.
    """

    def __init__(
        self,
        api: Any,
        reader: Reader,
        proc: Path,
        sys: Path,
        *,
        rescan_s: float,
        clock: Callable[[], float],
        events: EventWatch | None,
    ) -> None:
        self.cards: dict[str, Card] = {}
        """UUID -> card, by index, each followed by its MIG instances."""
        self.is_open = False
        self.why = Availability(ok=False, reason="NVML has not been asked yet")
        self.driver = Driver(api, reader, proc, sys)
        self.lanes = DeviceThreads()
        self._scanner = Scanner(api, self.lanes)
        self.news = StateChanges()
        self.again = RetryTimer()
        self.look_s = LOOK_S
        """How long a look for cards waits for one that is slow."""
        self._gone: Availability | None = None
        """Why NVML itself is gone, until it is open again."""
        self.release_until_mono_s = 0.0
        """The driver is let go until then."""
        self._events = events
        self._watched: frozenset[str] = frozenset()
        self._rescan_s = rescan_s
        self._clock = clock
        self._sleepers = PowerManagedCards(proc, sys)
        self._left: frozenset[str] = frozenset()
        """PCI addresses of the cards that are left alone because they sleep, or should."""
        self._slept: frozenset[str] = frozenset()
        self._task: ReadRound | None = None
        self._then: Callable[[Any, float], None] | None = None
        self._released = False
        self._retry_at_mono_s = 0.0
        self._rescan_at_mono_s = 0.0
        self._find_at_mono_s = 0.0
        self._version_at_mono_s = 0.0
        self._wait_s = 0.0
        self._code = 0
        self._module_version: str | None = None

    @property
    def is_between(self) -> bool:
        """Whether NVML is just being started or ended, so that no card can be read."""
        return not self.is_open and self._task is not None

    @property
    def stuck_s(self) -> float:
        """For how long a call that concerns the driver as a whole has not returned; 0: none."""
        return 0.0 if self._task is None else self.lanes.busy_s(_LANE) or 0.0

    def drive(self, mono_s: float, wait_s: float) -> None:
        """Start, look around or let go, whatever is due; wait so long for it to end."""
        self._settle(mono_s, 0.0)
        if self._task is None:
            self._do_what_is_due(mono_s, wait_s)
        if self.is_between:
            self.why = pending_call_message(
                self._gone, self.stuck_s, started_before=bool(self.cards)
            )

    def _do_what_is_due(self, mono_s: float, wait_s: float) -> None:
        if mono_s < self.release_until_mono_s:
            self._release(mono_s)
            return
        if self._released:
            self._released = False
            self._retry_at_mono_s = mono_s
            self._report("released", "the driver is used again")
        if self.is_open:
            self._keep_up(mono_s, wait_s)
        if self.is_open or self._task is not None:
            return
        if self._code == VERSION_MISMATCH and self.driver.look_for_library():
            return  # nothing that this process does can help any more
        if mono_s >= self._retry_at_mono_s:
            self._start(mono_s, wait_s)

    def after(self, mono_s: float, readings: list[DeviceReading]) -> None:
        """Take over what a read showed: plan a fresh start, or let sleeping cards lie."""
        if not self.is_open:
            return
        if self._sleepers.known:
            for reading in readings:
                bus = self.cards[reading.device_uid].device.pci_bus
                if bus in self._sleepers.known and bus not in self._left:
                    self._sleepers.known[bus].saw(reading, mono_s)
            if self._others_are_left(mono_s) and self._may_end(0.0):
                self._shutdown(mono_s)
                self._leave(mono_s)
                return
        states = [card.state for card in self.cards.values()]
        self.again.saw(states, mono_s)
        if "ok" in states:
            self._wait_s = 0.0

    def lose_all(self, mono_s: float, code: int) -> None:
        """NVML itself is gone: drop every handle and come back later."""
        self._code = code
        self.why = self._gone = self.driver.explain(code)
        self._shutdown(mono_s)
        self._mark("lost")
        self._pause(mono_s)

    def close(self, mono_s: float) -> None:
        """Let go of the driver; one that hangs is left behind."""
        if self._events is not None:
            self._events.stop()
        if self.is_open and not self.lanes.busy:
            # What waits for events holds NVML for itself and gives it back later.
            self._events = None
            self._shutdown(mono_s)
        self.is_open = False
        self.lanes.close()

    def _begin(
        self,
        work: Callable[[], Any],
        then: Callable[[Any, float], None],
        mono_s: float,
        wait_s: float,
    ) -> None:
        """Do something that may hang; ``then`` gets its answer now or in a later read."""
        self._task, self._then = self.lanes.begin(_LANE, work), then
        self._settle(mono_s, wait_s)

    def _settle(self, mono_s: float, wait_s: float) -> None:
        task, then = self._task, self._then
        if task is not None and then is not None and task.wait(wait_s):
            self._task = self._then = None
            self.why = self._gone or self.why
            then(task.answers[_LANE], mono_s)

    def _start(self, mono_s: float, wait_s: float) -> None:
        """Initialise NVML and find the cards, unless every card sleeps and is left so."""
        if self._leave(mono_s):
            return
        work = partial(self.driver.open, attach=not self._left)
        self._begin(work, self._started, mono_s, wait_s)

    def _started(self, opened: Any, mono_s: float) -> None:
        if not isinstance(opened, Opened):
            opened = Opened(is_open=False, code=code_of(opened))
        if not opened.is_open:
            self._code = opened.code
            self.why = self._gone = self.driver.explain(opened.code)
            self._mark("lost")
            self._pause(mono_s)
            return
        self.is_open, self._code, self._gone = True, 0, None
        before, self._module_version = self._module_version, self.driver.module_version()
        if before is not None and self._module_version not in {before, None}:
            text = f"the kernel module {before} was replaced by {self._module_version}"
            self._report("driver-changed", text)
        for card in self.cards.values():
            card.forget_refusals()
        self._rescan_at_mono_s = mono_s + self._rescan_s
        self._version_at_mono_s = mono_s + VERSION_EVERY_S
        self._counted(opened, mono_s)
        if self.cards or not self.is_open:
            return
        self._shutdown(mono_s)
        self.why = Availability(
            ok=False,
            reason="the NVIDIA driver is loaded but lists no GPU",
            hint="check nvidia-smi, and that this user or container may open /dev/nvidia*",
        )
        self._pause(mono_s)

    def _counted(self, opened: Any, mono_s: float) -> None:
        """Bring the table of cards up to date."""
        if not isinstance(opened, Opened) or opened.code:
            self.lose_all(mono_s, opened.code if isinstance(opened, Opened) else code_of(opened))
            return
        if not self.is_open:
            return  # it was slow, and NVML was ended meanwhile
        buses = [bus for bus in self._sleepers.buses if bus not in self._left]
        places: Sequence[int | str] = buses if self._left else range(opened.cards)
        deadline_s = self.look_s if self.cards else FIRST_LOOK_S
        look = self._scanner.scan(self.cards, places, self._left, deadline_s)
        if look.gone:
            self.lose_all(mono_s, look.gone)
            return
        self.cards = beside(merge(self.cards, look), self._left, "asleep")
        for card in self.cards.values():
            if card.device.pci_bus in self._left:
                card.handle, card.state = None, "asleep"
            elif card.uid in look.skipped:
                card.state = "hung"
        if look.late:
            self._rescan_at_mono_s = min(self._rescan_at_mono_s, mono_s + LATE_WAIT_S)
        if not self.cards:
            return
        self.why = Availability(ok=True, reason="NVML answers")
        names = frozenset(uid for uid, card in self.cards.items() if card.handle is not None)
        if self._events is not None and names != self._watched:
            self._watched = names
            work = partial(self._events.watch, tuple(self.cards.values()))
            self._begin(work, _nothing, mono_s, WATCH_S)

    def _shutdown(self, mono_s: float) -> None:
        self.is_open = False
        self._retry_at_mono_s = mono_s
        self._watched = frozenset()
        for card in self.cards.values():
            card.handle = None
        self._begin(partial(self._end, self.lanes), _nothing, mono_s, CLOSE_S)

    def _may_end(self, wait_s: float) -> bool:
        """Say whether no call is on its way; what waits for events is told to leave."""
        if self.lanes.busy:
            return False
        self._watched = frozenset()  # it is to begin anew with the next look for cards
        return self._events is None or self._events.let_go(wait_s)

    def _end(self, lanes: DeviceThreads) -> None:
        # Ending NVML under a call that has not returned may end this process.
        lanes.wait_for_others(_LANE)
        if self._events is not None:
            self._events.let_go(STUCK_S)
        self.driver.close()

    def _keep_up(self, mono_s: float, wait_s: float) -> None:
        """Do what is due while NVML is open."""
        exchanged = False
        if mono_s >= self._version_at_mono_s:
            self._version_at_mono_s = mono_s + VERSION_EVERY_S
            # With the module exchanged, keeping the old handles can only hurt.
            exchanged = self.driver.module_version() != self._module_version
        if self._sleepers.known:
            if self._slept and self._sleepers.woke(self._slept):
                self._sleepers.woken = True
            self._slept = frozenset()
            exchanged = exchanged or self._others_are_left(mono_s)
        anew = self.again.restart_is_due(mono_s)
        if exchanged or anew:
            if self._may_end(0.0):
                if anew:
                    self.again.restarted(mono_s)
                self._shutdown(mono_s)
        elif mono_s >= self._rescan_at_mono_s:
            self._rescan_at_mono_s = mono_s + self._rescan_s
            self._find(mono_s)
            self._begin(self.driver.count, self._counted, mono_s, wait_s)

    def _pause(self, mono_s: float) -> None:
        first, longest = LOST_WAIT_S if self.cards else (ABSENT_WAIT_S, ABSENT_WAIT_S)
        self._wait_s = min(longest, max(first, self._wait_s * 2))
        self._retry_at_mono_s = mono_s + self._wait_s

    def _find(self, mono_s: float) -> None:
        if mono_s >= self._find_at_mono_s:
            self._find_at_mono_s = mono_s + self._rescan_s
            self._sleepers.find()

    def _others_are_left(self, mono_s: float) -> bool:
        held = frozenset(self._sleepers.buses) - self._left
        return self._sleepers.left_alone(mono_s, held) != self._left

    def _leave(self, mono_s: float) -> bool:
        """Choose the cards that are left alone; return whether that is all of them."""
        self._find(mono_s)
        self._left = self._sleepers.left_alone(mono_s, frozenset())
        self._slept = self._sleepers.asleep()
        if not self._left:
            return False
        self.cards = beside(self.cards, self._left, "asleep")
        if len(self._left) < len(self._sleepers.buses):
            return False
        for card in self.cards.values():
            sleeps = card.device.pci_bus in self._sleepers.known
            card.state = "asleep" if sleeps else "released"
        count = len(self._left)
        words = "the NVIDIA GPU is" if count == 1 else f"all {count} NVIDIA GPUs are"
        self.why = Availability(ok=True, reason=f"{words} asleep and left so")
        return True

    def _release(self, mono_s: float) -> None:
        """Let go of the driver on request, as soon as no call is on its way."""
        if not self._released:
            if self.is_open:
                if not self._may_end(EVENTS_S):
                    return
                self._shutdown(mono_s)
            if self._task is not None:
                return
            self._released = True
            self._find(mono_s)
            self.cards = beside(self.cards, self._sleepers.buses, "released")
            self._report("released", "the driver was released on request")
        self._mark("released")
        left = units.duration(self.release_until_mono_s - mono_s)
        reason = f"the NVIDIA driver is released on request for another {left}"
        self.why = Availability(ok=False, reason=reason, hint="gpuwatchctl release --end")

    def _mark(self, state: DeviceState) -> None:
        for card in self.cards.values():
            sleeps = state == "lost" and card.device.pci_bus in self._left
            card.state = "asleep" if sleeps else state

    def _report(self, kind: EventKind, text: str) -> None:
        self.news.add(Event(at_s=self._clock(), kind=kind, text=text))


def _nothing(answer: Any, mono_s: float) -> None:
    """Take no notice of an answer."""


# When a card that was lost is looked for again, and when NVML is started anew for it.
# A handle by UUID costs the other cards nothing, so it is tried soon and often. Starting NVML
# anew takes every card out of view for as long as it lasts: that waits, and is rare. Pure.

FIRST_S: Final = 1.0
"""First pause before a handle is asked for by UUID; each further one is twice as long."""
LONGEST_S: Final = 60.0
"""Longest of these pauses."""
RESTART_AFTER_S: Final = 30.0
"""A card has to be lost for so long before NVML is started anew for it."""
RESTART_EVERY_S: Final = 600.0
"""Shortest time between two such starts while another card answers."""


class RetryTimer:
    """Keeps the pauses; told what was seen, asked what is due. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._tries: dict[str, tuple[float, float]] = {}
        """UUID -> (time of the next try, the pause before it)."""
        self._lost_since_s: float | None = None
        self._restarted_at_s = -math.inf
        self._pause_s = RESTART_AFTER_S
        self._others_answer = False

    def is_due(self, uid: str, mono_s: float) -> bool:
        """Say whether a card without a handle is to be asked for now."""
        return self._tries.get(uid, (-math.inf, 0.0))[0] <= mono_s

    def failed(self, uid: str, mono_s: float) -> None:
        """Note that a card was lost, or was asked for in vain."""
        pause_s = min(LONGEST_S, max(FIRST_S, 2 * self._tries.get(uid, (0.0, 0.0))[1]))
        self._tries[uid] = (mono_s + pause_s, pause_s)

    def answered(self, uid: str) -> None:
        """Note that a card was read."""
        self._tries.pop(uid, None)

    def saw(self, states: Iterable[DeviceState], mono_s: float) -> None:
        """Note in which states the cards are after a read."""
        seen = set(states)
        self._others_answer = "ok" in seen
        if "lost" not in seen:
            self._lost_since_s, self._pause_s = None, RESTART_AFTER_S
        elif self._lost_since_s is None:
            self._lost_since_s = mono_s

    def restart_is_due(self, mono_s: float) -> bool:
        """Say whether NVML is to be started anew."""
        if self._lost_since_s is None:
            return False
        pause_s = RESTART_EVERY_S if self._others_answer else self._pause_s
        return mono_s >= max(self._lost_since_s + RESTART_AFTER_S, self._restarted_at_s + pause_s)

    def restarted(self, mono_s: float) -> None:
        """Note that NVML is being started anew."""
        self._restarted_at_s = mono_s
        self._pause_s = min(RESTART_EVERY_S, 2 * self._pause_s)
