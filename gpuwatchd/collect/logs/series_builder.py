"""From what was collected to the series of a log, and to the sentence when there is none."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.collect.logs.collector import Place, Track, as_array
from gpuwatchd.collect.logs.fields import BYTES_FROM, EPOCH_FROM, MIB
from gpuwatchd.collect.logs.log_types import LogNote, LogSeries
from gpuwatchd.core.model import ProcessKey, Subject

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.log_types import LogFile
    from gpuwatchd.core.model import FloatArray

FEW_ROWS = 2
"""Rows with another total or name under one key: this many are torn, more are another device."""
NO_TIME = "no time in this log: pass --interval SECONDS"
MIXED = "rows of more than one GPU or host seem mixed"
ONE_POINT = "one point per series: no trend possible"


def finish(sink: Collector, log: LogFile) -> None:
    """Fill the series, devices, warnings and the error of a log."""
    tracks = split_devices(merge_tracks(sink), sink)
    tracks = _of_one_time_axis(tracks, sink, log)
    _scale_unitless(tracks, sink)
    tracks = _without_torn_devices(tracks, sink)
    _choose_dates(tracks, sink, log)
    tracks += _sums_of_processes(tracks, sink)
    _name_variants(tracks, sink)
    _say_repairs(*_build(tracks, sink, log), sink, log)
    log.processes = sink.processes.all()
    log.rows = sink.counts.rows
    log.skipped = {why: count for why, count in sink.counts.skipped.most_common() if count}
    log.bad_rows = sum(log.skipped.values())
    log.warnings += [note for note in sink.notes if note not in log.warnings]
    _say_times(sink, log)
    _say_error(sink, log)


def _of_one_time_axis(tracks: list[Track], sink: Collector, log: LogFile) -> list[Track]:
    timed = sum(len(track.t) for track in tracks if track.timed)
    untimed = sum(len(track.t) for track in tracks if not track.timed)
    log.timed = timed > 0 and timed >= untimed
    if timed and untimed:
        text, left = ("with", untimed) if log.timed else ("without", timed)
        sink.note(
            f"rows with and without a time in one log: only those {text} one count, "
            f"{left:,} left out"
        )
    chosen = [track for track in tracks if track.timed == log.timed]
    if not log.timed and sink.options.interval_s:
        for track in chosen:
            track.t = as_array(np.asarray(track.t) * sink.options.interval_s)
    return chosen


def _scale_unitless(tracks: list[Track], sink: Collector) -> None:
    """Read a column without a unit as bytes when no card could hold so many MiB."""
    plain = [track for track in tracks if track.unitless]
    top = max((float(np.max(np.asarray(track.used))) for track in plain), default=0.0)
    if top / MIB <= BYTES_FROM:
        return
    sink.note("memory without a unit and too large for MiB: read as bytes")
    for track in plain:
        track.used = as_array(np.asarray(track.used) / MIB)
        track.total = None if track.total is None else track.total / MIB
        track.usable = None if track.usable is None else track.usable / MIB
    for place in {id(track.place): track.place for track in plain}.values():
        place.total = None if place.total is None else place.total / MIB


def _without_torn_devices(tracks: list[Track], sink: Collector) -> list[Track]:
    """Drop a device of one or two rows beside a long one of the same key: halves of two rows."""
    sizes: Counter[int] = Counter()
    for track in tracks:
        sizes[track.place.order] += len(track.t)
    torn: set[int] = set()
    for group in sink.places.groups:
        orders = {place.order for place in group}
        if len(orders) > 1 and max(sizes[order] for order in orders) > 10 * FEW_ROWS:
            torn |= {order for order in orders if sizes[order] <= FEW_ROWS}
    sink.counts.skipped["torn"] += sum(sizes[order] for order in torn)
    return [track for track in tracks if track.place.order not in torn]


def _choose_dates(tracks: list[Track], sink: Collector, log: LogFile) -> None:
    both = [track for track in tracks if track.other is not None]
    if not both:
        return
    month_first = [np.asarray(track.t) for track in both]
    day_first = [np.asarray(track.other) for track in both]
    choice = _better(month_first, day_first)
    if choice is None:
        log.error = "day and month of the dates are ambiguous in this log"
        log.hint = "pass --date-order mdy or --date-order dmy"
        choice = "mdy"
    chosen = month_first if choice == "mdy" else day_first
    for track, values in zip(both, chosen, strict=True):
        kept = np.isfinite(values)
        if not kept.all():
            sink.counts.skipped["bad time"] += int((~kept).sum())
            track.used = as_array(np.asarray(track.used)[kept])
        track.t, track.other = as_array(values[kept]), None
    sink.note(f"dates read {'month' if choice == 'mdy' else 'day'} first")


def _better(month_first: list[FloatArray], day_first: list[FloatArray]) -> str | None:
    """Return the date order that the whole file tells, or None."""
    for badness in (lambda t: int(np.isnan(t).sum()), _unsteadiness):
        of_month, of_day = (sum(map(badness, way)) for way in (month_first, day_first))
        if of_month != of_day:
            return "mdy" if of_month < of_day else "dmy"
    return None


def _unsteadiness(t: FloatArray) -> float:
    steps = np.diff(t[np.isfinite(t)])
    usual = float(np.median(np.abs(steps))) if steps.size else 0.0
    return float((steps < 0).sum() * 1000 + (steps > max(86_000.0, 10 * usual)).sum())


def _sums_of_processes(tracks: list[Track], sink: Collector) -> list[Track]:
    """Return a lower bound per device where the log holds processes only."""
    covered = {track.place.order for track in tracks if track.process is None}
    groups: dict[int, list[Track]] = {}
    for track in tracks:
        if track.process is not None and track.place.order not in covered:
            groups.setdefault(track.place.order, []).append(track)
    sums = []
    for parts in groups.values():
        once = [last_of_each_time(np.asarray(part.t), np.asarray(part.used)) for part in parts]
        t, used = (np.concatenate(column) for column in zip(*once, strict=True))
        times, where = np.unique(t, return_inverse=True)
        total = Track(parts[0].place, None, parts[0].timed, derived=True)
        total.t = as_array(times)
        total.used = as_array(np.bincount(where.reshape(-1), used, times.size).astype(np.float64))
        sums.append(total)
    if sums:
        sink.note(LogNote.SUMS)
    return sums


def _name_variants(tracks: list[Track], sink: Collector) -> None:
    """Give devices that would have one identity a letter each."""
    places = {track.place.order: track.place for track in tracks}
    groups: dict[str, list[Place]] = {}
    for place in sorted(places.values(), key=lambda each: (each.parent is not None, each.order)):
        group = groups.setdefault(place.uid, [])
        group.append(place)
        if len(group) > 1:
            letter = chr(ord("a") + len(group) - 1) if len(group) <= 26 else len(group)
            group[0].letter, place.letter = "(a)", f"({letter})"
    for group in groups.values():
        if len(group) > 1:
            where = "-" if group[0].index is None else group[0].index
            sink.note(f"{len(group)} devices share index {where}; kept apart by name or total")


def _say_repairs(repairs: Repairs, mixed: int, sink: Collector, log: LogFile) -> None:
    if repairs.doubles:
        log.warnings.append(f"{repairs.doubles:,} readings with a time met before: the last counts")
    if repairs.strays:
        sink.counts.skipped["bad time"] += repairs.strays
    if repairs.resorted:
        log.warnings.append("the rows are not in time order: sorted")
    elif repairs.jumps_back:
        log.warnings.append(f"time jumps back {repairs.jumps_back} times: a new run starts there")
    if mixed:
        log.warnings.append(f"{MIXED}: no series for {mixed} of the devices")
        if not log.series:
            log.error = log.error or f"{MIXED} and nothing in them distinguishes them"
            log.hint = log.hint or "log the uuid or the host in every row"


def _say_times(sink: Collector, log: LogFile) -> None:
    interval = sink.options.interval_s
    if not log.series:
        return
    log.epoch = log.timed and min(float(series.t_s[0]) for series in log.series) >= EPOCH_FROM
    if max(series.t_s.size for series in log.series) == 1:
        log.warnings.append(ONE_POINT)
    if log.timed:
        if not log.epoch:
            log.warnings.append("times count from an unknown start")
        return
    if interval:
        log.warnings.append(f"no time in this log: {interval:g} s per tick as given")
        log.timed = True
    elif max(series.t_s.size for series in log.series) > 1:
        log.error, log.hint = log.error or NO_TIME, log.hint or "for example --interval 5"
    else:
        log.warnings.append("no time in this log")


def _say_error(sink: Collector, log: LogFile) -> None:
    if sink.failure is not None:
        line, text = sink.failure
        if log.series:
            log.warnings.append(f"line {line}: the log holds a failure: {text}")
        else:
            log.error = log.error or f"line {line}: no data, the tool failed: {text}"
    if log.series or log.error:
        return
    if sink.no_memory is not None:
        log.error, log.hint = sink.no_memory
    elif sink.counts.rows:
        line, reason = sink.counts.first_bad or (1, "not understood")
        counts = ", ".join(f"{count:,} {why}" for why, count in log.skipped.items())
        log.error = f"line {line}: {reason}; no usable row ({counts or 'no memory figure'})"


# One subject's readings -> runs of ascending time, without doubles, with their gaps.

GAP_INTERVALS = 10.0
DISORDER_SHARE = 0.1
"""With more backward steps than this the rows are not in time order at all."""


@dataclass(slots=True, eq=False)
class Run:
    """A stretch of strictly ascending time."""

    t: FloatArray
    used: FloatArray
    breaks: tuple[int, ...]


@dataclass(slots=True)
class Repairs:
    """What was done to make runs; counts of readings."""

    doubles: int = 0
    strays: int = 0
    """Readings dropped since their time lies apart from both neighbours."""
    jumps_back: int = 0
    resorted: bool = False


def median_interval_s(t: FloatArray) -> float:
    """Return the median of the positive steps; 0 when there is none."""
    steps = np.diff(t)
    steps = steps[steps > 0]
    return float(np.median(steps)) if steps.size else 0.0


def split(t: FloatArray, used: FloatArray, repairs: Repairs) -> list[Run]:
    """Return the runs of one subject in file order.

    A step back of at most one sampling interval is disorder and is sorted; a longer one starts a
    new run (a second job, the end of summer time). Of readings with the same time the last counts.
    """
    interval = median_interval_s(t)
    t, used = _without_strays(t, used, interval, repairs)
    back = np.flatnonzero(np.diff(t) < 0)
    if back.size > max(3.0, DISORDER_SHARE * t.size):
        repairs.resorted = True
        return [_run(t, used, interval, repairs)]
    cuts = (np.flatnonzero(np.diff(t) < -max(interval, 1e-9)) + 1).tolist()
    repairs.jumps_back += len(cuts)
    edges = [0, *cuts, t.size]
    return [
        _run(t[start:end], used[start:end], interval, repairs)
        for start, end in itertools.pairwise(edges)
    ]


def _without_strays(
    t: FloatArray, used: FloatArray, interval: float, repairs: Repairs
) -> tuple[FloatArray, FloatArray]:
    """Drop single readings whose time is torn: their neighbours fit together without them."""
    if t.size < 5 or interval <= 0:
        return t, used
    before, here, after = t[:-2], t[1:-1], t[2:]
    near = (after >= before) & (after - before <= GAP_INTERVALS * interval)
    apart = (here - after > GAP_INTERVALS * interval) | (before - here > GAP_INTERVALS * interval)
    stray = np.concatenate(([False], near & apart, [False]))
    repairs.strays += int(stray.sum())
    return (t[~stray], used[~stray]) if stray.any() else (t, used)


def last_of_each_time(t: FloatArray, used: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return readings in strictly ascending time; of several with one time the last counts."""
    if not (np.diff(t) <= 0).any():
        return t, used
    order = np.argsort(t, kind="stable")
    t, used = t[order], used[order]
    last = np.concatenate((np.diff(t) > 0, [True]))
    return t[last], used[last]


