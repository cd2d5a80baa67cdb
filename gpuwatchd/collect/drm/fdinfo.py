"""What /proc/PID/fdinfo/FD of an open graphics device says, as the kernel documents it.

Pure: text in, values out. The format is ``key: value [unit]`` (kernel documentation, "DRM client
usage stats" and the pages of the amdgpu, i915 and xe drivers). **Not verified on hardware**: the
tests use text of the documented shape.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_UNITS: Final = {"": 1, "ns": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_KINDS: Final = (
    "engine-capacity-", "engine-", "total-cycles-", "cycles-", "resident-", "memory-",
)  # fmt: skip
"""Beginnings of the keys that are followed by a name; the longer one first."""
_LINE: Final = re.compile(
    rf"^drm-({'|'.join(_KINDS)}|)([\w.-]+):[ \t]*(\S+)(?:[ \t]+(\w+))?[ \t]*$",
    re.MULTILINE | re.ASCII,
)
_MOST_DIGITS: Final = 19
"""Of a number that the kernel may write here; with more it is none of ours."""
_OWN_MEMORY: Final = re.compile(r"vram\d*|local\d*")
"""Regions that lie on the card: amdgpu "vram", xe "vram0", i915 "local0"."""
_HOST_MEMORY: Final = re.compile(r"gtt|system\d*|stolen(-system\d*)?")
"""Regions that lie in the host's memory. Any other region is kept and counted nowhere."""


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
    values: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}
    plain: dict[str, str] = {}
    for kind, name, value, unit in _LINE.findall(text):
        if not kind:
            plain[name] = value
            continue
        factor = _UNITS.get(unit)
        if factor is not None and value.isdecimal() and len(value) <= _MOST_DIGITS:
            values[kind][name] = int(value) * factor
    driver = plain.get("driver", "").lower()
    if not driver:
        return None
    engines, client_id = values["engine-"], plain.get("client-id", "")
    is_number = client_id.isdecimal() and len(client_id) <= _MOST_DIGITS
    return Client(
        driver=driver,
        pdev=plain.get("pdev", "").lower() or None,
        client_id=int(client_id) if is_number else None,
        resident=values["memory-"] | values["resident-"],
        engines=engines or values["cycles-"],
        ticks={} if engines else values["total-cycles-"],
        capacity={name: number for name, number in values["engine-capacity-"].items() if number},
    )


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
