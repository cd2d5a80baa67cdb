"""XIDs and memory errors as the driver reports them, asked for at every read.

Nothing here imports pynvml: the module is handed in. Not verified on hardware.

The driver keeps what has happened until it is asked. That is done in a lane of its own, without
waiting: a thread that waited in the driver would wake once a second and cost more than the read of
a card, and a driver could not be let go before its wait had ended.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.analysis.hardware import application_xid, xid_words
from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    OK,
    ErrorCounts,
    address_of,
)
from gpuwatchd.core import units
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.collect.nvml.calls import Calls, Card, CardCalls
    from gpuwatchd.core.model import DeviceState, EventKind, ProcessUse

XID: Final = 0x8
DOUBLE_BIT: Final = 0x2
_UNINITIALIZED: Final = 1
_NO_INSTANCE: Final = 0xFFFF_FFFF
_SAME_AGAIN_S: Final = 60.0
"""The same XID of the same card is reported once in this time: a broken program repeats it."""
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
        happened: deque[Event],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._happened = happened
        self._clock = clock
        self._monotonic = monotonic
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
HARDWARE: Final = 0x8 | 0x40 | 0x80
"""Those that the hardware sets."""
RESET_DUE, EXHAUSTED = 1, 2
_DUE: Final = {
    RESET_DUE: "the GPU has to be reset",
    EXHAUSTED: "no spare rows are left, exchange the GPU",
}
LASTS_S: Final = 60.0
"""A slowdown is told when it has lasted so long, and is over when it has been gone so long."""
ERRORS_EVERY_S: Final = 60.0


class DeviceHealth:
    """Tells what has become worse with one card, from what it is found to say now and then."""

    def __init__(self, uid: str, clock: Callable[[], float], happened: deque[Event]) -> None:
        self._uid = uid
        self._clock = clock
        self._happened = happened
        self.slow_since_s: float | None = None
        """Since when (monotonic) the hardware has held the clocks down; None: it does not."""
        self._smooth_since_s: float | None = None
        self._slow_told = False

    def throttled(self, mono_s: float, bits: int) -> None:
        """Tell of a slowdown by the hardware (:data:`HARDWARE`) once, when it lasts."""
        if not bits:
            if self._smooth_since_s is None:
                self._smooth_since_s = mono_s
            if not self._slow_told or mono_s - self._smooth_since_s >= LASTS_S:
                self.slow_since_s, self._slow_told = None, False
            return
        self._smooth_since_s = None
        if self.slow_since_s is None:
            self.slow_since_s = mono_s
        lasted_s = mono_s - self.slow_since_s
        if lasted_s >= LASTS_S and not self._slow_told:
            self._slow_told = True
            why = " and ".join(throttle_words(bits))
            self._tell("throttle", f"clocks held down for {lasted_s:.0f} s: {why}")

    def compare(self, before: ErrorCounts, now: ErrorCounts) -> None:
        """Tell of errors of the memory that are more than before."""
        fresh, rows = now.uncorrected, now.retired
        if before.uncorrected is not None and fresh is not None and fresh > before.uncorrected:
            more = _many(fresh - before.uncorrected, "uncorrected memory error")
            self._tell("ecc", f"{more}, {fresh} since the driver was loaded")
        after = f"; {_DUE[now.due]}" if now.due else ""
        known = before.retired if before.what == now.what else None
        if known is not None and rows is not None and rows > known:
            more = _many(rows - known, f"{now.what} of memory")
            self._tell("ecc", f"{more} taken out of use, {rows} in all{after}")
        elif rows is not None and now.due > before.due:
            # It may have been so long before anybody looked.
            self._tell("ecc", f"{_many(rows, 'row of memory')} out of use{after}")

    def _tell(self, kind: EventKind, text: str) -> None:
        event = Event(at_s=self._clock(), kind=kind, device_uid=self._uid, text=text, hardware=True)
        self._happened.append(event)


@lru_cache(maxsize=256)
def throttle_words(bits: int) -> tuple[str, ...]:
    """Return why clocks are held down, in words."""
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

    def __init__(self, calls: Calls, happened: deque[Event], clock: Callable[[], float]) -> None:
        self._calls = calls
        self._happened = happened
        self._clock = clock
        self._cards: dict[str, _LoggedState] = {}
        self.all_well = False
        """Whether all cards are well, and were so before: there is nothing to update until one is
        not, or there is another."""

    def add(self, kind: EventKind, text: str) -> None:
        """Add what happened now and is not about a card's state."""
        self._happened.append(Event(at_s=self._clock(), kind=kind, text=text))

    def update(self, cards: Iterable[Card], at_s: float, mono_s: float) -> None:
        """Add what has happened to cards."""
        self.all_well = True
        for card in cards:
            logged = self._cards.get(card.uid)
            if logged is None:
                if card.is_placeholder:
                    self.all_well = False
                    continue
                logged = self._cards[card.uid] = _LoggedState()
            change = logged.change(card.state, mono_s)
            self.all_well = self.all_well and card.state == logged.state == "ok"
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
            self._happened.append(event)


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


# What a process held at most, from the driver's own accounting, once it has ended.
# A bonus where an administrator has switched accounting mode on (``nvidia-smi -am 1``); nothing
# here switches it. It is off under MIG. Between two samples a process may have held far more
# than was seen: the driver knows. Not verified on hardware.

