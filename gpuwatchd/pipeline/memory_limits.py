"""What limits a process below its device: its control group, MPS, or its framework's allocator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis.declared import MPS_LIMIT, XLA, is_enforced
from gpuwatchd.collect import control_groups
from gpuwatchd.core.codes import Ending, LimitKind
from gpuwatchd.core.model import MemoryLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import Device, ProcessKey, Subject
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track, TrackedDevice

EVERY_S: Final = 60.0
"""How often limits are read anew; those of a process that is new, at once."""
CONTEXT_BYTES: Final = 512 * 1024**2
"""What a context and its libraries take at least beside what PyTorch's fraction limits."""


class MemoryLimits:
    """Gives each track the limit by which its process runs out first, besides its device."""

    def __init__(
        self,
        state: State,
        host: Host | None,
        mono: Callable[[], float] = time.monotonic,
        *,
        proc: str = "/proc",
        root: str = control_groups.ROOT,
    ) -> None:
        self._state = state
        self._local = host is not None and not host.is_contained
        self._mono = mono
        self._places = proc, root
        self.due_s = self._stale_s = float("-inf")
        """From when on (monotonic) there is something to do, and when all is read anew."""
        self._present = (-1, 0)
        """Tracks ever made, and processes on devices, at the last look."""
        self._counted = False
        """Whether the kernel limits the memory of devices here."""
        self._groups: dict[ProcessKey, str | None] = {}
        self._dmem: control_groups.Known = {}
        self.faults: dict[str, str] = {}
        """Files that are not understood, and why."""

    def step(self, *, new_sizes: bool = False) -> None:
        """Bring the limits up to date; ``new_sizes``: what processes declare has changed."""
        now_s, devices = self._mono(), self._state.devices.values()
        present = (self._state.tracks.created, sum([len(device.processes) for device in devices]))
        fresh = now_s < self._stale_s and present == self._present
        if not fresh:
            self._stale_s, self._present = now_s + EVERY_S, present
            self._counted = self._local and control_groups.has_dmem(self._places[1])
            for kept in (self._groups, self._dmem, self.faults):
                kept.clear()
        # Who is missing from a list is believed to have gone with the next one.
        self.due_s = now_s if new_sizes else self._stale_s
        if fresh and not new_sizes:
            return
        for device in devices:
            if device.reading is not None and device.reading.state == "ok":
                self._limit(device, device.reading.limits)

    def _limit(self, device: TrackedDevice, shared: tuple[MemoryLimit, ...]) -> None:
        groups: dict[ProcessKey, str | None] = {}
        if self._local and (shared or self._counted) and not device.device.recorded:
            groups = {key: self._group(key) for key in device.processes}
        holders = _Holders(device, groups)
        for key, track in device.processes.items():
            limits = [*declared_limits(track, device.device)]
            if (group := groups.get(key)) is not None:
                mine = [one for one in shared if one.name == group]
                mine += self._of_kernel(group, device.device)
                limits += [_left(one, track, holders) for one in mine]
            limit = min(limits, key=_end, default=None)
            if limit is None:
                self._state.tracks.limited.pop(track.subject.id, None)
            else:
                self._state.tracks.limited[track.subject.id] = track
            if limit is not None or track.limit is not None:
                track.limit_to(limit, frozenset() if limit is None else holders.of(limit)[0])

    def _group(self, key: ProcessKey) -> str | None:
        info = self._state.infos.get(key)
        if key.started_at_s is None or info is None or info.foreign:
            return None
        if key not in self._groups:
            self._groups[key] = control_groups.group_of(key.pid, *self._places)
        return self._groups[key]

    def _of_kernel(self, group: str, device: Device) -> tuple[MemoryLimit, ...]:
        if not self._counted or device.pci_bus is None or device.parent_uid is not None:
            return ()
        at = (group, device.pci_bus)
        return control_groups.dmem_limits(*at, self._dmem, self.faults, self._places[1])


def _end(limit: MemoryLimit) -> float:
    return float("inf") if limit.process_bytes is None else limit.process_bytes


class _Holders:
    """Who of a device is in each control group: worked out once for all who share a limit."""

    def __init__(self, device: TrackedDevice, groups: dict[ProcessKey, str | None]) -> None:
        self._own: dict[str, list[Track]] = {}
        self._below: dict[str, list[Track]] = {}
        """Of each group also who is in one below it: limits of the kernel bind those as well."""
        self._known: dict[tuple[LimitKind, str], tuple[frozenset[str], float]] = {}
        for key, group in groups.items():
            track = device.processes[key]
            if group is None:
                continue
            self._own.setdefault(group, []).append(track)
            self._below.setdefault(group, []).append(track)
            above = group
            while "/" in above:
                above = above.rpartition("/")[0]
                self._below.setdefault(above, []).append(track)

    def of(self, limit: MemoryLimit) -> tuple[frozenset[str], float]:
        """Return the ids of those whom a limit binds, and the bytes that they hold."""
        at = limit.kind, limit.name
        if at not in self._known:
            names = self._below if limit.kind is LimitKind.DMEM else self._own
            tracks = names.get(limit.name, [])
            ids = frozenset([track.subject.id for track in tracks])
            self._known[at] = ids, sum([_held(track) for track in tracks])
        return self._known[at]


