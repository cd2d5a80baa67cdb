"""Who had a device for how long: its hours, shared by memory-time among those who were on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

REST: Final = "rest"
"""Who holds what nobody holds."""


class Hour(NamedTuple):
    """What a process had of a device in one hour, added up from its minutes."""

    first_at_s: float
    last_at_s: float
    seen_s: float
    """Time for which it was there."""
    taken_s: float | None
    """Time of the whole device that falls to it; None where its share is unknown."""


class MemoryBucket(NamedTuple):
    """What one process held on one device over one bucket of time."""

    at_s: float
    """Its start, epoch seconds: the same for all processes of a bucket."""
    who: Hashable
    held_bytes: float | None
    width_s: float = 60.0
    """Length of the bucket: the same for all processes of it."""
    hour: Hour | None = None
    """Of a whole hour: what is shared already. It lies inside the span that is asked for."""


class DeviceUsage(NamedTuple):
    """What one process had of a device."""

    hours: float | None
    """Hours of the whole device that fall to it; None where its share is unknown."""
    whole_hours: float
    """Hours for which it was there at all: what they are for a process that is alone."""
    first_at_s: float
    """Start of the first bucket that it was seen in, or of the span."""
    last_at_s: float
    """End of the last one, or of the span."""
    last_share: float | None
    """Its share in that one, 0-1."""


def usage_by_process(
    rows: Iterable[MemoryBucket], since_s: float, until_s: float
) -> dict[Hashable, DeviceUsage]:
    """Return what each process had of a device between two instants.

    In every bucket the device's time is shared in proportion to what each one held; one that is
    alone has all of it. Time in which nobody looked has no bucket, and is not counted. Where
    somebody's memory is unknown, so are the shares of that bucket, unless he is alone.

    The sums are additive: over processes they are the time that the device was held at all, and
    those of two spans that meet are that of both.

    Parameters
    ----------
    rows
        What was held, in any order; one row for a process and bucket.
    """
    buckets: dict[float, list[MemoryBucket]] = {}
    for row in rows:
        if row.at_s + row.width_s > since_s and row.at_s < until_s:
            buckets.setdefault(row.at_s, []).append(row)
    uses: dict[Hashable, DeviceUsage] = {}
    for at_s, held in sorted(buckets.items()):
        if held[0].hour is not None:
            _add_hours(uses, held)
            continue
        begin_s, end_s = max(at_s, since_s), min(at_s + held[0].width_s, until_s)
        hours = (end_s - begin_s) / 3600.0
        known = [max(0.0, row.held_bytes) for row in held if row.held_bytes is not None]
        total = sum(known)
        for row in held:
            share: float | None = None
            if len(held) == 1:
                share = 1.0
            elif len(known) == len(held):
                share = max(0.0, row.held_bytes or 0.0) / total if total > 0 else 1 / len(held)
            mine = None if share is None else hours * share
            before = uses.get(row.who)
            if before is None:
                uses[row.who] = DeviceUsage(mine, hours, begin_s, end_s, share)
                continue
            known_so_far = mine is not None and before.hours is not None
            uses[row.who] = DeviceUsage(
                (before.hours or 0.0) + (mine or 0.0) if known_so_far else None,
                before.whole_hours + hours,
                before.first_at_s,
                end_s,
                share,
            )
    return uses


def _add_hours(uses: dict[Hashable, DeviceUsage], held: list[MemoryBucket]) -> None:
    """Add an hour that was shared by the minute before."""
    for row in held:
        hour = row.hour
        if hour is None:
            continue
        mine = None if hour.taken_s is None else hour.taken_s / 3600.0
        share = None if hour.taken_s is None else hour.taken_s / hour.seen_s
        before = uses.get(row.who)
        if before is None:
            before = DeviceUsage(0.0, 0.0, hour.first_at_s, hour.last_at_s, share)
        known = mine is not None and before.hours is not None
        uses[row.who] = DeviceUsage(
            (before.hours or 0.0) + (mine or 0.0) if known else None,
            before.whole_hours + hour.seen_s / 3600.0,
            before.first_at_s,
            hour.last_at_s,
            share,
        )


def with_rest(rows: Iterable[MemoryBucket], total_bytes: float | None) -> list[MemoryBucket]:
    """Return rows with what nobody holds as one more holder, so that shares are of the device.

    For idle memory: the rest of its device can still be used.

    Parameters
    ----------
    total_bytes
        Memory of the device; None makes every share unknown.
    """
    helds = list(rows)
    held: dict[float, float | None] = {}
    width_s = {row.at_s: row.width_s for row in helds}
    for row in helds:
        before = held.get(row.at_s, 0.0)
        known = before is not None and row.held_bytes is not None
        held[row.at_s] = (before or 0.0) + (row.held_bytes or 0.0) if known else None
    for at_s, amount in held.items():
        known = amount is not None and total_bytes is not None
        rest = max(0.0, (total_bytes or 0.0) - (amount or 0.0)) if known else None
        helds.append(MemoryBucket(at_s, REST, rest, width_s[at_s]))
    return helds


# What held memory costs: its size times time, and its share of the device's price. Pure.

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

    Examples
    --------
    >>> usd(20 * GIB, 7200.0, total_bytes=80 * GIB, usd_per_gpu_hour=2.0)
    1.0
    """
    if held_bytes is None or held_s is None or usd_per_gpu_hour is None or not total_bytes:
        return None
    share = min(1.0, max(0.0, held_bytes) / total_bytes)
    return share * max(0.0, held_s) / 3600.0 * usd_per_gpu_hour
