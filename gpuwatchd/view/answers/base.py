"""What every answer has in common: the head, warnings, errors, and how values are written."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    overload,
)

import msgspec
from msgspec import UNSET, Meta

from gpuwatchd import __version__
from gpuwatchd.core import text, units
from gpuwatchd.core.model import (
    EventKind,
    LedgerState,
    MemoryKind,
    Pattern,
    Severity,
    Tier,
    is_leak,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.view.queries.current_view import View


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


Sentence = str
"""A text of up to :data:`LONGEST` characters, where :func:`fill` writes it."""
FilePath = str
"""A text of up to 4096."""
AsItIs = str
"""A text that :func:`fill` neither cleans nor cuts."""
_LIMITS: Final = {"Sentence": LONGEST, "FilePath": 4096}


class Shape(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every shape. A key that no shape knows fails a test, not a reader."""

    FROM: ClassVar[dict[str, Any]] = {}
    """Key -> where :func:`fill` finds it if not under its own name: a path of attributes (null
    where one on the way is None), or what makes it of the value."""


def sources(**found: str | Callable[[Any], Any]) -> dict[str, Any]:
    """Return :attr:`Shape.FROM`."""
    return found


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
        ``*_s``, where there are such; numbers are finite or null, texts and lists of texts are
        clean, what is a shape itself is filled likewise. A text that may be null is null where it
        is empty; what may be absent is so where the value has no such attribute.
    of
        Whose attributes; None gives None, () is where all keys are given.
    given
        Keys that are found elsewhere; they are written likewise.
    """
    if of is None:
        return None
    parts = _parts(kind)
    found = {name: part.read(of) for name, part in parts.items() if name not in given} | given
    return kind(**{name: parts[name].convert(value) for name, value in found.items()})


class _Part(msgspec.Struct, frozen=True):
    """How one key of a shape is made of a value."""

    source: str | Callable[[Any], Any]
    word: str
    """The type, of a list that of its items."""
    shape: type[Shape] | None
    many: bool
    optional: bool = False
    absent: bool = False
    """It may be."""

    def read(self, of: Any) -> Any:
        if not isinstance(self.source, str):
            return self.source(of)
        *path, name = self.source.split(".")
        missing = (UNSET,) if self.absent else ()
        for step in path:
            of = getattr(of, step, *missing)
            if of is None or of is UNSET:
                return of
        if self.word == "Instant":
            names = (f"{name}_s", f"{name[:-3]}_s")
            name = next((one for one in names if hasattr(of, one)), name)
        return getattr(of, name, *missing)

    def convert(self, found: Any) -> Any:
        """JSON has neither infinities nor control characters."""
        if found is UNSET:
            return found
        if self.many:
            if found is None:
                return None if self.optional else ()
            return tuple(map(self._convert_one, found))
        if isinstance(found, dict):
            return {text.clean(key): self._convert_one(value) for key, value in found.items()}
        found = self._convert_one(found)
        return None if found == "" and self.optional else found

    def _convert_one(self, found: Any) -> Any:
        if self.shape is not None:
            return found if isinstance(found, self.shape) else fill(self.shape, found)
        if self.word == "AsItIs":
            return found
        if isinstance(found, str):
            return text.clean(found, limit=_LIMITS.get(self.word, text.MAX_CHARS))
        if self.word == "Instant":
            return units.instant(found)
        if isinstance(found, float):
            found = finite(found)
            return round(found) if self.word == "Bytes" and found is not None else found
        return found


@cache
def _parts(kind: type[Shape]) -> dict[str, _Part]:
    parts = {}
    for base in kind.__mro__[::-1]:
        for name, annotation in vars(base).get("__annotations__", {}).items():
            words = re.match(r"(tuple\[)?(\w+)", annotation)
            if name in kind.__struct_fields__ and words is not None:
                named = vars(sys.modules[base.__module__]).get(words[2])
                shape = named if isinstance(named, type) and issubclass(named, Shape) else None
                parts[name] = _Part(
                    source=kind.FROM.get(name, name),
                    word=words[2],
                    shape=shape,
                    many=words[1] is not None,
                    optional=annotation.endswith("None"),
                    absent="UnsetType" in annotation,
                )
    return parts


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


SCHEMA_VERSION: Final = 1
"""Raised when a key is renamed or retyped, not when one is added."""


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
    DATA: ClassVar[_Part | None] = None
    """How ``data`` is made of what it is about; None where that is written already."""
    source: str | None
    """Where the payload comes from: state-file, database, direct, files, ..."""
    stale_s: Seconds | None
    """Age of the live state."""
    warnings: tuple[Warned, ...]
    daemon: DaemonState | None
    """Null where it is not involved."""


def of_verb(verb: str, name: str, data: Any, title: str) -> type[Answer]:
    """Return the answer of a verb that has nothing but ``data``, of this type, beside the head.

    ``name`` is the answer's in the schemas; ``title``, when it is answered, begins its description.
    """
    shape, *more = get_args(data) or (data,)
    part = _Part(source="data", word=shape.__name__, shape=shape, many=bool(more))
    struct: Any = msgspec.defstruct(
        name,
        [("verb", Literal[verb]), ("data", data)],
        bases=(Answer,),
        namespace={"__doc__": title, "VERB": verb, "DATA": part},
        forbid_unknown_fields=True,
    )
    answer: type[Answer] = struct
    return answer


class Fault(Shape):
    """Why it failed."""

    kind: str
    """Class of the error, see docs/reference/errors.md."""
    message: Sentence
    hint: Sentence
    """What to do about it; may be empty."""
    exit_code: Annotated[int, Meta(ge=1, le=255)]
    page: AsItIs | None
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


class KeptBy(Shape):
    """A variable that keeps what grows, as it was found inside its process."""

    name: str
    """As the program writes it, such as `losses in train()`."""
    kind: str
    length: Count | None
    file: FilePath | None
    line: Count | None
    graph: bool
    """It keeps tensors with their graph: more memory than is counted."""
    held_bytes: Bytes | None
    rate_bytes_per_s: float | None
    """How fast what it keeps grew."""
    bounded_at_bytes: Bytes | None
    """What it keeps once it is full; null: no bound was found."""
    at: Instant


class FunctionGrowthShape(Shape):
    """What the calls of a function that a job marks have added so far."""

    name: str
    call_count: Count
    growth_bytes: Bytes


class FunctionRemarkShape(Shape):
    """A finding or an insight about functions that a job marks."""

    kind: str
    weight: Literal["critical", "warning", "info", "high", "medium", "low"]
    """The severity of a finding: critical to info; the impact of an insight: high to low."""
    functions: tuple[str, ...]
    facts: dict[str, float | None]
    confidence: Share


class AllocatorShape(Shape):
    """What the allocator of a framework says of the growth of its process."""

    verdict: Literal["flat", "tensors", "fragmentation", "outside", "free-cache"] | None
    """What grows; null: too little was seen."""
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    """Taken from the device, in tensors or free."""
    inactive_split_bytes: Bytes | None
    """Free, in blocks beside tensors."""
    functions: tuple[FunctionGrowthShape, ...]
    """The three that have added most, of those that the job marks (`probe.watch`)."""
    remarks: tuple[FunctionRemarkShape, ...]
    """What stood out of these when the alert opened, worst first."""
    score: Count | None
    """As of `inspect --functions`; null: not asked, or without figures."""


class SignalShape(Shape):
    """What one detector sees."""

    detector: str
    pattern: Pattern
    rate_bytes_per_s: float | None
    confidence: Share | None
    since_at: Instant | None
    n: Count
    """Samples, or steps."""
    facts: dict[str, float | None]


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
    signals: tuple[SignalShape, ...]
    """What each detector sees that the verdict rests on."""
    onset_at: Instant | None
    """When the growth began."""
    eta: Eta | None
    """Null when nothing fills up."""
    levels_off_bytes: Bytes | None
    """Where growth that slows down is expected to end."""
    reason: Sentence
    """One sentence."""
    advice: tuple[Sentence, ...]
    """What to check."""
    holder: KeptBy | None
    """Null where no variable is known."""
    allocator: AllocatorShape | None
    """Null where its process was not prepared with `gpuwatchctl run`."""
    FROM = sources(
        leak=is_leak,
        holder=lambda finding: finding.holder or None,
        allocator=lambda finding: finding.allocator or None,
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
    FROM = sources(pid="process.pid", started_at="process.started_at")


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
    FROM = sources(
        pid="key.pid",
        started_at="key.started_at",
        framework_sure=lambda who: who.framework_sure if who.framework else None,
    )


A = TypeVar("A", bound=Answer)


def host() -> str:
    """Return the name of this machine."""
    return text.clean(os.uname().nodename)


def _head(verb: str) -> dict[str, Any]:
    """Return the keys that every answer begins with."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verb": verb,
        "generated_at": units.instant(time.time()),
        "host": host(),
        "version": __version__,
    }


