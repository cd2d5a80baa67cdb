"""Rows of a table with one layout: whole blocks by column, odd blocks row by row."""

from __future__ import annotations

import csv
import math
import re
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, Place, remember
from gpuwatchd.collect.logs.fields import Clock, is_amount, layout_of
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time, Track
    from gpuwatchd.collect.logs.fields import Layout
    from gpuwatchd.core.model import FloatArray

FOREIGN = re.compile(
    r"\s*(?:[{}\[+|=#*<~]|NVIDIA-SMI|No devices|Unable to|Failed to|Traceback"
    r"|GPU [0-9A-Fa-f]{4,8}:)"
)
"""Starts of lines that are no torn rows of a table but something else."""
_LONE_DATE = re.compile(r"\s*\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s*")
_BLOCK_ROWS = 1024
"""Small enough for the caches of a processor that others use too."""
_SMALL_ROWS = 32
"""So few rows are not worth another try by columns."""
_PLACE_ROLES = ("host", "uuid", "bus", "index", "name", "total")
_MEMORY_ROLES = ("used", "free", "total", "reserved")
_ACTIVITY = ("utilisation", "power")
NO_AMOUNT = "processes are listed without a memory figure"
WHAT_TO_LOG = (
    "log it with nvidia-smi --query-gpu=timestamp,index,uuid,memory.used,memory.total "
    "--format=csv -l 5"
)

NAME_COLUMNS = "name the columns: --columns timestamp,index,memory.used,memory.total"

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


def between(line: str) -> bool:
    """Say whether a line only separates rows: blank, a rule, or a date alone.

    Examples
    --------
    >>> between("----"), between("2026-02-03 10:00:00"), between("2026-02-03 10:00:00, 1")
    (True, True, False)
    """
    return not line.strip(" \t-=*_#") or _LONE_DATE.fullmatch(line) is not None


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


def table_of(layout: Layout, sink: Collector, header: str = "") -> Table:
    """Return what reads the rows of a layout: of processes where it has a column of pids."""
    return (ProcessTable if "pid" in layout.roles else Table)(layout, sink, header)


