"""Signals -> at most one finding per subject: is this a leak, which kind, how sure, how long left.

The score of :mod:`gpuwatchd.forecast` decides; the detectors name the pattern, veto, and give the
facts. ``confidence`` is the score with its scale moved so that the alert level of the formula
(0.80) reads 0.75, the default of ``confidence-threshold``; the watch level (0.60) then reads 0.53.
A user's threshold therefore acts on exactly the figure that is shown.

Everything is a function of the series alone: same series, same finding. What must last before
people are told is policy's business.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd import forecast, robust, units
from gpuwatchd.detect.cycle import Cycle
from gpuwatchd.detect.plateau import Plateau
from gpuwatchd.detect.spike import GROWING, TOO_EARLY, Spike
from gpuwatchd.detect.step import Step
from gpuwatchd.detect.trend import Trend
from gpuwatchd.model import Finding
from gpuwatchd.robust import MIB

if TYPE_CHECKING:
    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import EtaRange, Pattern, Series, Severity, Signal, Tier
    from gpuwatchd.robust import View

_SHIFT = math.log(0.8 / 0.2) - math.log(0.75 / 0.25)
"""Log odds between the formula's alert level 0.80 and the default threshold 0.75."""
WATCH_CONFIDENCE = 1.0 / (1.0 + math.exp(_SHIFT - math.log(0.6 / 0.4)))
"""The formula's watch level 0.60 on the scale of ``confidence``."""
GROWTH_SHARE = 0.0015
"""Growth below this share of the device is no candidate (or minimum-growth-mib, if more)."""
PREALLOCATING = frozenset({"jax", "tensorflow", "vllm", "sglang"})
PREALLOCATED_SHARE = 0.6
FLAT_SHARE = 0.02
LEAST_SAMPLES = 5
LEAST_AGE_S = 30.0
"""Growth younger than this is not even watched."""
_TREND, _STEP, _CYCLE, _PLATEAU = Trend(), Step(), Cycle(), Plateau()
_INFO_BYTES, _CRITICAL_BYTES = 1e8, 1e9
_CRITICAL_S, _WARNING_S = 3600.0, 86400.0


class _Growth(NamedTuple):
    """The growth that scores best, and what is known about it."""

    found: forecast.Windows
    weights: forecast.Weights
    best: int
    """Index of the window."""
    confidence: float
    onset_s: float
    """Seconds before now, <= 0."""
    headroom: float | None
    """Bytes from the recent peak to the limit."""
    plain: bool
    """Whether some window shows steady growth that is plain to see, though it may still end."""


def minimum_growth(series: Series, settings: DetectionSection) -> float:
    """Return the least growth in bytes that makes a candidate."""
    scale = series.total_bytes or series.limit_bytes or 0.0
    return max(settings.minimum_growth_mib * MIB, GROWTH_SHARE * scale)


def judge(series: Series, settings: DetectionSection) -> Finding:
    """Return the judgement on one subject at the instant of its last sample.

    Parameters
    ----------
    series
        Everything known about the subject, up to now; its arrays are not changed. What is older
        than ``analysis-window-hours``, or before a gap, is not looked at.
    settings
        The section ``[detection]``.

    Returns
    -------
    Finding
        Always one; harmless and unknown patterns have tier "none". ``tier`` is what the evidence
        of this instant supports. ``eta`` is None without a limit or without growth.

    Examples
    --------
    >>> from gpuwatchd.config import DetectionSection
    >>> from gpuwatchd.model import Series, Subject
    >>> t = np.arange(0.0, 3600.0, 5.0)
    >>> leak = Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=12e9 + t * 1e6,
    ...               limit_bytes=24e9)
    >>> found = judge(leak, DetectionSection())
    >>> found.pattern, found.tier, round(found.eta.mid_s / 60)
    ('gradual', 'alert', 140)
    """
    window_s = settings.analysis_window_hours * 3600.0
    view = robust.prepare(series, window_s)
    if view.samples < 2:
        return _finding(series, view, "unknown", reason=_collecting(view, settings))
    least = minimum_growth(series, settings)
    growth = _growth(series, view, least)
    if growth is not None:
        finding = _leak(series, view, settings, growth)
        if finding is not None:
            return finding
    return _harmless(series, view, settings, least, growing=growth)