def _run(t: FloatArray, used: FloatArray, interval: float, repairs: Repairs) -> Run:
    before = t.size
    t, used = last_of_each_time(t, used)
    repairs.doubles += before - t.size
    gaps = np.flatnonzero(np.diff(t) > GAP_INTERVALS * interval) + 1
    breaks = tuple(gaps.tolist()) if interval > 0 else ()
    return Run(np.ascontiguousarray(t), np.ascontiguousarray(used), breaks)


def interleaved(t: FloatArray, used: FloatArray, *, timed: bool = True) -> bool:
    """Say whether two devices seem to write one series in turn.

    Either nearly every time occurs more than once with different levels in it, or levels and time
    steps both alternate: one device alone does not do that. Without times, levels must do.
    """
    if t.size < 8:
        return False
    if timed and _levels_within_ticks(t, used):
        return True
    steps = np.diff(t)
    least = 0.1 * float(np.median(np.abs(steps[1:])))
    return _alternates(used, 64 * MIB) and (not timed or _alternates(steps[1:], least))


def _levels_within_ticks(t: FloatArray, used: FloatArray) -> bool:
    values, counts = np.unique(t, return_counts=True)
    count = int(np.median(counts))
    if count < 2 or values.size < 2 or float((counts == count).mean()) < 0.8:
        return False
    order = np.argsort(t, kind="stable")
    ranked = used[order]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[counts == count]
    table = ranked[starts[:, None] + np.arange(count)]
    within = np.median(np.ptp(table, axis=1))
    between = np.median(np.abs(np.diff(table, axis=0))) if table.shape[0] > 1 else 0.0
    return bool(within > 16 * MIB + 10 * between)


