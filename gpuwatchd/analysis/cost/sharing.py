"""What a device costs for an hour, who had it for how long, and what that comes to.

Time is shared by memory.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.model import Cost, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from gpuwatchd.core.config import CostSection
    from gpuwatchd.core.config.prices import PriceRow
    from gpuwatchd.core.model import Device


OLD_DAYS: Final = 180
"""A price that is older than this is shown with its age."""
_DAY_S: Final = 86_400.0
_MONTH_DAYS: Final = 30.44
_INSTANCE: Final = " MIG "


class Price(Value, frozen=True, kw_only=True):
    """What one device costs for an hour, in US dollars; electricity apart."""

    usd_per_hour: float
    """Of this device: of a MIG instance, its slice of the card."""
    whole_usd_per_hour: float
    """Of the whole card."""
    electricity_usd_per_hour: float | None = None
    """On top, where the device is owned: by its measured power; None: not asked for, or unknown."""
    basis: str
    """Where it comes from: "A100 40GB, on-demand, as of 2024-06"; "yours"."""
    age_days: int | None = None
    """Of a row of the table."""
    source: str = ""
    """Page and calculation of a row: "AWS us-east-1, p4d.24xlarge: 21.957642 an hour / 8 GPUs"."""

    @property
    def is_old(self) -> bool:
        """Say whether it is a row of the table that is too old to be trusted as it is."""
        return self.age_days is not None and self.age_days > OLD_DAYS

    @property
    def running_usd_per_hour(self) -> float:
        """Price of an hour with the electricity that is known."""
        return self.usd_per_hour + (self.electricity_usd_per_hour or 0.0)


class Prices:
    """Looks prices up.

    The first that is there counts: the longest glob of ``[cost] prices`` that fits, then
    ``usd-per-gpu-hour``; then, where devices are owned, what they cost over their lifetime; else
    the longest match of the table among the offers that the user asked for.
    """

    def __init__(self, section: CostSection, rows: Sequence[PriceRow]) -> None:
        self.section = section
        self._rows = rows

    @property
    def off(self) -> bool:
        """Whether money is not counted at all."""
        return self.section.mode == "off"

    @property
    def per_usd(self) -> float | None:
        """Units of the user's currency for one US dollar; None where that is missing."""
        return 1.0 if self.section.currency.upper() == "USD" else self.section.per_usd

    @property
    def currency(self) -> str:
        """Three letters."""
        return self.section.currency.upper()

    @property
    def problem(self) -> str:
        """Why nothing can be priced, in one sentence; "" when something can."""
        if self.per_usd is None and not self.off:
            return f"[cost] per-usd is needed where currency is {self.currency}: no money is shown"
        return ""

    def of(
        self,
        device: Device,
        devices: Mapping[str, Device],
        *,
        now_s: float,
        power_w: float | None = None,
    ) -> Price | None:
        """Return the price of a device; None where it is unknown.

        ``devices`` is every device by uid: an instance is priced as its slice of the card's memory.
        ``power_w`` is what the card takes on the mean, as measured; None where that is unknown.
        """
        rate = self.per_usd
        if self.off or rate is None:
            return None
        card = device if device.parent_uid is None else devices.get(device.parent_uid)
        name = device.name.partition(_INSTANCE)[0] if card is None else card.name
        slice_ = _slice(device, card)
        own = _longest(self.section.prices, name)
        if own is not None:
            return _priced(self.section.prices[own] / rate, slice_, f'yours, for "{own}"')
        if self.section.usd_per_gpu_hour is not None:
            return _priced(self.section.usd_per_gpu_hour, slice_, "yours")
        if self.section.mode == "owned":
            return self._owned(rate, slice_, power_w)
        row = self._row(name)
        return None if row is None else _of_row(row, slice_, now_s)

    def _owned(self, rate: float, slice_: float | None, power_w: float | None) -> Price | None:
        paid, per_kwh = self.section.purchase, self.section.electricity_per_kwh
        hours = float(self.section.lifetime) / 3600.0
        if paid is None or hours <= 0 or slice_ is None:
            return None
        basis = f"owned, over {hours / 24 / 365:.3g} years"
        current = None
        if per_kwh is not None and power_w is not None:
            current = power_w / 1000.0 * per_kwh / rate * slice_
            basis += f", with electricity at {power_w:.0f} W"
        elif per_kwh is not None:
            basis += ", without electricity: its power is unknown"
        price = _priced(paid / rate / hours, slice_, basis)
        if price is None or current is None:
            return price
        return msgspec.structs.replace(price, electricity_usd_per_hour=current)

    def _row(self, name: str) -> PriceRow | None:
        offered = [row for row in self._rows if row.basis == self.section.offer]
        best = _longest([row.match for row in offered], name)
        fitting = [row for row in offered if row.match == best]
        return max(fitting, key=lambda row: row.as_of, default=None)


