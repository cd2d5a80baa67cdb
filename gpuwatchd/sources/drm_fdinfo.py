"""What /proc/PID/fdinfo/FD of an open graphics device says, as the kernel documents it.

Pure: text in, values out. The format is ``key: value [unit]`` (kernel documentation, "DRM client
usage stats" and the pages of the amdgpu, i915 and xe drivers). **Not verified on hardware**: the
tests use text of the documented shape.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_OWN_MEMORY: Final = re.compile(r"vram\d*|local\d*")
"""Regions that lie on the card: amdgpu "vram", xe "vram0", i915 "local0"."""
_HOST_MEMORY: Final = re.compile(r"gtt|system\d*|stolen(-system\d*)?")
"""Regions that lie in the host's memory. Any other region is kept and counted nowhere."""
_BIGGEST: Final = 1 << 60


class Client(NamedTuple):
    """One open file of one driver: what it holds and how long it has computed."""

    driver: str
    pdev: str | None
    """PCI address, as sysfs writes it."""
    client_id: int | None
    """Unique per device; the same on duplicated and inherited descriptors."""
    resident: dict[str, int]
    """Region -> bytes in use; a region that the driver does not report is missing."""
    engines: dict[str, int]
    """Engine -> nanoseconds of work, or cycles where the driver counts those."""
    ticks: dict[str, int]
    """Engine -> cycles that have passed in all (xe); empty where ``engines`` is nanoseconds."""
    capacity: dict[str, int]
    """Engine -> number of equal engines; 1 where it is missing."""

    def held_bytes(self, *, unified: bool) -> int | None:
        """Return the bytes that count: on the card, and in the host's memory too when shared."""
        found = [
            amount
            for region, amount in self.resident.items()
            if _OWN_MEMORY.fullmatch(region) or (unified and _HOST_MEMORY.fullmatch(region))
        ]
        return sum(found) if found else None

    @property
    def computes(self) -> bool:
        """Whether it has used an engine that only computes."""
        return any(self.engines.get(name, 0) > 0 for name in ("compute", "ccs"))


def parse(text: str) -> Client | None:
    r"""Return what one fdinfo file says; None when it is not of a graphics device.

    ``drm-resident-*`` is what is in use; ``drm-memory-*`` is the older word for the same, so that
    both are never added. ``drm-total-*`` was only asked for and may not be backed: it is left out.

    Examples
    --------
    >>> client = parse("drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-memory-vram:\t4 KiB\n")
    >>> client.client_id, client.held_bytes(unified=False)
    (7, 4096)
    >>> parse("pos:\t0\nflags:\t02\n") is None
    True
    """
    fields = _fields(text)
    driver = fields.get("drm-driver", "").lower()
    if not driver:
        return None
    older = _amounts(fields, "drm-memory-")
    engines = {
        name: number
        for name, number in _numbers(fields, "drm-engine-").items()
        if not name.startswith("capacity-")
    }
    cycles = _numbers(fields, "drm-cycles-")
    return Client(
        driver=driver,
        pdev=fields.get("drm-pdev", "").lower() or None,
        client_id=_number(fields.get("drm-client-id", "")),
        resident=older | _amounts(fields, "drm-resident-"),
        engines=engines or cycles,
        ticks={} if engines else _numbers(fields, "drm-total-cycles-"),
        capacity={
            name: number
            for name, number in _numbers(fields, "drm-engine-capacity-").items()
            if number > 0
        },
    )


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("drm-"):
            key, mark, value = line.partition(":")
            if mark:
                found[key.strip()] = value.strip()
    return found


def _number(text: str) -> int | None:
    word = text.split(" ", 1)[0]
    # Twenty digits hold every 64-bit number; what is longer is none of the kernel's.
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 20 else None


def _numbers(fields: Mapping[str, str], prefix: str) -> dict[str, int]:
    return {
        key[len(prefix) :]: number
        for key, value in fields.items()
        if key.startswith(prefix) and (number := _number(value)) is not None
    }


def _amounts(fields: Mapping[str, str], prefix: str) -> dict[str, int]:
    found = {}
    for key, value in fields.items():
        if not key.startswith(prefix):
            continue
        number, (_, _, unit) = _number(value), value.partition(" ")
        factor = _UNITS.get(unit.strip().lower())
        if number is not None and factor is not None and number * factor < _BIGGEST:
            found[key[len(prefix) :]] = number * factor
    return found


class Busy:
    """How busy engines were between two looks, from counters that may run backwards.

    The kernel allows a counter to fall behind for a while and asks readers to stay with the larger
    value until it has caught up.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, str], tuple[int, int]] = {}
        self._before_ns: int | None = None
        self._step_ns = 0

    def start(self, mono_s: float) -> None:
        """Begin a look at an instant of the monotonic clock, seconds."""
        now_ns = int(mono_s * 1e9)
        self._step_ns = 0 if self._before_ns is None else now_ns - self._before_ns
        self._before_ns = now_ns

    def of(self, key: object, client: Client) -> dict[str, float]:
        """Return engine -> share of its time that a client used since the last look, 0-1."""
        shares: dict[str, float] = {}
        for engine, raw in client.engines.items():
            work, whole = self._seen.get((key, engine), (raw, client.ticks.get(engine, 0)))
            count = max(raw, work)
            ticks = max(client.ticks.get(engine, 0), whole)
            known = (key, engine) in self._seen
            self._seen[key, engine] = (count, ticks)
            span = ticks - whole if client.ticks else self._step_ns
            if known and span > 0:
                room = span * client.capacity.get(engine, 1)
                shares[engine] = min(1.0, (count - work) / room)
        return shares

    def forget(self, keys: set[object]) -> None:
        """Keep the counters of these clients only."""
        if any(key not in keys for key, _ in self._seen):
            self._seen = {at: value for at, value in self._seen.items() if at[0] in keys}
