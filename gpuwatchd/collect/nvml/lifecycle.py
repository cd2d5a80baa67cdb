"""NVML's life: started once, looked through now and then, let go when asked or when cards sleep.

Whatever concerns the driver as a whole runs in a lane of its own (see
:mod:`gpuwatchd.collect.device_threads`). One that has not returned is waited for, however long it
takes: a second call would only join it. Known cards are read on. Nothing here imports pynvml.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.collect.device_threads import DeviceThreads, ReadRound
from gpuwatchd.collect.nvml.calls import code_of
from gpuwatchd.collect.nvml.driver import (
    Driver,
    Opened,
    Scanner,
    beside,
    merge,
    pending_call_message,
)
from gpuwatchd.collect.nvml.driver_files import PowerManagedCards
from gpuwatchd.core import units
from gpuwatchd.core.model import Availability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.collect.nvml.calls import Calls, Card
    from gpuwatchd.collect.nvml.driver_files import KernelFiles
    from gpuwatchd.collect.nvml.events import EventWatch, StateChanges
    from gpuwatchd.core.model import DeviceReading, DeviceState

ABSENT_WAIT_S: Final = 5.0
"""Shortest time between tries where no GPU was ever seen; whoever reads paces beyond that."""
LOST_WAIT_S: Final = (1.0, 600.0)
"""First and longest pause between tries to start NVML where a GPU has answered before."""
CLOSE_S: Final = 1.0
"""How long the end of NVML is waited for."""
_LANE: Final = "driver"


class NvmlSession:
    """Whether NVML is open, and the cards that it shows.

    New cards and MIG instances are looked for every ``rescan_s``. ``events`` are those that the
    driver reports by itself; what happens to cards is ``news``.
    """

    def __init__(
        self,
        calls: Calls,
        files: KernelFiles,
        *,
        rescan_s: float,
        news: StateChanges,
        events: EventWatch,
    ) -> None:
        self.cards: dict[str, Card] = {}
        """UUID -> card, by index, each followed by its MIG instances."""
        self.is_open = False
        self.due_mono_s = -math.inf
        """Until then (monotonic) :meth:`drive` has nothing to do."""
        self.why = Availability(ok=False, reason="NVML has not been asked yet")
        self.driver = Driver(calls, files)
        self.lanes = DeviceThreads()
        self.scanner = Scanner(calls, self.lanes)
        self.news = news
        self.again = RetryTimer(rescan_s)
        self._events = events
        self._sleepers = PowerManagedCards(files, rescan_s)
        self._release_until_mono_s = 0.0
        self._released = False
        self._task: tuple[ReadRound, Callable[[Any, float], None]] | None = None
        """What is being done and may hang, and what gets its answer."""

    @property
    def is_between(self) -> bool:
        """Whether NVML is just being started or ended, so that no card can be read."""
        return not self.is_open and self._task is not None

    @property
    def stuck_s(self) -> float:
        """For how long a call that concerns the driver as a whole has not returned; 0: none."""
        return 0.0 if self._task is None else self.lanes.busy_s(_LANE) or 0.0

    def release_until(self, until_mono_s: float) -> None:
        """Let go of the driver until then; takes effect with the next read."""
        self._release_until_mono_s = until_mono_s
        self.due_mono_s = -math.inf

    def drive(self, mono_s: float, wait_s: float) -> None:
        """Start, look around or let go, whatever is due; wait so long for it to end.

        Each may open files of the driver, which may then hold it up.
        """
        self._settle(mono_s, 0.0)
        if self._task is None:
            self._do_what_is_due(mono_s, wait_s)
        if self.is_between:
            self.why = pending_call_message(
                self.driver.gone, self.stuck_s, started_before=bool(self.cards)
            )
        self._plan(mono_s)

    def _plan(self, mono_s: float) -> None:
        """Note when anything is to be done next; with cards that may sleep, in each read."""
        settled = self.is_open and self._task is None and not self._sleepers.known
        due_s = min(self.driver.version_at_s, self.again.scan_at_s, self.again.restart_at_s)
        self.due_mono_s = due_s if settled else -math.inf
        if mono_s < self._release_until_mono_s:  # last: another thread may just have asked for it
            self.due_mono_s = -math.inf

    def _do_what_is_due(self, mono_s: float, wait_s: float) -> None:
        if mono_s < self._release_until_mono_s:
            self._release(mono_s)
            return
        if self._released:
            self._released = False
            self.again.start_at(mono_s)
            self.news.add("released", "the driver is used again")
        if self.is_open:
            self._keep_up(mono_s, wait_s)
        if self.is_open or self._task is not None:
            return
        if self.driver.look_for_library():
            return  # nothing that this process does can help any more
        if mono_s >= self.again.start_at_s:
            self._start(mono_s, wait_s)

    def after(self, at_s: float, mono_s: float, readings: list[DeviceReading]) -> None:
        """Take over what a read showed: plan a fresh start, or let sleeping cards lie."""
        self._follow(mono_s, readings)
        self.news.update(self.cards.values(), at_s, mono_s)
        self._plan(mono_s)

    def _follow(self, mono_s: float, readings: list[DeviceReading]) -> None:
        if not self.is_open:
            return
        if self._sleepers.known:
            for reading in readings:
                bus = self.cards[reading.device_uid].device.pci_bus
                self._sleepers.saw(bus or "", reading, mono_s)
            if self._sleepers.are_others(mono_s) and not self.lanes.busy:
                self._shutdown(mono_s)
                self._leave(mono_s)
                return
        self.again.saw([card.state for card in self.cards.values()], mono_s)

    def lose_all(self, mono_s: float, code: int) -> None:
        """NVML itself is gone: drop every handle and come back later."""
        self.why = self.driver.explain(code)
        self._shutdown(mono_s)
        self._start_later(mono_s)

    def close(self, mono_s: float) -> None:
        """Let go of the driver; one that hangs is left behind."""
        if self.is_open and not self.lanes.busy:
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
        self._task = self.lanes.begin(_LANE, work), then
        self._settle(mono_s, wait_s)

    def _settle(self, mono_s: float, wait_s: float) -> None:
        if self._task is None:
            return
        task, then = self._task
        if task.wait(wait_s):
            self._task = None
            self.why = self.driver.gone or self.why
            then(task.answers[_LANE], mono_s)

    def _start(self, mono_s: float, wait_s: float) -> None:
        """Initialise NVML and find the cards, unless every card sleeps and is left so."""
        if self._leave(mono_s):
            return
        work = partial(self.driver.open, attach=not self._sleepers.left)
        self._begin(work, self._started, mono_s, wait_s)

    def _started(self, opened: Any, mono_s: float) -> None:
        if not isinstance(opened, Opened):
            opened = Opened(is_open=False, code=code_of(opened))
        if not opened.is_open:
            self.why = self.driver.explain(opened.code)
            self._start_later(mono_s)
            return
        self.is_open = True
        if change := self.driver.started(mono_s):
            self.news.add("driver-changed", change)
        for card in self.cards.values():
            card.forget_refusals()
        self._counted(opened, mono_s)
        if self.cards or not self.is_open:
            return
        self._shutdown(mono_s)
        self.why = Availability(
            ok=False,
            reason="the NVIDIA driver is loaded but lists no GPU",
            hint="check nvidia-smi, and that this user or container may open /dev/nvidia*",
        )
        self.again.start_failed(mono_s, seen_before=False)

    def _counted(self, opened: Any, mono_s: float) -> None:
        """Bring the table of cards up to date."""
        if not isinstance(opened, Opened) or opened.code:
            self.lose_all(mono_s, opened.code if isinstance(opened, Opened) else code_of(opened))
            return
        if not self.is_open:
            return  # it was slow, and NVML was ended meanwhile
        left = self._sleepers.left
        buses = [bus for bus in self._sleepers.buses if bus not in left]
        places: Sequence[int | str] = buses if left else range(opened.cards)
        look = self.scanner.scan(self.cards, places, left)
        self.again.scanned(mono_s, late=bool(look.late))
        if look.gone:
            self.lose_all(mono_s, look.gone)
            return
        self.cards = beside(merge(self.cards, look), left, "asleep")
        for card in self.cards.values():
            if card.device.pci_bus in left:
                card.handle, card.state = None, "asleep"
            elif card.uid in look.skipped:
                card.state = "hung"
        if not self.cards:
            return
        self.why = Availability(ok=True, reason="NVML answers")
        self._events.watch(self.cards.values())

    def _shutdown(self, mono_s: float) -> None:
        self.is_open = False
        self.again.start_at(mono_s)
        for card in self.cards.values():
            card.handle = None
        self._begin(self._end, _nothing, mono_s, CLOSE_S)

    def _end(self) -> None:
        # Ending NVML under a call that has not returned may end this process.
        # One that waits for events alone is not waited for longer: a reset may leave it there.
        self.lanes.wait_for_others(_LANE, briefly="events")
        self._events.end()
        self.driver.close()

    def _keep_up(self, mono_s: float, wait_s: float) -> None:
        """Do what is due while NVML is open."""
        # With the module exchanged, keeping the old handles can only hurt.
        exchanged = self.driver.is_exchanged(mono_s)
        if self._sleepers.known:
            self._sleepers.note_woken()
            exchanged = exchanged or self._sleepers.are_others(mono_s)
        anew = mono_s >= self.again.restart_at_s
        if exchanged or anew:
            if not self.lanes.busy:
                if anew:
                    self.again.restarted(mono_s)
                self._shutdown(mono_s)
        elif mono_s >= self.again.scan_at_s:
            self._sleepers.find(mono_s)
            self._begin(self.driver.count, self._counted, mono_s, wait_s)

    def _start_later(self, mono_s: float) -> None:
        self._mark("lost")
        self.again.start_failed(mono_s, seen_before=bool(self.cards))

    def _leave(self, mono_s: float) -> bool:
        """Choose the cards that are left alone; return whether that is all of them."""
        left = self._sleepers.choose(mono_s)
        if not left:
            return False
        self.cards = beside(self.cards, left, "asleep")
        if len(left) < len(self._sleepers.buses):
            return False
        for card in self.cards.values():
            sleeps = card.device.pci_bus in self._sleepers.known
            card.state = "asleep" if sleeps else "released"
        words = "the NVIDIA GPU is" if len(left) == 1 else f"all {len(left)} NVIDIA GPUs are"
        self.why = Availability(ok=True, reason=f"{words} asleep and left so")
        return True

    def _release(self, mono_s: float) -> None:
        """Let go of the driver on request, as soon as no call is on its way."""
        if not self._released:
            if self.is_open:
                if self.lanes.busy:
                    return
                self._shutdown(mono_s)
            if self._task is not None:
                return
            self._released = True
            self._sleepers.find(mono_s)
            self.cards = beside(self.cards, self._sleepers.buses, "released")
            self.news.add("released", "the driver was released on request")
        self._mark("released")
        left = units.duration(self._release_until_mono_s - mono_s)
        reason = f"the NVIDIA driver is released on request for another {left}"
        self.why = Availability(ok=False, reason=reason, hint="gpuwatchctl release --end")

    def _mark(self, state: DeviceState) -> None:
        for card in self.cards.values():
            sleeps = state == "lost" and card.device.pci_bus in self._sleepers.left
            card.state = "asleep" if sleeps else state


def _nothing(answer: Any, mono_s: float) -> None:
    """Take no notice of an answer."""


# When cards are looked for, one that was lost too, and when NVML is started, or anew for it.
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
LATE_WAIT_S: Final = 5.0
"""Time to the next look for cards when one was late."""


class RetryTimer:
    """Keeps the pauses; told what was seen, asked what is due. Times are monotonic seconds."""

    def __init__(self, rescan_s: float = 60.0) -> None:
        self._rescan_s = rescan_s
        self.scan_at_s = 0.0
        """When new cards and instances are looked for."""
        self.tries: dict[str, tuple[float, float]] = {}
        """UUID of a card that was lost -> (time of the next try, the pause before it)."""
        self._lost_since_s: float | None = None
        self._restarted_at_s = -math.inf
        self._pause_s = RESTART_AFTER_S
        self._others_answer = False
        self.start_at_s = self._start_pause_s = 0.0
        """When NVML is started, where it is not open."""

    def scanned(self, mono_s: float, *, late: bool) -> None:
        """Plan the next look, soon where a card was late."""
        self.scan_at_s = mono_s + (min(self._rescan_s, LATE_WAIT_S) if late else self._rescan_s)

    def start_at(self, mono_s: float) -> None:
        """Plan the next start of NVML for this instant."""
        self.start_at_s = mono_s

    def start_failed(self, mono_s: float, *, seen_before: bool) -> None:
        """Put the next start off; ``seen_before``: a GPU has answered before."""
        first, longest = LOST_WAIT_S if seen_before else (ABSENT_WAIT_S, ABSENT_WAIT_S)
        self._start_pause_s = min(longest, max(first, self._start_pause_s * 2))
        self.start_at_s = mono_s + self._start_pause_s

    def is_due(self, uid: str, mono_s: float) -> bool:
        """Say whether a card without a handle is to be asked for now."""
        return self.tries.get(uid, (-math.inf, 0.0))[0] <= mono_s

    def failed(self, uid: str, mono_s: float) -> None:
        """Note that a card was lost, or was asked for in vain."""
        pause_s = min(LONGEST_S, max(FIRST_S, 2 * self.tries.get(uid, (0.0, 0.0))[1]))
        self.tries[uid] = (mono_s + pause_s, pause_s)

    def saw(self, states: Iterable[DeviceState], mono_s: float) -> None:
        """Note in which states the cards are after a read."""
        seen = set(states)
        self._others_answer = "ok" in seen
        if self._others_answer:
            self._start_pause_s = 0.0
        if "lost" not in seen:
            self._lost_since_s, self._pause_s = None, RESTART_AFTER_S
        elif self._lost_since_s is None:
            self._lost_since_s = mono_s

    @property
    def restart_at_s(self) -> float:
        """When NVML is to be started anew; infinite while no card is lost."""
        if self._lost_since_s is None:
            return math.inf
        pause_s = RESTART_EVERY_S if self._others_answer else self._pause_s
        return max(self._lost_since_s + RESTART_AFTER_S, self._restarted_at_s + pause_s)

    def restarted(self, mono_s: float) -> None:
        """Note that NVML is being started anew."""
        self._restarted_at_s = mono_s
        self._pause_s = min(RESTART_EVERY_S, 2 * self._pause_s)
