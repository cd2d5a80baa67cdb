"""``history``, ``analyze``, ``backtest`` and ``cost``: what the past says."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from gpuwatchd.core.model import Pattern, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    Bytes,
    Count,
    DeviceId,
    Eta,
    Fault,
    Instant,
    Pid,
    Seconds,
    Shape,
    Share,
    Verdict,
    Word,
    of_verb,
)


class DeviceRow(Shape):
    """Memory of a device over one width of time."""

    at: Instant
    """Its beginning."""
    gpu: int | None
    """Index, for display."""
    uid: str
    width_s: Seconds
    """0 for a single sample."""
    samples: Count
    used_min_bytes: Bytes | None
    used_mean_bytes: Bytes | None
    used_max_bytes: Bytes | None
    used_last_bytes: Bytes | None
    util_pct: float | None
    temp_max_c: float | None
    energy_j: float | None


class ProcessRow(Shape):
    """Memory of a process over one width of time (``--pid``)."""

    at: Instant
    gpu: int | None
    uid: str
    width_s: Seconds
    pid: Pid
    started_at: Instant | None
    name: str | None
    user: str | None
    used_max_bytes: Bytes | None
    used_last_bytes: Bytes | None
    host_last_bytes: Bytes | None
    """On the host."""


class Event(Shape):
    """What happened to a device, the recording, or (``--events``) a job's work."""

    at: Instant
    kind: str
    """Also ask-to-save, asked-to-save, not-asked-to-save and saved: with `--events`."""
    text: str
    pid: Pid | UnsetType | None = UNSET
    """Only of a job's work; null where the process is no longer known."""
    started_at: Instant | UnsetType | None = UNSET
    by: str | UnsetType | None = UNSET
    """The user; null for a file that was seen."""


class RecordedDevice(Shape):
    """What is recorded of one device; with ``--events`` `rows` is empty."""

    device: DeviceId
    rows: tuple[DeviceRow, ...]
    events: tuple[Event, ...]


class RecordedProcesses(Shape):
    """What is recorded of processes on one device (``--pid``)."""

    device: DeviceId
    rows: tuple[ProcessRow, ...]
    events: tuple[Event, ...]


class HistoryQueries(Answer):
    """``history --sql``."""

    VERB = "history"
    verb: Literal["history"]
    data: tuple[str, ...]
    """What is asked of the database, device by device."""


class EventRow(Shape):
    """What happened, one line of ``history --events --format ndjson``."""

    at: Instant
    gpu: int | None
    uid: str
    kind: str
    text: str


class AnalyzedProcess(Shape):
    """A process in a log."""

    pid: Pid
    started_at: Instant | None
    name: str


class Change(Shape):
    """A change of an alert, as it would have come live."""

    at: Instant
    state: Literal["opened", "firing", "escalated", "resolved"]
    severity: Severity
    pattern: Pattern
    confidence: Share | None
    rate_bytes_per_s: float | None
    eta: Eta | None
    reason: str


class Subject(Shape):
    """A device or a process in a log, and its verdict."""

    device: DeviceId
    process: AnalyzedProcess | None
    samples: Count
    started_at: Instant
    ended_at: Instant
    verdict: Verdict | None
    """At the end of the log."""
    watches: tuple[Change, ...]
    alerts: tuple[Change, ...]


class LogRead(Shape):
    """One log."""

    path: str
    format: str | None
    rows: Count
    bad_rows: Count
    skipped: dict[str, int]
    """Reason to rows."""
    warnings: tuple[str, ...]
    error: str | None
    """Why it cannot be read."""
    hint: str | None
    subjects: tuple[Subject, ...]


class Analyze(Answer):
    """``analyze``."""

    VERB = "analyze"
    verb: Literal["analyze"]
    data: tuple[LogRead, ...]
    error: Fault | UnsetType = UNSET
    """Where no log could be read."""