def _alternates(values: FloatArray, least: float) -> bool:
    if values.size < 6:
        return False
    one = float(np.median(np.abs(np.diff(values))))
    two = float(np.median(np.abs(values[2:] - values[:-2])))
    return one > least and two * 10 <= one


# Places that turned out to be one device: the bus id in one block, the UUID in another.


def merge_tracks(sink: Collector) -> list[Track]:
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
    for each in group:
        joined.add(each.t, each.used, each.other)
    order = np.argsort(np.asarray(joined.t), kind="stable")
    joined.t, joined.used = (as_array(np.asarray(x)[order]) for x in (joined.t, joined.used))
    if joined.other is not None:
        joined.other = as_array(np.asarray(joined.other)[order])
    joined.total = max((each.total for each in group if each.total is not None), default=None)
    joined.usable = next((each.usable for each in group if each.usable is not None), None)
    return joined


# Tables without any device column, whose ticks hold one row per device a few ms apart.

_WITHIN_TICK_S = 0.1
_MOST_DEVICES = 64
_REGULAR_SHARE = 0.95


def split_devices(tracks: list[Track], sink: Collector) -> list[Track]:
    """Return the tracks, those of several devices taken apart: the n-th row of a tick is GPU n."""
    found: list[Track] = []
    alone = sum(track.counted for track in tracks) == 1
    for track in tracks:
        rows = _rows_of_ticks(np.asarray(track.t)) if track.counted and alone else None
        if rows is None or track.other is not None or not track.timed:
            found.append(track)
            continue
        sink.note(f"no device column: the n-th of {rows.shape[1]} rows in a tick is read as GPU n")
        sink.counts.skipped["torn"] += len(track.t) - rows.size
        for number, chosen in enumerate(rows.T):
            place = track.place
            if number:
                twin = Place(index=number, host=place.host, name=place.name, total=place.total)
                place = sink.places.find(twin)
            part = Track(place, None, timed=True, unitless=track.unitless, total=track.total)
            part.t = as_array(np.asarray(track.t)[chosen])
            part.used = as_array(np.asarray(track.used)[chosen])
            found.append(part)
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


