"""Quantities as people write them: the only place that formats or parses them.

Sizes are MiB and GiB (binary), rates MB/min (decimal), times ``47 min`` or ``1 h 2 min``, shares
``91 %``. Unknown is ``?``.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core.text import late

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE_UNITS: dict[str, int] = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _SIZE_UNITS |= dict.fromkeys((_letter, f"{_letter}IB"), 1024**_power)
    _SIZE_UNITS[f"{_letter}B"] = 1000**_power
_DURATION_UNITS: dict[str, float] = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_SIZE = late(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_DURATION_PART = late(r"([0-9]*\.?[0-9]+)\s*(ms|min|s|m|h|d|w)\s*", re.ASCII)
_NUMBER = late(r"[0-9]+\.?[0-9]*|\.[0-9]+")
_MOST_DIGITS = 10
"""Of a pid, a user's number or an index."""
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_ASCII = "_.-:=+*#"


def parse_size(text: str) -> int:
    """Return a size in bytes.

    Decimal and binary units are different: ``1GB`` is 10**9, ``1GiB`` (and ``1G``) is 2**30.

    Raises
    ------
    ValueError
        When the text is not a size.

    Examples
    --------
    >>> parse_size("24GiB"), parse_size("1 GB"), parse_size("4096")
    (25769803776, 1000000000, 4096)
    """
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match.group(2).upper()) if match else None
    size = float(match.group(1)) * factor if match and factor is not None else math.inf
    if not size < 2**63:
        raise ValueError(f"{text!r} is not a size; write for example 512MiB or 24GiB")
    return round(size)


def is_number(text: str) -> bool:
    """Say whether a text is a whole number as a pid or an index is written, of any size that fits.

    Examples
    --------
    >>> is_number("4711"), is_number("\u0664\u0667"), is_number("1_0"), is_number("9" * 11)
    (True, False, False, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def parse_duration(text: str, *, bare: bool = True) -> float:
    """Return a duration in seconds from ``90s 15m 2h 7d 1h30m``.

    What `duration` writes is accepted too. A number without a unit is seconds, or with ``bare``
    False a mistake: who writes 7 for a time that is long past means days.

    Raises
    ------
    ValueError
        When the text is not a duration.

    Examples
    --------
    >>> parse_duration("1h30m"), parse_duration("90s"), parse_duration("2.5")
    (5400.0, 90.0, 2.5)
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) and math.isfinite(seconds := float(stripped)):
        if not bare:
            raise ValueError(f"{text} of what? write {stripped}d, {stripped}h or {stripped}m")
        return seconds
    position, total = 0, 0.0
    while position < len(stripped):
        match = _DURATION_PART.match(stripped, position)
        if match is None:
            break
        total += float(match.group(1)) * _DURATION_UNITS[match.group(2)]
        position = match.end()
    if not stripped or position < len(stripped):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 15m, 2h or 1h30m")
    return total


def size(value_bytes: float | None) -> str:
    """Return bytes as people read them.

    Examples
    --------
    >>> size(25769803776), size(1572864), size(None), size(0)
    ('24.0 GiB', '2 MiB', '?', '0 MiB')
    """
    if value_bytes is None or not math.isfinite(value_bytes):
        return "?"
    return " ".join(size_parts(value_bytes))


def size_parts(value_bytes: float) -> tuple[str, str]:
    """Return the number and the unit of bytes as people read them."""
    magnitude = abs(value_bytes)
    if magnitude >= 1024**4:
        return f"{value_bytes / 1024**4:.2f}", "TiB"
    if magnitude >= 1024**3:
        return f"{value_bytes / 1024**3:.1f}", "GiB"
    return f"{value_bytes / 1024**2:.0f}", "MiB"


def peak_text(who: str, value_bytes: float) -> str:
    """Return the sentence on a process whose end the driver's accounting has recorded."""
    return f"{who} has ended; its peak was {size(value_bytes)} (driver accounting)"


def rate(value_bytes_per_s: float | None) -> str:
    """Return a growth rate in MB/min (decimal, as the documents of the trade do).

    Examples
    --------
    >>> rate(206667.0), rate(-20_000_000), rate(None)
    ('12.4 MB/min', '-1,200 MB/min', '?')
    """
    if value_bytes_per_s is None or not math.isfinite(value_bytes_per_s):
        return "?"
    per_min = value_bytes_per_s * 60 / 1e6
    if abs(per_min) >= 1000:
        return f"{per_min:,.0f} MB/min"
    if abs(per_min) >= 100:
        return f"{per_min:.0f} MB/min"
    if 0 < abs(per_min) < 0.095:
        return f"{per_min:.2g} MB/min"
    return f"{per_min:.1f} MB/min"


