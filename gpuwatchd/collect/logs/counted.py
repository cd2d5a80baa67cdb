"""Tables without any device column, whose ticks hold one row per device a few ms apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.collector import Track, as_array

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.core.model import FloatArray

_WITHIN_TICK_S = 0.1
_MOST_DEVICES = 64
_REGULAR_SHARE = 0.95


def told_apart(tracks: list[Track], sink: Collector) -> list[Track]:
    """Return the tracks, those of several devices taken apart: the n-th row of a tick is GPU n."""
    found: list[Track] = []
    alone = sum(track.counted for track in tracks) == 1
    for track in tracks:
        rows = _rows_of_ticks(np.asarray(track.t)) if track.counted and alone else None
        if rows is None or track.other is not None or not track.timed:
            found.append(track)
            continue
        sink.note(f"no device column: the n-th of {rows.shape[1]} rows in a tick is read as GPU n")
        found += [_device(track, rows[:, number], number, sink) for number in range(rows.shape[1])]
        sink.skipped["torn"] += len(track.t) - rows.size
    return found


def _rows_of_ticks(t: FloatArray) -> np.ndarray | None:
    """Return (ticks, devices) row numbers, or None when rows do not come in equal groups."""
    if t.size < 6:
        return None
    steps = np.diff(t)
    first = np.concatenate(([0], np.flatnonzero(steps > _WITHIN_TICK_S) + 1))
    sizes = np.diff(np.concatenate((first, [t.size])))
    count = int(np.median(sizes))
    regular = sizes == count
    if not 2 <= count <= _MOST_DEVICES or first.size < 3:
        return None
    between = np.diff(t[first])
    if regular.mean() < _REGULAR_SHARE or (steps < 0).any():
        return None
    if float(np.median(between)) < 5 * _WITHIN_TICK_S:
        return None  # sampled too fast to tell a tick from a device
    rows: np.ndarray = first[regular][:, None] + np.arange(count)
    return rows


def _device(track: Track, rows: np.ndarray, number: int, sink: Collector) -> Track:
    place = track.place
    if number:
        place = sink.places.find(index=number, host=place.host, name=place.name, total=place.total)
    part = Track(place, None, timed=True, unitless=track.unitless, counted=True)
    part.t = as_array(np.asarray(track.t)[rows])
    part.used = as_array(np.asarray(track.used)[rows])
    part.total = track.total
    return part
