"""What held memory costs: its size times time, and its share of the device's price. Pure."""

from __future__ import annotations

from typing import Final

GIB: Final = 1024**3


def gib_hours(held_bytes: float | None, held_s: float | None) -> float | None:
    """Return memory times time, GiB·h; None where one of them is unknown.

    Examples
    --------
    >>> gib_hours(9 * GIB, 1800.0), gib_hours(None, 60.0)
    (4.5, None)
    """
    if held_bytes is None or held_s is None:
        return None
    return max(0.0, held_bytes) / GIB * max(0.0, held_s) / 3600.0


def usd(
    held_bytes: float | None,
    held_s: float | None,
    *,
    total_bytes: float | None,
    usd_per_gpu_hour: float | None,
) -> float | None:
    """Return what held memory costs: its share of the device's memory times hours times the price.

    Parameters
    ----------
    held_bytes, held_s
        How much has been held for how long.
    total_bytes
        Memory of the whole device; memory that is larger counts as the whole device.
    usd_per_gpu_hour
        Price of the whole device for an hour.

    Returns
    -------
    US dollars; None where something is unknown, the price included.

    Examples
    --------
    >>> usd(20 * GIB, 7200.0, total_bytes=80 * GIB, usd_per_gpu_hour=2.0)
    1.0
    """
    if held_bytes is None or held_s is None or usd_per_gpu_hour is None or not total_bytes:
        return None
    share = min(1.0, max(0.0, held_bytes) / total_bytes)
    return share * max(0.0, held_s) / 3600.0 * usd_per_gpu_hour