def duration(value_s: float | None) -> str:
    """Return a time span: under two minutes in seconds, from a day on in days and hours.

    No span is shorter than nothing: clocks that disagree give 0.

    Examples
    --------
    >>> duration(2820), duration(5100), duration(43200), duration(45), duration(None)
    ('47 min', '1 h 25 min', '12 h', '45 s', '?')
    >>> duration(183600), duration(-3.0), duration(-0.0)
    ('2 d 3 h', '0 s', '0 s')
    """
    if value_s is None or not math.isfinite(value_s):
        return "?"
    value_s = max(0.0, value_s)
    if value_s < 120:
        return f"{value_s:.0f} s"
    hours, minutes = divmod(round(value_s / 60), 60)
    if hours < 24:
        return _joined((hours, "h"), (minutes, "min"))
    days, hours = divmod(round(value_s / 3600), 24)
    return _joined((days, "d"), (hours, "h"))


def _joined(*parts: tuple[int, str]) -> str:
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def short_duration(value_s: float) -> str:
    """Return a duration as the configuration writes it.

    Examples
    --------
    >>> short_duration(1800), short_duration(5), short_duration(5400), short_duration(0.5)
    ('30m', '5s', '90m', '0.5s')
    """
    for factor, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if value_s >= factor and value_s % factor == 0:
            return f"{value_s / factor:.0f}{unit}"
    return f"{value_s:.12g}s"


def percent(share: float | None) -> str:
    """Return a share 0-1 as a percentage.

    Examples
    --------
    >>> percent(0.914), percent(None)
    ('91 %', '?')
    """
    if share is None or not math.isfinite(share):
        return "?"
    return f"{share * 100:.0f} %"


_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


def money(value: float | None, *, currency: str = "USD", ascii_only: bool = False) -> str:
    """Return an amount of money in its own currency, rounded to cents for display alone.

    Examples
    --------
    >>> money(4.2), money(1234.5, currency="EUR"), money(0.004, currency="CHF"), money(None)
    ('$4.20', '€1,234.50', '< CHF 0.01', '?')
    >>> money(2.0, currency="EUR", ascii_only=True)
    'EUR 2.00'
    """
    if value is None or not math.isfinite(value):
        return "?"
    sign = _SIGNS.get(currency, "")
    sign = sign if sign and (sign.isascii() or not ascii_only) else f"{currency} "
    return f"< {sign}0.01" if 0 < value < 0.005 else f"{sign}{value:,.2f}"


def strength(confidence: float) -> str:
    """Return the word for a confidence.

    Examples
    --------
    >>> strength(0.97), strength(0.8), strength(0.4)
    ('confirmed', 'likely', 'possible')
    """
    if confidence >= 0.95:
        return "confirmed"
    return "likely" if confidence >= 0.75 else "possible"


def band(low_s: float, mid_s: float, high_s: float | None) -> str:
    """Return a time span with its interval; an upper end of None is open.

    Below two hours both ends are in one unit, which is written once.

    Examples
    --------
    >>> band(2340, 2820, 3720), band(2340, 2820, None)
    ('47 min (39 to 62 min)', '47 min (at least 39 min)')
    >>> band(17000, 18000, 25000)
    '5 h (4 h 43 min to 6 h 57 min)'
    """
    low = duration(low_s)
    if high_s is None:
        interval = f"at least {low}"
    elif 120 <= high_s < 7200 and low_s >= 60:
        interval = f"{low_s / 60:.0f} to {high_s / 60:.0f} min"
    elif high_s < 120:
        interval = f"{low_s:.0f} to {high_s:.0f} s"
    else:
        interval = f"{low} to {duration(high_s)}"
    return f"{duration(mid_s)} ({interval})"