def _left(limit: MemoryLimit, track: Track, holders: _Holders) -> MemoryLimit:
    """Return a limit of a group with what it leaves to one process of it."""
    if limit.hard_bytes is None:
        return limit
    ids, whole = holders.of(limit)
    # What no process of it is listed with is somebody's all the same.
    others = max(whole, float(limit.used_bytes or 0))
    if track.subject.id in ids:
        others -= _held(track)
    return msgspec.structs.replace(limit, process_bytes=max(0.0, limit.hard_bytes - others))


def declared_limits(track: Track, device: Device) -> Iterator[MemoryLimit]:
    """Yield the limits that a process was started with, which whoever enforces them never exceeds.

    vLLM's and SGLang's shares are none: they size a pool, and what else is taken has no bound.
    """
    card, settings = track.headroom.total_bytes, track.sizes.settings or ()
    of_cards: dict[str, float] = {}
    pool = track.framework in XLA and all(one.value for one in settings if one.kind == "pool")
    for one in settings:
        if one.kind == "mps":
            of_cards[one.option] = one.value
        elif one.source == MPS_LIMIT:
            yield _declared(LimitKind.MPS, one.source, one.value)
        elif card and is_enforced(one):
            yield _declared(LimitKind.FRAMEWORK, one.source, one.value * card, CONTEXT_BYTES)
        elif card and one.kind == "xla" and pool:
            yield _declared(LimitKind.FRAMEWORK, one.source, one.value * card)
    if of_cards:
        # Numbers count what the process sees; where that is another card, the largest holds.
        own = of_cards.get(str(device.index), max(of_cards.values()))
        yield _declared(LimitKind.MPS, MPS_LIMIT, own)


def _declared(kind: LimitKind, name: str, size: float, beside: float = 0.0) -> MemoryLimit:
    return MemoryLimit(kind=kind, name=name, hard_bytes=round(size), process_bytes=size + beside)


NEAR_SHARE: Final = 0.95
CLEAR_SHARE: Final = 0.90
"""A control group is near its limit from the first share on, and until below the second."""
LASTS_S: Final = 60.0


class NearLimits:
    """Which control groups are near their limits, and for how long."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.since_s: dict[tuple[str, str], float] = {}
        """UUID and group -> since when."""

    def move(self, by_s: float) -> None:
        """Let what has lasted last no longer for a step of the clock, or a time without looks."""
        self.since_s = {key: since_s + by_s for key, since_s in self.since_s.items()}

    def conditions(self, now_s: float, alerted: Container[str]) -> list[tuple[Track, float]]:
        """Return one process of each that has been near for long enough, and since when.

        One that is ``alerted`` (by the key of its alert), else the largest.
        """
        near: dict[tuple[str, str], list[Track]] = {}
        for track in self._state.tracks.limited.values():
            key = (track.subject.device_uid, track.limit.name if track.limit else "")
            if _is_above(track, CLEAR_SHARE if key in self.since_s else NEAR_SHARE):
                near.setdefault(key, []).append(track)
        self.since_s = {key: self.since_s.get(key, now_s) for key in near}
        return [
            (
                max(near[key], key=lambda one: (f"limit:{one.subject.id}" in alerted, _held(one))),
                since_s,
            )
            for key, since_s in self.since_s.items()
            if now_s - since_s >= LASTS_S
        ]

    def is_over(self, subject: Subject) -> tuple[Ending, float] | None:
        """Return why that is over, and for how long it must be; None: it is not, or not known."""
        device = self._state.devices.get(subject.device_uid)
        reading = None if device is None else device.reading
        if device is None or subject.process is None or reading is None or reading.uses is None:
            return None
        track = device.processes.get(subject.process)
        if track is None:
            return Ending.MEMORY_RELEASED, LASTS_S
        return None if _is_above(track, CLEAR_SHARE) else (Ending.BELOW_LIMIT, LASTS_S)


def group_bytes(track: Track) -> float | None:
    """Return what the control group of a process holds now; None without a limit on it."""
    limit = track.limit
    if limit is None or limit.kind not in {LimitKind.DRIVER, LimitKind.DMEM}:
        return None
    if limit.hard_bytes is None or limit.process_bytes is None:
        return None
    # The others as of the last look at limits, itself as of now.
    return limit.hard_bytes - limit.process_bytes + _held(track)


def _is_above(track: Track, share: float) -> bool:
    used_bytes, limit = group_bytes(track), track.limit
    return used_bytes is not None and used_bytes >= share * ((limit and limit.hard_bytes) or 0)


def _held(track: Track) -> float:
    return 0.0 if track.window.last is None else track.window.last[1]
