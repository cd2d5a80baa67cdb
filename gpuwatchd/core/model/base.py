"""The words that values are made of, and the base of every value."""

from __future__ import annotations

from typing import Literal

import msgspec

MemoryKind = Literal["dedicated", "unified", "coherent"]
"""dedicated: the card's own; unified: shared with the host (GB10, APU, Apple Silicon); coherent:
the card's, but managed by the kernel (Grace Hopper): pages stay taken after a process has ended, so
that only what processes hold can be judged."""
DeviceState = Literal[
    "ok", "asleep", "lost", "no-permission", "unsupported", "hung", "reset-required", "released"
]
Pattern = Literal[
    "gradual", "step", "cyclic", "spike", "plateau", "sawtooth", "stable", "preallocated", "unknown"
]
Tier = Literal["none", "watch", "alert"]
Severity = Literal["info", "warning", "critical"]
DecisionKind = Literal["notify", "act", "hold"]
NoticeKind = Literal["firing", "escalated", "repeat", "resolved", "test", "digest"]
ButtonName = Literal["snooze", "show", "checkpoint", "act"]
ActStep = Literal["checkpoint", "restart", "requeue", "end"]
ActMode = Literal["observe", "propose", "auto"]
AlertState = Literal["pending", "watch", "firing", "resolved"]
EventKind = Literal[
    "gpu-lost",
    "gpu-back",
    "gpu-hung",
    "reset-required",
    "xid",
    "ecc",
    "throttle",
    "memory-pressure",
    "driver-changed",
    "released",
    "process-peak",
]
LedgerState = Literal["whole", "partial", "overlap", "none"]
HoldingKind = Literal[
    "gone",
    "defunct",
    "driver-wait",
    "ghost",
    "orphaned-runner",
    "no-model",
    "leaked-kv",
    "hung-rank",
    "idle",
]
"""What is surest comes first."""

LEAK_PATTERNS: frozenset[Pattern] = frozenset({"gradual", "step", "cyclic"})


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of every value: immutable, keyword-only, encodable to JSON by msgspec."""
