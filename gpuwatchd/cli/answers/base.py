"""What every answer has in common: the head, warnings, errors, and how values are written."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
    generated_at: Instant
    host: str
    """Name of the machine."""
    version: str
    """Of gpuwatchctl."""


class Answer(Head):
    """Base of the answer of a verb that succeeded; ``data`` is the payload."""

    source: str | None
    """Where the payload comes from: state-file, database, direct, files, ..."""
    stale_s: Seconds | None
    """Age of the live state."""
    warnings: tuple[Warned, ...]
    daemon: DaemonState | None
    """Null where it plays no part."""


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
    """May be empty where none was recognised."""
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
