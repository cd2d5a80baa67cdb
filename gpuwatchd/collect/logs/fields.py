"""What headers and cells of a log mean: names, numbers, units and times; shared by every format."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar
from zoneinfo import ZoneInfo

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatchd.core.model import FloatArray


_K = TypeVar("_K")
_V = TypeVar("_V")

MIB = 1024.0**2
UNITS: dict[str, float] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1.0),
    **dict.fromkeys(("k", "kb", "kib"), 1024.0),
    **dict.fromkeys(("m", "mb", "mib"), MIB),  # tools of NVIDIA write MB and mean MiB
    **dict.fromkeys(("g", "gb", "gib"), 1024.0**3),
}
TIME_UNITS = {"ms": 1e3, "msec": 1e3, "us": 1e6, "ns": 1e9}
"""How many of a unit, as headers name it, make a second."""
BYTES_FROM = 1e7
"""A number without a unit above this is bytes: no card has ten million MiB."""
MAX_BYTES = 2.0**60
NOT_AVAILABLE = frozenset(
    {"", "-", "--", "n/a", "na", "null", "none", "nan", "err!", "unknown error", "not found"}
)
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]*)", re.ASCII)


class CachedValues(dict[_K, _V]):
    """Values by what they are made of; forgets all of them when there are many."""

    def __init__(self, make: Callable[[_K], _V], most: int = 100_000) -> None:
        self._make = make
        self._most = most

    def __missing__(self, key: _K) -> _V:
        if len(self) >= self._most:
            self.clear()
        value = self[key] = self._make(key)
        return value


def cells_of(line: str, *, strict: bool = False) -> list[str]:
    """Return the cells of a line of CSV without blanks around them; none where it is too odd."""
    reader = csv.reader([line], skipinitialspace=not strict, strict=strict)
    try:
        return [cell.strip() for cell in next(reader, [])]
    except csv.Error:
        return []


def is_amount(text: str) -> bool:
    """Say whether a cell holds an amount of memory, or says that there is none."""
    try:
        amount(text)
    except ValueError:
        return False
    return bool(text.strip())


def not_available(text: str) -> bool:
    """Say whether a cell means "there is no such figure": never the same as 0.

    Examples
    --------
    >>> not_available("[N/A]"), not_available(" - "), not_available("0 MiB")
    (True, True, False)
    >>> not_available("[GPU is lost]")
    True
    """
    stripped = text.strip().lower()
    if stripped[:1] == "[" and stripped[-1:] == "]":
        return True
    return stripped in NOT_AVAILABLE or stripped.startswith(("not available", "not supported"))


def amount(text: str, unit: float = MIB) -> float:
    """Return bytes; NaN for "not available".

    ``unit`` is bytes per unit where the text names none.

    Raises
    ------
    ValueError
        When it is neither a number nor a word for "not available".

    Examples
    --------
    >>> amount("841 MiB") == 841 * MIB, amount(" 12 "), amount("7", 1.0), amount("[N/A]")
    (True, 12582912.0, 7.0, nan)
    """
    stripped = text.strip().strip('"')
    match = _AMOUNT.fullmatch(stripped)
    if match is None:
        if not_available(stripped):
            return math.nan
        raise ValueError(f"{stripped[:40]!r} is not an amount of memory")
    named = match.group(2).lower()
    factor = UNITS.get(named) if named else unit
    if factor is None:
        raise ValueError(f"{named!r} is not a unit of memory")
    value = float(match.group(1)) * factor
    if not value <= MAX_BYTES:
        raise ValueError(f"{stripped[:40]!r} is more memory than exists")
    return value


def whole(text: str | float | None) -> int | None:
    """Return a non-negative integer, or None when it is not one.

    Examples
    --------
    >>> whole(" 7"), whole("7.0"), whole("-"), whole(3), whole(None)
    (7, None, None, 3, None)
    """
    if text is None or isinstance(text, bool):
        return None
    if isinstance(text, str):
        stripped = text.strip()
        is_number = stripped.isascii() and stripped.isdigit() and len(stripped) < 12
        return int(stripped) if is_number else None
    return int(text) if math.isfinite(text) and text >= 0 and text == int(text) else None


def value_or_none(text: str | None) -> str | None:
    """Return the text without its spaces, or None when it means "not available"."""
    if text is None:
        return None
    stripped = text.strip().strip('"').strip()
    return None if not_available(stripped) else stripped


def uuid(text: str | None) -> str | None:
    """Return a device UUID; None when absent or masked to zeros (then it identifies nothing).

    Examples
    --------
    >>> uuid("GPU-00000000-0000-0000-0000-000000000000") is None, uuid(" GPU-5f ")
    (True, 'GPU-5f')
    """
    value = value_or_none(text)
    if value is None or not value.upper().removeprefix("GPU-").removeprefix("MIG-").strip("0-"):
        return None
    return value


def bus(text: str | None) -> str | None:
    """Return a PCI bus id in one spelling (drivers print domains of four or eight digits).

    Examples
    --------
    >>> bus("00000000:0C:00.0"), bus("0000:0c:00.0"), bus("[N/A]")
    ('0000:0c:00.0', '0000:0c:00.0', None)
    """
    value = value_or_none(text)
    if value is None:
        return None
    domain, mark, rest = value.lower().partition(":")
    if not mark or ":" not in rest:
        return value.lower()
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2}):(?P<second>\d{2})"
_FRACTION = r"(?:[.,](?P<fraction>\d+))?"
_HALF = r"(?:\s*(?P<half>[AP]M))?"
_ISO = re.compile(
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})"
    rf"(?:[T ]\s*(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?::(?P<second>\d{{2}}){_FRACTION})?)?"
    r"\s*(?P<offset>Z|UTC|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
_PACKED = re.compile(
    r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})[ T]+(?P<hour>\d{2}):(?P<minute>\d{2})"
    r":(?P<second>\d{2})(?:\.(?P<fraction>\d+))?",
    re.ASCII,
)
_TWO_WAYS = re.compile(
    rf"(?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}})[-/.](?P<year>\d{{4}})[ T,]+"
    rf"{_CLOCK}{_FRACTION}{_HALF}",
    re.ASCII | re.IGNORECASE,
)
_OF_DAY = re.compile(f"{_CLOCK}{_FRACTION}{_HALF}", re.ASCII | re.IGNORECASE)
_WORDS = re.compile(
    r"[A-Za-z]{3,9},?\s+(?:(?P<name>[A-Za-z]{3,9})\s+(?P<day>\d{1,2})"
    r"|(?P<day_2>\d{1,2})\s+(?P<name_2>[A-Za-z]{3,9}))"
    rf"(?:\s+(?P<year>\d{{4}}))?\s+{_CLOCK}(?:\.\d+)?{_HALF}"
    r"(?:\s+[A-Z][A-Za-z]{1,4}|\s+[+-]\d{2,4})?(?:\s+(?P<year_2>\d{4}))?",
    re.ASCII,
)
_PLAIN = re.compile(
    r"\d{4}[-/.]\d\d[-/.]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(\s*(?:Z|UTC|[+-]\d{2}:?\d{2}))?",
    re.ASCII,
)
_FORMS = (_ISO, _PACKED, _TWO_WAYS, _OF_DAY, _WORDS)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,2})?", re.ASCII)
EPOCH_FROM = 1e8
"""Smaller numbers (before 1973) count from an unknown start."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Turns the times of one log, or of one column with a unit, into epoch seconds."""

    def __init__(
        self, tz: str | None = None, date_order: str | None = None, unit: str | None = None
    ) -> None:
        self._zone = None if tz in {None, "UTC"} else ZoneInfo(str(tz))
        self._order = date_order
        self._per_s = None if unit is None else TIME_UNITS[unit]
        self._pairs = CachedValues(self._parse, most=50_000)
        self._offsets = CachedValues(self._offset_of_quarter)

    def parse(self, text: str) -> float:
        """Return epoch seconds; NaN when it is no time.

        Examples
        --------
        >>> Clock().parse("1970/01/01 00:01:00.500"), Clock().parse("1970-01-01T01:00:00+01:00")
        (60.5, 0.0)
        >>> Clock().parse("Thu Jan  1 12:00:05 AM EST 1970"), Clock().parse("yesterday")
        (5.0, nan)
        """
        return self.both(text)[0]

    def both(self, text: str) -> tuple[float, float]:
        """Return the reading with the month first and the one with the day first.

        They differ only for dates such as 04-03-2021; NaN where a reading is impossible.
        """
        return self._pairs[text]

    def column(self, texts: Sequence[str]) -> FloatArray | None:
        """Return the times of a column, or None when they are not all of one plain shape.

        Plain are ``YYYY?MM?DD?HH:MM:SS`` with any fraction and one offset for all, and numbers.
        """
        first = texts[0]
        if _NUMBER.fullmatch(first):
            return self._numbers(texts)
        match = _PLAIN.fullmatch(first)
        joined = "".join(texts)
        if match is None or not joined.isascii() or len(joined) != len(first) * len(texts):
            return None
        table = np.frombuffer(joined.encode("ascii"), dtype=np.uint8).reshape(len(texts), -1)
        end = match.start(1) if match.group(1) else len(first)
        digit = np.array([sign.isdigit() for sign in first[:end]] + [False] * (len(first) - end))
        number = table[:, digit].astype(np.int64) - ord("0")
        if (table[:, ~digit] != table[0, ~digit]).any() or (number < 0).any() or (number > 9).any():
            return None
        tens = number[:, 8:14:2] * 10 + number[:, 9:14:2]
        days, where = np.unique(number[:, :8] @ 10 ** np.arange(7, -1, -1), return_inverse=True)
        starts = [_day_start_s(day // 10000, day // 100 % 100, day % 100) for day in days.tolist()]
        if (tens > (23, 59, 60)).any() or math.isnan(sum(starts)):
            return None
        width = number.shape[1] - 14
        fraction = (number[:, 14:] @ 10.0 ** np.arange(width - 1, -1, -1)) / 10.0**width
        naive = np.array(starts)[where.reshape(-1)] + (tens @ (3600.0, 60.0, 1.0) + fraction)
        return self._localised(naive, (match.group(1) or "").strip())

    def _numbers(self, texts: Sequence[str]) -> FloatArray | None:
        try:
            values = np.array(list(map(float, texts)), dtype=np.float64)
        except ValueError:
            return None
        if not (np.isfinite(values).all() and (values >= 0).all()):
            return None
        top, least = float(values.max()), float(values.min())
        scale = self._scale(top)
        if (top >= EPOCH_FROM > least and self._per_s is None) or scale != self._scale(least):
            return None
        return values / scale

    def _scale(self, value: float) -> float:
        """Return what a number has to be divided by to be seconds: its unit, else told by size."""
        scales = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
        by_size = next((scale for limit, scale in scales if value > limit), 1.0)
        return self._per_s or by_size

    def _localised(self, naive: FloatArray, offset: str | None) -> FloatArray:
        """Return epoch seconds of local times that have one offset, or that of the log's zone."""
        if offset in {"Z", "UTC"} or (not offset and self._zone is None):
            return naive
        if offset:
            digits = offset[1:].replace(":", "")
            shift = int(digits[:2]) * 3600.0 + int(digits[2:4]) * 60.0
            return naive + shift if offset[0] == "-" else naive - shift
        quarters, where = np.unique(np.floor(naive / 900.0).astype(np.int64), return_inverse=True)
        shifts = np.array(list(map(self._offsets.__getitem__, quarters.tolist())))
        shifted: FloatArray = naive - shifts[where.reshape(-1)]
        return shifted

    def _offset_of_quarter(self, quarter: int) -> float:
        """Return the zone's offset in a quarter of an hour of local time, seconds."""
        local = (_EPOCH + timedelta(seconds=quarter * 900)).replace(tzinfo=self._zone)
        return (local.utcoffset() or timedelta()).total_seconds()

    def _parse(self, text: str) -> tuple[float, float]:
        text = text.strip().strip('"').strip()
        if _NUMBER.fullmatch(text) and len(text) <= 64:
            value = float(text) / self._scale(float(text))
            return value, value
        forms = (form.fullmatch(text) for form in _FORMS if len(text) <= 64)
        match = next(filter(None, forms), None)
        if match is None:
            return math.nan, math.nan
        parts = match.groupdict()
        value = self._moment(parts)
        if match.re is not _TWO_WAYS or self._order == "mdy":
            return value, value
        other = self._moment(parts | {"month": parts["day"], "day": parts["month"]})
        return (other if self._order == "dmy" else value), other

    def _moment(self, parts: Mapping[str, str | None]) -> float:
        hour, minute, second = (int(parts.get(part) or 0) for part in ("hour", "minute", "second"))
        if half := parts.get("half"):
            hour = hour % 12 + 12 * (half.upper() == "PM")
        if hour > 23 or minute > 59 or second > 60:
            return math.nan
        value = hour * 3600.0 + minute * 60.0 + second
        fraction = float(f"0.{parts.get('fraction') or 0}")
        if "year" not in parts:
            return value + fraction  # since midnight of an unknown day
        name = (parts.get("name") or parts.get("name_2") or "")[:3].lower()
        month = _MONTHS.index(name) + 1 if name in _MONTHS else int(parts.get("month") or 0)
        day = int(parts["day"] or parts.get("day_2") or 0)
        value += _day_start_s(int(parts["year"] or parts.get("year_2") or 0), month, day)
        if math.isnan(value):
            return value
        return float(self._localised(np.array([value + fraction]), parts.get("offset"))[0])


def _day_start_s(year: int, month: int, day: int) -> float:
    try:
        return (datetime(year, month, day, tzinfo=UTC) - _EPOCH).total_seconds()
    except ValueError:
        return math.nan


_UNIT = re.compile(r"[\[(]\s*([^\])]*?)\s*[\])]\s*$")
_UNIT_TAIL = re.compile(r"_(bytes|kib|mib|gib|kb|mb|gb|b|ms|msec|us|ns)$")
# Memory of something else, or not an amount of memory now.
_OTHER = re.compile(
    r"bar1|protected|ccpm|util|bandwidth|band_width|clock|temp|power|max_memory_usage|gtt|vis_vram"
    r"|peak|ecc|error|percent|pct|encryption|activity|disk|(?:^|_)(?:net|rx|tx|read|written)(?:_|$)"
)
_HOST = re.compile(
    r"cpu|host|system|swap|heap|resident|virtual|(?:^|_)(?:d?ram|sys|rss|vms|uss|pss)(?:_|$)"
)
_GPU = re.compile(r"gpu|cuda|vram|nvidia|(?:^|_)fb(?:_|$)|framebuffer|device")
_OF_SMI = re.compile(r"\s*memory\.(?:used|free|total|reserved)\b", re.IGNORECASE)
"""A column as nvidia-smi itself calls it."""
_UNIT_END = re.compile(r"(?:^|[^A-Za-z]|(?<=[a-z])(?=[A-Z]))((?i:bytes|[kmg]i?b))\W*$")
_ANY_WORD = re.compile(
    r"time|date|stamp|elapsed|sec|epoch|taken|mem|vram|fb|used|free|pid|process_id|uuid|device_uid"
    r"|bus_id|name|^ts\b",
    re.IGNORECASE,
)
_PROSE = re.compile(r":\s|[.!?]\s*$|(?:\S+\s+){6}\S")
"""What is in sentences and in no name of a column."""
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
    "utilisation": "utilization_gpu gpu_util util_gpu gpu_utilization utilization_gpu_pct util_pct"
    " gpu_util_pct gpu_util_percent gpu_utilization_pct gpu_utilization_percent",
    "power": "power_draw power_draw_w power_w power_draw_instant power_draw_average",
}
"""What a column without an amount holds: an identity, a name, a time, or how busy a device is."""
_DEVICE_ROLES = frozenset({"uuid", "bus", "index"})
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


def is_of_host(name: str) -> bool:
    """Say whether a bare name is about the machine and its own memory, not about a GPU."""
    return _HOST.search(name) is not None


def memory_role(name: str) -> str | None:
    """Return used, total, free or reserved for a column that holds an amount of GPU memory.

    Examples
    --------
    >>> memory_role("memory_used"), memory_role("memory_max"), memory_role("mem_free")
    ('used', 'total', 'free')
    >>> memory_role("memory"), memory_role("utilization_memory"), memory_role("used")
    (None, None, 'used')
    >>> memory_role("rss_memory_used"), memory_role("ram_used"), memory_role("gpu_ram_used")
    (None, None, 'used')
    """
    if name in {"used", "total", "free", "reserved"}:
        return name
    if _GPU.search(name):
        name = name.replace("_ram", "_mem")
    if is_of_host(name) or _OTHER.search(name) or not _MEMORY.search(name):
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
    time_unit: str | None = None
    """Unit of the column of times, where its header names one."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names)

    def column_names(self) -> str:
        """Return the column names for an error message."""
        text = ", ".join(name.strip() for name in self.names[:12])
        return text + (f" and {self.width - 12} more" if self.width > 12 else "")


def layout_from(cells: Sequence[str]) -> Layout:
    """Return the layout of columns by their names."""
    layout = Layout([cell.strip() for cell in cells])
    choices: dict[str, int] = {}
    time_unit: str | None = None
    gpus = _gpu_columns(cells)
    for position, cell in enumerate(cells):
        name, unit = words_of(cell)
        role = _ROLE_OF.get(name)
        if name == "time" and unit is None and "time" in layout.roles:
            before = words_of(layout.names[layout.roles["time"]])[0]
            role = "clock" if before == "date" else role
        if role is None and unit != "%":
            if position in gpus:
                _memory_column(layout, position, name, unit)
        elif role == "index" and unit is None:
            choices.setdefault(name, position)
        elif role == "time" and unit in TIME_UNITS:
            if "time" not in layout.roles:
                layout.roles["time"], time_unit = position, unit
        elif role == "time" and time_unit is not None:
            layout.roles["time"], time_unit = position, None
        elif role not in {None, "index"}:
            layout.roles.setdefault(str(role), position)
    indices = [choices[name] for name in _ROLES["index"].split() if name in choices]
    return replace(layout, index_choices=indices, time_unit=time_unit)


def _gpu_columns(cells: Sequence[str]) -> set[int]:
    """Return the columns whose memory, if they hold any, is that of a GPU.

    That is all of them, except where others are about the machine itself: a plain "memory used" is
    that of the GPU only if the columns before it were about a GPU.
    """
    names = [words_of(cell)[0] for cell in cells]
    used = {at for at, name in enumerate(names) if memory_role(name) == "used"}
    of_gpu = {
        at
        for at, name in enumerate(names)
        if _GPU.search(name) or _OF_SMI.match(cells[at]) or _ROLE_OF.get(name) in _DEVICE_ROLES
    }
    of_host = {at for at, name in enumerate(names) if name not in _ROLE_OF and is_of_host(name)}
    if used & of_gpu and used - of_gpu:
        return of_gpu
    found, about_gpu = set(), not of_host - of_gpu
    for at in range(len(names)):
        about_gpu = at in of_gpu or (about_gpu and at not in of_host)
        if about_gpu:
            found.add(at)
    return found


def _memory_column(layout: Layout, position: int, name: str, unit: str | None) -> None:
    """Enter a column when it holds an amount of memory."""
    if unit is not None and unit not in UNITS:
        return
    role, guessed = memory_role(name), None
    if role is None and unit is not None and _AMOUNT_ONLY.fullmatch(name):
        role, guessed = "used", layout.names[position]
    times = (_ROLE_OF.get(words_of(column)[0]) == "time" for column in layout.names)
    if role is None and layout.width == 2 and sum(times) == 1:  # what else would be logged?
        end = _UNIT_END.search(layout.names[position])
        bare = words_of(layout.names[position][: end.start(1)])[0] if end else ""
        if end and not is_of_host(bare) and not _OTHER.search(bare):
            role, unit, guessed = "used", end[1].lower(), layout.names[position]
    if role is not None and (role not in layout.roles or (role == "used" and name in _USED_FIRST)):
        layout.roles[role] = position
        layout.units[role] = UNITS[unit] if unit else None
        layout.guessed = guessed if role == "used" else layout.guessed


def layout_of(line: str) -> Layout | None:
    """Return the layout that a header line names, or None when it is no header of ours.

    A header holds words only, and at least a time, an index, a memory or a pid column; a single
    column must be one of memory.
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
    if not cells or any(cell.strip()[:1].isdigit() or _PROSE.search(cell) for cell in cells):
        return None
    layout = layout_from(cells)
    layout.separator = separator
    if len(cells) == 1 and "used" not in layout.roles:
        return None
    names = set(layout.roles) & {"time", "used", "free", "total", "pid", "uuid", "bus"}
    if not names and not (layout.index_choices and "name" in layout.roles):
        return None
    return layout
