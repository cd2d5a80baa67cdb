"""Finding cards and MIG instances: asking the driver, and bringing the table up to date.

The two are apart because asking may hang: it happens in other threads, which change nothing of
ours, and a card whose call does not return is late and hides no other. Nothing here imports pynvml.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    EMPTY_SLOT_CODES,
    GLOBAL_CODES,
    GPU_IS_LOST,
    Card,
    code_of,
    order,
    placeholder,
    state_of,
)
from gpuwatchd.collect.nvml.driver_files import nvml_address, pci_address
from gpuwatchd.core.model import Device
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from gpuwatchd.collect.device_threads import DeviceThreads
    from gpuwatchd.core.model import DeviceState

_LATE = object()


class FoundDevice(NamedTuple):
    """One card or MIG instance that answered."""

    uid: str
    handle: Any
    place: int
    """Its index, or its position among the instances of its card."""
    name: str = ""
    """Empty where it is known from before."""
    bus: str | None = None
    mig: bool | None = False
    """Whether it has instances; None when it refused to say."""
    mig_exists: bool = True
    """False when the driver or the card knows nothing of instances."""
    slices: tuple[FoundDevice, ...] = ()
    unsure: frozenset[int] = frozenset()
    """Places whose instance may be there: the driver refused to say."""


class ScanResult(NamedTuple):
    """What one look at the driver found."""

    cards: tuple[FoundDevice, ...]
    blocked: tuple[tuple[int | str, int], ...]
    """(index or PCI address, NVML code) of the cards that did not tell who they are."""
    again: dict[str, Any]
    """UUID -> handle of known cards that were found under no index."""
    skipped: frozenset[str]
    """UUIDs of the cards that were not asked, or have not answered."""
    late: tuple[int | str, ...] = ()
    """Indexes or PCI addresses that have not answered."""
    gone: int = 0
    """NVML's code when NVML itself is gone, else 0."""


class Scanner:
    """Asks the driver for its cards, each in a lane of its own."""

    def __init__(self, api: Any, lanes: DeviceThreads) -> None:
        self._api = api
        self._error: type[Exception] = api.NVMLError
        self._lanes = lanes

    def scan(
        self,
        cards: Mapping[str, Card],
        places: Sequence[int | str],
        left: AbstractSet[str],
        deadline_s: float,
    ) -> ScanResult:
        """Ask for every card.

        Parameters
        ----------
        places
            The indexes to ask for; or PCI addresses, as asking by index wakes every card.
        left
            PCI addresses of cards that must not be touched, by whatever name.
        deadline_s
            A card that has not answered by then is late; the others do not wait for it.
        """
        known = {
            uid: card
            for uid, card in cards.items()
            if card.device.parent_uid is None and not card.is_placeholder
        }
        skipped = {uid for uid, card in known.items() if card.device.pci_bus in left}
        owners: dict[int | str, str] = {}
        for uid, card in known.items():
            for place in (card.device.index, card.device.pci_bus):
                if place is not None:
                    owners[place] = uid
        # A card that is known keeps its lane: nobody asks it anything while it hangs.
        lanes = {place: owners.get(place, f"place {place}") for place in places}
        answers = self._ask(
            {lane: partial(self._place, place, known.keys()) for place, lane in lanes.items()},
            deadline_s,
        )
        devices: dict[str, FoundDevice] = {}
        blocked: list[tuple[int | str, int]] = []
        late: list[int | str] = []
        gone = 0
        for place, lane in lanes.items():
            answer = answers.get(lane, _LATE)
            if answer is _LATE:
                late.append(place)
                skipped.update({lane} & known.keys())
            elif isinstance(answer, FoundDevice):
                devices[answer.uid] = answer
            elif (code := code_of(answer)) in GLOBAL_CODES:
                gone = code
            else:
                blocked.append((place, code))
        missing = known.keys() - devices.keys() - skipped
        find = self._api.nvmlDeviceGetHandleByUUID
        again = self._ask({uid: partial(find, uid) for uid in missing}, deadline_s)
        return ScanResult(
            tuple(devices.values()),
            tuple(blocked),
            {uid: handle for uid, handle in again.items() if not isinstance(handle, Exception)},
            frozenset(skipped - devices.keys()),
            tuple(late),
            gone,
        )

    def _ask(self, jobs: Mapping[str, Callable[[], Any]], deadline_s: float) -> dict[str, Any]:
        free = {lane: work for lane, work in jobs.items() if lane not in self._lanes.busy}
        return self._lanes.run(free, deadline_s)

    def _place(self, place: int | str, names: AbstractSet[str]) -> FoundDevice:
        handle, index = self._at(place)
        uid = clean(self._api.nvmlDeviceGetUUID(handle))
        return self._card(handle, uid, index, is_new=uid not in names)

    def _at(self, place: int | str) -> tuple[Any, int]:
        if isinstance(place, int):
            return self._api.nvmlDeviceGetHandleByIndex(place), place
        handle = self._api.nvmlDeviceGetHandleByPciBusId(nvml_address(place).encode())
        return handle, self._api.nvmlDeviceGetIndex(handle)

    def _card(self, handle: Any, uid: str, index: int, *, is_new: bool) -> FoundDevice:
        name, bus = "", None
        if is_new:
            name, bus = self._name(handle), self._bus(handle)
        try:
            mig = bool(self._api.nvmlDeviceGetMigMode(handle)[0])
            most = self._api.nvmlDeviceGetMaxMigDeviceCount(handle) if mig else 0
        except self._error as error:
            exists = code_of(error) not in ABSENT_CODES
            return FoundDevice(uid, handle, index, name, bus, None, exists)
        slices: list[FoundDevice] = []
        unsure: set[int] = set()
        for position in range(most):
            try:
                part = self._api.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
                part_uid = clean(self._api.nvmlDeviceGetUUID(part))
            except (self._error, UnicodeError) as error:
                if code_of(error) not in EMPTY_SLOT_CODES:
                    unsure.add(position)
                continue
            slices.append(FoundDevice(part_uid, part, position, self._name(part), bus))
        parts, doubts = tuple(slices), frozenset(unsure)
        return FoundDevice(uid, handle, index, name, bus, mig, slices=parts, unsure=doubts)

    def _name(self, handle: Any) -> str:
        with contextlib.suppress(self._error, UnicodeError):
            return clean(self._api.nvmlDeviceGetName(handle))
        return "NVIDIA GPU"

    def _bus(self, handle: Any) -> str | None:
        with contextlib.suppress(self._error, UnicodeError):
            return pci_address(self._api.nvmlDeviceGetPciInfo(handle).busId)
        return None