# From the readings of each subject to its series: runs, limits, identities.


def _build(tracks: list[Track], sink: Collector, log: LogFile) -> tuple[Repairs, int]:
    """Fill in the series of all tracks, devices before their processes, and the devices.

    Returns what had to be repaired, and how many devices were left out since rows of several seem
    mixed in them.
    """
    repairs, mixed = Repairs(), 0
    levels: dict[int, tuple[float | None, Run]] = {}
    tracks.sort(key=lambda track: (track.place.order, track.process is not None))
    totals = _totals(tracks, sink)
    counter: Counter[tuple[int, ProcessKey]] = Counter()
    lists = [np.asarray(track.t) for track in tracks if track.process is not None]
    listed_s = np.unique(np.concatenate(lists)) if lists else np.empty(0)
    for track in tracks:
        order = track.place.order
        total = totals.get(order)
        t, used = _possible(track, total, sink)
        anonymous = track.place.uuid is None and track.place.bus is None
        device = track.process is None and not track.derived
        if device and anonymous and interleaved(t, used, timed=track.timed):
            mixed += 1
        elif t.size:
            if track.breaks is None or t.size < len(track.t):
                runs = split(t, used, repairs)
            else:
                runs = [Run(t, used, track.breaks)]
            limit = _limit(track, total, runs[-1], levels.get(order))
            if track.process is None:
                levels[order] = limit, runs[-1]
            if track.process is not None and track.breaks is None:
                runs = [life for run in runs for life in _lives(run, listed_s)]
            log.series += _series_of(track, runs, total, limit, counter)
    # Without any track, those that rows named.
    places = [track.place for track in tracks] or sink.places.all
    devices = [place.device(totals.get(place.order, place.total)) for place in places]
    log.devices = list({device.uid: device for device in devices}.values())
    return repairs, mixed