def _growth(series: Series, view: View, least: float) -> _Growth | None:
    chosen: _Growth | None = None
    plain = False
    tops = np.maximum.accumulate(view.high[::-1])[::-1]
    for found in forecast.windows(view, least):
        headroom = None
        if series.limit_bytes is not None:
            recent = -np.maximum(forecast.HOLD_MARGIN * found.lag_s, 60.0)
            reach = np.searchsorted(view.t_s, recent)
            headroom = series.limit_bytes - tops[np.minimum(reach, tops.size - 1)]
        # Without a limit nothing is known about the time; the level itself stands in for it.
        room = headroom if headroom is not None else np.full(found.size, float(view.mean[-1]))
        weights = forecast.weigh(found, room)
        best = int(weights.score.argmax())
        plain = plain or _plain(found)
        confidence = 1.0 / (1.0 + math.exp(_SHIFT - float(weights.score[best])))
        if chosen is None or confidence > chosen.confidence:
            chosen = _Growth(
                found=found,
                weights=weights,
                best=best,
                confidence=confidence,
                onset_s=0.0,
                headroom=float(headroom[best]) if headroom is not None else None,
                plain=False,
            )
    if chosen is None:
        return None
    if not plain and view.noise_bytes > 0.0:
        plain = robust.steady_rise(view, forecast.LOOKBACKS_S[5:], least)
    onset_s = _onset(chosen.found.view, chosen.found, chosen.best)
    return chosen._replace(onset_s=onset_s, plain=plain)


def _plain(found: forecast.Windows) -> bool:
    """Say whether one window is steady growth well above noise and drawdowns, going on now."""
    return bool(
        np.any(
            ((found.shares > 0.01).sum(axis=1) >= 10)
            & (found.excess <= 0.1)
            & (found.deficit <= 0.17)
            & (found.stall <= 1.5)
            & (found.calm >= 1.0)
            & (found.events >= 3.0)
            & (found.growth >= 4.0 * found.view.noise_bytes)
            & (found.begin_s <= -LEAST_AGE_S)
        )
    )


def _onset(view: View, found: forecast.Windows, index: int) -> float:
    """Return when the growth of a window began, seconds before now.

    Longer windows are taken as long as they bring more growth at a similar rate and stay near
    their chord; then the knee of the next longer one, if it has one.
    """
    order = np.argsort(found.age_s)
    rank = int(np.flatnonzero(order == index)[0])
    best = index
    for longer in order[rank + 1 :].tolist():
        rate = found.growth[longer] / found.age_s[longer]
        usual = found.growth[best] / found.age_s[best]
        bent = max(found.deficit[longer], found.excess[longer])
        if not (0.6 * usual <= rate <= 1.7 * usual and bent <= 0.15):
            break
        best = longer
    begin, end = float(found.begin_s[best]), float(found.end_s[best])
    oldest = float(view.t_s[view.start])
    before = max(oldest, end - 2.5 * (end - begin))
    if before >= begin - view.step_s:
        return _knee(view, begin, end)
    level = np.interp([before, begin, end], view.t_s, view.floor)
    # What came before is another story when it is faster (a load, a warm-up), not a slow start.
    if level[1] - level[0] > 0.7 * (level[2] - level[1]):
        return begin
    return _knee(view, before, end)


def _knee(view: View, begin: float, end: float) -> float:
    """Return where the floor is furthest below its chord, if that is a bend at all."""
    first, last = np.searchsorted(view.t_s, (begin - 1e-6, end + 1e-6))
    t, x = view.t_s[first:last], view.floor[first:last]
    if t.size < 3 or x[-1] <= x[0]:
        return begin
    below = (t - t[0]) / (t[-1] - t[0]) - (x - x[0]) / (x[-1] - x[0])
    knee = int(below.argmax())
    return float(t[knee]) if below[knee] > 0.1 else begin


class _Named(NamedTuple):
    pattern: Pattern
    signal: Signal | None
    signals: tuple[Signal, ...]
    rate: float