def instant(at_s: float | None) -> str | None:
    """Return an instant as RFC 3339 in UTC with ``Z``; None stays None.

    Examples
    --------
    >>> instant(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    if at_s is None:
        return None
    try:
        moment = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(at_s: float, *, now_s: float | None = None, seconds: bool = False) -> str:
    """Return an instant in local time for people; with the date when it is not today.

    Without ``now_s``, which tells what "today" is, the date is always shown.
    """
    time_of_day = "%H:%M:%S" if seconds else "%H:%M"
    moment = _local(at_s)
    if moment is None:
        return "?"
    if now_s is not None and moment.date() == datetime.fromtimestamp(now_s).date():
        return moment.strftime(time_of_day)
    return moment.strftime(f"%Y-%m-%d {time_of_day}")


def _local(at_s: float) -> datetime | None:
    """Return an instant in local time; None of one that is beyond every calendar."""
    try:
        return datetime.fromtimestamp(at_s).astimezone()
    except (OverflowError, OSError, ValueError):
        return None


def moment(at_s: float, *, now_s: float, zone: bool = False) -> str:
    """Return a time of day; with its weekday when not today, with the date beyond six days.

    ``now_s`` says what "today" is; ``zone`` names the time zone, for readers elsewhere.
    """
    when, today = _local(at_s), _local(now_s)
    if when is None or today is None:
        return "?"
    days = abs((when.date() - today.date()).days)
    day = "" if days == 0 else f"{_WEEKDAYS[when.weekday()]} "
    if days > 6:
        day += f"{when.date().isoformat()} "
    return f"{day}{when:%H:%M}" + (f" {_zone(when)}" if zone else "")


def tick(at_s: float, *, step_s: float) -> str:
    """Return the label of an instant (epoch seconds) on an axis of local time.

    ``step_s`` are the seconds from one label to the next; a midnight is written as its day.
    """
    when = _local(at_s)
    if when is None:
        return "?"
    if step_s < 60 and when.second:
        return f"{when:%H:%M:%S}"
    if when.hour or when.minute or when.second:
        return f"{when:%H:%M}"
    if step_s < 7 * 86400:
        return f"{_WEEKDAYS[when.weekday()]} {when.day}"
    if step_s < 28 * 86400:
        return f"{when:%m-%d}"
    return when.date().isoformat()


def zone(at_s: float) -> str:
    """Return what the local time zone is called at an instant: "CET", or "UTC+03:30"."""
    when = _local(at_s)
    return "local time" if when is None else _zone(when)


def _zone(when: datetime) -> str:
    name = when.tzname() or ""
    if name.isalpha():
        return name
    offset = when.strftime("%z")
    return f"UTC{offset[:3]}:{offset[3:5]}"


def parse_instant(text: str, *, now_s: float, bare: bool = True) -> float:
    """Return epoch seconds from ISO 8601, ``today``, ``yesterday`` or a duration meaning "ago".

    A time without a zone is local. ``bare`` is that of `parse_duration`.

    Raises
    ------
    ValueError
        When the text is none of these.

    Examples
    --------
    >>> parse_instant("2h", now_s=10_000.0)
    2800.0
    >>> parse_instant("1970-01-01T01:00:00Z", now_s=0.0)
    3600.0
    """
    stripped = text.strip()
    if stripped in {"today", "yesterday"}:
        today = datetime.fromtimestamp(now_s).astimezone()
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight.timestamp() - (86400.0 if stripped == "yesterday" else 0.0)
    if not bare and _NUMBER.fullmatch(stripped):
        parse_duration(stripped, bare=False)  # says what is missing
    try:
        at_s = now_s - parse_duration(stripped)
    except ValueError:
        at_s = _written(stripped, text)
    if instant(at_s) is None:
        raise ValueError(f"{text!r} is beyond every calendar")
    return at_s


def _written(stripped: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(stripped)
        return moment.timestamp() if moment.tzinfo else moment.astimezone().timestamp()
    except (OverflowError, ValueError):
        raise ValueError(
            f"{text!r} is not a time; write 2h, today, yesterday or 2026-11-21T08:00"
        ) from None


def spark(values: list[float | None], *, low: float, high: float, ascii_only: bool = False) -> str:
    """Return one character per value on the scale low-high; a gap is a space.

    Examples
    --------
    >>> spark([0, 5, None, 10], low=0, high=10, ascii_only=True)
    '_= #'
    """
    marks = _SPARKS_ASCII if ascii_only else _SPARKS
    span = max(high - low, 1e-9)
    top = len(marks) - 1
    return "".join(
        " " if value is None else marks[min(top, max(0, round((value - low) / span * top)))]
        for value in values
    )


class Local(NamedTuple):
    """What time it is where people are."""

    now_s: float
    """Epoch seconds."""
    weekday: int
    """Monday is 0."""
    minute: int
    """Of the day."""
    epoch: Callable[[int, int], float]
    """(days from today, minute of that day on the clock) -> epoch seconds: days on which clocks are
    changed have 23 or 25 hours."""

    @classmethod
    def at(cls, now_s: float) -> Local:
        """Return what time it is on the clocks of this machine; of what they show twice, the first.

        Hours that clocks skip, and days beyond the end of a month, are for mktime to sort out.
        """
        here = time.localtime(now_s)

        def epoch(day: int, minute: int) -> float:
            date = (here.tm_year, here.tm_mon, here.tm_mday + day)
            return time.mktime((*date, 0, minute, 0, 0, 0, -1))

        return cls(now_s, here.tm_wday, 60 * here.tm_hour + here.tm_min, epoch)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one.

    Examples
    --------
    >>> count(1, "watch"), count(2, "watch"), count(0, "GPU"), count(3, "process")
    ('1 watch', '2 watches', '0 GPUs', '3 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number} {noun}{ending}"
