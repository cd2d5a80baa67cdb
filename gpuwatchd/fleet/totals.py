"""Which totals are no card's: a map that names another metric, or another unit, shows in them.

Such a total is not used: a time to full would be made up from it. Thresholds that are shares of a
total stay those of an unknown one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.fleet.rings import Rings

LEAST_BYTES: Final = 256 * 2.0**20
"""Half of the smallest virtual GPU."""
MOST_BYTES: Final = 4 * 2.0**40
"""More than ten times the largest card."""


def doubtful(used: FloatArray, total: FloatArray) -> npt.NDArray[np.bool_]:
    """Say of which GPUs a total is none.

    Parameters
    ----------
    used, total
        Bytes of each GPU at one instant; NaN where there is no value.

    Returns
    -------
    (k,) booleans; False where there is no total. Where all GPUs use just what they have, the
    metric of the total is that of used memory.

    Examples
    --------
    >>> gib = 2.0**30
    >>> doubtful(np.array([gib, gib, gib]), np.array([80 * gib, 81920.0, np.nan])).tolist()
    [False, True, False]
    >>> doubtful(np.array([gib, 2 * gib]), np.array([gib, 2 * gib])).tolist()
    [True, True]
    """
    odd: npt.NDArray[np.bool_] = (total < LEAST_BYTES) | (total > MOST_BYTES)
    both = (used > 0) & ~np.isnan(total)
    if both.any() and (used[both] == total[both]).all():
        odd |= both
    return odd


def doubts(rings: Rings) -> dict[str, int]:
    """Return code -> GPUs of which there is no total, or one that is none; those with a value now.

    A GPU whose newest value is above its total has one that is none, too.
    """
    now = rings.present == rings.end
    odd = rings.doubtful == 1
    above = rings.above > rings.last
    found = {
        "no-total": now & ~odd & np.isnan(rings.total_bytes),
        "implausible-total": now & (odd | above),
    }
    return {code: int(count) for code, which in found.items() if (count := which.sum())}
