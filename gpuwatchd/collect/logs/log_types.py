"""What reading a log asks for and gives: the contract of ``read_log``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
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
    activity: dict[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    """Of a device, where the log tells: ``utilisation`` in per cent, ``power`` in W, each with its
    times (n,), in order."""
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
