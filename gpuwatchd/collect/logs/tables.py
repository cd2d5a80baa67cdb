"""Rows of a table with one layout: whole blocks by column, odd blocks row by row."""

from __future__ import annotations

import csv
import math
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, cast

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import FormatReader, plausible
from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.collect.logs.rowwise import CACHE_MAX, MEMORY_ROLES, ProcessTable, RowTable, between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Place
    from gpuwatchd.collect.logs.columns import Layout
    from gpuwatchd.core.model import FloatArray

_SMALL_ROWS = 32
"""So few rows are not worth another try by columns."""
_Columns = dict[int, list[str]]


class Table(RowTable):
    """Reads whole blocks by column, which is ten times faster than row by row."""

    def __init__(self, layout: Layout, sink: Collector, header: str = "") -> None:
        super().__init__(layout, sink, header)
        self._places: dict[tuple[str, ...], Place] = {}

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
        if self._whole_block(lines, first_line):
            return True
        rows = [line for line in lines if line != self.header and not between(line)]
        return 0 < len(rows) < len(lines) and self._whole_block(rows, first_line, gapless=False)

    def _whole_block(self, lines: Sequence[str], first_line: int, *, gapless: bool = True) -> bool:
        """Read a block by columns; False, and nothing done, when anything in it is odd.

        Without ``gapless`` other lines were taken out, so that line numbers are not known here.
        """
        if "used" not in self.layout.roles or self.sink.open_line is not None:
            return False  # no memory to look at, or the block with the unfinished last line
        cut = self._cut(lines)
        if cut is None:
            return False
        columns = {role: cut[at] for role, at in self.layout.roles.items()}
        amounts = self._amount_columns(columns)
        if amounts is None or not plausible(amounts):
            return False
        times = self._times(columns)
        if times is None:
            return False
        if not gapless and not np.isfinite(amounts["used"]).all():
            return False
        if not self._numbered and self._counted(times[0]):
            return False
        places = self._block_places([cut[at] for at in self._identity], len(amounts["used"]))
        if places is None:
            return False
        self._store(places, times, amounts, first_line)
        return True

    def _cut(self, lines: Sequence[str]) -> _Columns | None:
        """Return the columns that matter; None when the rows are not all of the header's width."""
        separator, width = self.layout.separator, self.layout.width
        wanted = set(self.layout.roles.values())
        joined = f"{separator}\n{separator}".join(lines)
        if '"' in joined:
            return self._cut_quoted(lines)
        flat = joined.split(separator)
        step, count = width + 1, len(lines)
        if len(flat) != count * step - 1 or flat[width::step].count("\n") != count - 1:
            return None
        return {at: flat[at::step] for at in wanted}

    def _cut_quoted(self, lines: Sequence[str]) -> _Columns | None:
        if any(line.count('"') % 2 for line in lines):
            return None  # a cell goes on in the next line
        reader = csv.reader(lines, delimiter=self.layout.separator, skipinitialspace=True)
        try:
            rows = list(reader)
        except csv.Error:
            return None
        if len(rows) != len(lines) or {len(row) for row in rows} != {self.layout.width}:
            return None
        table = list(zip(*rows, strict=True))
        return {at: list(table[at]) for at in set(self.layout.roles.values())}

    def _counted(self, t: FloatArray | None) -> bool:
        """Say whether rows of one time count devices: those are taken row by row."""
        if t is None:
            return False
        if isinstance(self._last_time, tuple) and self._last_time[0] == t[0]:
            return True
        return bool((np.diff(t) == 0).any())

    def _times(
        self, columns: dict[str, list[str]]
    ) -> tuple[FloatArray | None, FloatArray | None] | None:
        """Return the times of a block, read both ways; (None, None) when the log has none."""
        texts = columns.get("time")
        if texts is None:
            return None, None
        if "clock" in columns:
            texts = [
                f"{day.strip()} {time.strip()}"
                for day, time in zip(texts, columns["clock"], strict=True)
            ]
        elif texts[0][:1] in {" ", '"'}:
            texts = [text.strip() for text in texts]
        times = self.sink.clock.column(texts)
        if times is not None:
            return times, None
        pairs = np.array(list(map(self.sink.clock.both, texts)), dtype=np.float64)
        if np.isnan(pairs).all(axis=1).any():
            return None
        first, other = pairs[:, 0], pairs[:, 1]
        same = bool((first == other).all())
        return np.ascontiguousarray(first), None if same else np.ascontiguousarray(other)

    def _amount_columns(self, columns: dict[str, list[str]]) -> dict[str, FloatArray] | None:
        arrays: dict[str, FloatArray] = {}
        for role in MEMORY_ROLES:
            texts = columns.get(role)
            if texts is None:
                continue
            cache = self._amounts[role]
            if _constant(texts):
                if not self._learn(cache, texts[:1], role):
                    return None
                arrays[role] = np.full(len(texts), cache[texts[0]])
                continue
            try:
                values = list(map(cache.__getitem__, texts))
            except KeyError:
                if not self._learn(cache, texts, role):
                    return None
                values = list(map(cache.__getitem__, texts))
            arrays[role] = np.array(values, dtype=np.float64)
        return arrays

    def _learn(self, cache: dict[str, float], texts: Sequence[str], role: str) -> bool:
        if len(cache) > CACHE_MAX:
            cache.clear()
        unit = self.layout.unit(role)
        try:
            for text in set(texts):
                if text not in cache:
                    cache[text] = fields.amount(text, unit)
        except ValueError:
            return False
        return True

    def _block_places(self, columns: list[list[str]], count: int) -> list[Place] | None:
        varying = [column for column in columns if not _constant(column)]
        if not varying:
            place = self._place_of(tuple(column[0] for column in columns))
            return None if place is None else [place] * count
        if len(varying) == 1:
            return self._places_of_one(columns, varying[0])
        identity = list(zip(*columns, strict=True))
        places = {key: self._place_of(key) for key in dict.fromkeys(identity)}
        if None in places.values():
            return None
        return cast("list[Place]", list(map(places.__getitem__, identity)))

    def _places_of_one(self, columns: list[list[str]], varying: list[str]) -> list[Place] | None:
        """Return the places of rows that differ in one column only, mostly the index."""
        places: dict[str, Place] = {}
        for text in dict.fromkeys(varying):
            key = tuple(text if column is varying else column[0] for column in columns)
            place = self._place_of(key)
            if place is None:
                return None
            places[text] = place
        return list(map(places.__getitem__, varying))

    def _place_of(self, key: tuple[str, ...]) -> Place | None:
        place = self._places.get(key)
        if place is None:
            if len(self._places) > CACHE_MAX:
                self._places.clear()
            try:
                place = self._places[key] = self._place(self._named(key), 0)
            except ValueError:
                return None
        return place

    def _store(
        self,
        places: list[Place],
        times: tuple[FloatArray | None, FloatArray | None],
        amounts: dict[str, FloatArray],
        first_line: int,
    ) -> None:
        used = amounts["used"]
        t, other = times
        if t is None:
            t = self.sink.ticks.many([place.order for place in places])
        self._nth = 0
        self._last_time = (float(t[-1]), float((t if other is None else other)[-1]))
        good = np.isfinite(used)
        if absent := int((~good).sum()):
            total = amounts.get("total")
            if total is not None and np.isnan(total[~good]).any():
                self._say_unified()
            self.sink.bad("not available", first_line + int(np.argmin(good)), absent)
        self.sink.good(int(good.sum()))
        orders = np.array([place.order for place in places])
        by_order = {place.order: place for place in set(places)}
        for order, place in by_order.items():
            rows = np.flatnonzero((orders == order) & good)
            track = self.sink.track(place, timed=times[0] is not None) if rows.size else None
            if track is None:
                continue
            track.add(t[rows], used[rows], None if other is None else other[rows])
            track.unitless |= self.layout.unitless()
            track.counted = not self._numbered
            self._remember(
                track, {role: float(values[rows[-1]]) for role, values in amounts.items()}
            )