def _totals(tracks: list[Track], sink: Collector) -> dict[int, float | None]:
    """Return the memory of each device: from the rows, else used + free, else as given."""
    totals: dict[int, float | None] = {}
    for track in tracks:
        own = track.total if track.process is None else None
        found = own if track.place.total is None else track.place.total
        totals[track.place.order] = totals.get(track.place.order) or found
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
        sink.counts.skipped["torn"] += int((~fits).sum())
    return t[fits], used[fits]


def _limit(
    track: Track, total: float | None, last: Run, level: tuple[float | None, Run] | None
) -> float | None:
    """Return where the subject runs out: what it uses at its end plus what was free then."""
    if track.process is None:
        usable = track.usable is not None and (total is None or track.usable < total)
        return track.usable if usable else total
    limit, device = level or (None, last)
    if limit is None:
        return total
    own = float(last.used[-1])
    at = max(0, int(np.searchsorted(device.t, last.t[-1], side="right")) - 1)
    return own + max(0.0, limit - max(own, float(device.used[at])))


def _lives(run: Run, listed_s: FloatArray) -> list[Run]:
    """Return the processes that had a pid one after another.

    Away for more than ten intervals it is another one, unless nobody was listed meanwhile: the
    list paused, and the level tells whether it is the same.
    """
    margin_s = 0.5 * median_interval_s(run.t)
    cuts = [0]
    for at in run.breaks:
        away = listed_s.searchsorted((run.t[at - 1] + margin_s, run.t[at] - margin_s))
        if away[0] < away[1] or not numerics.goes_on(run.t, run.used, at):
            cuts.append(at)
    return [
        Run(
            run.t[start:end],
            run.used[start:end],
            tuple(b - start for b in run.breaks if start < b < end),
        )
        for start, end in itertools.pairwise([*cuts, run.t.size])
    ]


def _series_of(
    track: Track,
    runs: list[Run],
    total: float | None,
    limit: float | None,
    counter: Counter[tuple[int, ProcessKey]],
) -> list[LogSeries]:
    """Return a series per run; each later run of a pid is a process of its own."""
    device, process = track.place.device(total), track.process
    series: list[LogSeries] = []
    for number, run in enumerate(runs):
        who = process
        if who is not None and (track.place.order, who.key) in counter:
            # The first sighting of a later process of the same pid tells it apart.
            key = ProcessKey(pid=who.key.pid, started_at_s=float(run.t[0]))
            who = msgspec.structs.replace(who, key=key)
        same = None if who is None else (track.place.order, who.key)
        series.append(
            LogSeries(
                subject=Subject(device_uid=device.uid, process=who.key if who else None),
                device=device,
                process=who,
                t_s=run.t,
                used_bytes=run.used,
                limit_bytes=limit,
                total_bytes=total,
                breaks=run.breaks,
                lower_bound=track.derived,
                activity={
                    name: last_of_each_time(np.asarray(t), np.asarray(values))
                    for name, (t, values) in track.activity.items()
                },
                run=number if same is None else counter[same],
            )
        )
        if same is not None:
            counter[same] += 1
    return series
