"""Tables with separators (nvidia-smi's CSV, exports, anybody's own), and JSON lines like them.

A row with a pid is about a process, one without about its device.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.fields import (
    MIB,
    Clock,
    Layout,
    amount,
    is_amount,
    is_of_host,
    layout_from,
    layout_of,
    memory_role,
    not_available,
    uuid,
    whole,
    words_of,
)
from gpuwatchd.collect.logs.reader import (
    GIVE_TOTAL,
    NO_AMOUNT,
    FormatReader,
    JsonReader,
    LineReader,
    head_of,
    text_of,
)
from gpuwatchd.collect.logs.tables import NAME_COLUMNS, WHAT_TO_LOG, Table, between

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector


OF_HISTORY: Final = {
    "at": "taken_at",
    "gpu": "index",
    "uid": "device_uid",
    "name": "process_name",
    "used_last_bytes": "used_bytes",
}
"""What the columns of ``history`` are called in an export."""
_NVIDIA_WORDS = re.compile(
    r"(?:^#?|,)\s*(?:memory\.(?:used|free|total|reserved)|utilization\.(?:gpu|memory)|power\.draw"
    r"|temperature\.gpu|pci\.bus_id|fan\.speed|clocks\.\S+|driver_version|pstate)(?:\s|,|$)",
    re.IGNORECASE,
)


_ONLY_FREE = "free memory without a total; columns found: {columns}", GIVE_TOTAL


def _below(lines: Sequence[str], at: int) -> str:
    """Return the next line that is not blank; "" without one."""
    return next((line for line in lines[at + 1 :] if line.strip()), "")


class HeadedTable(FormatReader):
    """Tables that people write themselves: header words matched loosely, ``,`` ``;`` or tab."""

    _table: Table | None = None
    lacking = "no memory column; columns found: {columns}", f"{WHAT_TO_LOG}, or {NAME_COLUMNS}"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with a memory column, or with a time and rows under it, is here."""
        layout = layout_of(lines[at])
        if layout is None or "pid" in layout.roles:
            return False
        below = _below(lines, at)
        if layout.width == 1:
            return is_amount(below)
        if not layout.roles.keys().isdisjoint({"used", "free"}):
            return True
        rows = below.count(layout.separator) == lines[at].count(layout.separator)
        timed = not layout.roles.keys().isdisjoint({"time", "uuid"})
        return rows and timed and any(sign.isdigit() for sign in below)

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
                lacking = _ONLY_FREE if "free" in layout.roles else self.lacking
                self._table = Table(layout, self._sink, lacking, header)
        return done + self._table.feed(lines[done:], first_line + done)

    def close(self) -> None:
        """End the table; rows that follow another block's still belong to it."""
        if self._table is not None:
            self._table.close()


class NvidiaTable(HeadedTable):
    """``nvidia-smi --query-gpu=... --format=csv`` in all its variants of columns and units."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``--query-gpu`` stands here."""
        line = lines[at]
        if line[:1] in {"{", "|"} or not _NVIDIA_WORDS.search(line):
            return False
        layout = layout_of(line)
        if layout is None or "pid" in layout.roles:
            return False
        return layout.width > 1 or is_amount(_below(lines, at))


class ExportTable(HeadedTable):
    """Our own export as CSV, and what ``gpuwatchctl history --format csv`` writes."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of an export stands here."""
        line = lines[at]
        if _is_history(line):
            return True
        return line[:1] != "{" and "device_uid" in line and layout_of(line) is not None

    def layout(self, header: str) -> Layout | None:
        """Return what the columns hold, in a header of ``history`` under their other names."""
        if _is_history(header):
            names = header.strip().split(",")
            header = ",".join(OF_HISTORY.get(name, name) for name in names)
        return layout_of(header)


def _is_history(line: str) -> bool:
    return line.startswith("at,gpu,uid,") and "used_last_bytes" in line