def _name(view: View, growth: _Growth) -> _Named:
    """Name the pattern: swings first, then stairs, then a slope."""
    trend = _TREND.look_at(growth.found.view, growth.onset_s)
    step, cycle = _STEP.look_at(view), _CYCLE.look_at(view)
    signals = tuple(signal for signal in (trend, step, cycle) if signal is not None)
    if cycle is not None and cycle.pattern == "cyclic":
        return _Named("cyclic", cycle, signals, cycle.rate_bytes_per_s)
    if step is not None and step.confidence >= 0.25 and step.facts["stall"] <= 2.5:
        return _Named("step", step, signals, step.rate_bytes_per_s)
    if trend is not None:
        return _Named("gradual", trend, signals, trend.rate_bytes_per_s)
    slope, _, _ = _line(growth.found.view, growth.onset_s)
    return _Named("gradual", None, signals, slope)


def _leak(
    series: Series, view: View, settings: DetectionSection, growth: _Growth
) -> Finding | None:
    """Return the finding if the growth deserves a watch or an alert, else None."""
    named = _name(view, growth)
    rate = named.rate
    if rate <= 0.0 or rate < settings.min_slope_mb_per_sec * 1e6:
        return None
    if named.signal is not None and named.pattern in {"cyclic", "step"}:
        # The first trough or riser that counts is older than the window that scores best.
        onset_s = min(growth.onset_s, named.signal.since_s - view.now_s)
        growth = growth._replace(onset_s=onset_s)
    _, _, r_squared = _line(view, growth.onset_s)
    if named.pattern == "gradual" and r_squared < settings.min_r_squared:
        return None
    tier = _tier(view, settings, growth, named)
    if tier == "none":
        return None
    eta = _eta(growth, rate, settings)
    severity = _severity(tier, eta, growth, settings)
    if eta is not None and eta.mid_s > settings.eta_horizon:
        tier, severity = "watch", "info"
    trend = next((one for one in named.signals if one.detector == "trend"), None)
    p_value = trend.facts["p_value"] if trend is not None else _p_value(view, growth.onset_s)
    return Finding(
        id=series.subject.id,
        subject=series.subject,
        judged_at_s=view.now_s,
        pattern=named.pattern,
        tier=tier,
        severity=severity,
        confidence=growth.confidence,
        rate_bytes_per_s=rate,
        eta=eta,
        r_squared=r_squared,
        p_value=p_value,
        detector=named.signal.detector if named.signal is not None else "trend",
        onset_at_s=view.now_s + growth.onset_s,
        reason=_leak_reason(growth, named, eta, series),
        framework=series.framework,
        growth_bytes=_grown(growth),
        limit_bytes=series.limit_bytes,
        samples=view.samples,
        signals=named.signals,
    )


def _tier(view: View, settings: DetectionSection, growth: _Growth, named: _Named) -> Tier:
    enough = (
        view.samples >= settings.minimum_samples
        and -growth.onset_s >= settings.minimum_duration
        and view.span_s >= settings.minimum_duration
    )
    if growth.confidence >= settings.confidence_threshold and enough:
        return "alert"
    if view.samples < LEAST_SAMPLES:
        return "none"
    level = min(WATCH_CONFIDENCE, settings.confidence_threshold)
    if growth.confidence >= level or _worth_watching(growth, named):
        return "watch"
    return "none"


def _worth_watching(growth: _Growth, named: _Named) -> bool:
    """Say whether growth is plain to see, though it may still end by itself."""
    signal = named.signal
    if named.pattern == "cyclic":
        return signal is not None and signal.n >= 4 and signal.confidence >= 0.3
    if named.pattern == "step":
        return signal is not None and signal.n >= 3 and signal.confidence >= 0.3
    return growth.plain


def _line(view: View, onset_s: float) -> tuple[float, float, float]:
    first = min(int(np.searchsorted(view.t_s, onset_s - 1e-6)), view.t_s.size - 2)
    return robust.least_squares(view.t_s[first:], view.mean[first:])


