"""What is remembered of one device between two ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.pipeline.ring_feed import Feeder

if TYPE_CHECKING:
    from gpuwatchd.analysis.attribution import Baseline
    from gpuwatchd.core.model import Device, DeviceReading, Fault, Ledger, ProcessKey, ProcessUse
    from gpuwatchd.pipeline.track import Headroom, Track


class TrackedDevice(msgspec.Struct, kw_only=True):
    """One device as last seen."""

    device: Device
    reading: DeviceReading | None
    room: Headroom
    processes: dict[ProcessKey, Track]
    others: list[Track]
    """The device's own track, then that of its unattributed memory."""
    hosts: dict[ProcessKey, Track] = msgspec.field(default_factory=dict)
    """Host memory of processes; one that is on several devices is with one of them."""
    taken_s: float = 0.0
    ledger: Ledger | None = None
    """Who has its memory now; None while it is not read, and for a card that is cut into parts."""
    baseline: Baseline | None = None
    """What nobody owns on it while it is idle."""
    uses: tuple[ProcessUse, ...] | None = None
    """The newest process list that could be read; ``uses_s`` says when that was."""
    uses_s: float = 0.0
    feeder: Feeder = msgspec.field(default_factory=Feeder)
    """Takes the figures to the rings of its tracks."""
    fed: tuple[int | None, int | None, int] | None = None
    """What of the device itself it took there last; None when tracks have changed since."""
    still: bool = False
    """Whether no figure of its memory has changed since the look before."""
    hosts_s: float = float("-inf")
    """When what its processes hold on the host was last looked at."""
    missing: set[ProcessKey] = msgspec.field(default_factory=set)
    """Processes that the last list did not name any more."""
    listed: list[ProcessKey] | None = None
    """Processes that the last list named."""
    news: int = -1
    """What was known of processes then."""
    faults: tuple[Fault, ...] = ()
    source: str = ""

    def tracks(self) -> tuple[Track, ...]:
        """Return every track of the device."""
        return (*self.processes.values(), *self.others, *self.hosts.values())


class EndedProcess(msgspec.Struct, kw_only=True):
    """A process that has ended, on one device."""

    track: Track
    program: str | None = None
    label: str = ""
    unseen: bool = False
    """It ended while nobody watched: the history knows what it was."""