class AccountedTable(LineReader):
    """Tables of nvidia-smi without a course over time: accounted applications, retired pages."""

    _width = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of such a table stands here."""
        line = lines[at]
        return "," in line and ("max_memory_usage" in line or "retired_pages.cause" in line)

    def line(self, line: str, _stripped: str, _number: int) -> bool:
        """Pass over the header and its rows."""
        if self.starts([line], 0):
            self._width = line.count(",")
            if "max_memory_usage" in line and not self._sink.no_memory:
                self._sink.lacks_memory("accounted applications hold peaks only: no series")
        return line.count(",") >= self._width


_CELLS = (
    ("uuid", re.compile(r"\s*(?:GPU|MIG)-[0-9A-Za-z-]+\s*")),
    ("time", re.compile(r"\s*\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?\s*")),
    ("used", re.compile(r"\s*(?:\d+(?:\.\d+)? (?:MiB|MB)|\[N/A\])\s*")),
    (
        "process",
        re.compile(
            r"\s*(?:\[(?:Insufficient Permissions|Not Found)\]|[A-Za-z]:\\.*|\.{0,2}/.*"
            r"|[A-Za-z_][\w.+-]*)\s*"
        ),
    ),
    ("pid", re.compile(r"\s*\d{1,8}\s*", re.ASCII)),  # more digits are a time
)
"""What a cell of a row without a header must be, by its looks."""


def _bare(line: str) -> Layout | None:
    """Return the columns of a process's row without a header, when each can be only one thing."""
    cells = line.split(",")
    if not 2 <= len(cells) <= 12:
        return None
    roles: dict[str, int] = {}
    for at, cell in enumerate(cells):
        role = next((role for role, shape in _CELLS if shape.fullmatch(cell)), None)
        if role is None or role in roles:
            # The only thing that may go on over separators is the name.
            if roles.get("process") == at - 1 or ("process" in roles and role is None):
                continue
            return None
        roles[role] = at
    if "pid" not in roles or roles.keys().isdisjoint({"process", "used"}):
        return None
    name = cells[roles["process"]].strip() if "process" in roles else ""
    if roles.keys().isdisjoint({"uuid", "used"}) and name[:1] not in {"[", "/"} and ":" not in name:
        return None  # any words with a number would do
    return Layout([""] * len(cells), roles, {"used": fields.MIB})


class AppsTable(HeadedTable):
    """``nvidia-smi --query-compute-apps``, with or without a header, and tables with pids."""

    lacking = f"{NO_AMOUNT}; columns found: {{columns}}", ""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with a pid column, or such a row without a header, stands here."""
        line = lines[at]
        if line[:1] in {"{", "|", "+"} or len(line) > 65536:
            return False
        layout = layout_of(line)
        if layout is not None:
            return "pid" in layout.roles and "max_memory_usage" not in line
        # No process has the number 0: there it counts devices.
        counts = any(row.lstrip().startswith("0,") for row in lines[at : at + 16])
        return _bare(line) is not None and not counts

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take a header and rows; without a header the first row tells the columns."""
        if layout_of(lines[0]) is not None:
            return super().feed(lines, first_line)
        if self._table is None:
            layout = _bare(lines[0])
            if layout is None:
                return 0
            self._table = Table(layout, self._sink, (NO_AMOUNT, ""))
        return self._table.feed(lines, first_line)


# The columns of a table without a header, told by what they hold: only if one reading fits.

_LEAST_ROWS = 3
_OTHER_UNIT = re.compile(r"\d+(?:\.\d+)? ?(?:%|W|C|MHz)")
_EPOCHS = ((1e9, 4.2e9), (1e12, 4.2e12))
"""Numbers that may be times, 2001 to 2103: seconds, milliseconds."""
_MOST_PCT = 100.0
"""A whole number that is never larger may be a use in per cent, or a temperature."""


