"""Rows of a table with one layout, one at a time: what holds for every row."""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, remember, sane_row, used_of
from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Place, Track
    from gpuwatchd.collect.logs.columns import Layout
    from gpuwatchd.core.model import ProcessInfo

FOREIGN = re.compile(
    r"\s*(?:[{}\[+|=#*<~]|NVIDIA-SMI|No devices|Unable to|Failed to|Traceback"
    r"|GPU [0-9A-Fa-f]{4,8}:)"
)
"""Starts of lines that are no torn rows of a table but something else."""
RULE_SIGNS = " \t-=*_#"
"""Lines of nothing but these separate rows."""
_LONE_DATE = re.compile(r"\s*\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s*")
CACHE_MAX = 100_000
BLOCK_ROWS = 1024
"""Small enough for the caches of a processor that others use too."""
_PLACE_ROLES = ("host", "uuid", "bus", "index", "name", "total")
MEMORY_ROLES = ("used", "free", "total", "reserved")


def between(line: str) -> bool:
    """Say whether a line only separates rows: blank, a rule, or a date alone.

    Examples
    --------
    >>> between("----"), between("2026-02-03 10:00:00"), between("2026-02-03 10:00:00, 1")
    (True, True, False)
    """
    return not line.strip(RULE_SIGNS) or _LONE_DATE.fullmatch(line) is not None


