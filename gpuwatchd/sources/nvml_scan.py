"""Finding cards and MIG instances: asking the driver, and bringing the table up to date.

The two are apart because asking may take long or hang: it changes nothing, so that it can happen
in another thread while the known cards are read. Nothing here imports pynvml.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuwatchd.model import Device
from gpuwatchd.sources.nvml_card import (
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
from gpuwatchd.sources.nvml_system import pci_address
from gpuwatchd.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from gpuwatchd.model import DeviceState


class Found(NamedTuple):
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
    slices: tuple[Found, ...] = ()
    unsure: frozenset[int] = frozenset()
    """Places whose instance may be there: the driver refused to say."""


class Look(NamedTuple):
    """What one look at the driver found."""

    cards: tuple[Found, ...]
    blocked: tuple[tuple[int | str, int], ...]
    """(index or PCI address, NVML code) of the cards that did not tell who they are."""
    again: dict[str, Any]
    """UUID -> handle of known cards that were found under no index."""
    skipped: frozenset[str]
    """UUIDs of the cards that were not asked."""


class Scanner:
    """Asks the driver for its cards.

    Parameters
    ----------
    api
        The pynvml module, initialised.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._error: type[Exception] = api.NVMLError

    def look(
        self,
        known: Mapping[str, int | None],
        skip: AbstractSet[str] = frozenset(),
        buses: Sequence[str] | None = None,
    ) -> Look:
        """Ask for every card.

        Parameters
        ----------
        known
            UUID -> index of the cards known so far, without MIG instances and stand-ins.
        skip
            UUIDs of cards that must not be asked now: a call to them has not returned, or they
            sleep.
        buses
            Ask for the cards at these PCI addresses only: asking by index wakes every card.

        Raises
        ------
        NVMLError
            When NVML itself is gone.
        """
        cards: list[Found] = []
        blocked: list[tuple[int | str, int]] = []
        indexes = {known[uid] for uid in skip if uid in known}
        places: Sequence[int | str]
        places = buses if buses is not None else range(self._api.nvmlDeviceGetCount())
        for place in places:
            if place in indexes:
                continue
            try:
                handle, index = self._at(place)
                uid = clean(self._api.nvmlDeviceGetUUID(handle))
            except (self._error, UnicodeError) as error:
                if code_of(error) in GLOBAL_CODES:
                    raise
                blocked.append((place, code_of(error)))
                continue
            if uid not in skip:
                cards.append(self._card(handle, uid, index, is_new=uid not in known))
        again: dict[str, Any] = {}
        for uid in known.keys() - {card.uid for card in cards} - skip:
            with contextlib.suppress(self._error):
                again[uid] = self._api.nvmlDeviceGetHandleByUUID(uid)
        return Look(tuple(cards), tuple(blocked), again, frozenset(skip))

    def _at(self, place: int | str) -> tuple[Any, int]:
        if isinstance(place, int):
            return self._api.nvmlDeviceGetHandleByIndex(place), place
        # As NVML itself writes it: a domain of eight digits.
        handle = self._api.nvmlDeviceGetHandleByPciBusId(f"0000{place.upper()}".encode())
        return handle, self._api.nvmlDeviceGetIndex(handle)

    def _card(self, handle: Any, uid: str, index: int, *, is_new: bool) -> Found:
        name, bus = "", None
        if is_new:
            name, bus = self._name(handle), self._bus(handle)
        try:
            mig = bool(self._api.nvmlDeviceGetMigMode(handle)[0])
            most = self._api.nvmlDeviceGetMaxMigDeviceCount(handle) if mig else 0
        except self._error as error:
            exists = code_of(error) not in ABSENT_CODES
            return Found(uid, handle, index, name, bus, None, exists)
        slices: list[Found] = []
        unsure: set[int] = set()
        for position in range(most):
            try:
                part = self._api.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
                part_uid = clean(self._api.nvmlDeviceGetUUID(part))
            except (self._error, UnicodeError) as error:
                if code_of(error) not in EMPTY_SLOT_CODES:
                    unsure.add(position)
                continue
            slices.append(Found(part_uid, part, position, self._name(part), bus))
        parts, doubts = tuple(slices), frozenset(unsure)
        return Found(uid, handle, index, name, bus, mig, slices=parts, unsure=doubts)

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


def known_cards(cards: Mapping[str, Card]) -> dict[str, int | None]:
    """Return UUID -> index of what :meth:`Scanner.look` has to know."""
    return {
        uid: card.device.index
        for uid, card in cards.items()
        if card.device.parent_uid is None and not card.is_placeholder
    }


def merge(cards: Mapping[str, Card], look: Look) -> dict[str, Card]:
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
    for place, code in states.items():
        card = placeholder(place, state_of(code))
        found[card.uid] = card
    return dict(sorted(found.items(), key=lambda item: order(item[1], found)))


def _adopt(cards: Mapping[str, Card], answer: Found, parent: Card | None = None) -> Card:
    card = cards.get(answer.uid)
    if card is None:
        card = Card(answer.uid, _describe(answer, parent))
    elif card.device.index != answer.place:
        card.device = msgspec.structs.replace(card.device, index=answer.place)
    card.handle = answer.handle
    card.state = "ok"
    return card


def _describe(answer: Found, parent: Card | None) -> Device:
    return Device(
        uid=answer.uid,
        vendor="nvidia",
        index=answer.place,
        name=answer.name,
        memory_total_bytes=None,
        parent_uid=parent.uid if parent else None,
        source="nvml",
        pci_bus=parent.device.pci_bus if parent else answer.bus,
    )


def _slices(cards: Mapping[str, Card], card: Card, answer: Found, found: dict[str, Card]) -> None:
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
