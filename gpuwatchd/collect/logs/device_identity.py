"""Which device a reading belongs to: UUID before bus id before (host, index)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwatchd.collect.logs.fields import MIB
from gpuwatchd.core.model import Device
from gpuwatchd.core.text import clean

_SAME_TOTAL = 2 * MIB


@dataclass(slots=True, eq=False)
class Place:
    """One device as the rows describe it. Rows of one key but another name are another place."""

    order: int
    uuid: str | None = None
    bus: str | None = None
    index: int | None = None
    host: str | None = None
    name: str | None = None
    total: float | None = None
    """Explicit total, bytes."""
    vendor: str = "nvidia"
    parent: Place | None = None
    unified: bool = False
    letter: str = ""
    """(a), (b): told apart under one key."""
    key: str = ""
    """The instance's "gi/ci" on its card."""

    @property
    def uid(self) -> str:
        """Stable identity: the UUID, else host and bus id or index."""
        if self.uuid:
            base = self.uuid
        elif self.parent is not None:
            base = f"{self.parent.uid}/{self.key}"
        else:
            where = self.bus if self.bus is not None else self.index
            base = f"log:{self.host or '-'}/{'-' if where is None else where}"
        return f"{base} {self.letter}" if self.letter else base

    def device(self, total_bytes: float | None) -> Device:
        """Return the device as the rest of the program knows it."""
        name = self.name or ("MIG instance" if self.parent else "GPU")
        return Device(
            uid=clean(self.uid),
            vendor=self.vendor,
            index=self.index,
            name=clean(f"{name} {self.letter}" if self.letter else name),
            memory_total_bytes=None if total_bytes is None else round(total_bytes),
            memory_kind="unified" if self.unified else "dedicated",
            parent_uid=clean(self.parent.uid) if self.parent else None,
            source="replay",
            pci_bus=self.bus,
        )

    def learn(
        self,
        uuid: str | None,
        bus: str | None,
        index: int | None,
        name: str | None,
        total: float | None,
    ) -> None:
        """Take over what a row says and this place did not know."""
        if name and (self.name is None or self.name.endswith("..")):
            self.name = name
        self.total = total if self.total is None else self.total
        self.uuid, self.bus = self.uuid or uuid, self.bus or bus
        self.index = index if self.index is None else self.index

    def take(self, other: Place) -> None:
        """Take over what another place of the same device knows."""
        self.learn(other.uuid, other.bus, other.index, other.name, other.total)

    def fits(self, name: str | None, total: float | None) -> bool:
        """Say whether a row with this name and total can be of this device."""
        if None not in {total, self.total} and abs((total or 0) - (self.total or 0)) > _SAME_TOTAL:
            return False
        if name is None or self.name is None or name == self.name:
            return True
        # The default table cuts names, and how far depends on its width.
        for cut, whole in ((name, self.name), (self.name, name)):
            if cut.endswith("..") and whole.startswith(cut.rstrip(". ")):
                return True
        return False


@dataclass(slots=True, eq=False)
class _Base:
    uuid: str | None
    bus: str | None
    variants: list[Place] = field(default_factory=list)

    def may_be(self, uuid: str | None, bus: str | None) -> bool:
        """Say whether nothing speaks against a row with this identity."""
        if uuid and self.uuid and uuid != self.uuid:
            return False
        return not (bus and self.bus and bus != self.bus)


class Places:
    """All devices of one log."""

    def __init__(self) -> None:
        self.all: list[Place] = []
        self._bases: list[_Base] = []
        self._keys: dict[tuple[object, ...], _Base] = {}

    def groups(self) -> list[list[Place]]:
        """Return places that share one key, each group in order of appearance."""
        return [base.variants for base in self._bases]

    def find(  # noqa: PLR0913 - the ways to name a device, all optional
        self,
        *,
        uuid: str | None = None,
        bus: str | None = None,
        index: int | None = None,
        host: str | None = None,
        name: str | None = None,
        total: float | None = None,
        vendor: str = "nvidia",
        parent: Place | None = None,
        key: str = "",
    ) -> Place:
        """Return the place of a row, made on first sight.

        Parameters
        ----------
        parent, key
            The card of a MIG instance, and the instance's "gi/ci" on it.
        """
        name = clean(name) if name else None
        host = clean(host) if host else None
        base = self._base(uuid, bus, index, host, f"{parent.order}/{key}" if parent else "")
        for place in base.variants:
            if place.fits(name, total):
                place.learn(uuid, bus, index, name, total)
                return place
        place = Place(len(self.all), uuid, bus, index, host, name, total, vendor, parent)
        place.key = key
        base.variants.append(place)
        self.all.append(place)
        return place

    def _base(
        self, uuid: str | None, bus: str | None, index: int | None, host: str | None, key: str
    ) -> _Base:
        keys: list[tuple[object, ...]] = []
        if uuid:
            keys.append(("uuid", uuid))
        if key:
            keys.append(("part", key))
        else:
            if bus:
                keys.append(("bus", host, bus))
            if index is not None or not keys:
                keys.append(("index", host, index))
        bases = [base for each in keys if (base := self._keys.get(each)) is not None]
        fitting = [base for base in bases if base.may_be(uuid, bus)]
        if not fitting:
            fitting = [_Base(uuid, bus)]
            self._bases += fitting
        base = fitting[0]
        base.uuid, base.bus = base.uuid or uuid, base.bus or bus
        for other in fitting[1:]:
            if other is not base and base.may_be(other.uuid, other.bus):
                self._absorb(base, other)
        for each in keys:
            self._keys.setdefault(each, base)
        return base

    def _absorb(self, base: _Base, other: _Base) -> None:
        """Make one device of two: a row has named both."""
        base.variants += other.variants
        base.uuid, base.bus = base.uuid or other.uuid, base.bus or other.bus
        for key, known in self._keys.items():
            if known is other:
                self._keys[key] = base
        if other in self._bases:
            self._bases.remove(other)

    def united(self) -> dict[int, Place]:
        """Return, by order, the place that stands for each place which is no device of its own."""
        same: dict[int, Place] = {}
        for base in self._bases:
            places: list[Place] = []
            for place in base.variants:
                twin = next((each for each in places if each.fits(place.name, place.total)), None)
                if twin is None or place.parent is not None:
                    places.append(place)
                    continue
                twin.take(place)
                same[place.order] = twin
            base.variants[:] = places
        return same | self._united_parts(same)

    def _united_parts(self, same: dict[int, Place]) -> dict[int, Place]:
        """Unite the MIG instances of cards that turned out to be one."""
        parts: dict[tuple[int, str], Place] = {}
        places: dict[int, Place] = {}
        for place in self.all:
            if place.parent is None:
                continue
            place.parent = same.get(place.parent.order, place.parent)
            twin = parts.setdefault((place.parent.order, place.key), place)
            if twin is not place:
                twin.take(place)
                places[place.order] = twin
        for base in self._bases:
            base.variants[:] = [place for place in base.variants if place.order not in places]
        return places