def _constant(column: list[str]) -> bool:
    """Say whether all cells are the same text; the ends tell most columns that are not."""
    return column[0] == column[-1] and column.count(column[0]) == len(column)


# What the readers of tables with a header share: enter at a header, leave at a foreign line.

WHAT_TO_LOG = (
    "log it with nvidia-smi --query-gpu=timestamp,index,uuid,memory.used,memory.total "
    "--format=csv -l 5"
)


class HeadedReader(FormatReader):
    """Base of the readers of tables with a header; a format says how its header looks."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._table: RowTable | None = None

    def layout(self, header: str) -> Layout | None:
        """Return what the columns under a header hold; None when it is none."""
        return layout_of(header)

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take a header and the rows under it, or more rows."""
        done = 0
        if self._table is None or self.starts(lines, 0):
            header = lines[0]
            layout = self.layout(header)
            if layout is None:
                return 0
            done = 1
            if self._table is None or header.strip() != self._table.header.strip():
                self.close()
                kind = ProcessTable if "pid" in layout.roles else Table
                self._table = kind(layout, self._sink, header)
            self._say_missing(self._table)
        return done + self._table.feed(lines[done:], first_line + done)

    def close(self) -> None:
        """End the table; rows that follow another block's still belong to it."""
        if self._table is not None:
            self._table.close()

    def _say_missing(self, table: RowTable) -> None:
        if table.has_memory:
            return
        text = table.layout.column_names()
        if "free" in table.layout.roles:
            self._sink.no_memory = f"free memory without a total; columns found: {text}"
            self._sink.no_memory_hint = "pass --total, for example --total 24GiB"
        else:
            self._sink.no_memory = f"no memory column; columns found: {text}"
            self._sink.no_memory_hint = WHAT_TO_LOG


