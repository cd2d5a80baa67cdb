"""When the limit that binds a subject is reached, or where the growth levels off before it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.analysis import forecast
from gpuwatchd.analysis.forecast.eta import LAWS, Forecast, Pace, eta, forecast_median, pace
from gpuwatchd.analysis.forecast.windows import Saturation, saturation
from gpuwatchd.core import units

if TYPE_CHECKING:
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import EtaRange, FloatArray, Series

UNLIKELY = 1e-4
"""Laws with less weight than this do not count."""
REGULAR, IRREGULAR = 0.15, 0.65
"""Standard error of the change of pace: below, a line fits; above, only what it adds up to."""
STOPPED = 2.0
"""Growth that pauses for this many times its longest pause before has ended where it is."""


class LimitForecast(NamedTuple):
    """What will become of a growth: it runs full, or it levels off before."""

    eta: EtaRange | None
    """None without a limit, and where the growth almost surely levels off below it."""
    levels_off_bytes: float | None
    """Level at which it rather ends, where that is below the limit."""
    words: str
    """The same for people; "" where it does not slow down."""


def limit_forecast(
    series: Series, growth: Growth, rate: float, settings: DetectionSection
) -> LimitForecast:
    """Return the time until the limit that binds, and where the growth may end before it."""
    one = forecast_for_growth(series, growth, rate, settings)
    ends = _ends(growth)
    limit = series.limit_bytes
    if ends is None or limit is None or ends.mid >= limit:
        return LimitForecast(None if one is None else eta(one), None, "")
    # Rather than not it ends before the limit: then nobody can say when it is reached at last.
    if one is None or ends.high < limit:
        return LimitForecast(None, ends.mid, f"slowing down, levels off at {_about(ends)}")
    band = eta(one, may_stop=True)
    return LimitForecast(band, ends.mid, f"slowing down, may level off at {_about(ends)}")


def ending(growth: Growth, guess: float | None, limit: float | None) -> tuple[float | None, str]:
    """Return where growth that slows down levels off below the limit, in bytes and in words.

    ``guess`` is taken where the laws see no such level; None and "" where there is none either.
    """
    ends, below = _ends(growth), math.inf if limit is None else limit
    if growth.found.stall[growth.best] >= STOPPED:
        # No smooth law knows of a sudden end.
        ends, guess = None, float(growth.found.view.mean[-1])
    if ends is not None and ends.mid < below:
        return ends.mid, f"levels off at {_about(ends)}"
    if guess is None or guess >= below:
        return None, ""
    return guess, f"levels off at about {units.size(guess)}"


def _ends(growth: Growth) -> Saturation | None:
    """Return where the growth ends; None where it does not slow down.

    Where memory is given back now and then the floor tells, and its peaks stand as high above it
    as they do now.
    """
    windows, best = growth.found, growth.best
    if windows.lag_s[best] == 0.0:
        return saturation(windows.view, growth.onset_s)
    view, end_s = windows.view, float(windows.end_s[best])
    ends = saturation(view, growth.onset_s, end_s)
    if ends is None:
        return None
    recent = view.t_s.searchsorted(2.0 * end_s)
    above = float(view.high[recent:].max()) - float(np.interp(end_s, view.t_s, view.floor))
    low, mid, high = ends.low + above, ends.mid + above, ends.high + above
    return Saturation(low, mid, high, ends.ends)


def _about(ends: Saturation) -> str:
    text = f"about {units.size(ends.mid)}"
    if math.isfinite(ends.high) and ends.high - ends.low > 0.05 * ends.mid:
        text += f" ({units.size(ends.low)} to {units.size(ends.high)})"
    return text


def forecast_for_growth(
    series: Series, growth: Growth, rate: float, settings: DetectionSection
) -> Forecast | None:
    """Return the forecast that :func:`limit_forecast` rests on.

    What everybody else on the device is leaking takes from the same free memory: of the headroom,
    only the subject's own share of all growth is its own.
    """
    if growth.headroom is None or rate <= 0.0:
        return None
    seen = pace(growth.found.view, growth.onset_s)
    if growth.found.lag_s[growth.best] > 0.0:
        # Swings make any pace seem to change at once.
        seen = seen._replace(after=0.0)
    rate = _steadied(rate, growth, seen)
    own = rate / (rate + max(sum(series.neighbours_bytes_per_s), 0.0))
    headroom = max(growth.headroom, 0.0) * own
    windows, index = growth.found, growth.best
    horizon_s = max(forecast.HORIZON_S, float(settings.eta_horizon))
    grown, age_s = float(windows.growth[index]), float(windows.age_s[index])
    left_s = growth.reach_s
    if own < 1.0:
        ends = LAWS.reach(np.array([headroom / grown]))[0]
        left_s = np.maximum(age_s * (ends - 1.0) + windows.end_s[index], 0.0)
    line_s = headroom / rate
    return forecast_median(
        seen,
        age_s=-growth.onset_s,
        headroom=headroom,
        rate=rate,
        parcel=grown / float(windows.events[index]),
        law_s=_median(left_s, growth.law, horizon_s, line_s),
    )


def _steadied(rate: float, growth: Growth, seen: Pace) -> float:
    """Return the rate of a pace that is irregular: all growth over all time says most of it.

    A least-squares line weighs the parcels in the middle most, which is right for noise and wrong
    for parcels at random times. Where memory is given back the floor lags, and the line stays.
    """
    weight = min(max((seen.error - REGULAR) / (IRREGULAR - REGULAR), 0.0), 1.0)
    if weight == 0.0 or growth.found.lag_s[growth.best] > 0.0:
        return rate
    view = growth.found.view
    begun = float(np.interp(growth.onset_s, view.t_s, view.floor))
    whole = (float(view.floor[-1]) - begun) / -growth.onset_s
    # Never far from the rate that is shown.
    whole = min(max(whole, 0.25 * rate), 4.0 * rate)
    return float(rate ** (1.0 - weight) * whole**weight)


def _median(left_s: FloatArray, weight: FloatArray, horizon_s: float, line_s: float) -> float:
    """Return the weighted median of the times that the laws name; ``line_s`` without any."""
    good = (left_s < horizon_s) & (weight > UNLIKELY)
    if not good.any():
        return line_s
    left_s = left_s[good]
    order = left_s.argsort()
    total = np.add.accumulate(weight[good][order])
    return float(left_s[order[total.searchsorted(0.5 * total[-1])]])
