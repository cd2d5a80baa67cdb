"""Which device a reading belongs to: UUID before bus id before (host, index)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwatchd.model import Device
from gpuwatchd.sources.formats.fields import MIB
from gpuwatchd.text import clean

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
    _key: str = ""

    @property
    def uid(self) -> str:
        """Stable identity: the UUID, else host and bus id or index."""
        if self.uuid:
            base = self.uuid
        elif self.parent is not None:
            base = f"{self.parent.uid}/{self._key}"
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

    def fits(self, name: str | None, total: float | None) -> bool:
        """Say whether a row with this name and total can be of this device."""
        if None not in {total, self.total} and abs((total or 0) - (self.total or 0)) > _SAME_TOTAL:
            return False
        if name is None or self.name is None or name == self.name:
            return True
        # The default table cuts names.
        short, long = sorted((name, self.name), key=len)
        return short.endswith("..") and long.startswith(short.rstrip(". "))


@dataclass(slots=True, eq=False)
class _Base:
    uuid: str | None
    bus: str | None
    variants: list[Place] = field(default_factory=list)


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
        base = self._base(uuid, bus, index, host, f"{parent.uid}/{key}" if parent else "")
        for place in base.variants:
            if place.fits(name, total):
                if name and (place.name is None or place.name.endswith("..")):
                    place.name = name
                place.total = place.total if total is None else place.total or total
                place.uuid, place.bus = place.uuid or uuid, place.bus or bus
                place.index = index if place.index is None else place.index
                return place
        place = Place(len(self.all), uuid, bus, index, host, name, total, vendor, parent)
        place._key = key  # noqa: SLF001 - a detail of this module
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
        for each in keys:
            base = self._keys.get(each)
            if base is None or (uuid and base.uuid and base.uuid != uuid):
                continue
            if each[0] == "index" and bus and base.bus and base.bus != bus:
                continue
            base.uuid, base.bus = base.uuid or uuid, base.bus or bus
            for other in keys:
                self._keys.setdefault(other, base)
            return base
        base = _Base(uuid, bus)
        self._bases.append(base)
        for each in keys:
            self._keys.setdefault(each, base)
        return base
