"""Places that turned out to be one device: the bus id in one block, the UUID in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.collector import Track, as_array

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.core.model import ProcessKey


def united(sink: Collector) -> list[Track]:
    """Return the tracks of the log with readings, one for each subject and time axis."""
    same = sink.places.united()
    groups: dict[tuple[int, ProcessKey | None, str, bool], list[Track]] = {}
    for (order, key, name, timed), track in sink.tracks.items():
        if len(track.t):
            track.place = same.get(order, track.place)
            groups.setdefault((track.place.order, key, name, timed), []).append(track)
    return [group[0] if len(group) == 1 else _joined(group) for group in groups.values()]


def _joined(group: list[Track]) -> Track:
    """Return one track of several, in order of time: their order in the file is not known."""
    first = group[0]
    joined = Track(first.place, first.process, first.timed, any(each.unitless for each in group))
    t = np.concatenate([np.asarray(each.t) for each in group])
    used = np.concatenate([np.asarray(each.used) for each in group])
    other = np.concatenate([np.asarray(each.t if each.other is None else each.other)
                            for each in group])  # fmt: skip
    order = np.argsort(t, kind="stable")
    joined.t, joined.used = as_array(t[order]), as_array(used[order])
    if any(each.other is not None for each in group):
        joined.other = as_array(other[order])
    joined.total = max((each.total for each in group if each.total is not None), default=None)
    joined.usable = next((each.usable for each in group if each.usable is not None), None)
    return joined
