"""What is kept of a process between two looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.collect.host.liveness import Held
    from gpuwatchd.core.model import ProcessInfo


class ProcessRecord:
    """One process that was identified, and how its liveness is watched."""

    __slots__ = (
        "anonymous_bytes",
        "asked_mono_s",
        "held",
        "info",
        "maps_due_mono_s",
        "maps_reads",
        "starttime",
    )

    def __init__(self, info: ProcessInfo, starttime: int, mono_s: float) -> None:
        self.info = info
        self.starttime = starttime
        self.held: Held | None = None
        self.anonymous_bytes: int | None = None
        self.asked_mono_s = mono_s
        self.maps_due_mono_s = mono_s
        self.maps_reads = 0
