"""What a process held at most, as the driver says after its end: whose it was, and for its track.

The driver knows numbers only. Its word comes with the first list that lacks the process, one look
before the process is believed to have ended, so that its alert can end with what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import text, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Event, ProcessInfo, ProcessKey, Sample
    from gpuwatchd.pipeline.device_state import TrackedDevice

KIND = "process-peak"


def with_process_names(
    sample: Sample, devices: Mapping[str, TrackedDevice], infos: Mapping[ProcessKey, ProcessInfo]
) -> Sample:
    """Return a sample whose events name the process that they are about.

    Parameters
    ----------
    sample
        As its source gave it.
    devices
        What is known of each, by UUID; the tracks of those who have ended learn their peak.
    infos
        Who processes are, those that have left among them.
    """
    if not any(event.kind == KIND for event in sample.events):
        return sample
    events = tuple(
        _named(event, devices.get(event.device_uid or ""), infos) if event.kind == KIND else event
        for event in sample.events
    )
    return msgspec.structs.replace(sample, events=events)


def _named(
    event: Event, device: TrackedDevice | None, infos: Mapping[ProcessKey, ProcessInfo]
) -> Event:
    if event.pid is None or event.peak_bytes is None or device is None:
        return event
    tracks = {key: track for key, track in device.processes.items() if key.pid == event.pid}
    for track in tracks.values():
        track.most_bytes = float(event.peak_bytes)
    keys = tracks or [key for key in infos if key.pid == event.pid]
    # A number that was used again is several processes: only the last of them may be meant.
    newest = max(keys, key=lambda key: key.started_at_s or 0.0, default=None)
    info = None if newest is None else infos.get(newest)
    if info is None or not info.name or info.foreign:
        return event
    who = f"{text.clean(info.label, limit=40)}[{event.pid}]"
    who += f" of {info.user}" if info.user else ""
    return msgspec.structs.replace(event, text=units.peak_text(who, event.peak_bytes))
