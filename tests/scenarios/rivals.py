"""What others do, written anew from their documents, on the same series: the bar to be above.

Each rule sees the last hour (or what there is of it), once a minute, with its documented defaults,
and alerts at the first hit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuwatchd.robust import least_squares

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenarios.worlds import Item

Array = npt.NDArray[np.floating[Any]]
HOUR_S = 3600.0
MB = 1e6


def _floats(x: Array) -> npt.NDArray[np.float64]:
    return np.asarray(x, dtype=np.float64)


def linear(t: Array, x: Array, total: float) -> bool:
    """R² >= 0.7, slope >= 1 MB/s, at least 5 minutes and 20 samples."""
    if t.size < 20 or t[-1] - t[0] < 300:
        return False
    slope, _, r_squared = least_squares(_floats(t), _floats(x))
    return r_squared >= 0.7 and slope >= MB


def composite(t: Array, x: Array, total: float) -> bool:
    """The linear rule, or a rise by 20 % within 30 s."""
    if linear(t, x, total):
        return True
    first = int(np.searchsorted(t, t[-1] - 30.0))
    return bool(t.size - first >= 3 and x[-1] > 1.2 * max(float(x[first]), 1.0))


def regression(t: Array, x: Array, total: float) -> bool:
    """A regression with p < 0.05 and r > 0.5, growth above 100 MB."""
    if t.size < 10 or x[-1] - x[0] < 100 * MB:
        return False
    slope, _, r_squared = least_squares(_floats(t), _floats(x))
    if slope <= 0 or r_squared <= 0.25:
        return False
    statistic = math.sqrt(r_squared * (t.size - 2) / max(1e-12, 1 - r_squared))
    return statistic > 1.96


def predict_linear(t: Array, x: Array, total: float) -> bool:
    """A line through the last hour crosses the limit within four hours."""
    if t.size < 10 or t[-1] - t[0] < 300:
        return False
    slope, zero, _ = least_squares(_floats(t - t[-1]), _floats(x))
    return zero + slope * 4 * HOUR_S > total


def mann_kendall(t: Array, x: Array, total: float) -> bool:
    """Mann-Kendall at p < 0.01 on 60 points, and a rise of 0.15 % of the device."""
    if t.size < 20 or t[-1] - t[0] < 300:
        return False
    y = np.interp(np.linspace(t[0], t[-1], 60), t, x)
    i, j = np.triu_indices(60, 1)
    score = float(np.sign(y[j] - y[i]).sum())
    sd = math.sqrt(60 * 59 * 125 / 18.0)
    return score / sd > 2.33 and y[-10:].mean() - y[:10].mean() > 0.0015 * total


RIVALS: dict[str, Callable[[Array, Array, float], bool]] = {
    "slope and R2": linear,
    "slope, R2 or spike": composite,
    "regression p<0.05": regression,
    "predict_linear 4 h": predict_linear,
    "Mann-Kendall 1 h": mann_kendall,
}


def first_alerts(item: Item) -> dict[str, float | None]:
    """Return for each rival when it first alerts, seconds since the first sample."""
    t = item.series.t_s - item.series.t_s[0]
    x = item.series.used_bytes
    total = float(item.series.total_bytes or 0.0)
    out: dict[str, float | None] = dict.fromkeys(RIVALS)
    for at in np.arange(60.0, float(t[-1]), 60.0).tolist():
        end = int(np.searchsorted(t, at)) + 1
        begin = int(np.searchsorted(t, at - HOUR_S))
        for name, rule in RIVALS.items():
            if out[name] is None and rule(t[begin:end], x[begin:end], total):
                out[name] = at
    return out
