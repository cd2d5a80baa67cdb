"""Numbers, units, special values and times as tools print them; shared by every format."""

from __future__ import annotations

import csv
import math
import re
from datetime import UTC, datetime, timedelta
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
    """Turns the times of one log into epoch seconds."""

    def __init__(self, tz: str | None = None, date_order: str | None = None) -> None:
        self._zone = None if tz in {None, "UTC"} else ZoneInfo(str(tz))
        self._order = date_order
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
        if (top >= EPOCH_FROM > least) or _scale(top) != _scale(least):
            return None
        return values / _scale(top)

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
            value = float(text) / _scale(float(text))
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


def _scale(value: float) -> float:
    """Return what a number has to be divided by to be seconds: ms, µs and ns are told by size."""
    scales = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
    return next((scale for limit, scale in scales if value > limit), 1.0)
