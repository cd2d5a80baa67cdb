"""``report`` and ``cost``: what a period comes to, and what leaks and idle memory cost.

Amounts are in the user's currency and in US dollars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from gpuwatchd.analysis import cost
from gpuwatchd.core import text
from gpuwatchd.view.answers.alerts import AlertShape
from gpuwatchd.view.answers.base import (
    Answer,
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
    fill,
    finite,
    of_verb,
)
from gpuwatchd.view.answers.current import Silent
from gpuwatchd.view.answers.history import PictureShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.analysis.cost import Entry, Price, Prices
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


def _amounts(prices: Prices, **usd: float | None) -> dict[str, float | None]:
    """Return each amount in US dollars (``NAME_usd``) and in the user's currency (``NAME``)."""
    rate = prices.per_usd
    amounts: dict[str, float | None] = {}
    for name, value in usd.items():
        known = finite(value)
        amounts[f"{name}_usd"] = known
        amounts[name] = None if known is None or rate is None else known * rate
    return amounts


def paid(entry: Entry, prices: Prices) -> Paid:
    """Return one thing that costs."""
    return fill(
        Paid,
        entry,
        user=text.clean(entry.user) or None,
        job=text.clean(entry.job) or None,
        basis=text.clean(entry.basis) or None,
        reason=text.clean(entry.said, limit=1024),
        **_amounts(
            prices,
            cost=entry.usd,
            electricity=entry.electricity_usd,
            whole=entry.whole_usd,
            ahead=entry.ahead_usd,
        ),
    )


def sums(entries: Iterable[Entry], prices: Prices) -> Sums:
    """Return a sum for each sort of cost; what is partly unknown is null."""
    of: dict[str, Sum] = {}
    every = list(entries)
    for what in cost.WHATS:
        total = cost.summed(entry for entry in every if entry.what == what)
        of[what.replace("-", "_")] = fill(
            Sum,
            total,
            **_amounts(
                prices,
                cost=total.usd,
                known_cost=total.known_usd,
                electricity=total.electricity_usd,
                ahead=total.ahead_usd,
                known_ahead=total.known_ahead_usd,
            ),
        )
    return Sums(**of)


def prices_used(bill: Bill) -> tuple[PriceUsed, ...]:
    """Return the price of each device, as it was counted with."""
    return tuple(_price(bill, uid, price) for uid, price in bill.used.items())


def _price(bill: Bill, uid: str, price: Price | None) -> PriceUsed:
    return PriceUsed(
        device_uid=text.clean(uid),
        name=text.clean(bill.devices[uid].name),
        basis=None if price is None else text.clean(price.basis),
        source=None if price is None else text.clean(price.source, limit=1024) or None,
        age_days=None if price is None else price.age_days,
        **_amounts(
            bill.prices,
            per_hour=None if price is None else price.usd_per_hour,
            whole_per_hour=None if price is None else price.whole_usd_per_hour,
        ),
    )


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
