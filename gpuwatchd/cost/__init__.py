"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.cost.held import GIB, gib_hours, usd
from gpuwatchd.cost.lines import line

__all__ = ["GIB", "gib_hours", "line", "usd"]