def _p_value(view: View, onset_s: float) -> float | None:
    first = int(np.searchsorted(view.t_s, onset_s - 1e-6))
    if view.t_s.size - first < 16:
        return None
    return robust.batch_means_p(view.t_s[first:], view.mean[first:])[1]


def _grown(growth: _Growth) -> float:
    seen = growth.found.view
    end = float(growth.found.end_s[growth.best])
    low, high = np.interp([growth.onset_s, end], seen.t_s, seen.floor).tolist()
    return max(high - low, float(growth.found.growth[growth.best]))


def _eta(growth: _Growth, rate: float, settings: DetectionSection) -> EtaRange | None:
    if growth.headroom is None or rate <= 0.0:
        return None
    line_s = max(growth.headroom, 0.0) / rate
    return forecast.eta(
        growth.found,
        growth.weights,
        growth.best,
        line_s=line_s,
        horizon_s=max(forecast.HORIZON_S, float(settings.eta_horizon)),
    )


def _severity(
    tier: Tier, eta: EtaRange | None, growth: _Growth, settings: DetectionSection
) -> Severity:
    grown = float(growth.found.growth.max())
    left = eta.mid_s if eta is not None else math.inf
    if left > settings.eta_horizon and eta is not None:
        return "info"
    if tier == "alert" and (left < _CRITICAL_S or grown > _CRITICAL_BYTES):
        return "critical"
    return "warning" if left < _WARNING_S or grown >= _INFO_BYTES else "info"


def _leak_reason(growth: _Growth, named: _Named, eta: EtaRange | None, series: Series) -> str:
    for_s = units.duration(-growth.onset_s)
    grown = units.size(_grown(growth))
    speed = units.rate(named.rate)
    if named.pattern == "step" and named.signal is not None:
        facts = named.signal.facts
        text = (
            f"rises in steps of {units.size(facts['riser_bytes'])} every "
            f"{units.duration(facts['pause_s'])}, {named.signal.n} so far, none given back"
        )
    elif named.pattern == "cyclic" and named.signal is not None:
        facts = named.signal.facts
        text = (
            f"rises and falls every {units.duration(facts['period_s'])}, and what is kept after "
            f"each of {named.signal.n} cycles creeps up by {speed}"
        )
    else:
        text = f"grows steadily by {speed} for {for_s}, {grown} so far, none given back"
    if eta is None:
        return text if series.limit_bytes is not None else f"{text}; the limit is not known"
    return f"{text}; {units.size(growth.headroom)} left, full in about {units.duration(eta.mid_s)}"


def _collecting(view: View, settings: DetectionSection) -> str:
    if view.samples < settings.minimum_samples:
        return f"collecting, {view.samples} of {settings.minimum_samples} samples"
    have, want = units.duration(view.span_s), units.duration(settings.minimum_duration)
    return f"collecting, {have} of {want}"


def _harmless(
    series: Series,
    view: View,
    settings: DetectionSection,
    least: float,
    *,
    growing: _Growth | None,
) -> Finding:
    """Name what is no leak (yet)."""
    if view.samples < settings.minimum_samples or view.span_s < settings.minimum_duration:
        return _finding(series, view, "unknown", reason=_collecting(view, settings))
    spike = Spike(settings.spike_percent, settings.spike_window).look_at(view)
    level = float(view.mean[-1])
    pool = _preallocated(series, view, spike, level)
    if pool is not None:
        return pool
    span = float(view.high.max() - view.low.min())
    if span <= max(least, FLAT_SHARE * level, 8.0 * view.noise_bytes) and growing is None:
        return _finding(series, view, "stable", reason=f"flat at {units.size(level)}")
    cycle = _CYCLE.look_at(view)
    if cycle is not None:
        return _sawtooth(series, view, cycle)
    if spike is not None:
        return _spike(series, view, spike)
    plateau = _PLATEAU.look_at(view)
    if plateau is not None:
        facts = plateau.facts
        text = (
            f"grew by {units.size(facts['growth_bytes'])} in {units.duration(facts['rise_s'])}, "
            f"then levelled off at {units.size(facts['level_bytes'])}"
        )
        return _finding(series, view, "plateau", reason=text, signals=(plateau,))
    if growing is None:
        text = f"moves between {units.size(float(view.low.min()))} and "
        text += f"{units.size(float(view.high.max()))}, nothing that it keeps grows"
        return _finding(series, view, "stable", reason=text)
    return _unsure(series, view, growing)