def beside(cards: Mapping[str, Card], buses: Iterable[str], state: DeviceState) -> dict[str, Card]:
    """Return the table of cards with a stand-in for each PCI address that no card has."""
    taken = {card.device.pci_bus for card in cards.values()}
    found = dict(cards)
    for bus in buses:
        if bus not in taken:
            card = placeholder(bus, state)
            found[card.uid] = card
    return dict(sorted(found.items(), key=lambda item: order(item[1], found)))


def merge(cards: Mapping[str, Card], look: ScanResult) -> dict[str, Card]:
    """Return the table of cards after a look; known cards stay the same objects.

    What answered before and does not now stays, with its state; what never answered is shown by a
    stand-in.
    """
    found: dict[str, Card] = {}
    for answer in look.cards:
        card = _adopt(cards, answer)
        found[card.uid] = card
        _slices(cards, card, answer, found)
    states = dict(look.blocked)
    for uid, card in cards.items():
        if uid in found or card.is_placeholder:
            continue
        parent = card.device.parent_uid
        if parent is not None and parent not in look.skipped and parent in found:
            continue  # the administrator removed this instance
        found[uid] = card
        if uid in look.skipped or (parent is not None and parent in look.skipped):
            continue
        code = states.pop(card.device.pci_bus or "", GPU_IS_LOST)
        if card.device.index is not None:
            code = states.pop(card.device.index, code)
        card.handle = look.again.get(uid)
        card.state = "ok" if card.handle is not None else state_of(code)
    names = {uid for uid in look.skipped if uid in found}
    taken = {p for uid in names for p in (found[uid].device.index, found[uid].device.pci_bus)}
    new = {place: state_of(code) for place, code in states.items()}
    new |= {place: "hung" for place in look.late if place not in taken}
    for place, state in new.items():
        card = placeholder(place, state)
        found[card.uid] = card
    return dict(sorted(found.items(), key=lambda item: order(item[1], found)))


def _adopt(cards: Mapping[str, Card], answer: FoundDevice, parent: Card | None = None) -> Card:
    card = cards.get(answer.uid)
    if card is None:
        card = Card(answer.uid, _describe(answer, parent))
    elif card.device.index != answer.place:
        card.device = msgspec.structs.replace(card.device, index=answer.place)
    card.handle = answer.handle
    card.state = "ok"
    return card


def _describe(answer: FoundDevice, parent: Card | None) -> Device:
    return Device(
        uid=answer.uid,
        vendor="nvidia",
        index=answer.place,
        name=answer.name,
        memory_total_bytes=None,
        parent_uid=parent.uid if parent else None,
        parent_index=parent.device.index if parent else None,
        source="nvml",
        pci_bus=parent.device.pci_bus if parent else answer.bus,
    )


def _slices(
    cards: Mapping[str, Card], card: Card, answer: FoundDevice, found: dict[str, Card]
) -> None:
    known = {c.device.index: c for c in cards.values() if c.device.parent_uid == card.uid}
    if answer.mig is None:
        # Without an answer nothing has changed: instances are not gone because a call failed.
        card.is_parent = card.is_parent and answer.mig_exists
        found.update({c.uid: c for c in known.values() if card.is_parent})
        return
    card.is_parent = answer.mig
    for part in answer.slices:
        found[part.uid] = _adopt(cards, part, card)
    for position in answer.unsure:
        if (kept := known.get(position)) is not None:
            found[kept.uid] = kept
