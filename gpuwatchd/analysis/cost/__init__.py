"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.analysis.cost.account import (
    WHATS,
    Entry,
    Sum,
    entries_of,
    grouped,
    in_currency,
    in_hours,
    line,
    saved,
    summed,
)
from gpuwatchd.analysis.cost.intervals import (
    Ask,
    Part,
    Since,
    Stint,
    charge,
    counted_from,
    stint,
    total,
)
from gpuwatchd.analysis.cost.price import OLD_DAYS, Price, Prices
from gpuwatchd.analysis.cost.sharing import GIB, Held, Hour, Taken, gib_hours, taken, usd, with_rest

__all__ = [
    "GIB",
    "OLD_DAYS",
    "WHATS",
    "Ask",
    "Entry",
    "Held",
    "Hour",
    "Part",
    "Price",
    "Prices",
    "Since",
    "Stint",
    "Sum",
    "Taken",
    "charge",
    "counted_from",
    "entries_of",
    "gib_hours",
    "grouped",
    "in_currency",
    "in_hours",
    "line",
    "saved",
    "stint",
    "summed",
    "taken",
    "total",
    "usd",
    "with_rest",
]