class Answered(NamedTuple):
    """An answer, and what it comes to."""

    answer: Any
    exit_code: int = 0
    """As of the verb with ``--exit-code``: 1 where no GPU could be read, 3 for findings."""


def answer_of(
    kind: type[A],
    data: Any,
    *,
    view: View | None = None,
    source: str | None = None,
    warnings: Iterable[tuple[str, str]] = (),
    **beside: Any,
) -> A:
    """Return the answer of a verb that succeeded.

    Parameters
    ----------
    data
        The payload, or what it is filled with.
    view
        Where that was seen; gives source, age, daemon and its own warnings.
    source
        Where the payload comes from when there is no view: "database", "files", ...
    warnings
        (code, sentence) of what is missing or doubtful.
    beside
        What belongs to the answer but is no part of the payload.
    """
    seen = [*(view.warnings if view is not None else ()), *warnings]
    parts = _parts(kind) if beside else {}
    whole: Any = kind
    answer: A = whole(
        **_head(kind.VERB),
        source=view.source if view is not None else source,
        stale_s=finite(view.stale_s) if view is not None else None,
        warnings=tuple(Warned(code=code, text=text.clean(words)) for code, words in seen),
        daemon=fill(DaemonState, view.daemon) if view is not None else None,
        data=data if kind.DATA is None else kind.DATA.convert(data),
        **{name: parts[name].convert(value) for name, value in beside.items()},
    )
    return answer


def failure(verb: str, kind: str, message: str, **parts: Any) -> Failure:
    """Return the answer of a verb that failed; the rest are the keys of :class:`Fault`."""
    return Failure(**_head(verb), error=fill(Fault, (), kind=kind, message=message, **parts))
