"""Header words -> what a column holds. Exact names of tools first, loose words of people second."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.fields import MIB, UNITS, Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import FloatArray

_UNIT = re.compile(r"[\[(]\s*([^\])]*?)\s*[\])]\s*$")
_UNIT_TAIL = re.compile(r"_(bytes|kib|mib|gib|kb|mb|gb|b)$")
# Memory of something else, or not an amount of memory now.
_OTHER = re.compile(
    r"bar1|protected|ccpm|util|bandwidth|band_width|clock|temp|power|max_memory_usage|cpu|host_"
    r"|system|swap|gtt|vis_vram|peak|ecc|error|percent|pct|(?:^|_)ram(?:_|$)|encryption|activity"
)
_ANY_WORD = re.compile(
    r"time|date|stamp|elapsed|sec|epoch|taken|mem|vram|fb|used|free|pid|process_id|uuid|device_uid"
    r"|bus_id|name",
    re.IGNORECASE,
)
_AMOUNT_ONLY = re.compile(r"(?:gpu|cuda)\d*_(?:mem|memory|ram)|vram")
"""With a unit of memory these can only be an amount in use; alone they could be a share."""
_MEMORY = re.compile(r"mem|vram|(?:^|_)fb(?:_|$)|framebuffer")
_ROLES = {
    "uuid": "uuid gpu_uuid device_uid",
    "bus": "pci_bus_id gpu_bus_id bus_id",
    "host": "host hostname node host_name",
    "index": "index gpu_index gpu_id gpu gpu_idx idx id device device_id device_index card gpu_num"
    " gpu_no",
    "pid": "pid process_id",
    "user": "user username",
    "started": "started_at",
    "name": "name gpu_name product_name product gpu_model model device_name modelname card_name",
    "process": "process_name process command cmd program",
    "time": "timestamp time date datetime date_time ts taken_at query_time epoch unix_time unixtime"
    " time_stamp wall_time created_at _timestamp t_s elapsed elapsed_s elapsed_sec elapsed_seconds"
    " elapsed_time seconds sec time_s",
}
"""What a column without an amount holds: an identity, a name or a time."""
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names.split()}
_USED_FIRST = ("memory_used", "used_gpu_memory", "used_memory", "memory_used_bytes")


@lru_cache(maxsize=2048)
def words_of(cell: str) -> tuple[str, str | None]:
    """Return the bare name of a header cell and its unit.

    Examples
    --------
    >>> words_of(" memory.used [MiB]"), words_of("Memory Used (MB)"), words_of("mem_used_mb")
    (('memory_used', 'mib'), ('memory_used', 'mb'), ('mem_used', 'mb'))
    """
    text = cell.strip().strip('"').strip().lower()
    unit = None
    if match := _UNIT.search(text):
        unit, text = match.group(1).strip(), text[: match.start()]
    name = re.sub(r"[^a-z0-9_]+", "_", text.strip()).strip("_") or "_"
    if text.startswith("_"):
        name = f"_{name.lstrip('_')}"
    if unit is None and (match := _UNIT_TAIL.search(name)):
        unit, name = match.group(1), name[: match.start()]
    return name, unit


def memory_role(name: str) -> str | None:
    """Return used, total, free or reserved for a column that holds an amount of GPU memory.

    Examples
    --------
    >>> memory_role("memory_used"), memory_role("memory_max"), memory_role("mem_free")
    ('used', 'total', 'free')
    >>> memory_role("memory"), memory_role("utilization_memory"), memory_role("used")
    (None, None, 'used')
    """
    if name in {"used", "total", "free", "reserved"}:
        return name
    if _OTHER.search(name) or not _MEMORY.search(name):
        return None
    for role, sign in (
        ("reserved", r"reserved"),
        ("free", r"free|avail"),
        ("total", r"total|max|size|capacity|limit"),
        ("used", r"used|usage|use$|in_use|allocated|consum"),
    ):
        if re.search(sign, name):
            return role
    return None


@dataclass(slots=True)
class Layout:
    """Which column of a table holds what."""

    names: list[str]
    roles: dict[str, int] = field(default_factory=dict)
    units: dict[str, float | None] = field(default_factory=dict)
    """Bytes per unit of the memory columns; None where the header names no unit."""
    index_choices: list[int] = field(default_factory=list)
    separator: str = ","
    guessed: str | None = None
    """Header of the column that is read as used memory though it does not say "used"."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names)

    def column_names(self) -> str:
        """Return the column names for an error message."""
        text = ", ".join(name.strip() for name in self.names[:12])
        return text + (f" and {self.width - 12} more" if self.width > 12 else "")

    def unit(self, role: str) -> float:
        """Return bytes per unit of a memory column (MiB where the header names none)."""
        return self.units.get(role) or MIB

    def unitless(self) -> bool:
        """Say whether the unit of "used" has to be told from the numbers."""
        return self.units.get("used") is None


