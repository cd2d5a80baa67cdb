"""The memory that GPU processes hold on the host, as subjects of their own.

A process that leaks there is killed by the kernel while its GPU looks well. Resident anonymous
memory and swap are looked at every few ticks, and judged as everything else is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.host.memory import headroom
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import end_reasons
from gpuwatchd.pipeline.titles import host_title
from gpuwatchd.pipeline.track import Headroom
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect import host
    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.pipeline.device_state import TrackedDevice
    from gpuwatchd.pipeline.tracker import Intake

EVERY_TICKS = 6
UNCHANGED_S = 60.0
"""A figure that stays the same is noted again after this time."""


class HostMemory:
    """Feeds what processes hold on the host.

    Parameters
    ----------
    intake
        Whose devices and tracks these are.
    look
        Returns how much memory the host has and how much is free; None where nobody knows.
    """

    def __init__(
        self, intake: Intake, look: Callable[[], host.memory.Headroom | None] = headroom
    ) -> None:
        self.room = Headroom()
        self._intake = intake
        self._look = look
        self._ticks: dict[str, int] = {}
        self._missing: dict[str, set[ProcessKey]] = {}

    def feed(self, source: str, devices: Iterable[TrackedDevice], now_s: float) -> list[Alert]:
        """Take in what the processes of a source's devices hold; in most ticks do nothing.

        Returns
        -------
        list of Alert
            Those that ended because their process is gone.
        """
        tick = self._ticks[source] = self._ticks.get(source, -1) + 1
        if tick % EVERY_TICKS:
            return []
        ranked = sorted(devices, key=lambda device: device.device.uid)
        listed = [
            device
            for device in ranked
            if device.uses is not None and device.uses_s == device.taken_s
        ]
        # One that is on several devices stays with the one where it was seen first, even while the
        # list of that one cannot be read.
        homes = {key: device for device in ranked for key in device.hosts}
        noted: set[ProcessKey] = set()
        for device in listed:
            device.hosts_s = device.taken_s
            for use in device.uses or ():
                held, key = use.host_bytes, use.key
                if held is None or key in noted:
                    continue
                if not noted:
                    self._measure(now_s)
                noted.add(key)
                home = homes.setdefault(key, device)
                home.hosts_s = home.taken_s
                self._note(home, key, held, now_s)
        present = {use.key for tracked_device in listed for use in tracked_device.uses or ()}
        return [
            alert
            for tracked_device in listed
            for alert in self._part(tracked_device, present, now_s)
        ]

    def _measure(self, now_s: float) -> None:
        headroom = self._look()
        self.room.total_bytes = None if headroom is None else headroom.total_bytes
        self.room.free_bytes = None if headroom is None else headroom.free_bytes
        self.room.note_free(now_s)

    def _note(self, device: TrackedDevice, key: ProcessKey, held: int, now_s: float) -> None:
        info = self._intake.infos.get(key)
        track = device.hosts.get(key)
        if info is None or info.framework in frameworks.GRAPHICS:
            # What draws grows with the windows that people open.
            return
        if track is None:
            subject = Subject(device_uid=device.device.uid, process=key, host=True)
            track = self._intake.track(device, subject, host_title(info), self.room)
            device.hosts[key] = track
        if track.info is not info:
            self._intake.watcher.ranks.place(track, info)
        last = track.window.last
        if last is None or last[1] != held or now_s - last[0] >= UNCHANGED_S:
            assert isinstance(track.window, Ring)  # noqa: S101 - live tracks have rings
            track.window.add(now_s, held)

    def _part(self, device: TrackedDevice, present: set[ProcessKey], now_s: float) -> list[Alert]:
        """Watch those no more that two looks in a row did not find there."""
        uid = device.device.uid
        here = {use.key for use in device.uses or ()}
        missing = {key for key in device.hosts if key not in here}
        before = self._missing.get(uid, set())
        self._missing[uid] = missing
        changed: list[Alert] = []
        for key in missing & before:
            track = device.hosts.pop(key)
            left = key in present
            why = Ending.LEFT_DEVICE if left else end_reasons.of_process(track)
            alert = self._intake.watcher.end(track, why, now_s, quietly=left)
            self._intake.watcher.forget(track)
            if alert is not None:
                changed.append(alert)
        return changed
