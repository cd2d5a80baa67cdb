"""Verdicts, blame, events: what is thought of a device or a process."""

from __future__ import annotations

from gpuwatchd.cli.answers.base import Bytes, Count, DeviceId, Eta, Instant, Pid, Shape, Share, Word
from gpuwatchd.core.model import (
    EventKind,
    HoldingKind,
    LedgerState,
    MemoryKind,
    Pattern,
    Severity,
    Tier,
)


class Verdict(Shape):
    """A judgement."""

    leak: bool
    """A leaking pattern that the settings do not wave off."""
    tier: Tier
    pattern: Pattern
    severity: Severity
    confidence: Share | None
    rate_bytes_per_s: float | None
    r_squared: float | None
    p_value: float | None
    detector: str | None
    onset_at: Instant | None
    """When the growth began."""
    eta: Eta | None
    """Null when nothing fills up."""
    levels_off_bytes: Bytes | None
    """Where growth that slows down is expected to end."""
    reason: str
    """One sentence."""
    advice: tuple[str, ...]
    """What to check."""


class DevicePlace(DeviceId):
    """Which GPU, and where it is."""

    vendor: str
    source: str | None
    """What reads it: nvml, drm, ..."""
    memory_kind: MemoryKind
    parent_uid: str | None
    """The card of a MIG instance."""
    pci_bus: str | None


class LedgerShape(Shape):
    """Who has the memory of a device."""

    state: LedgerState
    """partial: `unattributed_bytes` is an upper bound; overlap: processes share memory; none: the
    list is unknown."""
    total_bytes: Bytes | None
    free_bytes: Bytes | None
    reserved_bytes: Bytes | None
    owned_bytes: Bytes | None
    unattributed_bytes: Bytes | None
    baseline_bytes: Bytes | None
    """What nobody owns while the device is idle."""


class HappenedShape(Shape):
    """Something that happened to a device."""

    at: Instant
    kind: EventKind
    text: str
    code: int | None
    """Number of an XID, for example."""
    hardware: bool | None
    """True: look there first; false: the application's doing; null: neither, or not known."""


class BlameShape(Shape):
    """Whose growth it is."""

    pid: Pid | None
    """Null: memory that no process owns."""
    started_at: Instant | None
    name: str
    share: Share | None
    rate_bytes_per_s: float | None


class KnownShape(Shape):
    """What is known beside the curve."""

    runs: Count
    """Earlier runs of the same program that count."""
    word: Word | None
    """What was last said of one of them, or of this one."""
    siblings: Count
    """Other ranks of the job."""
    yesterday: bool


class Info(Shape):
    """Who a process is."""

    pid: Pid
    started_at: Instant | None
    name: str
    argv: tuple[str, ...]
    """Secrets are masked."""
    user: str | None
    uid: int | None
    state: str | None
    foreign: bool
    """The pid is of another pid namespace."""
    parents: tuple[str, ...]
    """Nearest first."""
    framework: str | None
    framework_sure: bool | None
    frameworks: tuple[str, ...]
    """All that are loaded."""
    model: str | None
    container: str | None
    pod: str | None
    job: str | None
    unit: str | None
    group: str | None
    """The job that its ranks form."""
    rank: int | None
    world: int | None
    """Ranks of that job, on all machines."""


class Process(Info):
    """A process on a device."""

    kind: str
    """C, G, M, joined with +."""
    used_bytes: Bytes | None
    sm_pct: float | None
    host_bytes: Bytes | None
    """Anonymous memory and swap on the host."""
    history: KnownShape | None
    """Null where the program cannot be known again."""
    verdict: Verdict | None
    host_verdict: Verdict | None
    """On the host's memory."""


class HoldingShape(Shape):
    """Memory that is held without work."""

    id: str
    kind: HoldingKind
    device_uid: str
    process: Info | None
    """Null when nobody is known to hold it."""
    held_bytes: Bytes | None
    since_at: Instant | None
    evidence: str
    advice: tuple[str, ...]
    gib_hours: float | None
    cost_usd: float | None
    """Null without a price."""