def _preallocated(series: Series, view: View, spike: Signal | None, level: float) -> Finding | None:
    total = series.total_bytes or series.limit_bytes
    if not total:
        return None
    recent = view.mean[np.searchsorted(view.t_s, -120.0) :]
    flat = float(recent.max() - recent.min()) <= max(0.01 * total, 64.0 * MIB)
    name = (series.framework or "").lower()
    known = name in PREALLOCATING and level >= PREALLOCATED_SHARE * total
    jumped = (
        spike is not None
        and spike.facts["jump_bytes"] >= PREALLOCATED_SHARE * total
        and spike.facts["kept"] >= 0.8
        and spike.facts["after"] == 0.0
    )
    if not flat or not (known or jumped):
        return None
    text = (
        f"memory is a preallocated pool ({units.size(level)}, "
        f"{units.percent(level / total)} of the device), flat by design; "
        "a leak inside it is invisible here"
    )
    signals = (spike,) if spike is not None else ()
    return _finding(series, view, "preallocated", reason=text, signals=signals)


def _sawtooth(series: Series, view: View, cycle: Signal) -> Finding:
    facts = cycle.facts
    text = (
        f"rises and falls by {units.size(facts['swing_bytes'])} about every "
        f"{units.duration(facts['period_s'])} and comes back"
    )
    level_floor = facts["floor_growth_bytes"] < 0.02 * facts["swing_bytes"]
    higher = facts["peaks_slope_bytes_per_s"] * view.span_s
    if level_floor and higher > 0.1 * facts["swing_bytes"]:
        text += "; peaks rise, what is kept does not"
    return _finding(series, view, "sawtooth", reason=text, signals=(cycle,))


def _spike(series: Series, view: View, spike: Signal) -> Finding:
    facts = spike.facts
    ago = units.duration(facts["age_s"])
    text = f"one jump by {units.size(facts['jump_bytes'])} {ago} ago"
    if facts["after"] == TOO_EARLY:
        text += "; too early to say whether it settles"
    elif facts["kept"] < 0.5:
        text += ", given back since"
    else:
        text += ", growing since" if facts["after"] == GROWING else ", settled since"
    return _finding(series, view, "spike", reason=text, signals=(spike,))


def _unsure(series: Series, view: View, growth: _Growth) -> Finding:
    """Growth that is not worth a watch: say what speaks against it."""
    found, index = growth.found, growth.best
    speed = units.rate(float(found.growth[index] / found.age_s[index]))
    text = f"{units.size(float(found.growth[index]))} more than before, at {speed}, but "
    if found.stall[index] >= 2.0:
        text += f"not rising any more for {units.duration(-float(found.end_s[index]))}"
        pattern: Pattern = "plateau"
    elif found.excess[index] > 0.15:
        text += "slowing down"
        pattern = "plateau"
    elif found.calm[index] < 1.0:
        text += "it also gives back as much"
        pattern = "stable"
    else:
        text += "too little to tell a leak from a warm-up"
        pattern = "unknown"
    return _finding(series, view, pattern, reason=text, confidence=growth.confidence)


def _finding(
    series: Series,
    view: View,
    pattern: Pattern,
    *,
    reason: str,
    signals: tuple[Signal, ...] = (),
    confidence: float = 0.0,
) -> Finding:
    return Finding(
        id=series.subject.id,
        subject=series.subject,
        judged_at_s=view.now_s,
        pattern=pattern,
        tier="none",
        severity="info",
        confidence=confidence,
        rate_bytes_per_s=None if pattern == "unknown" else 0.0,
        eta=None,
        detector=signals[0].detector if signals else None,
        onset_at_s=signals[0].since_s if signals else None,
        reason=reason,
        framework=series.framework,
        limit_bytes=series.limit_bytes,
        samples=view.samples,
        signals=signals,
    )