def _slice(device: Device, card: Device | None) -> float | None:
    """Return the share of its card's memory that a device has; None where that is unknown."""
    if device.parent_uid is None:
        return 1.0
    whole = None if card is None else card.memory_total_bytes
    if not whole or device.memory_total_bytes is None:
        return None
    return min(1.0, device.memory_total_bytes / whole)


def _longest(globs: Iterable[str], name: str) -> str | None:
    """Return the most specific glob that fits: the one with most letters that are no wildcard."""
    fitting = [glob for glob in globs if fnmatch.fnmatchcase(name.casefold(), glob.casefold())]
    return max(fitting, key=lambda glob: (sum(c not in "*?" for c in glob), glob), default=None)


def _priced(
    whole: float, slice_: float | None, basis: str, age_days: int | None = None, source: str = ""
) -> Price | None:
    if slice_ is None:
        return None
    return Price(
        usd_per_hour=whole * slice_,
        whole_usd_per_hour=whole,
        basis=basis,
        age_days=age_days,
        source=source,
    )


def _of_row(row: PriceRow, slice_: float | None, now_s: float) -> Price | None:
    noon = dt.datetime(row.as_of.year, row.as_of.month, row.as_of.day, tzinfo=dt.UTC)
    age_days = max(0, int((now_s - noon.timestamp()) / _DAY_S))
    basis = f"{row.name}, {row.basis}, as of {row.as_of:%Y-%m}"
    if age_days > OLD_DAYS:
        basis += f", {age_days / _MONTH_DAYS:.0f} months old"
    where = row.provider if row.region == "any" else f"{row.provider} {row.region}"
    source = f"{where}, {row.note}; {row.source}"
    return _priced(row.usd_per_gpu_hour, slice_, basis, age_days, source)


REST: Final = "rest"
"""Who holds what nobody holds."""


class Hour(NamedTuple):
    """What a process had of a device in one hour, added up from its minutes."""

    first_at_s: float
    last_at_s: float
    seen_s: float
    """Time for which it was there."""
    taken_s: float | None
    """Time of the whole device that falls to it; None where its share is unknown."""


class MemoryBucket(NamedTuple):
    """What one process held on one device over one bucket of time."""

    at_s: float
    """Its start, epoch seconds: the same for all processes of a bucket."""
    who: Hashable
    held_bytes: float | None
    width_s: float = 60.0
    """Length of the bucket: the same for all processes of it."""
    hour: Hour | None = None
    """Of a whole hour: what is shared already. It lies inside the span that is asked for."""


class DeviceUsage(NamedTuple):
    """What one process had of a device."""

    hours: float | None
    """Hours of the whole device that fall to it; None where its share is unknown."""
    whole_hours: float
    """Hours for which it was there at all: what they are for a process that is alone."""
    first_at_s: float
    """Start of the first bucket that it was seen in, or of the span."""
    last_at_s: float
    """End of the last one, or of the span."""
    last_share: float | None
    """Its share in that one, 0-1."""


