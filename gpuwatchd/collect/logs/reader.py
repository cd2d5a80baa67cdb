"""What a format is, and the one reader of rows: role -> text becomes readings.

A format takes its text apart into such rows. The roles are those of :data:`PLACE_ROLES` and
:data:`MEMORY_ROLES`, ``time`` and ``clock`` (time of day, where ``time`` is a date), ``pid``,
``process``, ``user`` and ``started`` of a process, ``utilisation`` and ``power`` of a device.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, Place
from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector, Places, Time, Track
    from gpuwatchd.collect.logs.fields import Clock
    from gpuwatchd.core.model import FloatArray

    Row = Mapping[str, str]

PLACE_ROLES = ("host", "uuid", "bus", "index", "name", "total")
MEMORY_ROLES = ("used", "free", "total", "reserved")
ACTIVITY_ROLES = ("utilisation", "power")
NO_AMOUNT = "processes are listed without a memory figure"
GIVE_TOTAL = "pass --total, for example --total 24GiB"


class RowDevices:
    """Which device a row is about, as the columns tell that there are.

    Without a column that names a device, rows of one time are counted.
    """

    def __init__(self, places: Places, totals: Mapping[str, float], vendor: str) -> None:
        self._places = places
        self._totals = totals
        self._vendor = vendor
        self._by_cells = fields.CachedValues(self._find)
        self._nth = 0
        self._last_time: Time = None
        self.choose(PLACE_ROLES)

    def choose(self, roles: Container[str]) -> None:
        """Take the roles that columns have."""
        self._roles = [role for role in PLACE_ROLES if role in roles]
        self.numbered = not {"uuid", "bus", "index"}.isdisjoint(self._roles)

    def of(self, row: Row, t: Time = None) -> Place:
        """Return the device of a row."""
        if not self.numbered and t is not None:
            self._nth = self._nth + 1 if t == self._last_time else 0
            self._last_time = t
        return self._by_cells[self._nth, *map(row.get, self._roles)]

    def of_block(
        self, columns: Mapping[str, Sequence[str]], t: FloatArray | None, last: Time
    ) -> list[Place]:
        """Return the devices of many rows; ValueError where their times have to be counted."""
        if not self.numbered and t is not None:
            again = self._last_time is not None and self._last_time[0] == t[0]
            if again or (np.diff(t) == 0).any():
                raise ValueError("several rows of one time")
        keys = zip(repeat(0, len(columns["used"])), *map(columns.get, self._roles), strict=True)
        places = list(map(self._by_cells.__getitem__, keys))
        self._nth, self._last_time = 0, last
        return places

    def _find(self, key: tuple[Any, ...]) -> Place:
        nth, *cells = key
        row = dict(zip(self._roles, cells, strict=True))
        index = fields.whole(row.get("index")) if self.numbered else nth
        if index is None and fields.value_or_none(row.get("index")) is not None:
            raise BadRow("torn")
        total = self._totals[row.get("total") or ""]
        return self._places.find(
            Place(
                uuid=fields.uuid(row.get("uuid")),
                bus=fields.bus(row.get("bus")),
                index=index,
                host=fields.value_or_none(row.get("host")),
                name=fields.value_or_none(row.get("name")),
                total=total if total > 0 else None,
                vendor=self._vendor,
            )
        )


class RowReader:
    """Reads rows of one format.

    Parameters
    ----------
    sink
        Where devices, processes and readings go.
    lacking
        Why rows without a column of used memory give none, and what would help.
    units, vendor
        See :class:`FormatReader`.
    clock
        How times are read, where a column of times has a unit.
    ticks
        Rows without a time count ticks.
    """

    unified_hint = ""
    unitless = False
    """The unit of used memory has to be told from the numbers."""

    def __init__(
        self,
        sink: Collector,
        lacking: tuple[str, str] | None = None,
        *,
        units: Mapping[str, float | None] | None = None,
        vendor: str = "nvidia",
        clock: Clock | None = None,
        ticks: bool = True,
    ) -> None:
        self.sink = sink
        self._lacking = lacking
        self.clock = clock or sink.clock
        self._ticks = ticks
        self._amounts = {
            role: fields.CachedValues(partial(fields.amount, unit=(units or {}).get(role) or MIB))
            for role in MEMORY_ROLES
        }
        self._figures = fields.CachedValues(figure)
        self.devices = RowDevices(sink.places, self._amounts["total"], vendor)

    def take(self, row: Row, line: int) -> None:
        """Read a row, or count it as a bad one."""
        with self.sink.counts.row(line):
            self.read(row)

    def read(self, row: Row, *, bad_time: str = "bad time") -> None:
        """Read a row, of a process where it has a pid; BadRow or ValueError where it is none."""
        t = self.time(row, bad_time)
        if "pid" in row and (row["pid"].strip() or "uuid" not in row):
            self.process(row, t)
        else:
            self.device(row, t)

    def time(self, row: Row, bad_time: str = "bad time") -> Time:
        """Return the time of a row, read both ways; None where it has none."""
        if "time" not in row:
            return None
        text = f"{row['time'].strip()} {row['clock'].strip()}" if "clock" in row else row["time"]
        t = self.clock.both(text)
        if math.isnan(t[0]) and math.isnan(t[1]):
            raise BadRow(bad_time)
        return t

    def device(self, row: Row, t: Time, place: Place | None = None) -> None:
        """Read how much memory is used of a device, the one of its row where none is given."""
        if self._lacking is not None and "used" not in row:
            self.sink.lacks_memory(*self._lacking)
            raise BadRow("no memory column")
        amounts = {role: self._amounts[role][row[role]] for role in MEMORY_ROLES if role in row}
        used = used_of(amounts, self.sink.options.total_bytes)
        place = place or self.devices.of(row, t)
        if used is None:
            raise self.absent(amounts)
        if contradicts(amounts):
            raise BadRow("torn")
        if t is None and self._ticks:
            self.sink.ticks.of(place.order)
        track = self.sink.point(place, t, used)
        if track is None:
            return
        self.describe(track, amounts)
        for role in ACTIVITY_ROLES:
            if role in row and t is not None and t[0] == t[1]:
                track.note_activity(role, t[:1], (self._figures[row[role]],))

    def process(
        self, row: Row, t: Time, place: Place | None = None, argv: Iterable[str] = ()
    ) -> None:
        """Read how much memory a process holds, on the device of its row where none is given."""
        text = row.get("pid", "")
        pid = fields.whole(text)
        process = None
        if pid is not None:
            started_at_s = self.sink.clock.parse(row.get("started", ""))
            process = self.sink.processes.find(
                pid,
                fields.value_or_none(row.get("process")),
                user=fields.value_or_none(row.get("user")),
                argv=argv,
                started_at_s=None if math.isnan(started_at_s) else started_at_s,
            )
        if process is None:
            raise BadRow("not available" if fields.not_available(text) else "torn")
        used = self._amounts["used"][row["used"]] if "used" in row else math.nan
        if math.isnan(used):
            raise self._without_amount(row)
        place = place or self.devices.of(row)
        if place.total is not None and used > place.total:
            raise BadRow("torn")
        if t is None and self._ticks:
            self.sink.ticks.of((place.order, pid))
        track = self.sink.point(place, t, used, process)
        if track is not None:
            track.unitless |= self.unitless

    def absent(self, amounts: Mapping[str, float]) -> BadRow:
        """Return how a row without used memory is counted, and keep why the log may hold none."""
        if "used" in amounts:
            if math.isnan(amounts.get("total", 0.0)):
                self.say_unified()
        elif "free" in amounts:
            why = "free memory without a total: no figure for used memory"
            self.sink.lacks_memory(why, GIVE_TOTAL)
        return BadRow("not available")

    def _without_amount(self, row: Row) -> BadRow:
        """Return how a process without used memory is counted, and keep why there is none."""
        lacking = None if "used" in row else self._lacking
        if self.sink.no_memory is None:
            self.sink.lacks_memory(*(lacking or (NO_AMOUNT,)))
        return BadRow("not available" if lacking is None else "no memory column")

    def say_unified(self) -> None:
        """Keep the reason of a row with neither a used nor a total figure."""
        self.sink.lacks_memory("unified memory: this log holds no memory figure", self.unified_hint)

    def describe(self, track: Track, amounts: Mapping[str, float]) -> None:
        """Keep what the latest row of a device tells beside its used memory."""
        track.unitless |= self.unitless
        track.counted = not self.devices.numbered
        total = amounts.get("total", math.nan)
        both = amounts.get("used", math.nan) + amounts.get("free", math.nan)
        if math.isnan(total) and math.isfinite(both):
            total = both + (amounts.get("reserved") or 0.0)
        track.remember(total if total > 0 else math.nan, both)


# Whether the figures of a row can be true together.

SLACK = 1.02
"""Used and free may exceed the total by rounding only."""
RESERVE_SHARE, RESERVE_BYTES = 0.1, 1.5 * 1024**3
"""What the driver may keep for itself where no column says so: the larger of the two."""


def used_of(amounts: dict[str, float], total_bytes: float | None) -> float | None:
    """Return used memory, from total and free where it is not printed; None when unknown."""
    used = amounts.get("used")
    if used is not None:
        return used if math.isfinite(used) else None
    total = amounts.get("total", math.nan)
    if math.isnan(total) and total_bytes is not None:
        total = total_bytes
    left = total - amounts.get("free", math.nan)
    return left if math.isfinite(left) and left >= 0 else None


def contradicts(amounts: Mapping[str, Any]) -> Any:
    """Return whether the figures of a row, or of each row of arrays, cannot be true together.

    Examples
    --------
    >>> contradicts({"used": 3.0, "total": 2.0}), contradicts({"used": 1.0, "total": math.nan})
    (True, False)
    """
    used, free, total = (amounts.get(role, math.nan) for role in ("used", "free", "total"))
    both = used + free
    if "reserved" in amounts:
        both = both + np.nan_to_num(amounts["reserved"])
    # Without a reserved column the driver's reserve is missing from the sum.
    return (
        (used > total)
        | (free > total * SLACK)
        | (both > total * SLACK)
        | ((both < total - RESERVE_SHARE * total) & (both < total - RESERVE_BYTES))
    )


def figure(text: str) -> float:
    """Return the number that a cell begins with, "97 %" or "301.5 W"; NaN without one.

    Examples
    --------
    >>> figure(" 97 %"), figure("[N/A]")
    (97.0, nan)
    """
    try:
        return float(text.split(maxsplit=1)[0].rstrip("%W"))
    except (ValueError, IndexError):
        return math.nan


# What a format is, and how its text is gone through: line by line, or in documents.


class FormatReader(ABC):
    """What a format is: a class that FORMATS names, with what it declares of its rows."""

    start: ClassVar[re.Pattern[str]]
    """How a block of the format begins."""
    lacking: ClassVar[tuple[str, str] | None] = None
    """Why rows without used memory are no use, and what would help; ``{columns}`` are those found.
    None: such a row is one where the figure is not available."""
    units: ClassVar[Mapping[str, float]] = {}
    """Bytes per unit of a role whose texts name no unit; MiB for others."""
    vendor: ClassVar[str] = "nvidia"
    documents: ClassVar[bool] = False
    """Rows without a time are of the tick of their document, instead of counting ticks."""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
        self._rows = self._reader_of()

    def _reader_of(self, columns: Sequence[str] = ()) -> RowReader:
        """Return what reads rows of these columns."""
        why, hint = self.lacking or ("", "")
        lacking = (why.format(columns=", ".join(columns)), hint) if why else None
        return RowReader(
            self._sink, lacking, units=self.units, vendor=self.vendor, ticks=not self.documents
        )

    @classmethod
    def starts(cls, lines: Sequence[str], at: int) -> bool:
        """Say whether a block of this format begins at line ``at``."""
        return cls.start.match(lines[at]) is not None

    @abstractmethod
    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines from the front; return how many."""

    def close(self) -> None:  # noqa: B027 - most formats hold nothing back
        """End a block: another format follows, or the end of the log."""


