"""The whole run of a subject, and its profile: the window, and before that what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray, Profile, Series
    from gpuwatchd.pipeline.watcher import Track
    from gpuwatchd.store.profiles import ProfileStore

_EARLY_S = 120.0
"""What the window lacks of a run is read only when it is more than this."""
_ROLLED_S = 300.0
"""The last minutes are not rolled up yet: what was last known of the utilisation goes on."""


def profile_of(
    track: Track,
    shelf: ProfileStore,
    ended_at_s: float,
    *,
    kind: Literal["run", "sibling"] = "run",
    over: bool = False,
    until_s: float = float("inf"),
) -> Profile | None:
    """Return the profile of a run so far; None when it is too short to tell. About 3 ms.

    Parameters
    ----------
    track
        The run.
    shelf
        Where its earlier minutes and the utilisation of its device are.
    ended_at_s
        When it ended, or now.
    over
        Whether the process has gone, and what it held is free by now.
    until_s
        What it did later does not count.
    """
    from gpuwatchd.analysis import forecast  # noqa: PLC0415 - numpy comes with it

    series = before(whole(track, shelf), until_s)
    if not series.t_s.size:
        return None
    if over:
        series = msgspec.structs.replace(series, limit_bytes=_room_then(track, series))
    finding = track.finding
    return forecast.profile(
        series,
        busy=_busy(series, shelf),
        alerted=finding is not None and finding.tier == "alert",
        ended_at_s=ended_at_s,
        kind=kind,
    )


def before(series: Series, until_s: float) -> Series:
    """Return the part of a series that lies before an instant; its age is the age then."""
    count = int(series.t_s.searchsorted(until_s, side="right"))
    if count == series.t_s.size:
        return series
    t_s = series.t_s[:count]
    age_s = series.age_s
    if age_s is not None and count:
        age_s -= float(series.t_s[-1] - t_s[-1])
    return msgspec.structs.replace(
        series, t_s=t_s, used_bytes=series.used_bytes[:count], age_s=age_s
    )


def whole(track: Track, shelf: ProfileStore, since_s: float | None = None) -> Series:
    """Return a track's run from its start (or from ``since_s``) on."""
    import numpy as np  # noqa: PLC0415

    series = track.series()
    process = track.subject.process
    if since_s is None and process is not None:
        since_s = process.started_at_s
    if since_s is None or not series.t_s.size or track.subject.unattributed:
        return series
    if track.subject.host:
        return series  # Its minutes are those of the device's memory.
    first_s = float(series.t_s[0])
    if first_s - since_s < _EARLY_S:
        return series
    early = shelf.minutes(track.subject.device_uid, process, since_s, first_s - 30.0)
    if not early:
        return series
    t_s, used = (np.array(column, dtype=np.float64) for column in zip(*early, strict=True))
    return msgspec.structs.replace(
        series,
        t_s=np.concatenate([t_s, series.t_s]),
        used_bytes=np.concatenate([used, series.used_bytes]),
    )


def _room_then(track: Track, series: Series) -> float | None:
    """Return where a process that has gone would have run out: all that is free now was its."""
    most = float(series.used_bytes.max())
    free, total = track.room.free_bytes, track.room.total_bytes
    if free is None:
        return None if total is None else max(total, most)
    return max(free, most)


def _busy(series: Series, shelf: ProfileStore) -> FloatArray | None:
    """Return the device's utilisation in per cent at each sample, NaN where it is not known."""
    import numpy as np  # noqa: PLC0415

    span = (float(series.t_s[0]), float(series.t_s[-1]))
    pairs = shelf.load_pct(series.subject.device_uid, *span)
    if not pairs:
        return None
    ends, pct = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    at = np.minimum(np.searchsorted(ends, series.t_s), ends.size - 1)
    near = (series.t_s >= ends[at] - _EARLY_S) & (series.t_s <= ends[at] + _ROLLED_S)
    return np.where(near, pct[at], np.nan)
