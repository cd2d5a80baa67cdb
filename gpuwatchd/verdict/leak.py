"""Growth -> a finding that it leaks: pattern, tier, rate, time left, words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd import forecast, robust, units
from gpuwatchd.detect.cycle import Cycle
from gpuwatchd.detect.step import Step
from gpuwatchd.detect.trend import Trend
from gpuwatchd.model import Finding
from gpuwatchd.verdict.growth import LEAST_AGE_S, SHIFT

if TYPE_CHECKING:
    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import EtaRange, Pattern, Series, Severity, Signal, Tier
    from gpuwatchd.robust import View
    from gpuwatchd.verdict.growth import Growth

WATCH_CONFIDENCE = 1.0 / (1.0 + math.exp(SHIFT - math.log(0.6 / 0.4)))
"""The formula's watch level 0.60 on the scale of ``confidence``."""
LEAST_SAMPLES = 5
LEAST_EVENTS = 2.5
"""One jump, or two, prove nothing: a load, a larger batch."""
_TREND, _STEP, _CYCLE = Trend(), Step(), Cycle()
_INFO_BYTES, _CRITICAL_BYTES = 1e8, 1e9
_CRITICAL_S, _WARNING_S = 3600.0, 86400.0


class Named(NamedTuple):
    """The pattern of a growth, the detector's signal behind it, and its rate in bytes/s."""

    pattern: Pattern
    signal: Signal | None
    signals: tuple[Signal, ...]
    rate: float


def _name(view: View, growth: Growth) -> Named:
    """Name the pattern: swings first, then stairs, then a slope."""
    trend = _TREND.look_at(growth.found.view, growth.onset_s)
    step, cycle = _STEP.look_at(view), _CYCLE.look_at(view)
    signals = tuple(signal for signal in (trend, step, cycle) if signal is not None)
    if cycle is not None and cycle.pattern == "cyclic":
        return Named("cyclic", cycle, signals, cycle.rate_bytes_per_s)
    if step is not None and step.confidence >= 0.25 and step.facts["stall"] <= 2.5:
        return Named("step", step, signals, step.rate_bytes_per_s)
    if trend is not None:
        return Named("gradual", trend, signals, trend.rate_bytes_per_s)
    slope, _, _ = _line(growth.found.view, growth.onset_s)
    return Named("gradual", None, signals, slope)


def leak(series: Series, view: View, settings: DetectionSection, growth: Growth) -> Finding | None:
    """Return the finding if the growth deserves a watch or an alert, else None.

    Gates of the settings: ``min-slope-mb-per-sec`` for every pattern, ``min-r-squared`` for
    gradual ones, ``minimum-samples`` and ``minimum-duration`` for the alert but not the watch,
    ``eta-horizon`` beyond which it is information.
    """
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


def _tier(view: View, settings: DetectionSection, growth: Growth, named: Named) -> Tier:
    enough = (
        view.samples >= settings.minimum_samples
        and -growth.onset_s >= settings.minimum_duration
        and view.span_s >= settings.minimum_duration
    )
    events = float(growth.found.events[growth.best])
    if view.samples < LEAST_SAMPLES or -growth.onset_s < LEAST_AGE_S:
        return "none"
    confidence = growth.confidence if events >= LEAST_EVENTS else 0.0
    if confidence >= settings.confidence_threshold and enough:
        return "alert"
    level = min(WATCH_CONFIDENCE, settings.confidence_threshold)
    if confidence >= level or _worth_watching(growth, named):
        return "watch"
    return "none"


def _worth_watching(growth: Growth, named: Named) -> bool:
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


def _grown(growth: Growth) -> float:
    seen = growth.found.view
    end = float(growth.found.end_s[growth.best])
    low, high = np.interp([growth.onset_s, end], seen.t_s, seen.floor).tolist()
    return max(high - low, float(growth.found.growth[growth.best]))


def _eta(growth: Growth, rate: float, settings: DetectionSection) -> EtaRange | None:
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
    tier: Tier, eta: EtaRange | None, growth: Growth, settings: DetectionSection
) -> Severity:
    grown = float(growth.found.growth.max())
    left = eta.mid_s if eta is not None else math.inf
    if left > settings.eta_horizon and eta is not None:
        return "info"
    if tier == "alert" and (left < _CRITICAL_S or grown > _CRITICAL_BYTES):
        return "critical"
    return "warning" if left < _WARNING_S or grown >= _INFO_BYTES else "info"


def _leak_reason(growth: Growth, named: Named, eta: EtaRange | None, series: Series) -> str:
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
