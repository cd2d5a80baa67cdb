"""What came of an alert, as the record tells: it filled the memory, stopped, gave it back, ended.

Judged by what followed, never by what the detectors thought: so it can be held against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuwatchd.core.model import Value

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import EtaRange, FloatArray

Came = Literal["filled", "given-back", "plateaued", "ended", "open"]
FULL = 0.95
"""From this share of the device's memory on, a subject has reached the limit."""
BRIM = 0.98
ENDED_S = 150.0
"""A process without a row for so long, while its device has some, has ended."""
TEARDOWN_S = 60.0
"""Memory that comes back in the last minute comes back because the process ends."""
BACK_S = 300.0
STAND_S = 1800.0
"""Standing still for half an hour, and for half of the time that it grew, is a stop."""
CREPT_S = 300.0
GREW_SHARE = 0.05
"""A process that gained less of the device than this did not die of its own growth."""
_MIB = float(1 << 20)


class LaterOutcome(Value, frozen=True, kw_only=True):
    """What came of one alert."""

    came: Came
    at_s: float
    """When that could be seen."""
    share: float | None
    """Of the device's memory in use then (the most of it, where it filled)."""
    ended: bool
    """Whether the process ended in the time that is recorded."""

    @property
    def true(self) -> bool | None:
        """Whether the alert came true; None when the record does not tell."""
        return {"filled": True, "given-back": False, "plateaued": False}.get(self.came)


def later_outcome(
    own: LogSeries, device: LogSeries | None, *, from_s: float, onset_s: float, growth: float
) -> LaterOutcome:
    """Return what came of growth that was told at ``from_s``.

    Parameters
    ----------
    own
        The subject, up to the end of the record.
    device
        Its device; None when that was not recorded.
    from_s, onset_s
        When the alert fired, and since when memory had grown by then.
    growth
        Bytes that it had grown by.
    """
    t, x = own.t_s, own.used_bytes
    ended = own.process is not None and _ended(own, device)
    first = min(int(t.searchsorted(from_s)), t.size - 1)
    begin = max(int(t.searchsorted(onset_s)), 0)
    level = float(x[max(first - 1, 0)])
    growth = max(growth, 16.0 * _MIB)
    after_t, after = t[first:], x[first:]
    end_s = float(t[-1])
    lived = after_t <= end_s - TEARDOWN_S if ended else np.ones(after_t.size, dtype=bool)
    back_s = _since_below(after_t[lived], after[lived], level - 0.5 * growth)
    when, share = _fullness(own, device, from_s, back_s if back_s is not None else end_s)
    grew_on = float(after[: max(int(after_t.searchsorted(when, side="right")), 1)].max()) - level
    news = (_share_at(own, device, from_s) or 0.0) < FULL or ended
    if share is not None and share >= FULL and grew_on >= 0.1 * growth and news:
        return LaterOutcome(came="filled", at_s=when, share=share, ended=ended)
    at_end = _share_at(own, device, end_s)
    if back_s is not None:
        return LaterOutcome(came="given-back", at_s=back_s, share=at_end, ended=ended)
    stood_s = _stands_since(t[begin:], x[begin:], growth, end_s)
    grew_s = max(stood_s - onset_s, 0.0)
    if end_s - stood_s >= max(STAND_S, 0.5 * grew_s):
        return LaterOutcome(came="plateaued", at_s=max(stood_s, from_s), share=at_end, ended=ended)
    return LaterOutcome(came="ended" if ended else "open", at_s=end_s, share=at_end, ended=ended)


def band_held(
    eta: EtaRange | None, lived: LaterOutcome, *, from_s: float, end_s: float
) -> bool | None:
    """Say whether the limit was reached when the forecast said; None when it cannot be known."""
    if eta is None:
        return None
    high_s = np.inf if eta.high_s is None else eta.high_s
    if lived.came == "filled":
        return bool(eta.low_s <= lived.at_s - from_s <= high_s)
    return False if end_s - from_s > high_s else None


