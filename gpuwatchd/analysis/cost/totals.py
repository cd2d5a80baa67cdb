"""What a period cost: entries that add up to the whole and never count twice, and their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from gpuwatchd.analysis.cost.sharing import DeviceUsage, usage_by_process
from gpuwatchd.core import units
from gpuwatchd.core.model import Cost, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from gpuwatchd.analysis.cost.sharing import MemoryBucket, Price, Prices

SEEN_SOON_S: Final = 600.0
"""A process that was seen on the device so soon after its start was there from the start."""
TAIL_S: Final = 180.0
"""What was seen last has lasted until now, if that was not longer ago: rows are written late."""


# From when on an alert is counted, and what it had of its devices since.


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
    parts = tuple(
        (uid, Part(had.hours, had.last_share, ask.price(uid, early_s, until_s), had.whole_hours))
        for uid, had in pairs
    )
    return ChargedUsage(parts, since_at_s, since, until_s)


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

Since = Literal["start", "checkpoint", "first-seen"]


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


What = Literal["at-risk", "lost", "held", "saved"]
WHATS: Final[tuple[What, ...]] = ("at-risk", "lost", "held", "saved")
MARGIN_S: Final = 600.0
"""An end is clearly before the crash that was foreseen when it is at least so long before it."""


class Entry(Value, frozen=True, kw_only=True):
    """One device's part of one incident."""

    what: What
    key: str
    """Of the alert; of idle memory, its id."""
    title: str
    device_uid: str
    gpu: str
    user: str = ""
    job: str = ""
    since_at_s: float | None = None
    since: Since = "first-seen"
    until_at_s: float
    gpu_hours: float | None
    usd: float | None
    """With the electricity that is known."""
    electricity_usd: float | None = None
    """Of that, electricity; None where it is not counted."""
    whole_gpu_hours: float | None = None
    """Hours for which it was on the device at all: more where others shared it."""
    whole_usd: float | None = None
    """What the whole device cost in these."""
    ahead_gpu_hours: float | None = None
    """Of what is at risk: from now until memory is full; None where nothing is foreseen."""
    ahead_usd: float | None = None
    basis: str = ""
    said: str = ""
    """Why it counts, in one sentence."""


class Sum(Value, frozen=True, kw_only=True):
    """Several entries as one. A sum of which a part is unknown is unknown."""

    incidents: int
    gpu_hours: float | None
    usd: float | None
    known_usd: float
    """What is known of it: at least so much."""
    electricity_usd: float | None
    ahead_gpu_hours: float | None
    ahead_usd: float | None
    known_ahead_usd: float


def summed(entries: Iterable[Entry]) -> Sum:
    """Return the sum of entries; what lies ahead counts where something is foreseen."""
    found = list(entries)
    ahead = [entry for entry in found if entry.ahead_gpu_hours is not None]
    current = [entry.electricity_usd for entry in found if entry.electricity_usd is not None]
    return Sum(
        incidents=len({entry.key for entry in found}),
        gpu_hours=total(entry.gpu_hours for entry in found),
        usd=total(entry.usd for entry in found),
        known_usd=sum((entry.usd for entry in found if entry.usd is not None), 0.0),
        electricity_usd=sum(current) if current else None,
        ahead_gpu_hours=total(entry.ahead_gpu_hours for entry in ahead) if ahead else None,
        ahead_usd=total(entry.ahead_usd for entry in ahead) if ahead else None,
        known_ahead_usd=sum(
            (entry.ahead_usd for entry in ahead if entry.ahead_usd is not None), 0.0
        ),
    )


def grouped(
    entries: Iterable[Entry], name: Callable[[Entry], str]
) -> list[tuple[str, list[Entry]]]:
    """Return entries by a name, the dearest group first."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(name(entry), []).append(entry)

    def weight(group: tuple[str, list[Entry]]) -> tuple[float, float, str]:
        own = [one for one in group[1] if one.what != "saved"]
        return (
            -sum(one.usd or 0.0 for one in own),
            -sum(one.gpu_hours or 0.0 for one in own),
            group[0],
        )

    return sorted(groups.items(), key=weight)


def entries_of(stint: ChargedUsage, like: Entry, *, left_s: float | None = None) -> list[Entry]:
    """Return an entry for each device of a stint.

    ``like`` has what all of them have in common; ``left_s`` is seconds until memory is full, None
    where nothing is foreseen.
    """
    left_h = None if left_s is None else max(0.0, left_s) / 3600.0
    return [
        _entry(
            like,
            uid,
            part,
            hours=part.hours,
            ahead=None if left_h is None or part.share is None else part.share * left_h,
            since=(stint.since_at_s, stint.since),
        )
        for uid, part in stint.parts
    ]


def saved(
    stint: ChargedUsage, like: Entry, *, told_at_s: Sequence[float], low_at_s: float
) -> list[Entry]:
    """Return what an early warning saved, counted conservatively; nothing where that is doubtful.

    Only where somebody was told before the end, and the end was clearly before the earliest crash
    that was foreseen; then only the hours from the end to that crash, which the job would have
    gone on for in vain, and nothing of what it had cost before.

    ``told_at_s`` is when messages about it had arrived, ``low_at_s`` the low end of the forecast:
    the earliest crash, epoch seconds.
    """
    end_s = stint.until_s
    if not any(at_s < end_s for at_s in told_at_s) or low_at_s - end_s < MARGIN_S:
        return []
    left_h = (low_at_s - end_s) / 3600.0
    return [
        _entry(
            like,
            uid,
            part,
            hours=None if part.share is None else part.share * left_h,
            ahead=None,
            since=(end_s, "first-seen"),
        )
        for uid, part in stint.parts
    ]


def _entry(
    like: Entry,
    uid: str,
    part: Part,
    *,
    hours: float | None,
    ahead: float | None,
    since: tuple[float | None, Since],
) -> Entry:
    price = part.price
    hourly = None if price is None else price.running_usd_per_hour
    current = None if price is None else price.electricity_usd_per_hour
    whole = part.whole_hours if like.what in {"at-risk", "lost"} else None
    return msgspec.structs.replace(
        like,
        device_uid=uid,
        since_at_s=since[0],
        since=since[1],
        gpu_hours=hours,
        usd=None if hours is None or hourly is None else hours * hourly,
        electricity_usd=None if hours is None or current is None else hours * current,
        whole_gpu_hours=whole,
        whole_usd=None if whole is None or hourly is None else whole * hourly,
        ahead_gpu_hours=ahead,
        ahead_usd=None if ahead is None or hourly is None else ahead * hourly,
        basis="" if price is None else price.basis,
    )


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
