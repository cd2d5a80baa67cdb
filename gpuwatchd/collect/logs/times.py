"""Times as logs write them -> epoch seconds; whole columns at once where they are uniform."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from gpuwatchd.collect.logs.fields import MIB, CachedValues

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


# One subject's readings -> runs of ascending time, without doubles, with their gaps.

GAP_INTERVALS = 10.0
DISORDER_SHARE = 0.1
"""With more backward steps than this the rows are not in time order at all."""


@dataclass(slots=True, eq=False)
class Run:
    """A stretch of strictly ascending time."""

    t: FloatArray
    used: FloatArray
    breaks: tuple[int, ...]


@dataclass(slots=True)
class Repairs:
    """What was done to make runs; counts of readings."""

    doubles: int = 0
    strays: int = 0
    """Readings dropped since their time lies apart from both neighbours."""
    jumps_back: int = 0
    resorted: bool = False


def median_interval_s(t: FloatArray) -> float:
    """Return the median of the positive steps; 0 when there is none."""
    steps = np.diff(t)
    steps = steps[steps > 0]
    return float(np.median(steps)) if steps.size else 0.0


def split(t: FloatArray, used: FloatArray, repairs: Repairs) -> list[Run]:
    """Return the runs of one subject in file order.

    A step back of at most one sampling interval is disorder and is sorted; a longer one starts a
    new run (a second job, the end of summer time). Of readings with the same time the last counts.
    """
    interval = median_interval_s(t)
    t, used = _without_strays(t, used, interval, repairs)
    back = np.flatnonzero(np.diff(t) < 0)
    if back.size > max(3.0, DISORDER_SHARE * t.size):
        repairs.resorted = True
        return [_run(t, used, interval, repairs)]
    cuts = (np.flatnonzero(np.diff(t) < -max(interval, 1e-9)) + 1).tolist()
    repairs.jumps_back += len(cuts)
    edges = [0, *cuts, t.size]
    return [
        _run(t[start:end], used[start:end], interval, repairs)
        for start, end in itertools.pairwise(edges)
    ]


def _without_strays(
    t: FloatArray, used: FloatArray, interval: float, repairs: Repairs
) -> tuple[FloatArray, FloatArray]:
    """Drop single readings whose time is torn: their neighbours fit together without them."""
    if t.size < 5 or interval <= 0:
        return t, used
    before, here, after = t[:-2], t[1:-1], t[2:]
    near = (after >= before) & (after - before <= GAP_INTERVALS * interval)
    apart = (here - after > GAP_INTERVALS * interval) | (before - here > GAP_INTERVALS * interval)
    stray = np.concatenate(([False], near & apart, [False]))
    repairs.strays += int(stray.sum())
    return (t[~stray], used[~stray]) if stray.any() else (t, used)


def last_of_each_time(t: FloatArray, used: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return readings in strictly ascending time; of several with one time the last counts."""
    if not (np.diff(t) <= 0).any():
        return t, used
    order = np.argsort(t, kind="stable")
    t, used = t[order], used[order]
    last = np.concatenate((np.diff(t) > 0, [True]))
    return t[last], used[last]


def _run(t: FloatArray, used: FloatArray, interval: float, repairs: Repairs) -> Run:
    before = t.size
    t, used = last_of_each_time(t, used)
    repairs.doubles += before - t.size
    gaps = np.flatnonzero(np.diff(t) > GAP_INTERVALS * interval) + 1
    breaks = tuple(gaps.tolist()) if interval > 0 else ()
    return Run(np.ascontiguousarray(t), np.ascontiguousarray(used), breaks)


def interleaved(t: FloatArray, used: FloatArray, *, timed: bool = True) -> bool:
    """Say whether two devices seem to write one series in turn.

    Either nearly every time occurs more than once with different levels in it, or levels and time
    steps both alternate: one device alone does not do that. Without times, levels must do.
    """
    if t.size < 8:
        return False
    if timed and _levels_within_ticks(t, used):
        return True
    steps = np.diff(t)
    least = 0.1 * float(np.median(np.abs(steps[1:])))
    return _alternates(used, 64 * MIB) and (not timed or _alternates(steps[1:], least))


def _levels_within_ticks(t: FloatArray, used: FloatArray) -> bool:
    values, counts = np.unique(t, return_counts=True)
    count = int(np.median(counts))
    if count < 2 or values.size < 2 or float((counts == count).mean()) < 0.8:
        return False
    order = np.argsort(t, kind="stable")
    ranked = used[order]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[counts == count]
    table = ranked[starts[:, None] + np.arange(count)]
    within = np.median(np.ptp(table, axis=1))
    between = np.median(np.abs(np.diff(table, axis=0))) if table.shape[0] > 1 else 0.0
    return bool(within > 16 * MIB + 10 * between)


def _alternates(values: FloatArray, least: float) -> bool:
    if values.size < 6:
        return False
    one = float(np.median(np.abs(np.diff(values))))
    two = float(np.median(np.abs(values[2:] - values[:-2])))
    return one > least and two * 10 <= one
