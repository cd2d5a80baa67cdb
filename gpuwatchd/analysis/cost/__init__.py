"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.analysis.cost.account import WHATS, Entry, Sum, entries_of, grouped, saved, summed
from gpuwatchd.analysis.cost.charges import Part, Since, charge, total
from gpuwatchd.analysis.cost.held import GIB, gib_hours, usd
from gpuwatchd.analysis.cost.intervals import Ask, Stint, counted_from, stint
from gpuwatchd.analysis.cost.lines import in_currency, in_hours, line
from gpuwatchd.analysis.cost.price import OLD_DAYS, Price, Prices
from gpuwatchd.analysis.cost.sharing import Held, Hour, Taken, taken, with_rest

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
