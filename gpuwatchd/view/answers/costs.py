"""``cost``: what leaks and idle memory cost, in the user's currency and in US dollars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuwatchd.analysis import cost
from gpuwatchd.core import text
from gpuwatchd.view.answers.base import Answer, Count, Instant, Shape, fill, finite

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