def usage_by_process(
    rows: Iterable[MemoryBucket], since_s: float, until_s: float
) -> dict[Hashable, DeviceUsage]:
    """Return what each process had of a device between two instants.

    In every bucket the device's time is shared in proportion to what each one held; one that is
    alone has all of it. Time in which nobody looked has no bucket, and is not counted. Where
    somebody's memory is unknown, so are the shares of that bucket, unless he is alone.

    The sums are additive: over processes they are the time that the device was held at all, and
    those of two spans that meet are that of both.

    ``rows``: what was held, in any order; one row for a process and bucket.
    """
    buckets: dict[float, list[MemoryBucket]] = {}
    for row in rows:
        if row.at_s + row.width_s > since_s and row.at_s < until_s:
            buckets.setdefault(row.at_s, []).append(row)
    uses: dict[Hashable, DeviceUsage] = {}
    for at_s, held in sorted(buckets.items()):
        if held[0].hour is not None:
            _add_hours(uses, held)
            continue
        begin_s, end_s = max(at_s, since_s), min(at_s + held[0].width_s, until_s)
        hours = (end_s - begin_s) / 3600.0
        known = [max(0.0, row.held_bytes) for row in held if row.held_bytes is not None]
        total = sum(known)
        for row in held:
            share: float | None = None
            if len(held) == 1:
                share = 1.0
            elif len(known) == len(held):
                share = max(0.0, row.held_bytes or 0.0) / total if total > 0 else 1 / len(held)
            mine = None if share is None else hours * share
            _add(uses, row.who, DeviceUsage(mine, hours, begin_s, end_s, share))
    return uses


def _add(uses: dict[Hashable, DeviceUsage], who: Hashable, more: DeviceUsage) -> None:
    """Add what a process had of a device to what it had before."""
    before = uses.get(who)
    if before is not None:
        known = more.hours is not None and before.hours is not None
        more = more._replace(
            hours=(before.hours or 0.0) + (more.hours or 0.0) if known else None,
            whole_hours=before.whole_hours + more.whole_hours,
            first_at_s=before.first_at_s,
        )
    uses[who] = more


def _add_hours(uses: dict[Hashable, DeviceUsage], held: list[MemoryBucket]) -> None:
    """Add an hour that was shared by the minute before."""
    for row in held:
        hour = row.hour
        if hour is None:
            continue
        mine = None if hour.taken_s is None else hour.taken_s / 3600.0
        share = None if hour.taken_s is None else hour.taken_s / hour.seen_s
        seen = DeviceUsage(mine, hour.seen_s / 3600.0, hour.first_at_s, hour.last_at_s, share)
        _add(uses, row.who, seen)


def with_rest(rows: Iterable[MemoryBucket], total_bytes: float | None) -> list[MemoryBucket]:
    """Return rows with what nobody holds as one more holder, so that shares are of the device.

    For idle memory: the rest of its device can still be used.

    ``total_bytes``: memory of the device; None makes every share unknown.
    """
    helds = list(rows)
    held: dict[float, float | None] = {}
    width_s = {row.at_s: row.width_s for row in helds}
    for row in helds:
        before = held.get(row.at_s, 0.0)
        known = before is not None and row.held_bytes is not None
        held[row.at_s] = (before or 0.0) + (row.held_bytes or 0.0) if known else None
    for at_s, amount in held.items():
        known = amount is not None and total_bytes is not None
        rest = max(0.0, (total_bytes or 0.0) - (amount or 0.0)) if known else None
        helds.append(MemoryBucket(at_s, REST, rest, width_s[at_s]))
    return helds


SEEN_SOON_S: Final = 600.0
"""A process that was seen on the device so soon after its start was there from the start."""
TAIL_S: Final = 180.0
"""What was seen last has lasted until now, if that was not longer ago: rows are written late."""


# From when on an alert is counted, and what it had of its devices since.

Since = Literal["start", "checkpoint", "first-seen"]


class UsageProvider(NamedTuple):
    """Who knows what was seen, and what it costs; of a device between two instants."""

    rows: Callable[[str, float, float], Iterable[MemoryBucket]]
    """Who held what."""
    price: Callable[[str, float, float], Price | None]
    """What it costs, by its power; None where unknown."""


