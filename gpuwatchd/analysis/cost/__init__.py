"""What memory and time on a GPU cost: prices, shares, and the one line of an alert. Pure."""

from gpuwatchd.analysis.cost.acts import Act, ActsSum, acts_summed
from gpuwatchd.analysis.cost.sharing import (
    DeviceUsage,
    Hour,
    MemoryBucket,
    Price,
    Prices,
    gib_hours,
    usage_by_process,
    usd,
    with_rest,
)
from gpuwatchd.analysis.cost.totals import (
    WHATS,
    ChargedUsage,
    Entry,
    Part,
    Sum,
    UsageProvider,
    charge,
    charged_usage,
    counted_from,
    entries_of,
    grouped,
    in_currency,
    in_hours,
    line,
    saved,
    summed,
    total,
)
