"""What every answer has in common: the head, warnings, errors, and how values are written."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar, overload

import msgspec
from msgspec import Meta

from gpuwatchd.core import text, units
from gpuwatchd.core.model import (
    EventKind,
    HoldingKind,
    LedgerState,
    MemoryKind,
    Pattern,
    Severity,
    Tier,
    is_leak,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core import model
    from gpuwatchd.store.live import LiveProcess

LONGEST: Final = 1024
"""Characters of a sentence."""
Instant = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
        extra_json_schema={"format": "date-time"},
    ),
]
"""RFC 3339 in UTC, with milliseconds."""
Bytes = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]
Pid = Annotated[int, Meta(ge=1)]
Word = Literal["normal", "leak"]


class Shape(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every shape. A key that no shape knows fails a test, not a reader."""


Filled = TypeVar("Filled", bound=Shape)


@overload
def fill(kind: type[Filled], of: None, /, **given: Any) -> None: ...
@overload
def fill(kind: type[Filled], of: object, /, **given: Any) -> Filled: ...
def fill(kind: type[Filled], of: object, /, **given: Any) -> Filled | None:
    """Return a shape whose keys are the attributes of a value, under their own names.

    Parameters
    ----------
    kind
        The shape. Its ``at`` and ``*_at`` are the instants of ``at_s`` and ``*_at_s``, or of
        ``*_s``; numbers are finite or null, texts and lists of texts are clean. A text that may be
        null is null where it is empty.
    of
        Whose attributes; None gives None.
    given
        Keys that are made otherwise.
    """
    if of is None:
        return None
    names = (name for name in kind.__struct_fields__ if name not in given)
    optional = _optional(kind)
    return kind(
        **{
            name: None if (found := value(of, name)) == "" and name in optional else found
            for name in names
        },
        **given,
    )


@cache
def _optional(kind: type[Shape]) -> frozenset[str]:
    """Return the fields that may be null."""
    hints = (getattr(base, "__annotations__", {}).items() for base in kind.__mro__)
    return frozenset(name for pairs in hints for name, hint in pairs if str(hint).endswith("None"))


def value(of: object, name: str) -> Any:
    """Return one attribute: JSON has neither infinities nor control characters."""
    if name == "at" or name.endswith("_at"):
        own = f"{name}_s"
        return units.instant(getattr(of, own if hasattr(of, own) else f"{name[:-3]}_s"))
    found = getattr(of, name)
    if isinstance(found, str):
        return text.clean(found)
    if isinstance(found, (tuple, list)):
        return tuple(text.clean(line) for line in found)
    return finite(found) if isinstance(found, float) else found


def maybe(value: str | None) -> str | None:
    """Return foreign text cleaned; None where there is none."""
    return text.clean(value) if value else None


def lines(values: Iterable[str]) -> tuple[str, ...]:
    """Return sentences cleaned, each as long as it is."""
    return tuple(text.clean(value, limit=LONGEST) for value in values)


def finite(value: float | None) -> float | None:
    """Return a number that JSON has; None for unknown, infinite and not-a-number."""
    return value if value is not None and math.isfinite(value) else None


class Warned(Shape):
    """Something is missing or doubtful."""

    code: str
    """A stable word, such as "no-trend"."""
    text: str
    """A sentence for people."""


class DaemonState(Shape):
    """What is known about the daemon."""

    running: bool
    scope: Literal["user", "system"]
    """Whose: your own, or the machine's."""
    pid: Pid | None
    version: str | None
    started_at: Instant | None
    last_sample_at: Instant | None
    problems: tuple[str, ...]
    """What it cannot do, in sentences."""


class Head(Shape):
    """The first keys of every answer."""

    schema_version: Literal[1]
    """Raised when a key is renamed or retyped, not when one is added."""
    verb: str
    generated_at: Instant
    host: str
    """Name of the machine."""
    version: str
    """Of gpuwatchctl."""


class Answer(Head):
    """Base of the answer of a verb that succeeded; ``data`` is the payload."""

    VERB: ClassVar[str]
    """As it is typed."""
    source: str | None
    """Where the payload comes from: state-file, database, direct, files, ..."""
    stale_s: Seconds | None
    """Age of the live state."""
    warnings: tuple[Warned, ...]
    daemon: DaemonState | None
    """Null where it is not involved."""


def of_verb(verb: str, name: str, data: Any, title: str) -> type[Answer]:
    """Return the answer of a verb that has nothing but ``data`` beside the head.

    Parameters
    ----------
    verb
        As it is typed.
    name
        Of the answer, in the schemas.
    data
        Type of the payload.
    title
        When it is answered; the first line of its description.
    """
    struct: Any = msgspec.defstruct(
        name,
        [("verb", Literal[verb]), ("data", data)],
        bases=(Answer,),
        namespace={"__doc__": title, "VERB": verb},
        forbid_unknown_fields=True,
    )
    answer: type[Answer] = struct
    return answer


