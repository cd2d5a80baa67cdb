"""Hours of the week as people write them: "22:00-07:00", "sat,sun 00:00-24:00"."""

from __future__ import annotations

import re
from typing import NamedTuple

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
_RANGE = re.compile(
    r"(?:(?P<days>[a-z]{3}(?:\s*[-,]\s*[a-z]{3})*)\s+)?"
    r"(?P<from_h>\d{1,2}):(?P<from_m>\d\d)\s*-\s*(?P<to_h>\d{1,2}):(?P<to_m>\d\d)",
    re.IGNORECASE,
)


class Hours(NamedTuple):
    """One range, on the days on which it begins; an end before its beginning is the next day's."""

    days: frozenset[int]
    """Monday is 0."""
    begin: int
    """Minute of the day."""
    end: int
    """Minute of the day, up to 1440."""


def parse(text: str) -> Hours:
    """Return the range that a text names.

    Raises
    ------
    ValueError
        With what is wrong, in words.

    Examples
    --------
    >>> parse("22:00-07:00") == Hours(frozenset(range(7)), 1320, 420)
    True
    >>> sorted(parse("fri-sun 00:00-24:00").days)
    [4, 5, 6]
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not like 22:00-07:00 or sat,sun 00:00-24:00")
    begin = _minute(match["from_h"], match["from_m"])
    end = _minute(match["to_h"], match["to_m"])
    if begin == end:
        raise ValueError(f"{text!r} is empty; the whole day is 00:00-24:00")
    if begin == DAY_MINUTES:
        raise ValueError(f"{text!r} begins when the day is over; the next one begins at 00:00")
    return Hours(_days(match["days"]), begin, end)


def _minute(hours: str, minutes: str) -> int:
    minute = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or minute > DAY_MINUTES:
        raise ValueError(f"{hours}:{minutes} is no time of day")
    return minute


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.lower().replace(" ", "").split(","):
        first, _, last = part.partition("-")
        begin, end = _day(first), _day(last or first)
        # "sat-mon" goes over the end of the week.
        days.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return frozenset(days)


def _day(name: str) -> int:
    if name not in DAYS:
        raise ValueError(f"{name!r} is no day: {', '.join(DAYS)}")
    return DAYS.index(name)
