"""``report`` and ``cost``: what a period comes to, and what leaks and idle memory cost.

Amounts are in the user's currency and in US dollars.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gpuwatchd.analysis import cost
from gpuwatchd.view.answers.alerts import AlertShape
from gpuwatchd.view.answers.base import (
    Answer,
    Bytes,
    Count,
    DeviceId,
    Filled,
    Info,
    Instant,
    Pid,
    ProcessId,
    Seconds,
    Sentence,
    Shape,
    Share,
    Verdict,
    fill,
    of_verb,
    sources,
)
from gpuwatchd.view.answers.current import HoldingShape, Silent
from gpuwatchd.view.answers.history import PictureShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.analysis.cost import Entry, Price, Prices
    from gpuwatchd.core.model import Device
    from gpuwatchd.view.queries.cost_entries import Bill


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
    reason: Sentence
    FROM = sources(cost_usd="usd", reason="said")


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
    FROM = sources(cost_usd="usd", known_cost_usd="known_usd")


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


class ActDone(Shape):
    """One process that was ended, restarted or requeued."""

    at: Instant
    step: Literal["reap", "end", "restart", "requeue"]
    who: str | None = msgspec.field(name="by")
    kind: str | None
    """What for: kinds of idle memory, or leak."""
    process: ProcessId | None
    title: str
    user: str | None
    job: str | None
    device_uids: tuple[str, ...]
    freed_bytes: Bytes | None
    freed_gpu_hours: float | None
    """Its share of the GPU, for as long as it had been idle, at most to the end of the period."""
    freed_usd: float | None
    freed: float | None
    lost_gpu_hours: float | None
    """From the last checkpoint, else the start, until it was idle, else until the act."""
    lost_usd: float | None
    lost: float | None
    went_on: bool | None
    """From a checkpoint; null after other steps than restart and requeue, and while it is too early
    to say."""


class Acts(Shape):
    """What was ended, restarted or requeued; totals are null where a part is unknown."""

    acts: Count
    by_step: dict[str, int]
    freed_bytes: Bytes | None
    known_freed_bytes: Bytes
    freed_gpu_hours: float | None
    known_freed_gpu_hours: float
    freed_usd: float | None
    freed: float | None
    known_freed_usd: float | None
    known_freed: float | None
    lost_gpu_hours: float | None
    """Work that is to be done again."""
    lost_usd: float | None
    lost: float | None
    begun_again: Count
    """Restarts and requeues."""
    went_on: Count
    """Those that went on from a checkpoint, as far as that can be seen from outside."""
    undecided: Count
    """Those of which it is too early to say."""
    each: tuple[ActDone, ...]
    """Oldest first."""


class PriceUsed(Shape):
    """The price of a device."""

    device_uid: str
    name: str
    per_hour_usd: float | None
    per_hour: float | None
    whole_per_hour_usd: float | None
    whole_per_hour: float | None
    basis: str | None
    source: Sentence | None
    age_days: Count | None
    FROM = sources(
        device_uid="device.uid",
        name="device.name",
        per_hour_usd="price.usd_per_hour",
        whole_per_hour_usd="price.whole_usd_per_hour",
        **{name: f"price.{name}" for name in ("basis", "source", "age_days")},
    )


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
    acts: Acts | None
    """Null where nothing was done."""
    engineer_hours: Count | None
    engineer: float | None
    """What the hours of people cost, in the currency."""
    by: Literal["gpu", "user", "job", "incident"]
    groups: tuple[Group, ...]
    prices: tuple[PriceUsed, ...]


def _priced(kind: type[Filled], of: object, prices: Prices, **given: object) -> Filled:
    """Return a shape with amounts in US dollars, ``NAME_usd``, and in the currency, ``NAME``."""
    keys = kind.__struct_fields__
    names = [name for name in keys if f"{name}_usd" in keys]
    shape = fill(kind, of, **dict.fromkeys(names), **given)
    for name in names:
        usd, rate = getattr(shape, f"{name}_usd"), prices.per_usd
        setattr(shape, name, None if usd is None or rate is None else usd * rate)
    return shape


def paid(entry: Entry, prices: Prices) -> Paid:
    """Return one thing that costs."""
    return _priced(Paid, entry, prices)


def sums(entries: Iterable[Entry], prices: Prices) -> Sums:
    """Return a sum for each sort of cost; what is partly unknown is null."""
    every = list(entries)
    totals = {
        what.replace("-", "_"): cost.summed(entry for entry in every if entry.what == what)
        for what in cost.WHATS
    }
    return Sums(**{name: _priced(Sum, total, prices) for name, total in totals.items()})


def acts(bill: Bill) -> Acts | None:
    """Return what was ended, restarted or requeued; None where nothing was."""
    if not bill.acts:
        return None
    each = tuple(_priced(ActDone, act, bill.prices) for act in bill.acts)
    return _priced(Acts, cost.acts_summed(bill.acts), bill.prices, each=each)


class _Used(NamedTuple):
    device: Device
    price: Price | None


def prices_used(bill: Bill) -> tuple[PriceUsed, ...]:
    """Return the price of each device, as it was counted with."""
    return tuple(
        _priced(PriceUsed, _Used(bill.devices[uid], price), bill.prices)
        for uid, price in bill.used.items()
    )


class Summary(Shape):
    """The figures that come first."""

    text: str
    """The paragraph."""
    incidents: Count
    """Alerts that were raised and open in the period."""
    open: Count
    leaks: Count
    by_allocator: dict[str, int]
    """Leaks by what the allocator says grows: tensors, fragmentation, outside."""
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
    formula: Sentence
    waste_share: Share | None
    """Of the GPU-hours watched, those at risk, lost or held idle; null where unknown."""
    less_waste: float
    less_ends: float
    less_open: float


class Advice(Shape):
    """One thing to do, the most urgent first: by severity, then money at stake or the time left."""

    text: Sentence
    why: Sentence
    command: str
    stake_usd: float | None
    eta_s: Seconds | None
    FROM = sources(stake_usd="usd")


class ReportFinding(Shape):
    """One incident in full."""

    alert: AlertShape
    who: Sentence | None
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
    FROM = sources(first_at="first.judged_at")


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
    FROM = sources(processes="many", cost_usd="usd")


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
    FROM = Held.FROM


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
    FROM = sources(
        pid="info.key.pid",
        started_at="info.key.started_at",
        name="info.label",
        user="info.user",
        job=lambda holder: holder.info.place or holder.info.group,
        cost_usd="usd",
    )


class ReportCost(Shape):
    """What the incidents cost, as `cost` counts."""

    currency: str
    per_usd: float | None
    entries: tuple[Paid, ...]
    sums: Sums
    acts: Acts | None
    """Null where nothing was done in the period."""
    prices: tuple[PriceUsed, ...]


class ReportChannel(Shape):
    """Messages about the incidents on one channel."""

    name: str
    sent: Count
    failed: Count
    waiting: Count
    dry_runs: Count
    last_sent_at: Instant | None
    why: Sentence | None
    """Of the last one that failed or waits."""
    FROM = sources(dry_runs="dry", last_sent_at="last_sent")


class ClockStep(Shape):
    """The clock was set."""

    at: Instant
    step_s: float | None
    FROM = sources(step_s="wall_step_s")


class Unreadable(Shape):
    """A GPU could not be read."""

    at: Instant
    gpu: str
    text: str
    FROM = sources(at=itemgetter(0), gpu=itemgetter(1), text=itemgetter(2))


class MissingTime(Shape):
    """Time of which nothing is known."""

    begin_at: Instant
    end_at: Instant
    why: str | None
    gpus: tuple[str, ...]
    """Empty: none of them was read."""
    FROM = sources(gpus="labels")


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
    FROM = sources(record_begins_at="begun", unreadable="faults", gaps="missing")


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
    FROM = sources(
        since_at="asked.since",
        until_at="asked.until",
        users="query.user",
        processes="infos",
        who="usage.holders",
        others="usage.others",
        quality="usage.quality",
    )


Report = of_verb("report", "Report", ReportData, "``report``.")