class RowTable:
    """Reads the rows under one header into the collector, row by row."""

    def __init__(self, layout: Layout, sink: Collector, header: str = "") -> None:
        self.layout = layout
        self.sink = sink
        self.header = header
        self._chosen = not layout.index_choices
        self._amounts: dict[str, dict[str, float]] = {role: {} for role in MEMORY_ROLES}
        self._known: dict[tuple[object, ...], Place] = {}
        self._identity: list[int] = []
        self._nth = 0
        self._last_time: object = None
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
        roles = self.layout.roles
        self._identity = [roles[role] for role in _PLACE_ROLES if role in roles]
        self._numbered = bool({"uuid", "bus", "index"} & set(roles))

    def _choose_index(self, lines: Sequence[str]) -> None:
        """Take the index column that counts devices; one that holds words is a name."""
        rows = map(self._cells, lines[:64])
        self._choose_index_of([row for row in rows if len(row) == self.layout.width])

    def _choose_index_of(self, rows: Sequence[Sequence[str]]) -> None:
        self._chosen = True
        best, most = None, 0
        for position in self.layout.index_choices:
            values = {fields.whole(row[position]) for row in rows} - {None}
            words = any(fields.value_or_none(row[position]) for row in rows)
            if not values and words:
                self.layout.roles.setdefault("name", position)
            elif len(values) > most:
                best, most = position, len(values)
        if best is not None:
            self.layout.roles["index"] = best
        self._settle()

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take rows; return how many lines were taken before one that is no row of this table."""
        if not self._chosen:
            self._choose_index(lines)
        done = 0
        while done < len(lines):
            part = lines[done : done + BLOCK_ROWS]
            taken = self._part(part, first_line + done)
            done += taken
            if taken < len(part):
                break
        return done

    def _part(self, lines: Sequence[str], first_line: int) -> int:
        """Take some of the lines; how, is a matter of speed."""
        return self._by_row(lines, first_line)

    def close(self) -> None:
        """Say goodbye to a quoted row that never ended."""
        if self._held:
            self._held = ""
            self.sink.bad("torn", self.sink.open_line or 0)

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
        if self.layout.separator not in line:
            return True
        return line[:1].isalpha() and layout_of(line) is not None

    def _cells(self, line: str) -> list[str]:
        if '"' not in line:
            cells = line.split(self.layout.separator)
        else:
            try:
                cells = next(
                    csv.reader(line.split("\n"), delimiter=self.layout.separator,
                               skipinitialspace=True), [])  # fmt: skip
            except csv.Error:
                return []
        if len(cells) == self.layout.width + 1 and not cells[-1].strip():
            cells.pop()
        return cells

    def take(self, cells: Sequence[str], number: int) -> None:
        """Take one row that is already in cells."""
        if not self._chosen:
            self._choose_index_of([list(cells)])
        try:
            self._row(cells, number)
        except BadRow as error:
            self.sink.bad(error.reason, number)
        except ValueError:
            torn = self.sink.open_line == number
            self.sink.bad("torn" if torn else "bad number", number)

    def _row(self, cells: Sequence[str], number: int) -> None:
        if len(cells) != self.layout.width:
            raise BadRow("torn")
        row = {role: cells[at] for role, at in self.layout.roles.items()}
        if self._cut_short(row, number):
            raise BadRow("torn")
        t = self._time(row)
        if t is not None and math.isnan(t[0]) and math.isnan(t[1]):
            raise BadRow("torn" if number == self.sink.open_line else "bad time")
        self._reading(row, t)

    def _reading(self, row: dict[str, str], t: tuple[float, float] | None) -> None:
        amounts = {role: self._amount(row[role], role) for role in MEMORY_ROLES if role in row}
        used = used_of(amounts, self.sink.options.total_bytes)
        place = self._place(row, self._count(t))
        if used is None:
            raise self._absent(amounts)
        if not sane_row(amounts):
            raise BadRow("torn")
        if t is None:
            self.sink.ticks.of(place.order)
        self.sink.point(place, t, used, unitless=self.layout.unitless())
        track = self.sink.track(place, timed=t is not None)
        if track is not None:
            track.counted = not self._numbered
            self._remember(track, amounts)

    def _absent(self, amounts: dict[str, float]) -> BadRow:
        """Return how a row without used memory is counted, and keep why the log may hold none."""
        if not self.has_memory:
            return BadRow("no memory column")
        if "used" in amounts and math.isnan(amounts.get("total", 0.0)):
            self._say_unified()
        elif "used" not in amounts:
            self.sink.no_memory = "free memory without a total: no figure for used memory"
            self.sink.no_memory_hint = "pass --total, for example --total 24GiB"
        return BadRow("not available")

    def _say_unified(self) -> None:
        """Keep the reason of a row with neither a used nor a total figure."""
        self.sink.no_memory = "unified memory: this log holds no memory figure"
        self.sink.no_memory_hint = "use the output of nvidia-smi --query-compute-apps"

    def _cut_short(self, row: dict[str, str], number: int) -> bool:
        """Say whether the unfinished last line ends inside a number that we use."""
        if number != self.sink.open_line:
            return False
        last = self.layout.width - 1
        return any(
            at == last and role in row and row[role].strip()[-1:].isdigit()
            for role, at in self.layout.roles.items()
            if role in MEMORY_ROLES
        )

    def _time(self, row: dict[str, str]) -> tuple[float, float] | None:
        if "time" not in row:
            return None
        text = f"{row['time'].strip()} {row['clock'].strip()}" if "clock" in row else row["time"]
        return self.sink.clock.both(text)

    def _count(self, t: tuple[float, float] | None) -> int:
        """Return which row of its time this is, for tables without any device column."""
        if self._numbered or t is None:
            return 0
        self._nth = self._nth + 1 if t == self._last_time else 0
        self._last_time = t
        return self._nth

    def _named(self, key: Sequence[str]) -> dict[str, str]:
        present = [role for role in _PLACE_ROLES if role in self.layout.roles]
        return dict(zip(present, key, strict=True))

    def _amount(self, text: str, role: str) -> float:
        cache = self._amounts[role]
        value = cache.get(text)
        if value is None:
            if len(cache) > CACHE_MAX:
                cache.clear()
            value = cache[text] = fields.amount(text, self.layout.unit(role))
        return value

    def _place(self, row: dict[str, str], nth: int) -> Place:
        """Return the device of a row; ``nth`` counts the rows of one time."""
        key = (nth, *map(row.get, _PLACE_ROLES))
        place = self._known.get(key)
        if place is None:
            if len(self._known) > CACHE_MAX:
                self._known.clear()
            place = self._known[key] = self._find(row, nth)
        return place

    def _find(self, row: dict[str, str], nth: int) -> Place:
        index: int | None = nth
        if "index" in row:
            index = fields.whole(row["index"])
            if index is None and fields.value_or_none(row["index"]) is not None:
                raise BadRow("torn")
        elif self._numbered:
            index = None
        total = fields.amount(row["total"], self.layout.unit("total")) if "total" in row else None
        return self.sink.places.find(
            uuid=fields.uuid(row.get("uuid")),
            bus=fields.bus(row.get("bus")),
            index=index,
            host=fields.value_or_none(row.get("host")),
            name=fields.value_or_none(row.get("name")),
            total=None if total is None or not total > 0 else total,
        )

    def _remember(self, track: Track, amounts: dict[str, float]) -> None:
        used, free = amounts.get("used", math.nan), amounts.get("free", math.nan)
        total = amounts.get("total", math.nan)
        both = used + free
        if math.isnan(total) and math.isfinite(both):
            total = both + (amounts.get("reserved") or 0.0)
        remember(track, total if total > 0 else None, both if math.isfinite(both) else None)


# Rows about processes: a pid, a name that may hold the separator, and an amount.

NO_AMOUNT = "processes are listed without a memory figure"


def split_around(line: str, layout: Layout) -> list[str]:
    """Return the cells of a row whose process name is unquoted and may hold separators.

    The fixed fields are split off from the left and from the right; the middle is the name.
    """
    cells = line.split(layout.separator)
    extra = len(cells) - layout.width
    at = layout.roles.get("process")
    if extra <= 0 or at is None:
        return cells
    name = layout.separator.join(cells[at : at + extra + 1])
    return [*cells[:at], name, *cells[at + extra + 1 :]]


class ProcessTable(RowTable):
    """A table whose rows are processes; a row without a pid is about the device."""

    def _cells(self, line: str) -> list[str]:
        return super()._cells(line) if '"' in line else split_around(line, self.layout)

    def _reading(self, row: dict[str, str], t: tuple[float, float] | None) -> None:
        if not row["pid"].strip() and "uuid" in row:
            super()._reading(row, t)
            return
        process = self._process(row)
        if process is None:
            torn = fields.value_or_none(row["pid"]) is not None
            raise BadRow("torn" if torn else "not available")
        used = fields.amount(row["used"], self.layout.unit("used")) if "used" in row else math.nan
        if math.isnan(used):
            self.sink.no_memory = self.sink.no_memory or NO_AMOUNT
            raise BadRow("not available")
        self._keep(row, t, used, process)

    def _keep(
        self, row: dict[str, str], t: tuple[float, float] | None, used: float, process: ProcessInfo
    ) -> None:
        place = self._place(row, 0)
        if place.total is not None and used > place.total:
            raise BadRow("torn")
        if t is None:
            self.sink.ticks.of((place.order, process.key.pid))
        self.sink.point(place, t, used, process=process, unitless=self.layout.unitless())

    def _process(self, row: dict[str, str]) -> ProcessInfo | None:
        pid = fields.whole(row["pid"])
        if pid is None:
            return None
        name = row.get("process", "").strip()
        return self.sink.process(
            pid,
            None if fields.not_available(name) else name,
            user=fields.value_or_none(row.get("user")),
            started_at_s=self._started(row),
        )

    def _started(self, row: dict[str, str]) -> float | None:
        value = self.sink.clock.parse(row["started"]) if row.get("started") else math.nan
        return None if math.isnan(value) else value
