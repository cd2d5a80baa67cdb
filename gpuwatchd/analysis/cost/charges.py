"""From when on an alert is counted, and what it had of its devices since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from gpuwatchd.analysis.cost.sharing import DeviceUsage, usage_by_process
from gpuwatchd.core.model import Cost

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from gpuwatchd.analysis.cost.price import Price, Prices
    from gpuwatchd.analysis.cost.sharing import MemoryBucket

SEEN_SOON_S: Final = 600.0
"""A process that was seen on the device so soon after its start was there from the start."""
TAIL_S: Final = 180.0
"""What was seen last has lasted until now, if that was not longer ago: rows are written late."""


class UsageProvider(Protocol):
    """Who knows what was seen, and what it costs."""

    def rows(self, uid: str, since_s: float, until_s: float, /) -> Iterable[MemoryBucket]:
        """Return who held what on a device between two instants."""

    def price(self, uid: str, since_s: float, until_s: float, /) -> Price | None:
        """Return what a device costs, by its power between two instants; None where unknown."""


def counted_from(
    started_at_s: float | None, saved_at_s: float | None, first_at_s: float | None
) -> tuple[float | None, Since]:
    """Return from when on something is counted, and what happened then.

    Parameters
    ----------
    started_at_s
        Start of the process; of a job, of its first rank.
    saved_at_s
        Its newest checkpoint; None where none is known: then it counts from the start.
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

    Parameters
    ----------
    members
        (UUID of a device, who on it): one, or all ranks of a job on all of their devices.
    ask
        Knows who held what, and what devices cost.
    started_at_s, saved_at_s
        Start of the process or job, and its newest checkpoint.
    until_s
        Now, or when it ended.
    lasts
        Whether it still goes on: then the newest rows, which are written late, last until now.
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

    Parameters
    ----------
    prices
        Say in which currency it is shown.
    since_at_s, since
        From when on hours were counted, and what happened then.
    left_s
        Seconds until memory is full, the middle of the forecast; None where there is none.
    """
    if prices.off or not parts:
        return None
    left_h = None if left_s is None else max(0.0, left_s) / 3600.0
    hours = total(part.hours for part in parts)
    shares = total(part.share for part in parts)
    hourly = total(_times(part.share, part.price) for part in parts)
    priced = [part.price for part in parts if part.price is not None]
    return Cost(
        usd_per_hour=hourly,
        whole_usd_per_hour=total(
            None if part.price is None else part.price.running_usd_per_hour for part in parts
        ),
        spent_usd=total(_times(part.hours, part.price) for part in parts),
        at_risk_usd=None if hourly is None or left_h is None else hourly * left_h,
        gpu_hours=hours,
        at_risk_gpu_hours=None if shares is None or left_h is None else shares * left_h,
        since_at_s=since_at_s,
        since=since,
        basis="; ".join(dict.fromkeys(price.basis for price in priced)),
        currency=prices.currency,
        per_usd=prices.per_usd or 1.0,
    )


def _times(amount: float | None, price: Price | None) -> float | None:
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
