"""``history``, ``analyze`` and ``backtest``: what is recorded, and what is judged of it."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from gpuwatchd.charts.chart_model import MarkKind
from gpuwatchd.core.model import ActMode, ActStep, Pattern, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    AsItIs,
    Bytes,
    Count,
    DeviceId,
    Eta,
    Fault,
    FilePath,
    Instant,
    Pid,
    Seconds,
    Sentence,
    Shape,
    Share,
    Verdict,
    Word,
    of_verb,
    sources,
)
from gpuwatchd.view.answers.inspection import SnapshotChange, SnapshotShape

Kind = Literal["critical", "leak", "watch", "calm", "unknown", "trouble", "held"]


class CurveShape(Shape):
    """Memory over time, oldest first; every array has the same length."""

    at_s: tuple[float, ...]
    """Epoch seconds, ascending: a sample, or the middle of a point."""
    used_bytes: tuple[float | None, ...]
    """The sample, or the mean. Null: nothing is known between its neighbours."""
    low_bytes: tuple[float | None, ...]
    """Lowest within each point."""
    high_bytes: tuple[float | None, ...]
    width_s: Seconds
    """Of a point; 0 where each is one sample."""


class ForecastShape(Shape):
    """Where a growth leads, as it was judged."""

    judged_at: Instant | None
    level_bytes: float
    """Where the fit stands then."""
    rate_bytes_per_s: float
    onset_at: Instant | None
    limit_bytes: float | None
    low_s: Seconds | None
    """Seconds from the judgement to out of memory, 5 %; null: no time is foreseen."""
    mid_s: Seconds | None
    high_s: Seconds | None
    """95 %; null beside a known mid_s: open-ended."""


class MarkShape(Shape):
    """Something that happened."""

    at: Instant | None
    kind: MarkKind
    text: str
    severity: Literal["info", "warning", "critical"] | None
    """Of an alert."""


class GapShape(Shape):
    """Time of which nothing is known."""

    begin_at: Instant | None
    end_at: Instant | None
    why: Sentence
    """May be empty."""


class PictureShape(Shape):
    """One chart of a GPU, or of a process on a GPU."""

    key: str
    """Stable: the UUID of the GPU, and the process."""
    title: Sentence
    kind: Kind
    verdict: Sentence
    begin_at: Instant | None
    end_at: Instant | None
    now_at: Instant | None
    curve: CurveShape
    floor: CurveShape | None
    """The level that memory always came back to; null where it did not."""
    limit_bytes: float | None
    """Of a process: what it has and what is free."""
    forecast: ForecastShape | None
    """Only of what leaks now."""
    marks: tuple[MarkShape, ...]
    gaps: tuple[GapShape, ...]
    notes: tuple[Sentence, ...]


Plot = of_verb("plot", "Plot", tuple[PictureShape, ...], "Pictures of GPUs, or of processes.")


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
    FROM = sources(samples="n")


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
    allocated_bytes: Bytes | None
    """In tensors, as its allocator says; null where it does not say anything (``run``)."""
    reserved_bytes: Bytes | None
    """Taken by its allocator, for tensors."""
    FROM = sources(pid="process.pid", started_at="process.started_at")


class Event(Shape):
    """What happened to a device, the recording, or (``--events``) a job's work."""

    at: Instant
    kind: str
    """Of alerts: watch, alert, critical, died, resolved. With `--events` also ask-to-save,
    asked-to-save, not-asked-to-save, saved, attaching, attached, not-attached,
    reaping, reaped, not-reaped, held and hold-cleared; of steps of `[act]` restarting, restarted,
    not-restarted, requeueing, requeued, not-requeued, ending, ended, not-ended and handed-over."""
    text: AsItIs
    pid: Pid | UnsetType | None = UNSET
    """Only of a job's work; null where the process is no longer known."""
    started_at: Instant | UnsetType | None = UNSET
    by: str | UnsetType | None = UNSET
    """The user; null for a file that was seen."""
    FROM = sources(pid="process.pid", started_at="process.started_at", by="who")


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
    text: AsItIs


class AnalyzedProcess(Shape):
    """A process in a log."""

    pid: Pid
    started_at: Instant | None
    name: str
    FROM = sources(pid="key.pid", started_at="key.started_at")