# Tables of ``dmon`` and ``pmon``: names after ``#``, columns by whitespace, header repeated.

_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)", re.ASCII)
_DAY_S = 86400.0
_UNITS = frozenset({"Idx", "YYYYMMDD", "HH:MM:SS"})
"""Words of the line of units under a header."""


def names_of(line: str) -> list[str]:
    """Return the lower-case column names of a header line, or nothing when it is none.

    Examples
    --------
    >>> names_of("#Date       Time        gpu     fb")
    ['date', 'time', 'gpu', 'fb']
    >>> names_of("# Idx           #    C/G")
    []
    """
    if not line.startswith("#"):
        return []
    names = line.lstrip("# ").lower().split()
    if "gpu" not in names[:3] or not {"sm", "pwr", "fb", "pid", "mclk", "temp"} & set(names):
        return []
    return names


class HashedReader(FormatReader):
    """Base of the two monitors."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._midnights = 0
        self._last_s = 0.0

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take headers and rows until a line that is neither."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not stripped:
                continue
            if line.startswith("#"):
                if names := names_of(line):
                    if ("pid" in names) != ("pid" in (self._names or names)):
                        return number  # the other monitor
                    self._names = names
                elif stripped.startswith("####") or _UNITS.isdisjoint(
                    stripped.lstrip("# ").split()
                ):
                    return number
                continue
            if not (stripped[0].isdigit() or stripped[0] == "-") or "," in stripped:
                return number
            with self._sink.row(first_line + number):
                self.row(stripped)
        return len(lines)

    @abstractmethod
    def row(self, line: str) -> None:
        """Read one row."""

    def time(self, row: dict[str, str]) -> tuple[float, float] | None:
        """Return the time of a row, NaN when it is broken, None when there is no column for it."""
        if "time" not in row:
            return None
        if "date" in row:
            return self._sink.clock.both(f"{row['date']} {row['time']}")
        match = _TIME_OF_DAY.fullmatch(row["time"])
        if match is None:
            return math.nan, math.nan
        hour, minute, second = map(int, match.groups())
        moment = hour * 3600.0 + minute * 60.0 + second
        self._midnights += moment < self._last_s - _DAY_S / 2
        self._last_s = moment
        return moment + self._midnights * _DAY_S, moment + self._midnights * _DAY_S

    def memory(self, row: dict[str, str]) -> float | None:
        """Return frame buffer memory in bytes (columns say MB and mean MiB); None if unknown."""
        value = fields.amount(row["fb"]) if "fb" in row else math.nan
        return None if math.isnan(value) else value
