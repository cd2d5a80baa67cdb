"""The values that travel through gpuwatchd: frozen, keyword-only, unit last in the name.

Bytes are ``int`` (in arrays ``float64``). Instants ``*_at_s`` are UTC epoch seconds, for people;
``*_mono_s`` are monotonic seconds since boot, for arithmetic. Unknown is ``None``: never 0, -1,
"N/A" or NaN. Nothing here imports numpy at run time, so that reading a state file stays cheap; and
where values are defined annotations are no strings, which msgspec compiles one by one for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core.model.alerts import (
    Alert,
    AlertSubject,
    Availability,
    Button,
    ChannelHealth,
    Chart,
    Cost,
    Decision,
    Delivery,
    Matcher,
    Message,
    Proposal,
    ServiceState,
    Silence,
)
from gpuwatchd.core.model.base import (
    LEAK_PATTERNS,
    ActMode,
    ActStep,
    AlertState,
    ButtonName,
    DecisionKind,
    DeviceState,
    EventKind,
    HoldingKind,
    LedgerState,
    MemoryKind,
    NoticeKind,
    Pattern,
    Severity,
    Tier,
    Value,
)
from gpuwatchd.core.model.findings import (
    AllocatorSeries,
    AllocatorState,
    Blame,
    EtaRange,
    Finding,
    FunctionGrowth,
    FunctionRemark,
    GrowthFact,
    Holder,
    Holding,
    IdleJob,
    Ledger,
    Period,
    Profile,
    Series,
    Signal,
    Subject,
    is_leak,
    limit_of,
    outdated_s,
)
from gpuwatchd.core.model.readings import (
    AllocatorReading,
    Device,
    DeviceReading,
    Event,
    Fault,
    FunctionCalls,
    MemoryLimit,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    ServedModel,
    ServerReading,
)

if TYPE_CHECKING:
    from gpuwatchd.core.model.findings import FloatArray