def guess(lines: Sequence[str]) -> Layout | None:
    """Return the one layout that fits the rows, or None.

    It fits when each column can be only one thing and one of them is an amount used. Others may
    be unclear where there is a date, and of two amounts one is larger and constant per device.

    Examples
    --------
    >>> guess(["0, 841 MiB", "1, 3 MiB", "0, 842 MiB"]).roles
    {'index': 0, 'used': 1}
    >>> guess(["841, 700", "842, 701", "843, 702"]) is None
    True
    """
    rows = [line.split(",") for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    rows = [row for row in rows if len(row) == width]
    if len(rows) < _LEAST_ROWS:
        return None
    columns = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    dated = any(map(_is_date, columns))
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at, column in enumerate(columns):
        found[_role(column, dated=dated)].append(at)
    roles = {role: found[role][0] for role in ("time", "index", "uuid", "name") if found[role]}
    amounts = found["named"] or found["plain"] + found["possible"]
    clear = not (found["unclear"] or found["possible"] or (found["named"] and found["plain"]))
    if not clear or any(len(found[role]) > 1 for role in roles):
        if not dated or len(found["time"]) > 1 or len(amounts) < 2:
            return None
        # A share that is 0 or 1 looks like a number of a device: that one follows the time.
        roles.pop("index", None)
        if roles["time"] + 1 in found["index"]:
            roles["index"] = roles["time"] + 1
    if len(amounts) > 1:
        device = columns[roles["index"]] if "index" in roles else [""] * len(rows)
        total = _total({at: columns[at] for at in amounts}, device)
        if total is None:
            return None
        amounts.remove(total)
        roles["total"] = total
    if len(amounts) != 1:
        return None
    roles["used"] = amounts[0]
    unit = MIB if found["named"] else None
    return Layout([f"column {n + 1}" for n in range(width)], roles, {"used": unit})


def _role(column: Sequence[str], *, dated: bool) -> str:
    """Return what a column without a name can only be; "other" has a unit that is no memory's.

    A "possible" amount is one where another figure shows that it is.
    """
    present = [cell for cell in column if not not_available(cell)]
    if _is_date(column):
        return "time"
    if _is_epoch(column):
        return "possible" if dated else "time"
    if all(_OTHER_UNIT.fullmatch(cell) for cell in present):
        return "other"
    with suppress(ValueError):
        top = max(amount(cell) for cell in present) / MIB
        if all("iB" in cell for cell in present):
            return "named"
        if _counts(column):
            return "index"
        if top > _MOST_PCT:
            return "plain" if all(cell.isdigit() for cell in present) else "possible"
    if all(cell.startswith(("GPU-", "MIG-")) and uuid(cell) for cell in present):
        return "uuid"
    return "name" if all(cell[:1].isalpha() and " " in cell for cell in present) else "unclear"


def _is_date(column: Sequence[str]) -> bool:
    parse = Clock().parse
    dates = sum(":" in cell and not math.isnan(parse(cell)) for cell in column)
    return dates >= 0.9 * len(column)


def _is_epoch(column: Sequence[str]) -> bool:
    try:
        values = np.array(list(map(float, column)))
    except ValueError:
        return False
    inside = any(low <= values.min() and values.max() <= high for low, high in _EPOCHS)
    return inside and bool((np.diff(values) >= 0).all())


def _counts(column: Sequence[str]) -> bool:
    """Say whether a column may count devices."""
    numbers = {whole(cell) for cell in column}
    return numbers == set(range(len(numbers))) and len(numbers) <= 64


def _total(amounts: Mapping[int, Sequence[str]], device: Sequence[str]) -> int | None:
    """Return the one column that is large, constant per device and never below the others."""
    values = {at: np.array(list(map(amount, column))) for at, column in amounts.items()}
    totals = [
        at
        for at, total in values.items()
        if total.min() >= 1024 * MIB
        and len(set(zip(device, total.tolist(), strict=True))) == len(set(device))
        and not any((other > total).any() for other in values.values())
    ]
    return totals[0] if len(totals) == 1 else None


_LOOK_AT = 256
_ROW = re.compile(
    r"\s*(?:\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d|\d{1,2}-\d{1,2}-\d{4}|\d{1,13}\s*,"
    r"|GPU-[0-9a-f]{8}|\d{9,13}\.\d+\s*,)"
)
_NUMBER = re.compile(r"\s*(?:\d+(?:\.\d+)?(?: (?:MiB|%|W|C|MHz))?|\[[A-Z][^\]]*\])\s*")


_UNNAMED = "no memory column; columns named: {columns}", ""


class BareTable(FormatReader):
    """Rows of a table without a header (``noheader``): columns given, or guessed, or refused."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._held: list[str] = []
        self._first_line = 0
        self._table: Table | None = None
        self._refused = False
        named = sink.options.columns
        self._named = layout_from(named) if named else None

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a row of numbers stands here; of one or two, whether another is below it."""
        line = lines[at]
        if len(line) > 65536:
            return False
        cells = line.split(",")
        if len(cells) >= 3:
            numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in cells)
            return numbers >= 2 and _ROW.match(line) is not None
        return _is_short(cells) and _is_short(_below(lines, at).split(","))

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take rows; hold the first ones back until they tell what their columns are."""
        if self._named is not None:
            return self._feed_named(self._named, lines, first_line)
        if self._table is not None:
            return self._table.feed(lines, first_line)
        foreign = (at for at, line in enumerate(lines) if not _may_be_row(line))
        taken = next(foreign, len(lines))
        if not self._held:
            self._first_line = first_line
        self._held += [line for line in lines[:taken] if not between(line)]
        if len(self._held) >= _LOOK_AT:
            self._settle()
        return taken

    def close(self) -> None:
        """Settle what the rows are with what there is."""
        self._settle()
        if self._table is not None:
            self._table.close()

    def _settle(self) -> None:
        held, self._held = self._held, []
        if not held or self._table is not None:
            return
        layout = None if self._refused else guess(held)
        if layout is None:
            self._refused = True
            self._sink.counts.bad("no header", self._first_line, len(held))
            why = "a table without a header, and its columns cannot be identified"
            self._sink.lacks_memory(f"line {self._first_line}: {why}", NAME_COLUMNS)
            return
        names = {at: role for role, at in layout.roles.items()}
        text = ", ".join(names.get(at, "-") for at in range(layout.width))
        self._sink.note(f"no header; the only columns that fit: {text}")
        self._table = Table(layout, self._sink, _UNNAMED)
        self._table.feed(held, self._first_line)

    def _feed_named(self, layout: Layout, lines: Sequence[str], first_line: int) -> int:
        """Take rows of columns that the caller named; lines without a number are no rows."""
        at = next((at for at, line in enumerate(lines) if any(map(str.isdigit, line))), len(lines))
        if self._table is None and at < len(lines):
            separator = max(",;\t", key=lines[at].count)
            self._table = Table(replace(layout, separator=separator), self._sink, _UNNAMED)
        return at if self._table is None else at + self._table.feed(lines[at:], first_line + at)


def _is_short(cells: Sequence[str]) -> bool:
    """Say whether one or two cells may be a row: an amount, and what else a log tells of it."""
    amounts = [_NUMBER.fullmatch(cell) is not None for cell in cells]
    known = [_ROW.match(f"{cell},") is not None for cell in cells]
    return len(cells) <= 2 and any(amounts) and all(map(any, zip(amounts, known, strict=True)))


def _may_be_row(line: str) -> bool:
    return "," in line or between(line) or is_amount(line)


_EXPORTED = ("taken_at", "device_uid", "index", "name", "pid", "process_name", "started_at",
             "user", "used_bytes", "free_bytes", "total_bytes", "reserved_bytes")  # fmt: skip
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"\s*:')
_MAX_LAYOUTS = 200
_DIGITS = re.compile(r"\d+")


class ExportLines(JsonReader):
    """Our own export as JSON lines, and that of ``history``: the same names as in the CSV."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._table = Table(layout_from(_EXPORTED), sink, HeadedTable.lacking)

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an exported reading begins here."""
        head = head_of(lines, at)
        return ('"device_uid"' in lines[at] and '"used_bytes"' in head) or (
            '"uid"' in lines[at] and '"used_last_bytes"' in head
        )

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        if "used_last_bytes" in value:
            value = {OF_HISTORY.get(key, key): each for key, each in value.items()}
        process = value.get("process")
        flat = value | {"process_name": value.get("process_name") or process}
        if isinstance(process, dict):
            flat |= {"pid": process.get("pid"), "process_name": process.get("name")}
        self._table.take_cells([text_of(flat.get(key)) for key in _EXPORTED], line)


class JsonLines(JsonReader):
    """JSON objects with a time and an amount of memory, under the same loose names as tables."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._tables: dict[tuple[str, ...], Table] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a key for memory begins here."""
        return _names_memory(_KEY.findall(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the rows of one object."""
        for row in rows_of(value):
            with self._sink.counts.row(line):
                self._table(tuple(row)).take_cells([text_of(each) for each in row.values()], line)

    def _table(self, keys: tuple[str, ...]) -> Table:
        table = self._tables.get(keys)
        if table is None:
            if len(self._tables) >= _MAX_LAYOUTS:
                raise BadRow("torn")
            lacking = "no memory key; keys found: {columns}", WHAT_TO_LOG
            table = self._tables[keys] = Table(layout_from(keys), self._sink, lacking)
        return table


def _names_memory(keys: Sequence[str] | dict[str, Any]) -> bool:
    return any(memory_role(words_of(key)[0]) for key in keys)


def rows_of(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the flat rows of an object: a list or dict of GPUs gives one row for each.

    Examples
    --------
    >>> list(rows_of({"t": 1, "gpus": [{"used": 2}, {"used": 3}]}))
    [{'t': 1, 'used': 2}, {'t': 1, 'used': 3}]
    >>> list(rows_of({"t": 1, "gpu1": {"used": 2}}))
    [{'t': 1, 'gpu': '1', 'used': 2}]
    """
    inner: list[dict[str, Any]] = []
    for key, each in value.items():
        if isinstance(each, list):
            inner += [part for part in each if isinstance(part, dict)]
        elif isinstance(each, dict) and not is_of_host(key.lower()):
            digits = _DIGITS.search(key)
            own: dict[str, Any] = {"gpu": digits.group()} if digits and "index" not in each else {}
            inner.append(own | each)
    outer = _scalars(value)
    parts = [outer | _scalars(part) for part in inner if _names_memory(part)]
    yield from parts or [outer]


def _scalars(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if not isinstance(each, dict | list)}
