"""Whose growth explains the device's: asked when an alert opens, not at every look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Alert, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.device_state import TrackedDevice
    from gpuwatchd.pipeline.track import Track


def with_attribution(
    alert: Alert,
    device: TrackedDevice,
    infos: Mapping[ProcessKey, ProcessInfo],
    tracks: Mapping[str, Track],
) -> Alert:
    """Return the alert with the shares of those who grew since its onset.

    Parameters
    ----------
    alert
        Of any subject of the device; its track takes over the answer.
    device
        The device, with the tracks of its processes.
    infos
        What to call them.
    tracks
        All tracks by subject id.
    """
    from gpuwatchd.analysis import attribution  # noqa: PLC0415 - its numbers need numpy

    finding = alert.finding
    if alert.state not in {"watch", "firing"} or not device.others or finding.onset_at_s is None:
        return alert
    track = tracks.get(alert.subject.id)
    if alert.subject.host or (track is not None and track.leads):
        return alert
    kind, ledger = device.device.memory_kind, device.ledger
    fresh = device.uses is not None and device.uses_s == device.taken_s
    shares = attribution.share(
        None if kind == "coherent" else device.others[0].series(),
        # What was last known of a list that cannot be read now says nothing of the growth since.
        {key: track.series() for key, track in device.processes.items()} if fresh else {},
        since_s=finding.onset_at_s,
        names={
            key: info.attribution
            for key in device.processes
            if (info := infos.get(key)) is not None
        },
        complete=fresh and kind == "dedicated" and ledger is not None and ledger.state == "whole",
    )
    told = msgspec.structs.replace(alert, finding=msgspec.structs.replace(finding, blame=shares))
    if track is not None and track.alert is not None and track.alert.key == alert.key:
        track.alert = told
    return told