def deaths(log: LogFile) -> dict[str, float]:
    """Return subject id -> when a process ended (or a device was emptied) near the limit.

    Of its own growth, and not at once: what allocates the whole card when it starts is no death.
    """
    device = next((log_series for log_series in log.series if log_series.process is None), None)
    out = {}
    for own in log.series:
        if own.process is None or not _ended(own, device):
            continue
        end_s = float(own.t_s[-1])
        _, share = _fullness(own, device, end_s - 2 * BACK_S, end_s)
        if share is not None and share >= FULL and _crept(own, device):
            out[own.subject.id] = end_s
    if device is not None and len(log.series) == 1:
        out |= _emptied(device)
    return out


def _ended(own: LogSeries, device: LogSeries | None) -> bool:
    last_s = float(device.t_s[-1]) if device is not None and device.t_s.size else 0.0
    return float(own.t_s[-1]) < last_s - ENDED_S


def _total(own: LogSeries) -> float | None:
    return own.total_bytes or own.device.memory_total_bytes or own.limit_bytes


def _fullness(
    own: LogSeries, device: LogSeries | None, from_s: float, until_s: float
) -> tuple[float, float | None]:
    """Return when the device was fullest (or full) in a span, and to which share of it."""
    log_series = own if device is None else device
    total = _total(log_series)
    first, last = log_series.t_s.searchsorted((from_s, until_s + TEARDOWN_S)).tolist()
    if total is None or first >= last:
        return until_s, None
    share = log_series.used_bytes[first:last] / total
    top = float(share.max())
    at = int(np.argmax(share >= min(BRIM, top)))
    return min(float(log_series.t_s[first + at]), until_s), top


def _share_at(own: LogSeries, device: LogSeries | None, at_s: float) -> float | None:
    """Return the most that the device held in the minute before."""
    log_series = own if device is None else device
    total = _total(log_series)
    last = int(log_series.t_s.searchsorted(at_s, side="right"))
    first = min(int(log_series.t_s.searchsorted(at_s - TEARDOWN_S)), last - 1)
    return (
        None
        if total is None or last < 1
        else float(log_series.used_bytes[first:last].max()) / total
    )


def _since_below(t: FloatArray, x: FloatArray, level: float) -> float | None:
    """Return when it first went below ``level`` and stayed there for five minutes."""
    below = x < level
    if not below.any():
        return None
    edge = np.flatnonzero(np.diff(below.astype(np.int8), prepend=0, append=0))
    for begin, end in edge.reshape(-1, 2).tolist():
        until_s = t[end] if end < t.size else t[-1]
        if until_s - t[begin] >= BACK_S:
            return float(t[begin])
    return None


def _stands_since(t: FloatArray, x: FloatArray, growth: float, end_s: float) -> float:
    """Return since when it had (nearly) reached the highest level that it ever reached."""
    if not t.size:
        return end_s
    return float(t[int(np.argmax(x >= float(x.max()) - 0.1 * growth))])


def _crept(own: LogSeries, device: LogSeries | None) -> bool:
    """Say whether a process grew by a twentieth of the device, after its first minutes."""
    total = _total(own if device is None else device)
    t, x = own.t_s, own.used_bytes
    late = x[t.searchsorted(t[0] + CREPT_S) :]
    if total is None or not late.size:
        return False
    return float(late.max() - late[0]) >= GREW_SHARE * total


def _emptied(device: LogSeries) -> dict[str, float]:
    """Return the last time that a full device lost a tenth of its memory within half an hour."""
    total = _total(device)
    if total is None:
        return {}
    t, share = device.t_s, device.used_bytes / total
    full = share >= FULL
    for at in np.flatnonzero(full[:-1] & ~full[1:])[::-1].tolist():
        later = share[at : int(t.searchsorted(t[at] + STAND_S))]
        before = share[int(t.searchsorted(t[at] - CREPT_S)) : at + 1]
        if float(later.min()) <= share[at] - 0.1 and float(before.min()) >= FULL - GREW_SHARE:
            return {device.subject.id: float(t[at])}
    return {}
