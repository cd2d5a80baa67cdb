"""Logs that belong together: those of one machine, of a device and of its processes, day by day.

``nvidia-smi --query-gpu`` and ``--query-compute-apps`` write two files about one machine, and a new
pair each day. Read together, a leak is the process's, the room it has is the device's, jobs that
follow one another are no growth, and midnight is no beginning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.collect.logs.log_types import LogFile, LogNote, LogSeries
from gpuwatchd.collect.logs.series_builder import (
    GAP_INTERVALS,
    last_of_each_time,
    median_interval_s,
)
from gpuwatchd.core.model import ProcessKey

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

_SAME_SHARE = 0.9
"""Where two files overlap, at least so many of their rows must be the same."""
_NEAR_S = 86_400.0
"""Files that name a device by its index only are of one machine when they follow this soon."""
_NAMED = 3
_NUMBERS = re.compile(r"[\d._-]+")


def groups(files: Sequence[str], glance: Callable[[str], LogFile]) -> list[tuple[str, ...]]:
    """Return the files in their order, those together that tell of one device."""
    often = Counter(files)
    members: dict[Hashable, list[str]] = {}
    found: list[list[str]] = []
    for file in files:
        own = [file]
        found.append(own)
        if file == "-" or often[file] > 1 or len(often) < 2 or not _plain(file):
            continue
        for key in _devices(file, glance(file)):
            other = members.setdefault(key, own)
            if other is not own:
                other += own
                found = [group for group in found if group is not own]
                members = {k: other if group is own else group for k, group in members.items()}
                own = other
    return [tuple(group) for group in found]


def _devices(file: str, log: LogFile) -> Iterator[Hashable]:
    """Yield what tells the devices of a log from those of other machines."""
    listed = any(series.process is not None for series in log.series)
    for device in {series.device.uid: series.device for series in log.series}.values():
        if not _anonymous(device.uid):
            yield device.uid
        elif not listed and device.name != "GPU" and device.index is not None:
            # gpu.csv, gpu.csv.1 and gpu-2025-11-22.csv are of one logger, a.csv and b.csv are not.
            plain = _NUMBERS.sub("", Path(file).name)
            yield str(Path(file).parent), plain, log.format, device.uid, device.name


def _anonymous(uid: str) -> bool:
    return uid.startswith("log:")


def _plain(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(file).is_file()
    return False


class _Conflict(Exception):
    """Why a log cannot be joined with those before it."""


_Who = tuple[str, int | None, str | bool]
"""Device, pid and name; of a device without a pid: whether it is only a sum of processes."""
_Lives = dict[_Who, list[LogSeries]]
"""What had a pid, one after another; a device has one life."""


def joined(logs: Sequence[LogFile]) -> list[LogFile]:
    """Return one log of all that can be joined, and the others with a warning that says why not.

    Devices, their room and their identity come from the logs of devices, processes from those that
    list them. What two of them tell of the same time counts once.
    """
    taken: list[LogFile] = []
    lives: _Lives = {}
    apart: dict[int, str] = {}
    # Devices first: their logs say what room the processes have.
    for log in sorted(logs, key=lambda log: (_lists(log), _begin_s(log))):
        try:
            if log.error is None and log.series:
                lives = _with(lives, log)
                taken.append(log)
        except _Conflict as conflict:
            apart[id(log)] = str(conflict)
    if len(taken) < 2:
        taken, whole = [], taken[:1]
    else:
        whole = [_whole(taken, lives)]
    left = [log for log in logs if log not in taken and log not in whole]
    for log in left:
        if id(log) in apart:
            log.warnings.append(f"not read together with {whole[0].path}: {apart[id(log)]}")
    return [*whole, *left]


def warn_apart(logs: Sequence[LogFile]) -> None:
    """Warn of a list of processes that was not read with another log of its folder.

    Both name the GPU by its index alone.
    """
    beside: dict[tuple[Path, str], list[LogFile]] = {}
    for log in logs:
        folder = Path(log.path.partition(" + ")[0]).parent
        for uid in {device.uid for device in log.devices if _anonymous(device.uid)}:
            beside.setdefault((folder, uid), []).append(log)
    for first, *others in beside.values():
        for log in [first, *others] if others else ():
            if log.processes:
                other = others[0] if log is first else first
                why = f"not read together with {other.path}: no UUID says that it is the same GPU"
                if why not in log.warnings:
                    log.warnings.append(why)


def _lists(log: LogFile) -> bool:
    return not any(series.process is None and not series.lower_bound for series in log.series)


def _begin_s(log: LogFile) -> float:
    return min((float(series.t_s[0]) for series in log.series), default=0.0)


def _with(lives: _Lives, log: LogFile) -> _Lives:
    """Return what is told of everybody, with what a log tells; raise :class:`_Conflict`."""
    if not (log.timed and log.epoch):
        raise _Conflict("it has no dates")
    wholes = [(own[0], s) for s in log.series if (own := lives.get((s.device.uid, None, False)))]
    if (
        _lists(log)
        and wholes
        and not any(
            whole.t_s[0] <= own.t_s[-1] and own.t_s[0] <= whole.t_s[-1] for whole, own in wholes
        )
    ):
        raise _Conflict("it is of another time")
    out = {who: list(own) for who, own in lives.items()}
    subjects = {life.subject for own in out.values() for life in own}
    for series in log.series:
        info = series.process
        pid, name = (None, series.lower_bound) if info is None else (info.key.pid, info.name)
        who = (series.device.uid, pid, name)
        own = out.setdefault(who, [])
        before = len(lives.get(who, ()))
        for at, life in enumerate(own[:before]):
            again = series.t_s[0] <= life.t_s[-1] and life.t_s[0] <= series.t_s[-1]
            if again or (at == before - 1 and (info is None or _goes_on(life, series))):
                own[at] = _chained(life, series)
                break
        else:
            own.append(_renamed(series) if series.subject in subjects else series)
            subjects.add(own[-1].subject)
    return out


def _goes_on(life: LogSeries, series: LogSeries) -> bool:
    """Say whether a later series of a pid is of the same process."""
    if life.t_s[-1] >= series.t_s[0]:
        return False
    key = series.subject.process
    if key is not None and key.started_at_s is not None and key == life.subject.process:
        return True
    chained, at = _chained(life, series), life.t_s.size
    return at not in chained.breaks or numerics.goes_on(chained.t_s, chained.used_bytes, at)


def _renamed(series: LogSeries) -> LogSeries:
    """Return the series of another process that had a pid: its first reading tells it apart."""
    info = series.process
    if info is None:
        return series
    key = ProcessKey(pid=info.key.pid, started_at_s=float(series.t_s[0]))
    info = msgspec.structs.replace(info, key=key)
    subject = msgspec.structs.replace(series.subject, process=key)
    return dataclasses.replace(series, process=info, subject=subject)


def _whole(logs: Sequence[LogFile], lives: _Lives) -> LogFile:
    """Return logs as one."""
    wholes = {device: own[0] for (device, _, summed), own in lives.items() if summed is False}
    series: list[LogSeries] = []
    for (uid, _, summed), own in lives.items():
        whole = wholes.get(uid)
        if whole is None or summed is False:
            series += own
        elif summed is not True:
            # A process's series gets what the device's own log knows of the device.
            series += [
                dataclasses.replace(
                    life,
                    device=whole.device,
                    limit_bytes=whole.limit_bytes,
                    total_bytes=whole.total_bytes,
                )
                for life in own
            ]
    names = [log.path for log in logs]
    notes = dict.fromkeys(note for log in logs for note in log.warnings)
    return LogFile(
        path=" + ".join(names if len(names) <= _NAMED else [names[0], f"{len(names) - 1} more"]),
        format="+".join(dict.fromkeys(log.format for log in logs)),
        rows=sum(log.rows for log in logs),
        bad_rows=sum(log.bad_rows for log in logs),
        skipped=dict(sum((Counter(log.skipped) for log in logs), Counter[str]())),
        warnings=[n for n in notes if n is not LogNote.SUMS or any(s.lower_bound for s in series)],
        devices=list({device.uid: device for log in logs for device in log.devices}.values()),
        processes=[info for log in logs for info in log.processes],
        series=series,
    )


def _chained(one: LogSeries, other: LogSeries) -> LogSeries:
    """Return two series of one subject as one, in order of time; rows of both count once."""
    first, second = sorted((one, other), key=lambda series: float(series.t_s[0]))
    end_s = float(first.t_s[-1])
    again = int(second.t_s.searchsorted(end_s, side="right"))
    at = np.minimum(first.t_s.searchsorted(second.t_s[:again]), first.t_s.size - 1)
    same = (first.t_s[at] == second.t_s[:again]) & (
        first.used_bytes[at] == second.used_bytes[:again]
    )
    if again and float(same.mean()) < _SAME_SHARE:
        raise _Conflict("both tell of the same GPU at the same time, and not the same")
    if not again and _anonymous(first.device.uid) and second.t_s[0] - end_s > _NEAR_S:
        raise _Conflict("no UUID says that it is the same GPU, and it is of another time")
    t_s = np.concatenate((first.t_s, second.t_s[again:]))
    gaps = np.flatnonzero(np.diff(t_s) > GAP_INTERVALS * median_interval_s(t_s)) + 1
    return dataclasses.replace(
        first,
        t_s=t_s,
        used_bytes=np.concatenate((first.used_bytes, second.used_bytes[again:])),
        limit_bytes=_known(second.limit_bytes, first.limit_bytes),
        total_bytes=_known(second.total_bytes, first.total_bytes),
        breaks=tuple(gaps.tolist()),
        activity={
            name: last_of_each_time(
                *map(np.concatenate, zip(curve, second.activity.get(name, curve), strict=True))
            )
            for name, curve in first.activity.items()
        },
        run=0,
    )


def _known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
