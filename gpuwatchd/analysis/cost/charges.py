"""From hours and prices to what an alert costs: so far, and until memory is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from gpuwatchd.core.model import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.analysis.cost.price import Price, Prices

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
    parts
        Every device that it is on.
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
