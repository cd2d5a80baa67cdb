"""Times as logs write them -> epoch seconds; whole columns at once where they are uniform."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import FloatArray

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_ISO = re.compile(
    r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)?)?"
    r"\s*(Z|UTC|[+-]\d{2}:?\d{2})?",
    re.ASCII,
)
_PACKED = re.compile(r"(\d{4})(\d{2})(\d{2})[ T]+(\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?()", re.ASCII)
_TWO_WAYS = re.compile(
    r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})[ T,]+(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?"
    r"(?:\s*([AP]M))?",
    re.ASCII | re.IGNORECASE,
)
_WORDS = re.compile(
    r"[A-Za-z]{3,9},?\s+(?:([A-Za-z]{3,9})\s+(\d{1,2})|(\d{1,2})\s+([A-Za-z]{3,9}))"
    r"(?:\s+(\d{4}))?\s+(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?(?:\s*([AP]M))?"
    r"(?:\s+[A-Z][A-Za-z]{1,4}|\s+[+-]\d{2,4})?(?:\s+(\d{4}))?",
    re.ASCII,
)
_OF_DAY = re.compile(
    r"(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?(?:\s*([AP]M))?", re.ASCII | re.IGNORECASE
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,2})?", re.ASCII)
_CACHE_MAX = 50_000
EPOCH_FROM = 1e8
"""Smaller numbers (before 1973) count from an unknown start."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Turns the times of one log into epoch seconds."""

    def __init__(self, tz: str | None = None, date_order: str | None = None) -> None:
        self._zone = None if tz in {None, "UTC"} else ZoneInfo(str(tz))
        self._order = date_order
        self._seen: dict[str, tuple[float, float]] = {}
        self._days: dict[int, float] = {}
        self._offsets: dict[int, float] = {}

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
        pair = self._seen.get(text)
        if pair is None:
            if len(self._seen) >= _CACHE_MAX:
                self._seen.clear()
            pair = self._seen[text] = self._parse(text.strip().strip('"').strip())
        return pair

    def column(self, texts: Sequence[str]) -> FloatArray | None:
        """Return the times of a column, or None when they are not all of one plain shape.

        Plain are ``YYYY?MM?DD?HH:MM:SS`` with any fraction and one offset for all, and numbers.
        """
        first = texts[0]
        if _NUMBER.fullmatch(first.strip()):
            return self._numbers(texts)
        width = len(first)
        if width < 19 or not first[0].isdigit() or not first.isascii():
            return None
        joined = "".join(texts)
        if len(joined) != width * len(texts) or not joined.isascii():
            return None
        table = np.frombuffer(joined.encode("ascii"), dtype=np.uint8).reshape(len(texts), width)
        return self._plain(table, first)

    def _numbers(self, texts: Sequence[str]) -> FloatArray | None:
        try:
            values = np.array(list(map(float, texts)), dtype=np.float64)
        except ValueError:
            return None
        if not (np.isfinite(values).all() and (values >= 0).all()):
            return None
        top = float(values.max())
        if top >= EPOCH_FROM and float(values.min()) < EPOCH_FROM:
            return None
        return values / _scale(top) if _scale(top) == _scale(float(values.min())) else None

    def _plain(self, table: np.ndarray, first: str) -> FloatArray | None:
        match = _ISO.fullmatch(first)
        if match is None or match.start(6) != 17:
            return None
        end = match.end(7) if match.group(7) else 19
        fixed = [
            4,
            7,
            10,
            13,
            16,
            *range(19, 20 if match.group(7) else 19),
            *range(end, len(first)),
        ]
        if (table[:, fixed] != table[0, fixed]).any():
            return None
        digits = table.astype(np.int16) - 48
        places = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, *range(20, end)]
        used = digits[:, places]
        if (used < 0).any() or (used > 9).any():
            return None
        number = used.astype(np.int64)
        day = number[:, :8] @ np.array([10**7, 10**6, 10**5, 10**4, 1000, 100, 10, 1])
        tens = number[:, 8:14:2] * 10 + number[:, 9:14:2]
        if (tens > (23, 59, 60)).any():
            return None
        seconds = (tens @ np.array([3600, 60, 1])).astype(np.float64)
        if end > 20:
            weights = 10 ** np.arange(end - 21, -1, -1, dtype=np.float64)
            seconds += (number[:, 14:] @ weights) / 10.0 ** (end - 20)
        start = self._day_starts(day)
        if start is None:
            return None
        naive = start + seconds
        offset = match.group(8)
        return naive - _offset_s(offset) if offset else self._localised(naive)

    def _day_starts(self, day: np.ndarray) -> FloatArray | None:
        values, where = np.unique(day, return_inverse=True)
        starts = []
        for value in values.tolist():
            if value not in self._days:
                try:
                    moment = datetime(value // 10000, value // 100 % 100, value % 100, tzinfo=UTC)
                except ValueError:
                    return None
                self._days[value] = (moment - _EPOCH).total_seconds()
            starts.append(self._days[value])
        return np.array(starts, dtype=np.float64)[where.reshape(-1)]

    def _localised(self, naive: FloatArray) -> FloatArray:
        if self._zone is None:
            return naive
        quarters, where = np.unique(np.floor(naive / 900.0).astype(np.int64), return_inverse=True)
        shifts = np.array([self._shift(quarter) for quarter in quarters.tolist()])
        shifted: FloatArray = naive - shifts[where.reshape(-1)]
        return shifted

    def _shift(self, quarter: int) -> float:
        """Return the zone's offset in a quarter of an hour of local time, seconds."""
        if quarter not in self._offsets:
            local = (_EPOCH + timedelta(seconds=quarter * 900)).replace(tzinfo=self._zone)
            offset = local.utcoffset()
            self._offsets[quarter] = offset.total_seconds() if offset else 0.0
        return self._offsets[quarter]

    def _parse(self, text: str) -> tuple[float, float]:
        if not text or len(text) > 64:
            return math.nan, math.nan
        if _NUMBER.fullmatch(text):
            value = float(text)
            value /= _scale(value)
        elif match := _ISO.fullmatch(text) or _PACKED.fullmatch(text):
            year, month, day, *rest = match.groups()
            value = self._at(int(year), int(month), int(day), rest)
        elif match := _TWO_WAYS.fullmatch(text):
            return self._either(match)
        elif match := _OF_DAY.fullmatch(text):
            value = self._of_day(match)
        elif match := _WORDS.fullmatch(text):
            value = self._words(match)
        else:
            value = math.nan
        return value, value

    def _either(self, match: re.Match[str]) -> tuple[float, float]:
        first, second, year, hour, minute, second_s, fraction, half = match.groups()
        rest = [str(_hour(int(hour), half)), minute, second_s, fraction, None]
        month_first = self._at(int(year), int(first), int(second), rest)
        day_first = self._at(int(year), int(second), int(first), rest)
        if self._order == "mdy":
            return month_first, month_first
        if self._order == "dmy":
            return day_first, day_first
        return month_first, day_first

    def _of_day(self, match: re.Match[str]) -> float:
        """Return seconds since midnight of an unknown day."""
        hour, minute, second, fraction, half = match.groups()
        if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
            return math.nan
        value = _hour(int(hour), half) * 3600.0 + int(minute) * 60.0 + int(second)
        return value + (float(f"0.{fraction}") if fraction else 0.0)

    def _words(self, match: re.Match[str]) -> float:
        name, day, day_2, name_2, year, hour, minute, second, half, year_2 = match.groups()
        month = _MONTHS.get((name or name_2)[:3].lower())
        if month is None or not (year or year_2):
            return math.nan
        rest = [str(_hour(int(hour), half)), minute, second, None, None]
        return self._at(int(year or year_2), month, int(day or day_2), rest)

    def _at(self, year: int, month: int, day: int, rest: Sequence[str | None]) -> float:
        hour, minute, second, fraction, offset = (*rest, None)[:5]
        try:
            moment = datetime(year, month, day, int(hour or 0), int(minute or 0), tzinfo=UTC)
        except ValueError:
            return math.nan
        seconds = int(second or 0)
        if seconds > 60:
            return math.nan
        value = (moment - _EPOCH).total_seconds() + seconds
        value += float(f"0.{fraction}") if fraction else 0.0
        if offset:
            return value - _offset_s(offset)
        return float(self._localised(np.array([value]))[0])


def _scale(value: float) -> float:
    """Return what a number has to be divided by to be seconds: ms, µs and ns are told by size."""
    for limit, scale in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if value > limit:
            return scale
    return 1.0


def _hour(hour: int, half: str | None) -> int:
    if not half:
        return hour
    return hour % 12 + (12 if half.upper() == "PM" else 0)


def _offset_s(text: str) -> float:
    if text in {"Z", "UTC"}:
        return 0.0
    sign = -1.0 if text[0] == "-" else 1.0
    digits = text[1:].replace(":", "")
    return sign * (int(digits[:2]) * 3600.0 + int(digits[2:4]) * 60.0)
