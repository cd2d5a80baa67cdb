"""What a card says of its own health: why it is slowed down, and the errors of its memory.

Nothing here imports pynvml. Not verified on hardware.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.nvml.calls import OK
from gpuwatchd.core import units
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.collect.nvml.calls import Answer, Calls, Card, HandleBuffers
    from gpuwatchd.core.model import DeviceState, EventKind, Fault

    Refused = Callable[[Card, str, int, list[Fault]], None]
    Gauge = Callable[
        [Card, HandleBuffers, str, Callable[[HandleBuffers], Answer], list[Fault]], float | None
    ]

_WORDS: Final = (
    (0x2, "application clocks"),
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability limit"),
)
"""Bits of the driver's answer; bit 0, "idle", is no reason to speak of."""
_HARDWARE: Final = 0x8 | 0x40 | 0x80
_RESET, _EXHAUSTED = 1, 2
_DUE: Final = {
    _RESET: "the GPU has to be reset",
    _EXHAUSTED: "no spare rows are left, exchange the GPU",
}
LASTS_S: Final = 60.0
"""A slowdown is told when it has lasted so long, and is over when it has been gone so long."""
ERRORS_EVERY_S: Final = 60.0
MOST_EVENTS: Final = 256


class DeviceHealth:
    """Asks now and then, and tells what has become worse.

    Parameters
    ----------
    gauge
        Asks for one number; None when it is refused.
    refused
        Deals with a code that is not OK: raises, remembers, or notes a fault.
    """

    def __init__(
        self, calls: Calls, gauge: Gauge, refused: Refused, clock: Callable[[], float]
    ) -> None:
        self._calls = calls
        self._gauge = gauge
        self._refused = refused
        self._clock = clock
        self._words: dict[int, tuple[str, ...]] = {}
        self.happened: deque[Event] = deque(maxlen=MOST_EVENTS)
        """What happened and was not fetched yet."""

    # ---- clocks ---------------------------------------------------------------------------------

    def throttle(
        self, card: Card, desk: HandleBuffers, mono_s: float, faults: list[Fault]
    ) -> tuple[str, ...] | None:
        """Return why the clocks are held down now, in words."""
        if "throttle" in card.refused:
            return None
        code, bits = self._calls.reasons(desk)
        if code != OK:
            self._refused(card, "throttle", code, faults)
            return None
        words = self._words.get(bits)
        if words is None:
            words = self._words[bits] = tuple(word for bit, word in _WORDS if bits & bit)
        self._follow(card, desk, mono_s, bits & _HARDWARE)
        return words

    def _follow(self, card: Card, desk: HandleBuffers, mono_s: float, bits: int) -> None:
        """Tell of a slowdown by the hardware once, when it lasts."""
        if not bits:
            if desk.smooth_since_s is None:
                desk.smooth_since_s = mono_s
            if not desk.slow_told or mono_s - desk.smooth_since_s >= LASTS_S:
                desk.slow_since_s, desk.slow_told = None, False
            return
        desk.smooth_since_s = None
        if desk.slow_since_s is None:
            desk.slow_since_s = mono_s
        lasted_s = mono_s - desk.slow_since_s
        if lasted_s >= LASTS_S and not desk.slow_told:
            desk.slow_told = True
            why = " and ".join(word for bit, word in _WORDS if bits & bit)
            self._tell(card, "throttle", f"clocks held down for {lasted_s:.0f} s: {why}")

    # ---- errors of the memory -------------------------------------------------------------------

    def errors(
        self, card: Card, desk: HandleBuffers, mono_s: float, faults: list[Fault]
    ) -> tuple[int | None, int | None]:
        """Return (uncorrected errors since the driver was loaded, pages or rows out of use)."""
        asked_at_s, ecc = card.carried.get("ecc", (float("-inf"), None))
        _, retired = card.carried.get("retired", (0.0, None))
        if mono_s - asked_at_s < ERRORS_EVERY_S:
            return _whole(ecc), _whole(retired)
        fresh = self._gauge(card, desk, "ecc", self._calls.ecc, faults)
        if ecc is not None and fresh is not None and fresh > ecc:
            more = _many(int(fresh - ecc), "uncorrected memory error")
            self._tell(card, "ecc", f"{more}, {fresh:.0f} since the driver was loaded")
        lost = self._out_of_use(card, desk, retired, faults)
        card.carried["ecc"], card.carried["retired"] = (mono_s, fresh), (mono_s, lost)
        return _whole(fresh), _whole(lost)

    def _out_of_use(
        self, card: Card, desk: HandleBuffers, before: float | None, faults: list[Fault]
    ) -> float | None:
        """Return how many pages or rows are out of use, whichever this card counts."""
        what, due, rows = "row", 0, None
        if "remapped" not in card.refused:
            code, number, pending, failed = self._calls.remapped(desk)
            if code == OK:
                rows, due = float(number), _EXHAUSTED if failed else _RESET if pending else 0
            else:
                self._refused(card, "remapped", code, faults)
        if rows is None:
            what, rows = "page", self._gauge(card, desk, "retired", self._calls.retired, faults)
        _, due_before = card.carried.get("due", (0.0, 0))
        card.carried["due"] = (0.0, due)
        after = f"; {_DUE[due]}" if due else ""
        if before is not None and rows is not None and rows > before:
            more = _many(int(rows - before), f"{what} of memory")
            self._tell(card, "ecc", f"{more} taken out of use, {rows:.0f} in all{after}")
        elif rows is not None and due > (due_before or 0):
            # It may have been so long before anybody looked.
            self._tell(card, "ecc", f"{_many(int(rows), 'row of memory')} out of use{after}")
        return rows

    def _tell(self, card: Card, kind: EventKind, text: str) -> None:
        event = Event(at_s=self._clock(), kind=kind, device_uid=card.uid, text=text, hardware=True)
        self.happened.append(event)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _many(number: int, what: str) -> str:
    """Return "1 page of memory" or "3 pages of memory".

    Examples
    --------
    >>> _many(1, "row of memory"), _many(3, "uncorrected memory error")
    ('1 row of memory', '3 uncorrected memory errors')
    >>> _many(2, "row of memory")
    '2 rows of memory'
    """
    head, of, tail = what.partition(" of ")
    return f"{number} {head}{'' if number == 1 else 's'}{of}{tail}"