class Case(Shape):
    """Something that would have been raised, and what came of it."""

    title: str
    pid: Pid | None
    started_at: Instant | None
    pattern: Pattern
    watch_at: Instant | None
    alert_at: Instant | None
    """Null for a watch that never became an alert."""
    over_at: Instant | None
    rate_bytes_per_s: float | None
    confidence: Share | None
    eta: Eta | None
    reason: str
    came: Literal["filled", "given-back", "plateaued", "ended", "open"]
    came_at: Instant | None
    memory_share: float | None
    process_ended: bool | None
    word: Word | None
    """The user's label."""
    true: bool | None
    lead_s: float | None
    """From the alert to the full memory."""
    band_held: bool | None
    """The interval of the time left contained the real one."""


class Replayed(Shape):
    """The history of one device."""

    device: DeviceId
    subjects: Count
    points: Count
    begun_at: Instant | None
    ended_at: Instant | None
    cases: tuple[Case, ...]


class Setting(Shape):
    """How settings would have performed."""

    name: str
    watches: Count
    alerts: Count
    true: Count
    false: Count
    unknown: Count
    precision: Share | None
    deaths: Count
    """Ends at the limit."""
    deaths_missed: Count
    median_lead_s: float | None
    band_held: Count
    band_known: Count
    band_stopped: Count


class BacktestData(Shape):
    """What would have been raised."""

    devices: tuple[Replayed, ...]
    settings: tuple[Setting, ...]
    """The present ones first."""


class Paid(Shape):
    """One thing that costs. Amounts without `_usd` are in the currency of the answer."""

    what: Literal["at-risk", "lost", "held", "saved"]
    key: str
    title: str
    device_uid: str
    user: str | None
    job: str | None
    since: Literal["start", "checkpoint", "first-seen"]
    since_at: Instant | None
    until_at: Instant | None
    gpu_hours: float | None
    cost_usd: float | None
    cost: float | None
    electricity_usd: float | None
    electricity: float | None
    whole_gpu_hours: float | None
    """Of the whole GPU, where it is shared."""
    whole_usd: float | None
    whole: float | None
    ahead_gpu_hours: float | None
    ahead_usd: float | None
    """Until memory is full."""
    ahead: float | None
    basis: str | None
    """Which price."""
    reason: str


class Sum(Shape):
    """A sum; a total is null where a part of it is unknown, `known_` is what is known of it."""

    incidents: Count
    gpu_hours: float | None
    cost_usd: float | None
    cost: float | None
    known_cost_usd: float | None
    known_cost: float | None
    electricity_usd: float | None
    electricity: float | None
    ahead_gpu_hours: float | None
    ahead_usd: float | None
    ahead: float | None
    known_ahead_usd: float | None
    known_ahead: float | None


class Sums(Shape):
    """A sum for each sort of cost."""

    at_risk: Sum
    lost: Sum
    held: Sum
    saved: Sum


class Group(Shape):
    """The sums of one GPU, user, job or incident."""

    name: str
    sums: Sums


class PriceUsed(Shape):
    """The price of a device."""

    device_uid: str
    name: str
    per_hour_usd: float | None
    per_hour: float | None
    whole_per_hour_usd: float | None
    whole_per_hour: float | None
    basis: str | None
    source: str | None
    age_days: Count | None


class Cost(Answer):
    """``cost``."""

    VERB = "cost"
    verb: Literal["cost"]
    data: tuple[Paid, ...]
    since_at: Instant
    currency: str
    per_usd: float | None
    """Units of the currency for one US dollar, as configured."""
    sums: Sums
    engineer_hours: Count | None
    engineer: float | None
    """What the hours of people cost, in the currency."""
    by: Literal["gpu", "user", "job", "incident"]
    groups: tuple[Group, ...]
    prices: tuple[PriceUsed, ...]


History = of_verb("history", "History", tuple[RecordedDevice, ...], "``history``.")
HistoryOfProcesses = of_verb(
    "history", "HistoryOfProcesses", tuple[RecordedProcesses, ...], "``history --pid``."
)
Backtest = of_verb("backtest", "Backtest", BacktestData, "``backtest``.")
