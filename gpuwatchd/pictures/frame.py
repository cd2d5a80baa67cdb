"""What of time and memory a chart shows, and where its round numbers are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd import units
from gpuwatchd.pictures import zones
from gpuwatchd.pictures.spoken import extremes

if TYPE_CHECKING:
    from gpuwatchd.pictures.chart import Picture

_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 604800, 1209600, 2419200, 7862400, 15724800, 31449600),
)
_FACTORS: Final = (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 100, 128, 200, 256, 512)
_MOST_LEVELS = 5
_MOST_INSTANTS = 7


class Frame(NamedTuple):
    """What is shown of time (epoch seconds) and memory (bytes, from 0)."""

    begin_s: float
    end_s: float
    top_bytes: float


def frame(picture: Picture) -> Frame:
    """Return what a chart shows: the past, and of a forecast at most twice as much time.

    The scale reaches the limit, unless memory is far from it and nothing leads there.
    """
    begin_s = picture.begin_s
    end_s = max(picture.end_s, begin_s + 60.0)
    told = picture.forecast
    if told is not None and told.mid_s is not None:
        high_s = told.high_s
        near = high_s is not None and high_s < 2.5 * told.mid_s
        wanted_s = 1.06 * high_s if high_s is not None and near else 1.35 * told.mid_s
        past_s = max(picture.end_s - begin_s, 60.0)
        end_s = max(end_s, told.judged_at_s + min(max(wanted_s, 0.15 * past_s), 2.0 * past_s))
    return Frame(begin_s, end_s, _top(picture))


def _top(picture: Picture) -> float:
    _, high = extremes(picture.curve)
    limit = picture.limit_bytes
    if high is None:
        return 1.12 * limit if limit else 1024.0**3
    ends = picture.forecast is not None and picture.forecast.mid_s is not None
    if limit is not None and (high > 0.15 * limit or ends):
        return 1.12 * max(high, limit)
    return 1.25 * max(high, 64.0 * 1024**2)


def levels(top_bytes: float) -> list[float]:
    """Return the levels of the grid lines, from 0, at most six.

    Examples
    --------
    >>> [level / 1024**3 for level in levels(27 * 1024**3)]
    [0.0, 8.0, 16.0, 24.0]
    """
    steps = (factor * 1024.0**power for power in (2, 3, 4, 5) for factor in _FACTORS)
    step = next((step for step in steps if top_bytes / step <= _MOST_LEVELS), top_bytes / 5)
    return [n * step for n in range(int(top_bytes / step) + 1)]


def level(value_bytes: float) -> str:
    """Return the label of a grid line.

    Examples
    --------
    >>> level(8 * 1024**3), level(0)
    ('8 GiB', '0')
    """
    if not value_bytes:
        return "0"
    number, _, unit = units.size(value_bytes).partition(" ")
    return f"{float(number):g} {unit}"


def instants(begin_s: float, end_s: float) -> list[float]:
    """Return instants that are round on the local clock, epoch seconds, at most eight."""
    step = next((s for s in _STEPS_S if (end_s - begin_s) / s <= _MOST_INSTANTS), _STEPS_S[-1])
    ahead_s = zones.ahead_s(begin_s)
    first = math.ceil((begin_s + ahead_s) / step)
    found = []
    for n in range(first, first + _MOST_INSTANTS + 2):
        # Midnight stays midnight when the clocks change within the span.
        at_s = n * step - zones.ahead_s(n * step - ahead_s)
        if begin_s <= at_s <= end_s:
            found.append(at_s)
    return found
