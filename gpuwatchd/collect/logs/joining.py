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
from gpuwatchd.collect.logs.series_builder import GAP_INTERVALS, median_interval_s
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


def joined(logs: Sequence[LogFile]) -> list[LogFile]:
    """Return one log of all that can be joined, and the others with a warning that says why not.

    Devices, their room and their identity come from the logs of devices, processes from those that
    list them. What two of them tell of the same time counts once.
    """
    whole = _Joined()
    apart: list[tuple[LogFile, str]] = []
    # Devices first: their logs say what room the processes have.
    for log in sorted(logs, key=lambda log: (_lists(log), _begin_s(log))):
        if log.error is not None or not log.series:
            apart.append((log, ""))
            continue
        try:
            whole.add(log)
        except _Conflict as conflict:
            apart.append((log, str(conflict)))
    with_all = [whole.log()] if whole.logs else []
    for log, why in apart:
        if why and whole.logs:
            log.warnings.append(f"not read together with {with_all[0].path}: {why}")
    return [*with_all, *(log for log, _ in apart)]


def _lists(log: LogFile) -> bool:
    return not any(series.process is None and not series.lower_bound for series in log.series)


def _begin_s(log: LogFile) -> float:
    return min((float(series.t_s[0]) for series in log.series), default=0.0)


class _Joined:
    """Logs that were found to belong together."""

    def __init__(self) -> None:
        self.logs: list[LogFile] = []
        self._wholes: dict[str, LogSeries] = {}
        self._sums: dict[str, LogSeries] = {}
        self._parts: dict[tuple[str, int, str], list[LogSeries]] = {}

    def add(self, log: LogFile) -> None:
        """Take a log in, or raise :class:`_Conflict` and leave everything as it was."""
        if self.logs and not (log.timed and log.epoch and self.logs[0].epoch):
            raise _Conflict("its times are not those of a clock")
        wholes, sums = dict(self._wholes), dict(self._sums)
        parts = {key: list(own) for key, own in self._parts.items()}
        begun = {key: len(own) for key, own in parts.items()}
        for series in log.series:
            if series.process is not None:
                key = (series.device.uid, series.process.key.pid, series.process.name)
                _follow(parts.setdefault(key, []), series, begun.get(key, 0))
            else:
                kept = sums if series.lower_bound else wholes
                before = kept.get(series.device.uid)
                kept[series.device.uid] = series if before is None else _chained(before, series)
        if self.logs and _lists(log) and not _meets(log, wholes):
            raise _Conflict("it is of another time")
        self._wholes, self._sums, self._parts = wholes, sums, parts
        self.logs.append(log)

    def log(self) -> LogFile:
        """Return what was taken in as one log."""
        if len(self.logs) == 1:
            return self.logs[0]
        names = [log.path for log in self.logs]
        if len(names) > _NAMED:
            names = [names[0], f"{len(names) - 1} more"]
        notes = [note for log in self.logs for note in log.warnings]
        alone = [sums for uid, sums in self._sums.items() if uid not in self._wholes]
        placed = [self._placed(series) for own in self._parts.values() for series in own]
        return LogFile(
            path=" + ".join(names),
            format="+".join(dict.fromkeys(log.format for log in self.logs)),
            rows=sum(log.rows for log in self.logs),
            bad_rows=sum(log.bad_rows for log in self.logs),
            skipped=dict(sum((Counter(log.skipped) for log in self.logs), Counter[str]())),
            warnings=[n for n in dict.fromkeys(notes) if alone or n is not LogNote.SUMS],
            devices=list({d.uid: d for log in self.logs[::-1] for d in log.devices}.values()),
            processes=[info for series in placed if (info := series.process) is not None],
            series=[*self._wholes.values(), *alone, *placed],
        )

    def _placed(self, series: LogSeries) -> LogSeries:
        """Return a process's series with what the device's own log knows of the device."""
        whole = self._wholes.get(series.device.uid)
        if whole is None:
            return series
        return dataclasses.replace(
            series,
            device=whole.device,
            limit_bytes=whole.limit_bytes,
            total_bytes=whole.total_bytes,
        )


def _meets(log: LogFile, wholes: dict[str, LogSeries]) -> bool:
    """Say whether a list of processes is of a time at which one of its devices was recorded."""
    known = [(wholes[s.device.uid], s) for s in log.series if s.device.uid in wholes]
    return not known or any(
        whole.t_s[0] <= own.t_s[-1] and own.t_s[0] <= whole.t_s[-1] for whole, own in known
    )


def _follow(lives: list[LogSeries], series: LogSeries, begun: int) -> None:
    """Add what a log tells of a pid to the processes that had it; ``begun`` are of logs before."""
    info = series.process
    assert info is not None  # noqa: S101 - only such come here
    for at in range(min(begun, len(lives))):
        before = lives[at]
        again = series.t_s[0] <= before.t_s[-1] and before.t_s[0] <= series.t_s[-1]
        if again or (at == begun - 1 and before.t_s[-1] < series.t_s[0]):
            chained = _chained(before, series)
            if again or _same_life(before, series, chained):
                lives[at] = chained
                return
    if lives and info.key in {life.process.key for life in lives if life.process is not None}:
        key = ProcessKey(pid=info.key.pid, started_at_s=float(series.t_s[0]))
        info = msgspec.structs.replace(info, key=key)
        subject = msgspec.structs.replace(series.subject, process=key)
        series = dataclasses.replace(series, process=info, subject=subject)
    lives.append(series)


def _same_life(before: LogSeries, series: LogSeries, chained: LogSeries) -> bool:
    started_s = None if series.process is None else series.process.key.started_at_s
    if started_s is not None and before.subject.process == series.subject.process:
        return True
    at = before.t_s.size
    return at not in chained.breaks or numerics.goes_on(chained.t_s, chained.used_bytes, at)


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
        run=0,
    )


def _known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
