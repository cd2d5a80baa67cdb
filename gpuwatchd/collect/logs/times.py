"""Times as logs write them -> epoch seconds; whole columns at once where they are uniform."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from gpuwatchd.collect.logs.fields import CachedValues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import FloatArray

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