class Fault(Shape):
    """Why it failed."""

    kind: str
    """Class of the error, see docs/reference/errors.md."""
    message: str
    hint: str
    """What to do about it; may be empty."""
    exit_code: Annotated[int, Meta(ge=1, le=255)]
    page: str | None
    """Page of the documentation and its section; null for an error of usage."""


class Failure(Head):
    """The answer of any verb that failed."""

    verb: str
    """May be empty where it failed before one was recognised."""
    error: Fault


class ProcessId(Shape):
    """A process, for certain: pids are used again."""

    pid: Pid
    started_at: Instant | None


class Eta(Shape):
    """When memory is full: 5, 50 and 95 %."""

    low_s: Seconds | None
    mid_s: Seconds | None
    """Null where it may never be."""
    high_s: Seconds | None
    """Null when open: growth may end before."""


class DeviceId(Shape):
    """Which GPU."""

    uid: str
    """Stable, such as the UUID."""
    index: int | None
    """For display; changes when cards are moved."""
    name: str
    memory_total_bytes: Bytes | None


# Verdicts, blame, events: what is thought of a device or a process.


class Verdict(Shape):
    """A judgement."""

    leak: bool
    """A leaking pattern that the settings do not exclude."""
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


@overload
def verdict(finding: None) -> None: ...
@overload
def verdict(finding: model.Finding) -> Verdict: ...
def verdict(finding: model.Finding | None) -> Verdict | None:
    """Return a judgement; None where there is none."""
    if finding is None:
        return None
    level = finite(finding.levels_off_bytes)
    return fill(
        Verdict,
        finding,
        leak=is_leak(finding),
        eta=fill(Eta, finding.eta),
        levels_off_bytes=None if level is None else round(level),
        reason=text.clean(finding.reason, limit=LONGEST),
        advice=lines(finding.advice),
    )


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
    """What no process owns while the device is idle."""


class HappenedShape(Shape):
    """Something that happened to a device."""

    at: Instant
    kind: EventKind
    text: str
    code: int | None
    """Number of an XID, for example."""
    hardware: bool | None
    """True: check it first; false: caused by the application; null: neither, or unknown."""


class BlameShape(Shape):
    """Whose growth it is."""

    pid: Pid | None
    """Null: memory that no process owns."""
    started_at: Instant | None
    name: str
    share: Share | None
    rate_bytes_per_s: float | None


def blame(shares: Iterable[model.Blame]) -> tuple[BlameShape, ...]:
    """Return whose growth it is."""
    return tuple(
        fill(
            BlameShape,
            share,
            pid=None if share.process is None else share.process.pid,
            started_at=None if share.process is None else units.instant(share.process.started_at_s),
        )
        for share in shares
    )


class KnownShape(Shape):
    """What is known beside the curve."""

    runs: Count
    """Earlier runs of the same program that count."""
    word: Word | None
    """The last label of one of them, or of this one."""
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


Who = TypeVar("Who", bound=Info)


def info(kind: type[Who], who: model.ProcessInfo, /, **given: Any) -> Who:
    """Return who a process is, and what else is given of it."""
    return fill(
        kind,
        who,
        pid=who.key.pid,
        started_at=units.instant(who.key.started_at_s),
        framework_sure=who.framework_sure if who.framework else None,
        **given,
    )


class Process(Info):
    """A process on a device."""

    kind: str
    """C, G, M, joined with +."""
    used_bytes: Bytes | None
    sm_pct: float | None
    host_bytes: Bytes | None
    """Anonymous memory and swap on the host."""
    history: KnownShape | None
    """Null where the program cannot be recognised."""
    verdict: Verdict | None
    host_verdict: Verdict | None
    """On the host's memory."""


def process(live: LiveProcess) -> Process:
    """Return a process on a device."""
    return info(
        Process,
        live.info,
        kind=live.kind,
        used_bytes=live.used_bytes,
        sm_pct=finite(live.sm_pct),
        host_bytes=live.host_bytes,
        history=fill(KnownShape, live.history),
        verdict=verdict(live.finding),
        host_verdict=verdict(live.host_finding),
    )


class HoldingShape(Shape):
    """Idle memory."""

    id: str
    kind: HoldingKind
    device_uid: str
    process: Info | None
    """Null when no process is known to hold it."""
    held_bytes: Bytes | None
    since_at: Instant | None
    evidence: str
    advice: tuple[str, ...]
    gib_hours: float | None
    cost_usd: float | None
    """Null without a price."""


def holding(held: model.Holding) -> HoldingShape:
    """Return idle memory."""
    return fill(
        HoldingShape,
        held,
        process=None if held.process is None else info(Info, held.process),
        evidence=text.clean(held.evidence, limit=LONGEST),
        advice=lines(held.advice),
    )
