"""Rows of a table with one layout: whole blocks by column, odd blocks row by row."""

from __future__ import annotations

import csv
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, as_array
from gpuwatchd.collect.logs.fields import Clock, is_amount, layout_of
from gpuwatchd.collect.logs.reader import (
    ACTIVITY_ROLES,
    MEMORY_ROLES,
    RowReader,
    contradicts,
)
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector
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
WHAT_TO_LOG = (
    "log it with nvidia-smi --query-gpu=timestamp,index,uuid,memory.used,memory.total "
    "--format=csv -l 5"
)

NAME_COLUMNS = "name the columns: --columns timestamp,index,memory.used,memory.total"


def between(line: str) -> bool:
    """Say whether a line only separates rows: blank, a rule, or a date alone.

    Examples
    --------
    >>> between("----"), between("2026-02-03 10:00:00"), between("2026-02-03 10:00:00, 1")
    (True, True, False)
    """
    return not line.strip(" \t-=*_#") or _LONE_DATE.fullmatch(line) is not None


class Table(RowReader):
    """Reads the rows under one header; by column, which is ten times faster than row by row.

    ``lacking`` says why a table without a column of used memory is no use, and what would help;
    ``{columns}`` in it are the names of the columns.
    """

    unified_hint = "use the output of nvidia-smi --query-compute-apps"

    def __init__(
        self, layout: Layout, sink: Collector, lacking: tuple[str, str], header: str = ""
    ) -> None:
        options = sink.options
        roles = layout.roles.keys()
        has_total = "total" in roles or options.total_bytes is not None
        clock = None
        if layout.time_unit is not None:
            clock = Clock(options.tz, options.date_order, layout.time_unit)
        super().__init__(sink, units=layout.units, clock=clock)
        self._has_memory = "used" in roles or ("free" in roles and has_total)
        if not self._has_memory:
            sink.lacks_memory(lacking[0].format(columns=layout.column_names()), lacking[1])
        self.layout = layout
        self.header = header
        self.unitless = layout.units.get("used") is None
        self._chosen = not layout.index_choices
        self._held = ""
        self.devices.choose(roles)
        if layout.guessed is not None and "used" in roles:
            sink.note(f"column {clean(layout.guessed, limit=40)!r} is read as used memory")

    def absent(self, amounts: Mapping[str, float]) -> BadRow:
        """Return how a row without used memory is counted."""
        return super().absent(amounts) if self._has_memory else BadRow("no memory column")

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
        self.devices.choose(self.layout.roles)

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
            self.sink.counts.bad("torn", self.sink.open_line or 0)

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
        roles = self.layout.roles
        if "used" not in roles or "pid" in roles or self.sink.open_line is not None:
            return False  # nothing to read by column, or the block with the unfinished last line
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
            for role in MEMORY_ROLES
            if role in columns
        }
        used = amounts["used"]
        good = np.isfinite(used)
        if np.any(contradicts(amounts)) or (first_line is None and not good.all()):
            raise ValueError("figures that need a closer look")
        t, other = self._times(columns)
        timed = t is not None
        end = None if t is None else (float(t[-1]), float((t if other is None else other)[-1]))
        places = self.devices.of_block(columns, t, end)
        if t is None:
            t = np.array([self.sink.ticks.of(place.order) for place in places])
        if absent := int((~good).sum()):
            if "total" in amounts and np.isnan(amounts["total"][~good]).any():
                self.say_unified()
            self.sink.counts.bad("not available", (first_line or 0) + int(np.argmin(good)), absent)
        self.sink.counts.good(int(good.sum()))
        busy = {
            role: np.array(list(map(self._figures.__getitem__, columns[role])))
            for role in ACTIVITY_ROLES
            if role in columns and timed and other is None
        }
        orders = np.array([place.order for place in places])
        for place in dict.fromkeys(places):
            rows = np.flatnonzero((orders == place.order) & good)
            track = self.sink.track(place, timed=timed) if rows.size else None
            if track is not None:
                days_first = None if other is None else as_array(other[rows])
                track.add(as_array(t[rows]), as_array(used[rows]), days_first)
                last = {role: float(values[rows[-1]]) for role, values in amounts.items()}
                self.describe(track, last)
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
        times = self.clock.column(texts)
        if times is not None:
            return times, None
        pairs = np.array(list(map(self.clock.both, texts)), dtype=np.float64)
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
            self.take_cells(self._cells(line), first_line + number)
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
        """Split a row; an unquoted process name in its middle may hold separators."""
        separator = self.layout.separator
        cells, at = line.split(separator), self.layout.roles.get("process")
        extra = len(cells) - self.layout.width
        if '"' in line:
            reader = csv.reader(line.split("\n"), delimiter=separator, skipinitialspace=True)
            try:
                cells = next(reader, [])
            except csv.Error:
                return []
        elif extra > 0 and at is not None and "pid" in self.layout.roles:
            cells[at : at + extra + 1] = [separator.join(cells[at : at + extra + 1])]
        if len(cells) == self.layout.width + 1 and not cells[-1].strip():
            cells.pop()
        return cells

    def take_cells(self, cells: Sequence[str], number: int) -> None:
        """Take one row that is already in cells."""
        if not self._chosen:
            self._choose_index([cells])
        unfinished = number == self.sink.open_line
        with self.sink.counts.row(number, "torn" if unfinished else "bad number"):
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
        if unfinished and any(
            self.layout.roles[role] == self.layout.width - 1 and row[role].strip()[-1:].isdigit()
            for role in MEMORY_ROLES
            if role in row
        ):
            raise BadRow("torn")  # it ends inside a number that we use
        self.read(row, bad_time="torn" if unfinished else "bad time")