class LineReader(FormatReader):
    """A format that is read line by line."""

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines up to the first that is not of this format; return how many."""
        for number, line in enumerate(lines, first_line):
            if stripped := line.strip():
                with self._sink.counts.row(number):
                    if not self.line(line, stripped, number):
                        return number - first_line
        return len(lines)

    @abstractmethod
    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a line that is not blank; say whether it is of this format.

        A line is counted as a bad row where this raises ValueError.
        """


_MAX_CHARS = 32 << 20
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)')
"""One that is not closed ends with its line: else each quote in it would be tried again."""
_HEAD_LINES = 60
_HEAD_CHARS = 8192


class DocumentReader(LineReader):
    """Base of formats whose documents take many lines: gathers the lines of one."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._lines: list[str] = []
        self._chars = 0
        self._line = 0

    def close(self) -> None:
        """Count a document that never ended."""
        if self._lines:
            self._torn()

    def _add(self, line: str, number: int) -> None:
        if not self._lines:
            self._line = number
        self._lines.append(line)
        self._chars += len(line)

    def _text(self) -> str:
        """Return what was gathered, and begin anew."""
        lines, self._lines, self._chars = self._lines, [], 0
        return "\n".join(lines)

    def _torn(self) -> None:
        self._text()
        self._sink.counts.bad("torn", self._line)


def head_of(lines: Sequence[str], at: int) -> str:
    """Return the beginning of a JSON text that starts at a line, or "" when none does."""
    first = lines[at].lstrip()
    if first[:1] not in {"{", "["}:
        return ""
    size, parts = 0, []
    for line in lines[at : at + _HEAD_LINES]:
        parts.append(line[:_HEAD_CHARS])
        size += len(line)
        if size > _HEAD_CHARS:
            break
    head = "\n".join(parts)
    return head if "{" in head else ""


class JsonReader(DocumentReader):
    """Base of the JSON formats: pretty-printed or one value per line, in an array or not."""

    _depth = 0

    @classmethod
    def starts(cls, lines: Sequence[str], at: int) -> bool:
        """Say whether a value with something that the format is known by begins here."""
        return cls.start.search(head_of(lines, at)) is not None

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a line of a JSON value; text between two values is not ours."""
        if not self._lines:
            if not stripped.strip("[],"):
                return True
            if stripped.lstrip("[, ")[:1] != "{":
                return False
            self._depth = 0
        elif line[:1] == "{" and self._lines[0][:1] == "{":
            # Pretty printing indents what is inside: the value before was cut off.
            self._torn()
            self._depth = 0
        self._add(line, number)
        bare = _STRING.sub("", line)
        self._depth += bare.count("{") - bare.count("}")
        if self._depth <= 0:
            self._parse()
        elif self._chars > _MAX_CHARS:
            self._torn()
        return True

    @abstractmethod
    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""

    def _parse(self) -> None:
        text, at, decoder = self._text(), 0, json.JSONDecoder()
        while at < len(text):
            if text[at] in " \t\n,[]":
                at += 1
                continue
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self._sink.counts.bad("torn", self._line)
                return
            with self._sink.counts.row(self._line):
                if not isinstance(value, dict):
                    raise BadRow("torn")
                self.value(value, self._line)


def text_of(value: object) -> str:
    """Return a JSON scalar as a table would print it; null and false are not available."""
    return "" if value is None or isinstance(value, bool | dict | list) else str(value)