def counted_from(
    started_at_s: float | None, saved_at_s: float | None, first_at_s: float | None
) -> tuple[float | None, Since]:
    """Return from when on something is counted, and what happened then.

    A job starts with its first rank. Where no checkpoint is known it counts from the start.
    """
    if saved_at_s is not None:
        return saved_at_s, "checkpoint"
    if started_at_s is None:
        return first_at_s, "first-seen"
    if first_at_s is not None and first_at_s > started_at_s + SEEN_SOON_S:
        return first_at_s, "first-seen"
    return started_at_s, "start"


class ChargedUsage(NamedTuple):
    """What the subject of something had of its devices, and since when that is counted."""

    parts: tuple[tuple[str, Part], ...]
    """UUID of a device, and what it had of it."""
    since_at_s: float | None
    since: Since
    until_s: float


def charged_usage(
    members: Sequence[tuple[str, Hashable]],
    ask: UsageProvider,
    *,
    started_at_s: float | None,
    saved_at_s: float | None,
    until_s: float,
    lasts: bool = True,
) -> ChargedUsage:
    """Return what something had of its devices since its start or its newest checkpoint.

    ``members`` are (UUID of a device, who on it): one, or all ranks of a job on all of their
    devices. It ends at ``until_s``, or ``lasts``: then the newest rows, which are written late,
    last until now.
    """
    early_s = saved_at_s if saved_at_s is not None else started_at_s
    early_s = 0.0 if early_s is None else min(early_s, until_s)
    pairs: list[tuple[str, DeviceUsage]] = []
    for uid, who in members:
        had = usage_by_process(ask.rows(uid, early_s, until_s), early_s, until_s).get(who)
        # A rank that is on no list of its device is not counted there: nobody has seen it.
        if had is not None:
            pairs.append((uid, _until(had, until_s) if lasts else had))
    first_at_s = min((had.first_at_s for _, had in pairs), default=None)
    since_at_s, since = counted_from(started_at_s, saved_at_s, first_at_s)
    parts = [
        (uid, Part(had.hours, had.last_share, ask.price(uid, early_s, until_s), had.whole_hours))
        for uid, had in pairs
    ]
    return ChargedUsage(tuple(parts), since_at_s, since, until_s)


def _until(had: DeviceUsage, until_s: float) -> DeviceUsage:
    tail_s = until_s - had.last_at_s
    if not 0.0 < tail_s <= TAIL_S:
        return had
    hours, share = had.hours, had.last_share
    more = None if hours is None or share is None else hours + share * tail_s / 3600.0
    return had._replace(
        hours=more, whole_hours=had.whole_hours + tail_s / 3600.0, last_at_s=until_s
    )


# From hours and prices to what an alert costs: so far, and until memory is full.


class Part(NamedTuple):
    """One device that the subject of an alert is on: a job of ranks has several."""

    hours: float | None
    """Hours of the device that fell to it so far."""
    share: float | None
    """Of the device, that falls to it now; 0-1."""
    price: Price | None
    whole_hours: float | None = None
    """Hours for which it was on the device at all, whoever else was."""


def charge(
    parts: Sequence[Part],
    prices: Prices,
    *,
    since_at_s: float | None,
    since: Since,
    left_s: float | None,
) -> Cost | None:
    """Return what an alert costs; None where money is switched off or it was never seen.

    Hours are always counted, with or without a price; a sum of which one part is unknown is
    unknown, never less than it is.

    ``left_s`` is seconds until memory is full, the middle of the forecast; None where there is
    none.
    """
    if prices.off or not parts:
        return None
    left_h = None if left_s is None else max(0.0, left_s) / 3600.0
    hours = total(part.hours for part in parts)
    shares = total(part.share for part in parts)
    hourly = total(worth(part.share, part.price) for part in parts)
    priced = [part.price for part in parts if part.price is not None]
    return Cost(
        usd_per_hour=hourly,
        whole_usd_per_hour=total(
            None if part.price is None else part.price.running_usd_per_hour for part in parts
        ),
        spent_usd=total(worth(part.hours, part.price) for part in parts),
        at_risk_usd=None if hourly is None or left_h is None else hourly * left_h,
        gpu_hours=hours,
        at_risk_gpu_hours=None if shares is None or left_h is None else shares * left_h,
        since_at_s=since_at_s,
        since=since,
        basis="; ".join(dict.fromkeys(price.basis for price in priced)),
        currency=prices.currency,
        per_usd=prices.per_usd or 1.0,
    )


