"""XIDs and memory errors as the driver reports them: a thread that waits for its events.

Nothing here imports pynvml: the module is handed in. Not verified on hardware.

The thread holds a reference to NVML of its own. Whoever lets go of the driver is therefore never
held up by it, and never pulls the library away under a call that waits: the last reference is
given back by the thread, when its wait ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.analysis.hardware import application_xid, xid_words
from gpuwatchd.collect.nvml.calls import FUNCTION_NOT_FOUND, OK, address_of
from gpuwatchd.collect.nvml.driver import NO_ATTACH
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect.nvml.calls import Card

XID: Final = 0x8
DOUBLE_BIT: Final = 0x2
WAIT_MS: Final = 2000
"""Longest single wait in the driver, and so the time that letting go of it may take."""
_TIMEOUT: Final = 10
_UNINITIALIZED: Final = 1
_NO_INSTANCE: Final = 0xFFFF_FFFF
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
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
    """Waits for events from the moment that cards are named until NVML is let go.

    Parameters
    ----------
    monotonic
        Monotonic clock, seconds: what is the same again does not hang on a clock that is set.
    """

    def __init__(
        self,
        api: Any,
        clock: Callable[[], float] = time.time,
        *,
        wait_ms: int = WAIT_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._clock = clock
        self._monotonic = monotonic
        self._wait_ms = wait_ms
        self._happened: deque[Event] = deque(maxlen=_MOST)
        self._waiter: _Waiter | None = None
        self._told: dict[tuple[str, int], float] = {}

    def watch(self, cards: Iterable[Card]) -> None:
        """Wait for events of these cards too; known ones cost nothing. NVML is initialised."""
        places = {
            address_of(card.handle): _Place(card.handle, card.uid)
            for card in cards
            if card.handle is not None and card.device.parent_uid is None
        }
        for card in cards:
            place = next((p for p in places.values() if p.uid == card.device.parent_uid), None)
            if place is not None and card.handle is not None:
                place.slices.append((card.handle, card.uid))
        waiter = self._waiter
        if waiter is None or waiter.ended.is_set() or not waiter.is_alive():
            if not places:
                return
            try:
                waiter = _Waiter(self._api, self._take, self._wait_ms)
            except self._api.NVMLError:
                return  # Whoever reads finds out why.
            self._waiter, waiter.places = waiter, places
            waiter.start()
        waiter.places = places

    def stop(self) -> None:
        """Wait for no more events; returns at once. Within one wait the thread has let go."""
        if self._waiter is not None:
            self._waiter.ended.set()

    def let_go(self, timeout_s: float) -> bool:
        """Stop, and say whether the thread has let go of the driver in time."""
        self.stop()
        if self._waiter is not None:
            self._waiter.join(timeout_s)
            if self._waiter.is_alive():
                return False
        self._waiter = None
        return True

    def happened(self) -> tuple[Event, ...]:
        """Return what has happened since this was last asked."""
        events: list[Event] = []
        while self._happened:
            events.append(self._happened.popleft())
        return tuple(events)

    def _take(self, uid: str, kind: int, data: int) -> None:
        """Note one event; called by the thread."""
        at_s, mono_s = self._clock(), self._monotonic()
        number = data if kind == XID else -1
        if mono_s - self._told.get((uid, number), float("-inf")) < _SAME_AGAIN_S:
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[uid, number] = mono_s
        if kind == XID:
            by_application = application_xid(data)
            self._happened.append(
                Event(
                    at_s=at_s,
                    kind="xid",
                    device_uid=uid,
                    text=xid_words(data),
                    code=data,
                    hardware=None if by_application is None else not by_application,
                )
            )
        else:
            text = "an uncorrected (double bit) memory error"
            self._happened.append(
                Event(at_s=at_s, kind="ecc", device_uid=uid, text=text, hardware=True)
            )


@dataclass
class _Place:
    """A card that is waited for, and its MIG instances."""

    handle: Any
    uid: str
    slices: list[tuple[Any, str]] = field(default_factory=list)


class _Waiter(threading.Thread):
    """One life of NVML: registers, waits, hands on, and lets go at its end."""

    def __init__(self, api: Any, take: Callable[[str, int, int], None], wait_ms: int) -> None:
        super().__init__(name="nvml-events", daemon=True)
        self._api = api
        self._library = api.nvmlLib
        self._take = take
        self._wait_ms = wait_ms
        self.places: dict[int, _Place] = {}
        """Address of the handle -> card."""
        self.ended = threading.Event()
        self._registered: set[tuple[int, str]] = set()
        self._any = False
        # Held from here on, so that there is no moment in which nobody holds it. What is held
        # already is enough: a card that sleeps is not to be attached for this.
        api.nvmlInitWithFlags(NO_ATTACH)

    def run(self) -> None:
        """Wait until the end."""
        try:
            waits = getattr(self._library, "nvmlEventSetWait_v2", None) or getattr(
                self._library, "nvmlEventSetWait", None
            )
            if waits is not None:
                event_set = self._api.nvmlEventSetCreate()
                try:
                    self._wait(event_set, waits)
                finally:
                    self._api.nvmlEventSetFree(event_set)
        except self._api.NVMLError:
            pass  # A driver without events: what the counters tell remains.
        finally:
            with contextlib.suppress(self._api.NVMLError):
                self._api.nvmlShutdown()

    def _wait(self, event_set: Any, waits: Callable[..., int]) -> None:
        data = _Data()
        pause_s = _FIRST_PAUSE_S
        while not self.ended.is_set():
            if not self._register(event_set):
                # Nothing here reports events yet; another card may.
                self.ended.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            began_s = time.monotonic()
            code = waits(event_set, ctypes.byref(data), ctypes.c_uint(self._wait_ms))
            if code == OK:
                pause_s = _FIRST_PAUSE_S
                self._handle(data)
            elif code == _TIMEOUT:
                pause_s = _FIRST_PAUSE_S
                # A driver that answers "timeout" at once must not keep this thread busy.
                self.ended.wait(max(0.0, self._wait_ms / 1000 - (time.monotonic() - began_s)))
            elif code in {_UNINITIALIZED, FUNCTION_NOT_FOUND}:
                return
            else:
                # A card that is gone is not registered again here: calls on its handle may crash.
                # Whoever reads finds it anew, and then there is another thread like this one.
                self.ended.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _register(self, event_set: Any) -> bool:
        """Register what is new; say whether anything is registered at all."""
        for address, place in self.places.items():
            if (address, place.uid) in self._registered:
                continue
            self._registered.add((address, place.uid))
            try:
                types = self._api.nvmlDeviceGetSupportedEventTypes(place.handle)
                wanted = types & (XID | DOUBLE_BIT)
                if wanted:
                    self._api.nvmlDeviceRegisterEvents(place.handle, wanted, event_set)
                    self._any = True
            except self._api.NVMLError:
                continue  # This card reports none; the others do.
        return self._any

    def _handle(self, data: _Data) -> None:
        place = self.places.get(data.device or 0) or self._by_uuid(data.device)
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
        return next((place for place in self.places.values() if place.uid == uid), None)

    def _slice(self, place: _Place, gpu_instance: int) -> str | None:
        texts = []
        for handle, uid in place.slices:
            try:
                if self._api.nvmlDeviceGetGpuInstanceId(handle) == gpu_instance:
                    texts.append(uid)
            except self._api.NVMLError:
                continue
        return texts[0] if len(texts) == 1 else None
