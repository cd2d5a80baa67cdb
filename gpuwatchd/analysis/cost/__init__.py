"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.analysis.cost.acts import Act, ActsSum, acts_summed
from gpuwatchd.analysis.cost.sharing import (
    ChargedUsage,
    DeviceUsage,
    Hour,
    MemoryBucket,
    Part,
    Price,
    Prices,
    UsageProvider,
    charge,
    charged_usage,
    counted_from,
    gib_hours,
    total,
    usage_by_process,
    usd,
    with_rest,
)
from gpuwatchd.analysis.cost.totals import (
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