class Table:
    """Reads the rows under one header; by column, which is ten times faster than row by row."""

    def __init__(self, layout: Layout, sink: Collector, header: str = "") -> None:
        self.layout = layout
        self.sink = sink
        self.header = header
        self._chosen = not layout.index_choices
        options = sink.options
        self._clock = sink.clock
        if layout.time_unit is not None:
            self._clock = Clock(options.tz, options.date_order, layout.time_unit)
        self._amounts = {
            role: fields.CachedValues(partial(fields.amount, unit=layout.unit(role)))
            for role in _MEMORY_ROLES
        }
        self._figures = fields.CachedValues(figure)
        self._places = fields.CachedValues(self._find)
        self._nth = 0
        self._last_time: Time = None
        self._held = ""
        self._settle()
        if layout.guessed is not None and "used" in layout.roles:
            sink.note(f"column {clean(layout.guessed, limit=40)!r} is read as used memory")

    @property
    def has_memory(self) -> bool:
        """Whether an amount of used memory can come out of these columns."""
        roles = self.layout.roles
        total = "total" in roles or self.sink.options.total_bytes is not None
        return "used" in roles or ("free" in roles and total)

    def _settle(self) -> None:
        self._identity = [role for role in _PLACE_ROLES if role in self.layout.roles]
        self._numbered = not {"uuid", "bus", "index"}.isdisjoint(self._identity)

    def _choose_index(self, rows: Sequence[Sequence[str]]) -> None:
        """Take the index column that counts devices; one that holds words is a name."""
        self._chosen = True
        most = 0
        for position in self.layout.index_choices:
            values = {fields.whole(row[position]) for row in rows} - {None}
            if not values and any(fields.value_or_none(row[position]) for row in rows):
                self.layout.roles.setdefault("name", position)
            elif len(values) > most:
                self.layout.roles["index"], most = position, len(values)
        self._settle()

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take rows; return how many lines were taken before one that is no row of this table."""
        if not self._chosen:
            rows = map(self._cells, lines[:64])
            self._choose_index([row for row in rows if len(row) == self.layout.width])
        for start in range(0, len(lines), _BLOCK_ROWS):
            part = lines[start : start + _BLOCK_ROWS]
            taken = self._part(part, first_line + start)
            if taken < len(part):
                return start + taken
        return len(lines)

    def close(self) -> None:
        """Count a quoted row that never ended."""
        if self._held:
            self._held = ""
            self.sink.bad("torn", self.sink.open_line or 0)

    def _part(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines by columns; where something is odd, look for it in ever smaller parts."""
        if not self._held and self._by_column(lines, first_line):
            return len(lines)
        if len(lines) <= _SMALL_ROWS:
            return self._by_row(lines, first_line)
        half = len(lines) // 2
        taken = self._part(lines[:half], first_line)
        return taken if taken < half else half + self._part(lines[half:], first_line + half)

    def _by_column(self, lines: Sequence[str], first_line: int) -> bool:
        """Read a block by columns; False, and nothing stored, when anything in it is odd."""
        if "used" not in self.layout.roles or self.sink.open_line is not None:
            return False  # no memory to look at, or the block with the unfinished last line
        with suppress(ValueError, csv.Error):
            self._block(lines, first_line)
            return True
        rows = [line for line in lines if line != self.header and not between(line)]
        if 0 < len(rows) < len(lines):
            with suppress(ValueError, csv.Error):
                self._block(rows, None)
                return True
        return False

    def _block(self, lines: Sequence[str], first_line: int | None) -> None:
        """Store the readings of a block; without ``first_line`` other lines were taken out of it.

        Raises
        ------
        ValueError
            When a row is odd; nothing is stored then.
        """
        columns = self._columns(lines)
        amounts = {
            role: np.array(list(map(self._amounts[role].__getitem__, columns[role])))
            for role in _MEMORY_ROLES
            if role in columns
        }
        used = amounts["used"]
        good = np.isfinite(used)
        if np.any(contradicts(amounts)) or (first_line is None and not good.all()):
            raise ValueError("figures that need a closer look")
        t, other = self._times(columns)
        if not self._numbered and t is not None:
            # Rows of one time count devices: those are taken row by row.
            again = self._last_time is not None and self._last_time[0] == t[0]
            if again or (np.diff(t) == 0).any():
                raise ValueError("several rows of one time")
        keys = zip(repeat(0, len(lines)), *map(columns.__getitem__, self._identity), strict=True)
        places = list(map(self._places.__getitem__, keys))
        timed = t is not None
        if t is None:
            t = np.array([self.sink.ticks.of(place.order) for place in places])
        self._nth = 0
        self._last_time = (float(t[-1]), float((t if other is None else other)[-1]))
        if absent := int((~good).sum()):
            if "total" in amounts and np.isnan(amounts["total"][~good]).any():
                self._say_unified()
            self.sink.bad("not available", (first_line or 0) + int(np.argmin(good)), absent)
        self.sink.good(int(good.sum()))
        busy = {
            role: np.array(list(map(self._figures.__getitem__, columns[role])))
            for role in _ACTIVITY
            if role in columns and timed and other is None
        }
        orders = np.array([place.order for place in places])
        for place in dict.fromkeys(places):
            rows = np.flatnonzero((orders == place.order) & good)
            track = self.sink.track(place, timed=timed) if rows.size else None
            if track is not None:
                track.add(t[rows], used[rows], None if other is None else other[rows])
                last = {role: float(values[rows[-1]]) for role, values in amounts.items()}
                self._remember(track, last)
                for role, figures in busy.items():
                    track.note_activity(role, t[rows].tolist(), figures[rows].tolist())

    def _columns(self, lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the columns that matter, when all rows are of the header's width."""
        separator = self.layout.separator
        if '"' not in "".join(lines):
            rows = [line.split(separator) for line in lines]
        elif any(line.count('"') % 2 for line in lines):
            raise ValueError("a cell goes on in the next line")
        else:
            rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
        if len(rows) != len(lines) or set(map(len, rows)) != {self.layout.width}:
            raise ValueError("rows of another width")
        table = list(zip(*rows, strict=True))
        return {role: table[at] for role, at in self.layout.roles.items()}

    def _times(
        self, columns: Mapping[str, Sequence[str]]
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return the times of a block, read both ways; None where they are alike or absent."""
        if "time" not in columns:
            return None, None
        texts = list(map(str.strip, columns["time"]))
        if "clock" in columns:
            texts = list(map(" ".join, zip(texts, map(str.strip, columns["clock"]), strict=True)))
        times = self._clock.column(texts)
        if times is not None:
            return times, None
        pairs = np.array(list(map(self._clock.both, texts)), dtype=np.float64)
        if np.isnan(pairs).all(axis=1).any():
            raise ValueError("not a time")
        t, other = pairs.T
        return t, None if (t == other).all() else other

    def _by_row(self, lines: Sequence[str], first_line: int) -> int:
        for number, line in enumerate(lines):
            if self._held:
                line = f"{self._held}\n{line}"  # noqa: PLW2901 - a quoted cell goes on
                self._held = ""
            elif line == self.header or between(line):
                continue
            elif self._foreign(line):
                return number
            if line.count('"') % 2 and line.count("\n") < 8:
                self._held = line
                continue
            self.take(self._cells(line), first_line + number)
        return len(lines)

    def _foreign(self, line: str) -> bool:
        if FOREIGN.match(line) and not line.startswith("[N"):
            return True
        if self.layout.width == 1:
            return not is_amount(line)
        if self.layout.separator not in line:
            return True
        return line[:1].isalpha() and layout_of(line) is not None

    def _cells(self, line: str) -> list[str]:
        separator = self.layout.separator
        cells = line.split(separator)
        if '"' in line:
            reader = csv.reader(line.split("\n"), delimiter=separator, skipinitialspace=True)
            try:
                cells = next(reader, [])
            except csv.Error:
                return []
        if len(cells) == self.layout.width + 1 and not cells[-1].strip():
            cells.pop()
        return cells

    def take(self, cells: Sequence[str], number: int) -> None:
        """Take one row that is already in cells."""
        if not self._chosen:
            self._choose_index([cells])
        unfinished = number == self.sink.open_line
        with self.sink.row(number, "torn" if unfinished else "bad number"):
            self._row(cells, number, unfinished=unfinished)

    def _row(self, cells: Sequence[str], number: int, *, unfinished: bool) -> None:
        if len(cells) != self.layout.width:
            if not (unfinished or self.sink.no_memory):
                text = f"line {number}: {len(cells)} cells under {self.layout.width} columns"
                self.sink.lacks_memory(text, NAME_COLUMNS)
                if len(cells) == self.layout.width + 1:
                    self.sink.note(text)
            raise BadRow("torn")
        row = {role: cells[at] for role, at in self.layout.roles.items()}
        t = self._time(row)
        if t is not None and math.isnan(t[0]) and math.isnan(t[1]):
            raise BadRow("torn" if unfinished else "bad time")
        if unfinished and any(
            self.layout.roles[role] == self.layout.width - 1 and row[role].strip()[-1:].isdigit()
            for role in _MEMORY_ROLES
            if role in row
        ):
            raise BadRow("torn")  # it ends inside a number that we use
        self._reading(row, t)

    def _time(self, row: dict[str, str]) -> Time:
        if "time" not in row:
            return None
        text = f"{row['time'].strip()} {row['clock'].strip()}" if "clock" in row else row["time"]
        return self._clock.both(text)

    def _reading(self, row: dict[str, str], t: Time) -> None:
        amounts = {role: self._amounts[role][row[role]] for role in _MEMORY_ROLES if role in row}
        used = used_of(amounts, self.sink.options.total_bytes)
        place = self._place(row, t)
        if used is None:
            raise self._absent(amounts)
        if contradicts(amounts):
            raise BadRow("torn")
        if t is None:
            self.sink.ticks.of(place.order)
        track = self.sink.point(place, t, used)
        if track is not None:
            self._remember(track, amounts)
            for role in _ACTIVITY:
                if role in row and t is not None and t[0] == t[1]:
                    track.note_activity(role, t[:1], (self._figures[row[role]],))

    def _absent(self, amounts: dict[str, float]) -> BadRow:
        """Return how a row without used memory is counted, and keep why the log may hold none."""
        if not self.has_memory:
            return BadRow("no memory column")
        if "used" in amounts and math.isnan(amounts.get("total", 0.0)):
            self._say_unified()
        elif "used" not in amounts:
            why = "free memory without a total: no figure for used memory"
            self.sink.lacks_memory(why, "pass --total, for example --total 24GiB")
        return BadRow("not available")

    def _say_unified(self) -> None:
        """Keep the reason of a row with neither a used nor a total figure."""
        why = "unified memory: this log holds no memory figure"
        self.sink.lacks_memory(why, "use the output of nvidia-smi --query-compute-apps")

    def _place(self, row: dict[str, str], t: Time) -> Place:
        """Return the device of a row; without a device column, rows of one time are counted."""
        if not self._numbered and t is not None:
            self._nth = self._nth + 1 if t == self._last_time else 0
            self._last_time = t
        return self._places[self._nth, *map(row.__getitem__, self._identity)]

    def _find(self, key: tuple[Any, ...]) -> Place:
        nth, *texts = key
        row = dict(zip(self._identity, texts, strict=True))
        index = fields.whole(row.get("index")) if self._numbered else nth
        if index is None and fields.value_or_none(row.get("index")) is not None:
            raise BadRow("torn")
        total = self._amounts["total"][row["total"]] if "total" in row else 0.0
        return self.sink.places.find(
            Place(
                uuid=fields.uuid(row.get("uuid")),
                bus=fields.bus(row.get("bus")),
                index=index,
                host=fields.value_or_none(row.get("host")),
                name=fields.value_or_none(row.get("name")),
                total=total if total > 0 else None,
            )
        )

    def _remember(self, track: Track, amounts: dict[str, float]) -> None:
        track.unitless |= self.layout.unitless()
        track.counted = not self._numbered
        used, free = amounts.get("used", math.nan), amounts.get("free", math.nan)
        total = amounts.get("total", math.nan)
        both = used + free
        if math.isnan(total) and math.isfinite(both):
            total = both + (amounts.get("reserved") or 0.0)
        remember(track, total if total > 0 else None, both)


class ProcessTable(Table):
    """A table whose rows are processes; a row without a pid is about the device."""

    def _part(self, lines: Sequence[str], first_line: int) -> int:
        return self._by_row(lines, first_line)

    def _cells(self, line: str) -> list[str]:
        """Split a row; an unquoted process name in its middle may hold separators."""
        cells, at = line.split(self.layout.separator), self.layout.roles.get("process")
        extra = len(cells) - self.layout.width
        if '"' in line:
            return super()._cells(line)
        if extra > 0 and at is not None:
            cells[at : at + extra + 1] = [self.layout.separator.join(cells[at : at + extra + 1])]
        return cells

    def _reading(self, row: dict[str, str], t: Time) -> None:
        if not row["pid"].strip() and "uuid" in row:
            super()._reading(row, t)
            return
        pid = fields.whole(row["pid"])
        process = None
        if pid is not None:
            name = row.get("process", "").strip()
            started_at_s = self.sink.clock.parse(row.get("started", ""))
            process = self.sink.process(
                pid,
                None if fields.not_available(name) else name,
                user=fields.value_or_none(row.get("user")),
                started_at_s=None if math.isnan(started_at_s) else started_at_s,
            )
        if process is None:
            torn = fields.value_or_none(row["pid"]) is not None
            raise BadRow("torn" if torn else "not available")
        used = self._amounts["used"][row["used"]] if "used" in row else math.nan
        if math.isnan(used):
            self.sink.no_memory = self.sink.no_memory or NO_AMOUNT
            raise BadRow("not available")
        place = self._place(row, None)
        if place.total is not None and used > place.total:
            raise BadRow("torn")
        if t is None:
            self.sink.ticks.of((place.order, pid))
        track = self.sink.point(place, t, used, process=process)
        if track is not None:
            track.unitless |= self.layout.unitless()
