"""XIDs and memory errors as the driver reports them, asked for at every read.

Nothing here imports pynvml: the module is handed in. Not verified on hardware.

The driver keeps what has happened until it is asked. That is done in a lane of its own, without
waiting: a thread that waited in the driver would wake once a second and cost more than the read of
a card, and a driver could not be let go before its wait had ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.analysis.hardware import application_xid, xid_words
from gpuwatchd.collect.nvml.calls import (
    FUNCTION_NOT_FOUND,
    OK,
    ErrorCounts,
    address_of,
)
from gpuwatchd.core import units
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.collect.nvml.calls import Calls, Card, CardCalls
    from gpuwatchd.core.model import DeviceState, EventKind, Fault

XID: Final = 0x8
DOUBLE_BIT: Final = 0x2
_UNINITIALIZED: Final = 1
_NO_INSTANCE: Final = 0xFFFF_FFFF
_SAME_AGAIN_S: Final = 60.0
"""The same XID of the same card is told once in this time: a broken program repeats it."""
_MOST: Final = 256


class _Data(ctypes.Structure):
    """What the driver fills for an event."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class EventWatch:
    """Asks for events from the moment that cards are named until NVML is let go.

    What is the same again does not hang on a clock that is set: ``monotonic`` counts.
    """

    def __init__(
        self,
        api: Any,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._clock = clock
        self._monotonic = monotonic
        self._happened: deque[Event] = deque(maxlen=_MOST)
        self._told: dict[tuple[str, int], float] = {}
        self._places: dict[int, _Place] = {}
        """Address of the handle -> card."""
        self._set: Any = None
        """The driver's set of events; only the lane of :meth:`poll` touches it."""
        self._registered: set[tuple[int, str]] = set()
        self._is_silent = False
        """Whether the driver has no events, until NVML is started anew."""

    def watch(self, cards: Iterable[Card]) -> None:
        """Ask for events of these cards from now on."""
        places = {
            address_of(card.handle): _Place(card.handle, card.uid)
            for card in cards
            if card.handle is not None and card.device.parent_uid is None
        }
        for card in cards:
            place = next((p for p in places.values() if p.uid == card.device.parent_uid), None)
            if place is not None and card.handle is not None:
                place.slices.append((card.handle, card.uid))
        self._places = places

    def poll(self) -> None:
        """Take what has happened; runs in a lane of its own. NVML is initialised. Never raises."""
        if self._is_silent:
            return
        try:
            if self._set is None:
                self._set = self._api.nvmlEventSetCreate()
            self._register(self._set)
        except self._api.NVMLError:
            self._is_silent = True  # What the counters tell remains.
            return
        library, data = self._api.nvmlLib, _Data()
        older = getattr(library, "nvmlEventSetWait", lambda *_: FUNCTION_NOT_FOUND)
        waits = getattr(library, "nvmlEventSetWait_v2", older)
        for _ in range(_MOST if self._registered else 0):
            code = waits(self._set, ctypes.byref(data), ctypes.c_uint(0))
            if code != OK:
                # A card that is gone is not registered again: calls on its handle may crash.
                self._is_silent = code in {_UNINITIALIZED, FUNCTION_NOT_FOUND}
                return
            self._handle(data)

    def end(self) -> None:
        """Give the driver its set of events back, before NVML is ended; nobody polls."""
        self._places, self._is_silent = {}, False
        self._registered.clear()
        event_set, self._set = self._set, None
        if event_set is not None:
            with contextlib.suppress(self._api.NVMLError):
                self._api.nvmlEventSetFree(event_set)

    def happened(self) -> tuple[Event, ...]:
        """Return what has happened since this was last asked."""
        events: list[Event] = []
        while self._happened:
            events.append(self._happened.popleft())
        return tuple(events)

    def _take(self, uid: str, kind: int, data: int) -> None:
        """Note one event."""
        at_s, mono_s = self._clock(), self._monotonic()
        number = data if kind == XID else -1
        if mono_s - self._told.get((uid, number), float("-inf")) < _SAME_AGAIN_S:
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[uid, number] = mono_s
        by_application = application_xid(data) if kind == XID else False
        self._happened.append(
            Event(
                at_s=at_s,
                kind="xid" if kind == XID else "ecc",
                device_uid=uid,
                text=xid_words(data) if kind == XID else "an uncorrected (double bit) memory error",
                code=data if kind == XID else None,
                hardware=None if by_application is None else not by_application,
            )
        )

    def _register(self, event_set: Any) -> None:
        """Register what is new."""
        for address, place in self._places.items():
            if (address, place.uid) in self._registered:
                continue
            self._registered.add((address, place.uid))
            try:
                types = self._api.nvmlDeviceGetSupportedEventTypes(place.handle)
                wanted = types & (XID | DOUBLE_BIT)
                if wanted:
                    self._api.nvmlDeviceRegisterEvents(place.handle, wanted, event_set)
            except self._api.NVMLError:
                continue  # This card reports none; the others do.

    def _handle(self, data: _Data) -> None:
        place = self._places.get(data.device or 0) or self._by_uuid(data.device)
        if place is None:
            return
        uid = place.uid
        if data.type == XID and application_xid(data.data) and data.gpu_instance != _NO_INSTANCE:
            # What a program did wrong is of its instance; what breaks is the whole card.
            uid = self._slice(place, data.gpu_instance) or uid
        self._take(uid, int(data.type), int(data.data))

    def _by_uuid(self, address: int | None) -> _Place | None:
        """Return the card of a handle whose address is not the one that it was registered by."""
        if not address:
            return None
        try:
            handle = ctypes.cast(address, self._api.c_nvmlDevice_t)
            uid = self._api.nvmlDeviceGetUUID(handle)
        except (self._api.NVMLError, UnicodeError):
            return None
        return next((place for place in self._places.values() if place.uid == uid), None)

    def _slice(self, place: _Place, gpu_instance: int) -> str | None:
        texts = []
        for handle, uid in place.slices:
            try:
                if self._api.nvmlDeviceGetGpuInstanceId(handle) == gpu_instance:
                    texts.append(uid)
            except self._api.NVMLError:
                continue
        return texts[0] if len(texts) == 1 else None


@dataclass
class _Place:
    """A card that is waited for, and its MIG instances."""

    handle: Any
    uid: str
    slices: list[tuple[Any, str]] = field(default_factory=list)


# What a card says of its own health: why it is slowed down, and the errors of its memory.

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
    """Asks one card now and then, and tells what has become worse."""

    def __init__(
        self, asked: CardCalls, clock: Callable[[], float], happened: deque[Event]
    ) -> None:
        self._asked = asked
        self._clock = clock
        self._happened = happened
        self._slow_since_s: float | None = None
        self._smooth_since_s: float | None = None
        self._slow_told = False

    def throttle(self, mono_s: float, faults: list[Fault]) -> tuple[str, ...] | None:
        """Return why the clocks are held down now, in words."""
        bits = self._asked.gauge("throttle", self._asked.reasons, faults)
        if bits is None:
            return None
        self._follow(mono_s, bits & _HARDWARE)
        return _words(bits)

    def _follow(self, mono_s: float, bits: int) -> None:
        """Tell of a slowdown by the hardware once, when it lasts."""
        if not bits:
            if self._smooth_since_s is None:
                self._smooth_since_s = mono_s
            if not self._slow_told or mono_s - self._smooth_since_s >= LASTS_S:
                self._slow_since_s, self._slow_told = None, False
            return
        self._smooth_since_s = None
        if self._slow_since_s is None:
            self._slow_since_s = mono_s
        lasted_s = mono_s - self._slow_since_s
        if lasted_s >= LASTS_S and not self._slow_told:
            self._slow_told = True
            why = " and ".join(_words(bits))
            self._tell("throttle", f"clocks held down for {lasted_s:.0f} s: {why}")

    def errors(self, faults: list[Fault]) -> ErrorCounts:
        """Return the errors of the memory by now."""
        before = self._asked.card.errors
        fresh = self._asked.gauge("ecc", self._asked.ecc, faults)
        if before.uncorrected is not None and fresh is not None and fresh > before.uncorrected:
            more = _many(fresh - before.uncorrected, "uncorrected memory error")
            self._tell("ecc", f"{more}, {fresh} since the driver was loaded")
        return ErrorCounts(fresh, *self._out_of_use(before, faults))

    def _out_of_use(self, before: ErrorCounts, faults: list[Fault]) -> tuple[int | None, int]:
        """Return how many pages or rows are out of use, whichever it counts, and what is due."""
        what, due, rows = "row", 0, None
        if "remapped" not in self._asked.card.refused:
            code, number, pending, failed = self._asked.remapped()
            if code == OK:
                rows = self._asked.believed("remapped", number, faults)
                due = 0 if rows is None else _EXHAUSTED if failed else _RESET if pending else 0
            else:
                self._asked.refused("remapped", code, faults)
        if rows is None:
            what, rows = "page", self._asked.gauge("retired", self._asked.retired, faults)
        after = f"; {_DUE[due]}" if due else ""
        if before.retired is not None and rows is not None and rows > before.retired:
            more = _many(rows - before.retired, f"{what} of memory")
            self._tell("ecc", f"{more} taken out of use, {rows} in all{after}")
        elif rows is not None and due > before.due:
            # It may have been so long before anybody looked.
            self._tell("ecc", f"{_many(rows, 'row of memory')} out of use{after}")
        return rows, due

    def _tell(self, kind: EventKind, text: str) -> None:
        uid, at_s = self._asked.card.uid, self._clock()
        event = Event(at_s=at_s, kind=kind, device_uid=uid, text=text, hardware=True)
        self._happened.append(event)


@lru_cache(maxsize=256)
def _words(bits: int) -> tuple[str, ...]:
    return tuple(word for bit, word in _WORDS if bits & bit)


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


class StateChanges:
    """Turns the states of cards into events, each told once."""

    def __init__(self, calls: Calls, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._cards: dict[str, _LoggedState] = {}
        self._waiting: list[Event] = []

    def add(self, kind: EventKind, text: str) -> None:
        """Add what happened now and is not about a card's state."""
        self._waiting.append(Event(at_s=self._clock(), kind=kind, text=text))

    def take(self, cards: Iterable[Card], at_s: float, mono_s: float) -> tuple[Event, ...]:
        """Return what has happened since the last call."""
        for card in cards:
            logged = self._cards.get(card.uid)
            if logged is None:
                if card.is_placeholder:
                    continue
                logged = self._cards[card.uid] = _LoggedState()
            change = logged.change(card.state, mono_s)
            if change is None:
                continue
            kind, text = change
            code = None if kind == "gpu-back" else card.code
            if code is not None:
                text += f": {self._calls.text(code)}"
            hardware = None if card.state in {"ok", "no-permission"} else True
            event = Event(
                at_s=at_s, kind=kind, device_uid=card.uid, text=text, code=code, hardware=hardware
            )
            self._waiting.append(event)
        if not self._waiting:
            return ()
        waiting, self._waiting = tuple(self._waiting), []
        return waiting


@dataclass
class _LoggedState:
    """What is known and told of one card."""

    answered: bool = False
    state: DeviceState = "ok"
    since_s: float = 0.0
    back_since_s: float | None = None

    def change(self, state: DeviceState, mono_s: float) -> tuple[EventKind, str] | None:
        """Return what is to be told of a card that is in this state now."""
        if state == "ok":
            self.answered = True
            return None if self.state == "ok" else self._back(mono_s)
        kind = _KINDS.get(state)
        if kind is None:
            return None
        self.back_since_s = None
        # What never answered has not been lost; that it needs a reset is worth saying at once.
        if state == self.state or not (self.answered or kind == "reset-required"):
            return None
        if self.state == "ok":
            self.since_s = mono_s
        self.state = state
        return kind, _TEXTS[state]

    def _back(self, mono_s: float) -> tuple[EventKind, str] | None:
        """Take a card for well once it has answered for a while."""
        if self.back_since_s is None:
            self.back_since_s = mono_s
        if mono_s - self.back_since_s < BACK_AFTER_S:
            return None
        away = units.duration(self.back_since_s - self.since_s)
        self.state, self.back_since_s = "ok", None
        return "gpu-back", f"the GPU answers again after {away}"