class Change(Shape):
    """A change of an alert, as it would have come live."""

    at: Instant
    state: Literal["opened", "firing", "escalated", "resolved"]
    severity: Severity
    pattern: Pattern
    confidence: Share | None
    rate_bytes_per_s: float | None
    eta: Eta | None
    reason: Sentence
    code: str | None
    """Of one that is over: why. Of one that fires in the place of another subject's alert, which
    is over for this: both are one alert."""
    FROM = sources(
        severity="alert.severity",
        **{
            name: f"alert.finding.{name}"
            for name in ("pattern", "confidence", "rate_bytes_per_s", "eta")
        },
        reason=lambda event: (
            event.alert.ended if event.state == "resolved" else event.alert.finding.reason
        ),
    )


class Subject(Shape):
    """A device or a process in a log, and its verdict."""

    device: DeviceId
    process: AnalyzedProcess | None
    unattributed: bool
    """It is the memory of the device that no listed process owns."""
    samples: Count
    started_at: Instant
    ended_at: Instant
    verdict: Verdict | None
    """At the end of the log."""
    code: str | None
    """``rank``: the alert of another process that grows alike stands for this one too."""
    watches: tuple[Change, ...]
    alerts: tuple[Change, ...]
    alert_count: Count
    """Alerts that would have been sent: those of alike processes, or that go on, once."""
    FROM = sources(verdict="finding", unattributed="subject.unattributed")


class LogRead(Shape):
    """One log."""

    path: FilePath
    format: str | None
    rows: Count
    bad_rows: Count
    skipped: dict[str, int]
    """Reason to rows."""
    warnings: tuple[Sentence, ...]
    error: Sentence | None
    """Why it cannot be read."""
    hint: Sentence | None
    subjects: tuple[Subject, ...]
    snapshot: SnapshotShape | UnsetType = UNSET
    """Of a memory snapshot of PyTorch."""


class Analyze(Answer):
    """``analyze``."""

    VERB = "analyze"
    verb: Literal["analyze"]
    data: tuple[LogRead, ...]
    error: Fault | UnsetType = UNSET
    """Where no log could be read, or one of two snapshots."""
    change: SnapshotChange | UnsetType = UNSET
    """Between two memory snapshots."""


class Case(Shape):
    """Something that would have been raised, and what came of it."""

    title: Sentence
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
    reason: Sentence
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
    FROM = sources(
        pid="subject.process.pid",
        started_at="subject.process.started_at",
        **{
            name: f"finding.{name}"
            for name in ("pattern", "rate_bytes_per_s", "confidence", "eta", "reason")
        },
        came="fate.came",
        came_at="fate.at",
        memory_share="fate.share",
        process_ended="fate.ended",
    )


class Replayed(Shape):
    """The history of one device."""

    device: DeviceId
    subjects: Count
    points: Count
    begun_at: Instant | None
    ended_at: Instant | None
    cases: tuple[Case, ...]
    FROM = sources(
        points="samples",
        # What the first of the settings would have raised.
        cases=lambda report: report.played[0].cases if report.played else (),
    )


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
    filled: Count
    """Times that memory was full: after an alert, or at a death that none came before."""
    left_10_min_share: Share | None
    """Of these, alerted at least 10 minutes before."""
    left_30_min_share: Share | None
    left_60_min_share: Share | None
    band_held: Count
    band_known: Count
    band_stopped: Count
    FROM = sources(
        name="trial",
        precision=lambda tally: (
            tally.true / (tally.true + tally.false) if tally.true + tally.false else None
        ),
        deaths_missed="missed",
        median_lead_s="lead_s",
        left_10_min_share=lambda tally: tally.share_left(10),
        left_30_min_share=lambda tally: tally.share_left(30),
        left_60_min_share=lambda tally: tally.share_left(60),
        band_held="held",
        band_known="foretold",
        band_stopped="stopped",
    )