def layout_from(cells: Sequence[str]) -> Layout:
    """Return the layout of columns by their names."""
    layout = Layout([cell.strip() for cell in cells])
    choices: dict[str, int] = {}
    for position, cell in enumerate(cells):
        name, unit = words_of(cell)
        role = _ROLE_OF.get(name)
        if role == "time" and (unit or "").startswith("ms"):
            role = None
        elif name == "time" and "time" in layout.roles:
            before = words_of(layout.names[layout.roles["time"]])[0]
            role = "clock" if before == "date" else role
        if role is None and unit != "%":
            _memory_column(layout, position, name, unit)
        elif role == "index" and unit is None:
            choices.setdefault(name, position)
        elif role not in {None, "index"}:
            layout.roles.setdefault(str(role), position)
    layout.index_choices = [choices[name] for name in _ROLES["index"].split() if name in choices]
    return layout


def _memory_column(layout: Layout, position: int, name: str, unit: str | None) -> None:
    """Enter a column when it holds an amount of memory."""
    if unit is not None and unit not in UNITS:
        return
    role, guessed = memory_role(name), None
    if role is None and unit is not None and _AMOUNT_ONLY.fullmatch(name):
        role, guessed = "used", layout.names[position]
    if role is not None and (role not in layout.roles or (role == "used" and name in _USED_FIRST)):
        layout.roles[role] = position
        layout.units[role] = UNITS[unit] if unit else None
        layout.guessed = guessed if role == "used" else layout.guessed


def layout_of(line: str) -> Layout | None:
    """Return the layout that a header line names, or None when it is no header of ours.

    A header holds words only, and at least a time, an index, a memory or a pid column.
    """
    if not line or len(line) > 65536 or not _ANY_WORD.search(line):
        return None
    if line[0] == "#" and not any(sign in line for sign in "$=:"):
        line = line.lstrip("# ")  # a header as a comment, but no command line and no title
    if line[:1] in {"{", "<", "#", "+", "|", "=", ""}:
        return None
    layout = _read_header(line)
    if layout is None:
        return None
    # Readers settle the index column in their layout: each gets one of its own.
    return replace(layout, roles=dict(layout.roles), units=dict(layout.units))


@lru_cache(maxsize=64)
def _read_header(line: str) -> Layout | None:
    separator = max(",;\t", key=line.count)
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return None
    if cells and not cells[-1].strip():
        cells.pop()
    if len(cells) < 2 or any(cell.strip()[:1].isdigit() for cell in cells):
        return None
    layout = layout_from(cells)
    layout.separator = separator
    names = set(layout.roles) & {"time", "used", "free", "total", "pid", "uuid", "bus"}
    if not names and not (layout.index_choices and "name" in layout.roles):
        return None
    return layout


# The columns of a table without a header, when exactly one reading fits.

_LEAST_ROWS = 3


def guess(lines: Sequence[str]) -> Layout | None:
    """Return the one layout that fits the rows, or None.

    It fits when there is a time, at most one column can count devices, exactly one column is
    constant per device and largest (the total), and exactly one other can be an amount used.
    """
    rows = [line.split(",") for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    rows = [row for row in rows if len(row) == width]
    if width < 3 or len(rows) < _LEAST_ROWS:
        return None
    columns = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    parse = Clock().parse
    times = [
        at
        for at, column in enumerate(columns)
        if sum(":" in cell and not math.isnan(parse(cell)) for cell in column) >= 0.9 * len(rows)
    ]
    if len(times) != 1:
        return None
    roles, at, device = {"time": times[0]}, times[0] + 1, [""] * len(rows)
    if at < width:
        numbers = {fields.whole(cell) for cell in columns[at]}
        if numbers == set(range(len(numbers))) and len(numbers) <= 64:
            roles["index"], device = at, columns[at]
    pair = _memory(columns, set(roles.values()), device)
    if pair is None:
        return None
    roles["used"], roles["total"] = pair
    for position, column in enumerate(columns):
        words = all(cell[:1].isalpha() and " " in cell for cell in column)
        if words and position not in roles.values():
            roles.setdefault("name", position)
    return Layout([f"column {n + 1}" for n in range(width)], roles, {"used": fields.MIB})


def _memory(
    columns: Sequence[Sequence[str]], taken: set[int], device: Sequence[str]
) -> tuple[int, int] | None:
    """Return the columns of used and total memory, when there is one choice for each."""
    named = {at for at, column in enumerate(columns) if any("iB" in cell for cell in column)}
    amounts: dict[int, FloatArray] = {}
    for at, column in enumerate(columns):
        if at in taken or (named and at not in named):
            continue
        with suppress(ValueError):
            values = np.array([fields.amount(cell) for cell in column])
            if np.isfinite(values).all() and (named or float(values.max()) > 100 * fields.MIB):
                amounts[at] = values
    devices = len(set(device))
    totals = [
        at
        for at, values in amounts.items()
        if float(values.min()) >= 1024 * fields.MIB
        and len(set(zip(device, values.tolist(), strict=True))) == devices  # constant per device
        and all((other <= values).all() for other in amounts.values())
    ]
    used = [at for at in amounts if at not in totals]
    return (used[0], totals[0]) if len(totals) == 1 and len(used) == 1 else None
