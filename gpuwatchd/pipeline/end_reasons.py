"""Why something is over, as far as the facts support it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core.codes import Ending

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.track import Track

FULL_SHARE = 0.05
"""Less than this share of a device that is free is near the limit."""
_FELL_BY = 0.1
_CALM_LOOK_S = 600.0
"""The look that first finds nothing may come so long after the crash."""


def of_process(track: Track) -> Ending:
    """Return why the alert on a process that has gone is over."""
    last, full_s = track.window.last, track.room.full_at_s
    crashed = last is not None and full_s is not None and full_s >= last[0]
    full = crashed or _filled_it(track)
    return Ending.ENDED_NEAR_LIMIT if full else Ending.PROCESS_ENDED


def _filled_it(track: Track) -> bool:
    """Say whether a process came near its limit between two samples, where its peak is known."""
    most, last, total = track.most_bytes, track.window.last, track.room.total_bytes
    finding = track.alert.finding if track.alert is not None else track.finding
    limit = None if finding is None else finding.limit_bytes
    if most is None or limit is None or total is None or (last is not None and most <= last[1]):
        return False
    return limit - most <= FULL_SHARE * total


def of_calm(track: Track, alert: Alert) -> Ending:
    """Return why an alert is over whose subject does not grow any more."""
    last, full_s, since_s = track.window.last, track.room.full_at_s, alert.clear_since_s
    if last is None or full_s is None or since_s is None or full_s < since_s - _CALM_LOOK_S:
        return Ending.STOPPED_GROWING
    held = alert.finding.limit_bytes
    fell = held is not None and last[1] < (1.0 - FULL_SHARE - _FELL_BY) * held
    return Ending.FELL_NEAR_LIMIT if fell else Ending.STOPPED_GROWING
