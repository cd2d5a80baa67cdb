"""What reading a log asks for and gives: the contract of ``read_log``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.collect.logs.snapshot_reader import Snapshot
    from gpuwatchd.core.model import Device, FloatArray, ProcessInfo, Subject

DateOrder = Literal["mdy", "dmy"]


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What the caller knows about a log and the log itself does not say."""

    format: str | None = None
    """Name of a row of ``FORMATS``; None means recognise it."""
    interval_s: float | None = None
    """Seconds between two ticks of a log without times."""
    tz: str | None = None
    """IANA name of the zone of times without an offset; None is UTC."""
    date_order: DateOrder | None = None
    """How to read 04-03-2021; None means decide over the whole file or refuse."""
    total_bytes: float | None = None
    """Memory of the device, for logs that do not hold it."""
    columns: tuple[str, ...] | None = None
    """Names of the columns of a table without a header."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LogSeries:
    """Memory over time of one subject, during one run of ascending time.

    A log whose time jumps back (a second job, the end of summer time) gives several series of the
    same subject, told apart by ``run``; a gap only adds an index to ``breaks``.
    """

    subject: Subject
    device: Device
    process: ProcessInfo | None
    t_s: FloatArray
    """(n,) strictly ascending, epoch seconds; seconds from the start when ``LogFile.epoch`` is
    False; tick numbers when ``LogFile.timed`` is False."""
    used_bytes: FloatArray
    """(n,) finite, not negative."""
    limit_bytes: float | None
    """Where this subject runs out, bytes; None when unknown."""
    total_bytes: float | None = None
    """Memory of the whole device, bytes; None when unknown."""
    breaks: tuple[int, ...] = ()
    """Indices at which a new segment starts (a gap of more than ten intervals)."""
    lower_bound: bool = False
    """A device known only by the sum of its listed processes."""
    run: int = 0
    """Position of this run of ascending time among the runs of its subject."""


class LogNote(StrEnum):
    """A warning that code recognises."""

    SUMS = "device figures are sums of processes: a lower bound"


@dataclass(kw_only=True, eq=False)
class LogFile:
    """A log as far as it can be understood; content never raises."""

    path: str
    format: str = "unknown"
    """Names of the formats met, joined with "+", the one with most rows first."""
    rows: int = 0
    """Data rows in the log, the rejected ones included. Of a report that tells of a device in many
    lines (XML, tables, metrics) each device, instance and process is one row."""
    bad_rows: int = 0
    """Rows that gave no reading; the sum of ``skipped``."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows rejected for it: torn, not available, bad time, bad number, ..."""
    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    """One sentence when the log allows no verdict, else None."""
    hint: str = ""
    """What would help."""
    devices: list[Device] = field(default_factory=list)
    processes: list[ProcessInfo] = field(default_factory=list)
    """Processes named by the log, also those without a memory figure."""
    series: list[LogSeries] = field(default_factory=list)
    timed: bool = True
    """False when the log has no times and no interval was given: ``t_s`` counts ticks."""
    epoch: bool = True
    """False when times count from an unknown start."""
    snapshot: Snapshot | None = None
    """What a memory snapshot of PyTorch holds beside its series."""


# Logs that belong together: ``nvidia-smi --query-gpu`` and ``--query-compute-apps`` write two files
# about one machine. Read together, a leak is the process's, the room it has is the device's, and
# jobs that follow one another are no growth.


MOST_FILES = 64
"""Of more files than this none are looked at for company: they are a collection, not a pair."""


def pairs(files: Sequence[str], glance: Callable[[str], LogFile]) -> list[tuple[str, ...]]:
    """Return the files in their order, each alone or a device's log with its processes'."""
    alone: list[tuple[str, ...]] = [(file,) for file in files]
    if not 2 <= len(files) <= MOST_FILES or "-" in files or len(set(files)) < len(files):
        return alone
    devices: dict[str, set[str]] = {}
    processes: dict[str, set[str]] = {}
    for file in filter(_plain, files):
        log = glance(file)
        uids = {each.device.uid for each in log.series if not each.device.uid.startswith("log:")}
        with_process = [series.process is not None for series in log.series]
        if any(with_process) and all(s.process is not None or s.lower_bound for s in log.series):
            processes[file] = uids
        elif log.series and not any(with_process):
            devices[file] = uids
    found: dict[str, list[str]] = {}
    for file, uids in processes.items():
        partners = [other for other, theirs in devices.items() if uids & theirs]
        if len(partners) == 1:
            found.setdefault(partners[0], []).append(file)
    company = {other: own[0] for other, own in found.items() if len(own) == 1}
    taken = set(company.values())
    return [
        (file, company[file]) if file in company else (file,) for file in files if file not in taken
    ]


def joined(devices: LogFile, processes: LogFile) -> LogFile | None:
    """Return one log of two; None when they are of different times or devices.

    Devices, their room and their identity come from the first log, processes from the second.
    """
    if not (devices.timed and processes.timed and devices.epoch and processes.epoch):
        return None
    wholes = {series.device.uid: series for series in devices.series}
    parts = [each for each in processes.series if each.process is not None]
    meet = [(wholes[each.device.uid], each) for each in parts if each.device.uid in wholes]
    spans = [(max(a.t_s[0], b.t_s[0]), min(a.t_s[-1], b.t_s[-1])) for a, b in meet]
    if not any(begin_s <= end_s for begin_s, end_s in spans):
        return None
    # A process's series gets what the device's own log knows of the device.
    placed = [
        dataclasses.replace(
            part, device=whole.device, limit_bytes=whole.limit_bytes, total_bytes=whole.total_bytes
        )
        if (whole := wholes.get(part.device.uid))
        else part
        for part in parts
    ]
    rest = [s for s in processes.series if s.process is None and s.device.uid not in wholes]
    of_both = [each for each in processes.warnings if each is not LogNote.SUMS]
    by_uid = {each.uid: each for each in (*processes.devices, *devices.devices)}
    return LogFile(
        path=f"{devices.path} + {processes.path}",
        format=f"{devices.format}+{processes.format}",
        rows=devices.rows + processes.rows,
        bad_rows=devices.bad_rows + processes.bad_rows,
        skipped=dict(Counter(devices.skipped) + Counter(processes.skipped)),
        warnings=list(dict.fromkeys([*devices.warnings, *of_both])),
        devices=list(by_uid.values()),
        processes=processes.processes,
        series=[*devices.series, *rest, *placed],
    )


def _plain(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(file).is_file()
    return False
