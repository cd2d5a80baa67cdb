"""Idle memory: who holds it, how that is known, what would free it. Pure.

Detection only: nothing is ever signalled. Source of the rules: what the driver lists (a pid that
does not exist), what the kernel says (Z, D), what the ledger leaves over, what serving engines say
of themselves, and what did not change for long enough.
"""

from gpuwatchd.analysis.idle.ranks import (
    DAEMONS,
    ORDER,
    STOPPED,
    DeviceSnapshot,
    Limits,
    ProcessMemory,
    Server,
    activity,
    activity_context,
)
from gpuwatchd.analysis.idle.signs import PersistenceCheck, snapshot
