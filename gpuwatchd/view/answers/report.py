"""``report``: what a period comes to."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gpuwatchd.view.answers.alerts import AlertShape
from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
    DeviceId,
    HoldingShape,
    Info,
    Instant,
    Pid,
    Seconds,
    Shape,
    Share,
    Verdict,
    of_verb,
)
from gpuwatchd.view.answers.costs import Paid, PriceUsed, Sums
from gpuwatchd.view.answers.current import Silent
from gpuwatchd.view.answers.history import PictureShape


class Summary(Shape):
    """The figures that come first."""

    text: str
    """The paragraph."""
    incidents: Count
    """Alerts that were raised and open in the period."""
    open: Count
    leaks: Count
    gpu_troubles: Count
    idle: Count
    """Idle memory that was notified."""
    suspicions: Count
    """Watches that never became an alert."""
    ended_full: Count
    """Ended near the limit: probably out of memory."""
    forecasts_held: Count
    """Of the ends whose forecast is on record, those within its interval."""
    forecasts_known: Count
    gpu_hours: float | None
    """Hours that GPUs were watched, added up."""
    busy_gpu_hours: float | None
    """Utilisation times time."""
    watched_share: Share | None
    """Of the period; null without a history."""


class Score(Shape):
    """The score."""

    value: Annotated[int, Meta(ge=0, le=100)] | None
    """Null where too little was watched; `reason` says so."""
    grade: Literal["A", "B", "C", "D", "E"] | None
    reason: str | None
    formula: str
    waste_share: Share | None
    """Of the GPU-hours watched, those at risk, lost or held idle; null where unknown."""
    less_waste: float
    less_ends: float
    less_open: float


class Advice(Shape):
    """One thing to do, the most urgent first: by severity, then money at stake or the time left."""

    text: str
    why: str
    command: str
    stake_usd: float | None
    eta_s: Seconds | None


class ReportFinding(Shape):
    """One incident in full."""

    alert: AlertShape
    who: str | None
    first: Verdict
    """Its judgement at the first message, as far as that is on record."""
    first_at: Instant
    forecast_held: bool | None
    """Whether memory ran out within the interval of `first`; null where it did not run out."""
    gpu_hours: float | None
    cost_usd: float | None
    silences: tuple[Silent, ...]
    """Silences that applied to it."""
    picture: PictureShape | None
    """As `plot --json` has it; null beyond the first ones, and where nothing is recorded."""


class ReportGpu(Shape):
    """One GPU over the period."""

    device: DeviceId
    watched_s: Seconds
    mean_bytes: Bytes | None
    peak_bytes: Bytes | None
    peak_at: Instant | None
    util_pct: float | None
    busy_hours: float | None
    energy_kwh: float | None
    picture: PictureShape | None


class Held(Shape):
    """What processes held, added up."""

    processes: Count
    gib_hours: float | None
    """Memory times time."""
    gpu_hours: float | None
    """Time of the GPU, shared by what each process held."""
    cost_usd: float | None
    peak_bytes: Bytes | None


class HeldBy(Shape):
    """The same of one user."""

    name: str
    processes: Count
    gib_hours: float | None
    """Memory times time."""
    gpu_hours: float | None
    """Time of the GPU, shared by what each process held."""
    cost_usd: float | None
    peak_bytes: Bytes | None


class ReportHolder(Shape):
    """What one process had of one GPU."""

    device_uid: str
    pid: Pid
    started_at: Instant | None
    name: str
    user: str | None
    job: str | None
    gib_hours: float | None
    gpu_hours: float | None
    cost_usd: float | None
    peak_bytes: Bytes | None
    first_at: Instant
    last_at: Instant


class ReportCost(Shape):
    """What the incidents cost, as `cost` counts."""

    currency: str
    per_usd: float | None
    entries: tuple[Paid, ...]
    sums: Sums
    prices: tuple[PriceUsed, ...]


class ReportChannel(Shape):
    """Messages about the incidents on one channel."""

    name: str
    sent: Count
    failed: Count
    waiting: Count
    dry_runs: Count
    last_sent_at: Instant | None
    why: str | None
    """Of the last one that failed or waits."""


class ClockStep(Shape):
    """The clock was set."""

    at: Instant
    step_s: float | None


class Unreadable(Shape):
    """A GPU could not be read."""

    at: Instant
    gpu: str
    text: str


class MissingTime(Shape):
    """Time of which nothing is known."""

    begin_at: Instant
    end_at: Instant
    why: str | None
    gpus: tuple[str, ...]
    """Empty: none of them was read."""


class Quality(Shape):
    """How much of the period is known."""

    watched_share: Share | None
    record_begins_at: Instant | None
    """Where that is within the period."""
    restarts: Count
    boots: Count
    clock_steps: tuple[ClockStep, ...]
    unreadable: tuple[Unreadable, ...]
    gaps: tuple[MissingTime, ...]


class ReportData(Shape):
    """The report."""

    since_at: Instant
    until_at: Instant
    users: tuple[str, ...]
    """`--user`: everything is of theirs alone, except `others`."""
    processes: tuple[Info, ...]
    """`--pid`."""
    summary: Summary
    score: Score
    advice: tuple[Advice, ...]
    findings: tuple[ReportFinding, ...]
    """The worst first, as many as `--top`."""
    further: tuple[AlertShape, ...]
    watched: tuple[AlertShape, ...]
    """Suspicions that were not confirmed."""
    gpus: tuple[ReportGpu, ...]
    who: tuple[ReportHolder, ...]
    """Most memory-hours first."""
    others: Held | None
    users_sum: tuple[HeldBy, ...]
    cost: ReportCost
    holdings: tuple[HoldingShape, ...]
    channels: tuple[ReportChannel, ...]
    quality: Quality
    pictures: tuple[PictureShape, ...]
    """Of the processes that `--pid` names."""


Report = of_verb("report", "Report", ReportData, "``report``.")
