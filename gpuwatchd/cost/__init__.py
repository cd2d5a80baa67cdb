"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.cost.charge import Part, Since, charge, total
from gpuwatchd.cost.held import GIB, gib_hours, usd
from gpuwatchd.cost.hours import Held, Taken, taken
from gpuwatchd.cost.lines import in_currency, line
from gpuwatchd.cost.price import OLD_DAYS, Price, Prices
from gpuwatchd.cost.stints import begun, cost_of

__all__ = [
    "GIB",
    "OLD_DAYS",
    "Held",
    "Part",
    "Price",
    "Prices",
    "Since",
    "Taken",
    "begun",
    "charge",
    "cost_of",
    "gib_hours",
    "in_currency",
    "line",
    "taken",
    "total",
    "usd",
]