def worth(amount: float | None, price: Price | None) -> float | None:
    """Return what hours, or a share of each, cost; None where one of them is unknown."""
    return None if amount is None or price is None else amount * price.running_usd_per_hour


def total(values: Iterable[float | None]) -> float | None:
    """Return a sum; None where one of the values is unknown.

    Examples
    --------
    >>> total([1.0, 2.5]), total([1.0, None]), total([])
    (3.5, None, 0.0)
    """
    found = 0.0
    for value in values:
        if value is None:
            return None
        found += value
    return found


# What held memory costs: its size times time, and its share of the device's price. Pure.

GIB: Final = 1024**3


def gib_hours(held_bytes: float | None, held_s: float | None) -> float | None:
    """Return memory times time, GiB·h; None where one of them is unknown.

    Examples
    --------
    >>> gib_hours(9 * GIB, 1800.0), gib_hours(None, 60.0)
    (4.5, None)
    """
    if held_bytes is None or held_s is None:
        return None
    return max(0.0, held_bytes) / GIB * max(0.0, held_s) / 3600.0


def usd(
    held_bytes: float | None,
    held_s: float | None,
    *,
    total_bytes: float | None,
    usd_per_gpu_hour: float | None,
) -> float | None:
    """Return what held memory costs: its share of the device's memory times hours times the price.

    ``total_bytes`` is of the whole device: memory that is larger counts as the whole device.

    Examples
    --------
    >>> usd(20 * GIB, 7200.0, total_bytes=80 * GIB, usd_per_gpu_hour=2.0)
    1.0
    """
    if held_bytes is None or held_s is None or usd_per_gpu_hour is None or not total_bytes:
        return None
    share = min(1.0, max(0.0, held_bytes) / total_bytes)
    return share * max(0.0, held_s) / 3600.0 * usd_per_gpu_hour


_SINCE: Final = {
    "start": "since start",
    "checkpoint": "since the last checkpoint",
    "first-seen": "since it was first seen",
}


def line(cost: Cost | None) -> str:
    """Return the one line of an alert's money; "" where neither time nor money is known.

    Examples
    --------
    >>> from gpuwatchd.core.model import Cost
    >>> line(Cost(spent_usd=25.28, at_risk_usd=3.21, basis="A100 40GB, on-demand, as of 2024-06"))
    '$25.28 since start, $3.21 more until it is full (A100 40GB, on-demand, as of 2024-06)'
    >>> line(Cost(gpu_hours=6.17, at_risk_gpu_hours=0.783, since="checkpoint"))
    '6.2 GPU-hours since the last checkpoint, 0.8 more until it is full (no price known)'
    """
    if cost is None:
        return ""
    since = _SINCE[cost.since]
    if cost.spent_usd is not None:
        text = f"{in_currency(cost.spent_usd, cost)} {since}"
        if cost.at_risk_usd is not None:
            text += f", {in_currency(cost.at_risk_usd, cost)} more until it is full"
        return f"{text} ({cost.basis})" if cost.basis else text
    if cost.gpu_hours is None:
        return ""
    text = f"{in_hours(cost.gpu_hours)} GPU-hours {since}"
    if cost.at_risk_gpu_hours is not None:
        text += f", {in_hours(cost.at_risk_gpu_hours)} more until it is full"
    return f"{text} (no price known)"


def in_hours(value: float | None) -> str:
    """Return GPU-hours, as fine as it takes to see them.

    Examples
    --------
    >>> in_hours(6.17), in_hours(0.034), in_hours(0.0), in_hours(None), in_hours(1234.5)
    ('6.2', '0.03', '0.0', '?', '1,234.5')
    """
    if value is None:
        return "?"
    return f"{value:,.2f}" if 0.0 < value < 0.1 else f"{value:,.1f}"


def in_currency(value_usd: float | None, cost: Cost) -> str:
    """Return an amount in US dollars as the user wants to see it."""
    return units.money(
        None if value_usd is None else value_usd * cost.per_usd, currency=cost.currency
    )
