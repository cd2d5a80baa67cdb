"""Costs in words: one line for an alert, in the currency that the user chose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units

if TYPE_CHECKING:
    from gpuwatchd.core.model import Cost

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