ACCOUNTING: Final = "accounting"
"""What it is called among a card's refusals."""
MOST_PEAKS: Final = 128
"""Behind so many events none is told: of very many, the oldest make room, and one may be an XID."""
TRIES: Final = 3
"""A process leaves the list before the driver has closed its account: it is asked so often."""
_UNKNOWN: Final = 0xFFFF_FFFF_FFFF_FFFF
_EPOCH_US: Final = 10**15
"""A start above this (2001) counts from 1970; what a lower one counts from is not known."""
_SLACK_S: Final = 10.0
_LEAST_SHARE: Final = 0.9
"""An account that knows of less than this of what the process was seen to hold is another's."""


class Account(ctypes.Structure):
    """``nvmlAccountingStats_t``."""

    _fields_ = (
        ("util", ctypes.c_uint),
        ("memory_util", ctypes.c_uint),
        ("peak_bytes", ctypes.c_ulonglong),
        ("lasted_ms", ctypes.c_ulonglong),
        ("started_us", ctypes.c_ulonglong),
        ("running", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 5),
    )


@dataclass(slots=True)
class Listed:
    """What is remembered of the processes on one card."""

    before: dict[int, ProcessUse] = field(default_factory=dict)
    """Who was last listed, by pid."""
    since_s: dict[int, float] = field(default_factory=dict)
    """pid -> when (epoch seconds) it was first listed."""
    asking: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """pid that has left -> (tries left, what it held last, when it was first listed)."""

    def compare(self, present: dict[int, ProcessUse], now_s: float) -> None:
        """Take over who has left, and who is new."""
        for pid in self.before.keys() - present.keys():
            held = self.before[pid].used_bytes or 0
            self.asking[pid] = (TRIES, held, self.since_s.pop(pid, now_s))
        for pid in present.keys() - self.before.keys():
            self.since_s[pid] = now_s
            self.asking.pop(pid, None)  # It is back, or another one has its number.


class Accounting:
    """Asks for the account of every process that leaves a card's list.

    While no process leaves, nothing is asked. Where the driver keeps no accounts that is asked
    once per card, and nothing is done from then on.
    """

    def __init__(self, clock: Callable[[], float], happened: deque[Event]) -> None:
        self._clock = clock
        self._happened = happened
        self._listed: dict[str, Listed] = {}

    def follow(self, asked: CardCalls, present: dict[int, ProcessUse]) -> None:
        """Look who has left the list that was just read; runs in the card's lane."""
        card = asked.card
        if ACCOUNTING in card.refused or card.is_parent or card.device.parent_uid is not None:
            return
        listed = self._listed.get(card.uid)
        if listed is None:
            if not present or not self._is_on(asked):
                return
            listed = self._listed[card.uid] = Listed()
        before = listed.before
        if present is not before:
            if present.keys() != before.keys():
                listed.compare(present, self._clock())
            listed.before = present
        if listed.asking:
            self._ask(asked, listed)

    def _ask(self, asked: CardCalls, listed: Listed) -> None:
        card, account = asked.card, Account()
        stats = asked.calls.find("nvmlDeviceGetAccountingStats")
        for pid, (tries, held, since_s) in tuple(listed.asking.items()):
            code = stats(asked.handle, ctypes.c_uint(pid), ctypes.byref(account))
            asked.calls.check(code)
            if code in ABSENT_CODES or code == NO_PERMISSION:
                # It was switched off, or the driver is a new one.
                card.refused.add(ACCOUNTING)
                del self._listed[card.uid]
                return
            if code == OK and not account.running:
                del listed.asking[pid]
                if _is_of(account, held, since_s):
                    self._report(card, pid, account.peak_bytes)
            elif tries > 1:
                listed.asking[pid] = (tries - 1, held, since_s)
            else:
                del listed.asking[pid]

    def _is_on(self, asked: CardCalls) -> bool:
        """Return whether the driver keeps accounts; where it does not, it is asked no more."""
        mode = ctypes.c_uint()
        ask = asked.calls.find("nvmlDeviceGetAccountingMode")
        code = ask(asked.handle, ctypes.byref(mode))
        asked.calls.check(code)
        if code == OK and mode.value == 1:
            return True
        asked.card.refused.add(ACCOUNTING)
        return False

    def _report(self, card: Card, pid: int, peak_bytes: int) -> None:
        if len(self._happened) >= MOST_PEAKS:
            return
        self._happened.append(
            Event(
                at_s=self._clock(),
                kind="process-peak",
                device_uid=card.uid,
                text=units.peak_text(f"pid {pid}", peak_bytes),
                pid=pid,
                peak_bytes=peak_bytes,
            )
        )


def _is_of(account: Account, held_bytes: int, since_s: float) -> bool:
    """Say whether an account is that of the process that left, and tells its memory.

    The driver keeps one account per number: that of whoever ended last under it.
    ``held_bytes`` is 0 where that is unknown; ``since_s`` is when it was first listed (epoch).
    """
    peak: int = account.peak_bytes
    if peak in {0, _UNKNOWN} or peak < _LEAST_SHARE * held_bytes:
        return False
    started_us: int = account.started_us
    if started_us < _EPOCH_US or started_us == _UNKNOWN:
        return True
    # It was on the card when it was first listed: neither over by then nor yet to begin.
    started_s = started_us / 1e6
    ended_s = started_s + account.lasted_ms / 1e3
    return started_s <= since_s + _SLACK_S and ended_s >= since_s - _SLACK_S
