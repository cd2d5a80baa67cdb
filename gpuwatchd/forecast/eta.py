"""The time to the limit: the middle from the line, the ends from the laws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.forecast.weigh import HORIZON_S
from gpuwatchd.model import EtaRange

if TYPE_CHECKING:
    from gpuwatchd.forecast.weigh import Weights
    from gpuwatchd.forecast.windows import Windows

_SPREAD = np.array([-1.6449, -0.8416, -0.3853, 0.0, 0.3853, 0.8416, 1.6449])
"""Seven equally likely points of the normal law, roughly."""


def eta(
    found: Windows, weights: Weights, index: int, *, line_s: float, horizon_s: float = HORIZON_S
) -> EtaRange:
    """Return the time to the limit for one window: middle from the line, ends from the laws.

    Parameters
    ----------
    line_s
        Seconds that the straight line needs; the middle.
    horizon_s
        Laws that need longer do not count.
    """
    reach, weight = weights.reach_s[index], weights.law[index]
    good = (reach < horizon_s) & (weight > 1e-4)
    spread = math.sqrt(1.0 / float(found.events[index]) + 0.08**2)
    if good.any():
        points = np.log(np.maximum(reach[good], 1.0))[:, None] + spread * _SPREAD
        order = np.argsort(points, axis=None)
        total = np.cumsum(np.repeat(weight[good], _SPREAD.size)[order])
        at = np.searchsorted(total, [0.1 * total[-1], 0.9 * total[-1]])
        low, high = np.exp(points.ravel()[order][np.minimum(at, total.size - 1)]).tolist()
    else:
        low, high = line_s * math.exp(-1.2816 * spread), line_s * math.exp(1.2816 * spread)
    low = min(low, line_s * math.exp(-1.2816 * 0.05))
    high = max(high, line_s * math.exp(1.2816 * 0.05))
    return EtaRange(low_s=low, mid_s=line_s, high_s=high)
