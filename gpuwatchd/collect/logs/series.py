"""From the readings of each subject to its series: runs, limits, identities."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.collect.logs.log import LogSeries
from gpuwatchd.collect.logs.runs import Repairs, Run, interleaved, split
from gpuwatchd.core.model import ProcessKey, Subject

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.collector import Collector, Track
    from gpuwatchd.core.model import Device, FloatArray, ProcessInfo


@dataclass(slots=True, eq=False)
class Built:
    """The series of a log, its devices, and what had to be repaired."""

    series: list[LogSeries] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    repairs: Repairs = field(default_factory=Repairs)
    mixed: int = 0
    """Devices left out since rows of several seem mixed in them."""


@dataclass(slots=True, eq=False)
class _Level:
    """A device's own course, for the room that its processes have."""

    limit: float | None
    t: FloatArray
    used: FloatArray


def build(tracks: list[Track], sink: Collector) -> Built:
    """Return the series of all tracks, devices before their processes."""
    built = Built()
    levels: dict[int, _Level] = {}
    tracks.sort(key=lambda track: (track.place.order, track.process is not None))
    totals = _totals(tracks, sink)
    counter: Counter[tuple[int, ProcessKey]] = Counter()
    for track in tracks:
        order = track.place.order
        total = totals.get(order)
        t, used = _possible(track, total, sink)
        anonymous = track.place.uuid is None and track.place.bus is None
        device = track.process is None and not track.derived
        if device and anonymous and interleaved(t, used, timed=track.timed):
            built.mixed += 1
        elif t.size:
            runs = split(t, used, built.repairs)
            limit = _limit(track, total, runs, levels.get(order))
            if track.process is None:
                levels[order] = _Level(limit, runs[-1].t, runs[-1].used)
            built.series += _series_of(track, runs, total, limit, counter)
    built.devices = _devices(tracks, totals, sink)
    return built


def _devices(tracks: list[Track], totals: dict[int, float | None], sink: Collector) -> list[Device]:
    """Return the devices of the tracks; without any, those that rows named."""
    places = {track.place.order: track.place for track in tracks}
    if not tracks:
        places = {place.order: place for place in sink.places.all}
    devices = [place.device(totals.get(order, place.total)) for order, place in places.items()]
    return list({device.uid: device for device in devices}.values())


def _totals(tracks: list[Track], sink: Collector) -> dict[int, float | None]:
    """Return the memory of each device: from the rows, else used + free, else as given."""
    totals: dict[int, float | None] = {}
    for track in tracks:
        order = track.place.order
        found = track.place.total
        if found is None and track.process is None:
            found = track.total
        totals[order] = totals.get(order) or found
    given = sink.options.total_bytes
    for track in tracks:
        order = track.place.order
        if totals[order] is not None or given is None or track.process is not None:
            continue
        if float(np.max(np.asarray(track.used))) > given:
            sink.note("more memory is used than the total given: it is left out")
        else:
            totals[order] = given
    return totals


def _possible(track: Track, total: float | None, sink: Collector) -> tuple[FloatArray, FloatArray]:
    """Return the readings that fit into the device; others are halves of two rows."""
    t, used = np.asarray(track.t), np.asarray(track.used)
    if total is None:
        return t, used
    fits = used <= total
    if not track.derived:
        sink.skipped["torn"] += int((~fits).sum())
    return t[fits], used[fits]


def _limit(
    track: Track, total: float | None, runs: list[Run], level: _Level | None
) -> float | None:
    """Return where the subject runs out: what it uses at its end plus what was free then."""
    if track.process is None:
        if track.usable is not None and (total is None or track.usable < total):
            return track.usable
        return total
    if level is None or level.limit is None:
        return total
    end, own = float(runs[-1].t[-1]), float(runs[-1].used[-1])
    at = max(0, int(np.searchsorted(level.t, end, side="right")) - 1)
    return own + max(0.0, level.limit - max(own, float(level.used[at])))


def _series_of(
    track: Track,
    runs: list[Run],
    total: float | None,
    limit: float | None,
    counter: Counter[tuple[int, ProcessKey]],
) -> list[LogSeries]:
    if track.process is None:
        return [_series(track, run, None, number=number, total=total, limit=limit)
                for number, run in enumerate(runs)]  # fmt: skip
    parts: list[LogSeries] = []
    for run in runs:
        # A pid that was away for more than ten intervals is another process.
        for start, end in itertools.pairwise([0, *run.breaks, run.t.size]):
            part = Run(run.t[start:end], run.used[start:end], ())
            process = track.process
            if (track.place.order, process.key) in counter:
                process = _renewed(process, float(part.t[0]))
            who = (track.place.order, process.key)
            parts.append(
                _series(track, part, process, number=counter[who], total=total, limit=limit)
            )
            counter[who] += 1
    return parts


def _renewed(process: ProcessInfo, first_seen_s: float) -> ProcessInfo:
    """Return the identity of a later process of the same pid: its first sighting tells it apart."""
    key = ProcessKey(pid=process.key.pid, started_at_s=first_seen_s)
    return msgspec.structs.replace(process, key=key)


def _series(
    track: Track,
    run: Run,
    process: ProcessInfo | None,
    *,
    number: int,
    total: float | None,
    limit: float | None,
) -> LogSeries:
    device = track.place.device(total)
    return LogSeries(
        subject=Subject(device_uid=device.uid, process=process.key if process else None),
        device=device,
        process=process,
        t_s=run.t,
        used_bytes=run.used,
        limit_bytes=limit,
        total_bytes=total,
        breaks=run.breaks,
        lower_bound=track.derived,
        run=number,
    )
