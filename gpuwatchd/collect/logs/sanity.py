"""Whether the figures of a row can be true together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

SLACK = 1.02
"""Used and free may exceed the total by rounding only."""
RESERVE_SHARE, RESERVE_BYTES = 0.1, 1.5 * 1024**3
"""What the driver may keep for itself where no column says so: the larger of the two."""


class Torn(ValueError):
    """A row that two writers or a crash have broken."""


def used_of(amounts: dict[str, float], total_bytes: float | None) -> float | None:
    """Return used memory, from total and free where it is not printed; None when unknown."""
    used = amounts.get("used")
    if used is not None:
        return used if math.isfinite(used) else None
    total = amounts.get("total", math.nan)
    if math.isnan(total) and total_bytes is not None:
        total = total_bytes
    left = total - amounts.get("free", math.nan)
    return left if math.isfinite(left) and left >= 0 else None


def sane(amounts: dict[str, FloatArray]) -> bool:
    """Say whether the memory figures of rows can be true together; unknown figures are no lie."""
    used, total = amounts.get("used"), amounts.get("total")
    free = amounts.get("free")
    if total is None:
        return True
    slack = total * SLACK
    if used is not None and (used > total).any():
        return False
    if free is not None and (free > slack).any():
        return False
    if used is None or free is None:
        return True
    both = used + free + np.nan_to_num(amounts.get("reserved", np.zeros(1)))
    # Without a reserved column the driver's reserve is missing from the sum.
    least = total - np.maximum(RESERVE_SHARE * total, RESERVE_BYTES)
    return not bool(((both > slack) | (both < least)).any())


def sane_row(amounts: dict[str, float]) -> bool:
    """Say of one row what ``sane`` says of many; a row is not worth an array.

    Examples
    --------
    >>> sane_row({"used": 3.0, "total": 2.0}), sane_row({"used": 1.0, "total": math.nan})
    (False, True)
    """
    total = amounts.get("total", math.nan)
    used, free = amounts.get("used", math.nan), amounts.get("free", math.nan)
    if used > total or free > total * SLACK:
        return False
    reserved = amounts.get("reserved", 0.0)
    both = used + free + (0.0 if math.isnan(reserved) else reserved)
    return not (both > total * SLACK or both < total - max(RESERVE_SHARE * total, RESERVE_BYTES))