# What happens to cards, told once: lost, hung, to be reset, back.
# Nothing here imports pynvml.

BACK_AFTER_S: Final = 10.0
"""A card is back when it has answered for so long: one that comes and goes is one incident."""

_KINDS: Final[Mapping[DeviceState, EventKind]] = {
    "lost": "gpu-lost",
    "no-permission": "gpu-lost",
    "hung": "gpu-hung",
    "reset-required": "reset-required",
}
_TEXTS: Final[Mapping[DeviceState, str]] = {
    "lost": "the GPU answered before and no longer does",
    "no-permission": "the GPU answered before and can no longer be read",
    "hung": "a call to the driver does not return; the other GPUs are read on",
    "reset-required": "the driver reports that the GPU must be reset",
}


@dataclass
class _LoggedState:
    """What is known and told of one card."""

    answered: bool = False
    state: DeviceState = "ok"
    since_s: float = 0.0
    back_since_s: float | None = None


class StateChanges:
    """Turns the states of cards into events, each told once."""

    def __init__(self) -> None:
        self._told: dict[str, _LoggedState] = {}
        self._waiting: list[Event] = []

    def add(self, event: Event) -> None:
        """Add an event that is not about a card's state."""
        self._waiting.append(event)

    def take(self, cards: Iterable[Card], at_s: float, mono_s: float) -> tuple[Event, ...]:
        """Return what has happened since the last call."""
        for card in cards:
            state = self._told.get(card.uid)
            if state is None:
                if card.is_placeholder:
                    continue
                state = self._told[card.uid] = _LoggedState()
            if card.state == "ok":
                if state.state != "ok":
                    self._back(card, state, at_s, mono_s)
                state.answered = True
            elif card.state != state.state:
                self._gone(card, state, at_s, mono_s)
            else:
                state.back_since_s = None
        if not self._waiting:
            return ()
        waiting, self._waiting = tuple(self._waiting), []
        return waiting

    def _gone(self, card: Card, state: _LoggedState, at_s: float, mono_s: float) -> None:
        kind = _KINDS.get(card.state)
        if kind is None:
            return
        state.back_since_s = None
        # What never answered has not been lost; that it needs a reset is worth saying at once.
        if not state.answered and kind != "reset-required":
            return
        if state.state == "ok":
            state.since_s = mono_s
        state.state = card.state
        self._waiting.append(
            Event(
                at_s=at_s,
                kind=kind,
                device_uid=card.uid,
                text=_TEXTS[card.state] + (f": {card.said}" if card.said else ""),
                code=card.code,
                hardware=None if card.state == "no-permission" else True,
            )
        )

    def _back(self, card: Card, state: _LoggedState, at_s: float, mono_s: float) -> None:
        if state.back_since_s is None:
            state.back_since_s = mono_s
        if mono_s - state.back_since_s < BACK_AFTER_S:
            return
        away = units.duration(state.back_since_s - state.since_s)
        state.state, state.back_since_s = "ok", None
        self._waiting.append(
            Event(
                at_s=at_s,
                kind="gpu-back",
                device_uid=card.uid,
                text=f"the GPU answers again after {away}",
            )
        )