class StepCase(Shape):
    """A step on a leak that the evidence would have allowed, or an alert that none followed."""

    title: Sentence
    device_uid: str
    pid: Pid | None
    started_at: Instant | None
    alert_at: Instant | None
    step: ActStep | None
    step_at: Instant | None
    """Null: the evidence was never enough for as long as the notices take."""
    hold: str | None
    """Why it would not have been taken (a code); null where it would."""
    outcome: Literal["died", "full", "ended", "released", "stopped", "running"]
    """Of the run: ended with the memory full; full, and recorded no further or living on; ended
    elsewhere; released the memory; stopped growing; grew to the end of the record."""
    word: Word | None
    """The user's label, which goes before the record."""
    right: bool | None
    """The run ended near its limit; null: not known."""
    left_s: float | None
    """From the step to the end of the run, or to the full memory."""
    FROM = sources(
        title="case.title",
        device_uid="case.subject.device_uid",
        pid="case.subject.process.pid",
        started_at="case.subject.process.started_at",
        alert_at="case.alert_at",
        step_at="at",
        word="case.word",
    )


class StepRule(Shape):
    """A rule that acts on idle memory."""

    by_override: bool
    since_at: Instant | None
    """Null: no daemon has run with it yet."""
    acts_from_at: Instant | None
    """Until then it proposes only."""


class IdleStepCase(Shape):
    """A step on idle memory that would have been taken, or a time of idleness without one."""

    title: Sentence
    device_uid: str
    pid: Pid | None
    started_at: Instant | None
    held_bytes: Bytes | None
    idle_since_at: Instant
    by_alert: bool
    """Known by an alert of then; else by the use of its GPU."""
    step: ActStep | None
    step_at: Instant | None
    hold: str | None
    """Why it would not have been taken (a code); null where it would."""
    outcome: Literal["ended", "worked", "acted", "unknown", "running"]
    """After the step: ended without having worked again; worked again; was ended by a step or
    `reap`; not known; was idle to the end of the record."""
    until_at: Instant | None
    """When it ended, worked again, or was seen last."""
    word: Word | None
    """The user's label, which goes before the record."""
    right: bool | None
    freed_s: float | None
    """From the step to the end of the process: so long its memory would have been free."""
    FROM = sources(
        title="title",
        device_uid="subject.device_uid",
        pid="subject.process.pid",
        started_at="subject.process.started_at",
        step_at="at",
    )


class IdleReplay(Shape):
    """Which steps on idle memory would have been taken if everything had opted in."""

    steps: tuple[ActStep, ...]
    hold: str | None
    """Why nothing would be done whatever is recorded (a code): ``observe``, ``no-step``."""
    taken: Count
    right: Count
    wrong: Count
    unknown: Count
    processes: Count
    """That held enough memory for as long as idle memory takes to be listed."""
    not_judged: Count
    """Of these, those of which for so long nobody knows whether they worked."""
    cases: tuple[IdleStepCase, ...]


class StepReplay(Shape):
    """Which steps would have been taken on leaks if that were possible, and what came of it."""

    mode: ActMode
    steps: tuple[ActStep, ...]
    hold: str | None
    """Why nothing would be done whatever is recorded (a code): ``observe``, ``no-step``."""
    alerts: Count
    taken: Count
    right: Count
    wrong: Count
    unknown: Count
    held: Count
    """The evidence was enough for them; a budget, or that nothing was saved, held them back."""
    gpu_hours: float
    taken_per_day: float | None
    """Of a GPU."""
    idle_judged: bool
    """A log does not tell what steps on idle memory need."""
    idle: IdleReplay | None
    """Null: not judged."""
    cases: tuple[StepCase, ...]
    rules: tuple[StepRule, ...]


class BacktestData(Shape):
    """What would have been raised."""

    devices: tuple[Replayed, ...]
    settings: tuple[Setting, ...]
    """The present ones first."""
    act: StepReplay | UnsetType = UNSET
    """With ``--act``."""


class ExportData(Shape):
    """A file that was written."""

    file: FilePath
    size_bytes: Bytes
    span_s: Seconds
    """From the first sample to the last."""
    devices: Count
    subjects: Count
    """Devices, processes, and the memory of each device that nobody owns."""
    points: Count
    verdicts: Count
    labels: Count
    """Verdicts that you labelled normal or leak."""


History = of_verb("history", "History", tuple[RecordedDevice, ...], "``history``.")
HistoryOfProcesses = of_verb(
    "history", "HistoryOfProcesses", tuple[RecordedProcesses, ...], "``history --pid``."
)
Export = of_verb("export", "Export", ExportData, "``export``.")
Backtest = of_verb("backtest", "Backtest", BacktestData, "``backtest``.")
