"""What is no leak, or not yet: its name, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd import units
from gpuwatchd.detect.cycle import Cycle
from gpuwatchd.detect.plateau import Plateau
from gpuwatchd.detect.spike import GROWING, TOO_EARLY, Spike
from gpuwatchd.frameworks import PREALLOCATES
from gpuwatchd.model import Finding
from gpuwatchd.robust import MIB
from gpuwatchd.screen import POOL_SHARE

if TYPE_CHECKING:
    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import Pattern, Series, Signal
    from gpuwatchd.robust import View
    from gpuwatchd.verdict.growth import Growth

FLAT_SHARE = 0.02
NEWS_S = 1800.0
"""A jump is news for half an hour; then what matters is that memory has been flat since."""
_CYCLE, _PLATEAU = Cycle(), Plateau()
_POOLS = frozenset(name.lower() for name in PREALLOCATES)


def collecting(view: View, settings: DetectionSection) -> str:
    """Return what is still missing for a verdict, in words."""
    if view.samples < settings.minimum_samples:
        return f"collecting, {view.samples} of {settings.minimum_samples} samples"
    have_s, want_s = view.span_s, float(settings.minimum_duration)
    if want_s <= 600.0:
        return f"collecting, {have_s:.0f}s of {want_s:.0f}s"
    return f"collecting, {units.duration(have_s)} of {units.duration(want_s)}"


def harmless(
    series: Series,
    view: View,
    settings: DetectionSection,
    least: float,
    *,
    growing: Growth | None,
) -> Finding:
    """Name what is no leak (yet)."""
    if view.samples < settings.minimum_samples or view.span_s < settings.minimum_duration:
        return finding(series, view, "unknown", reason=collecting(view, settings))
    spike = Spike(settings.spike_percent, settings.spike_window).look_at(view)
    level = float(view.mean[-1])
    pool = _preallocated(series, view, spike, level)
    if pool is not None:
        return pool
    span = float(view.high.max() - view.low.min())
    if span <= max(least, FLAT_SHARE * level, 8.0 * view.noise_bytes) and growing is None:
        return finding(series, view, "stable", reason=f"flat at {units.size(level)}")
    cycle = _CYCLE.look_at(view)
    if cycle is not None:
        return _sawtooth(series, view, cycle)
    calm_s = _calm_since(view, least)
    if spike is not None and (calm_s is None or spike.facts["age_s"] < NEWS_S):
        return _spike(series, view, spike)
    plateau = _PLATEAU.look_at(view)
    if plateau is not None:
        return _plateau(series, view, plateau)
    if calm_s is None and growing is not None:
        return _unsure(series, view, growing)
    text = f"moves between {units.size(float(view.low.min()))} and "
    text += f"{units.size(float(view.high.max()))}, nothing that it keeps grows"
    if calm_s is not None:
        text = f"flat at {units.size(level)} for {units.duration(calm_s)}"
    return finding(series, view, "stable", reason=text)


def _calm_since(view: View, least: float) -> float | None:
    """Return for how long memory has been flat, in seconds; None below half an hour."""
    level = float(view.mean[-1])
    allowed = max(least, 0.5 * FLAT_SHARE * level, 8.0 * view.noise_bytes)
    tops = np.maximum.accumulate(view.high[::-1])[::-1]
    first = int(np.argmax(tops - view.floor <= allowed))
    # floor is the minimum and tops the maximum from each instant to now.
    since = -float(view.t_s[first])
    return since if since >= NEWS_S else None


def _preallocated(series: Series, view: View, spike: Signal | None, level: float) -> Finding | None:
    total = series.total_bytes or series.limit_bytes
    if not total:
        return None
    recent = view.mean[np.searchsorted(view.t_s, -120.0) :]
    flat = float(recent.max() - recent.min()) <= max(0.01 * total, 64.0 * MIB)
    name = (series.framework or "").lower()
    known = name in _POOLS and level >= POOL_SHARE * total
    jumped = (
        spike is not None
        and spike.facts["jump_bytes"] >= POOL_SHARE * total
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
    return finding(series, view, "preallocated", reason=text, signals=signals)


def _plateau(series: Series, view: View, plateau: Signal) -> Finding:
    facts = plateau.facts
    text = (
        f"grew by {units.size(facts['growth_bytes'])} in {units.duration(facts['rise_s'])}, "
        f"then levelled off at {units.size(facts['level_bytes'])}"
    )
    return finding(series, view, "plateau", reason=text, signals=(plateau,))


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
    return finding(series, view, "sawtooth", reason=text, signals=(cycle,))


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
    return finding(series, view, "spike", reason=text, signals=(spike,))


def _unsure(series: Series, view: View, growth: Growth) -> Finding:
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
    return finding(series, view, pattern, reason=text, confidence=growth.confidence)


def finding(
    series: Series,
    view: View,
    pattern: Pattern,
    *,
    reason: str,
    signals: tuple[Signal, ...] = (),
    confidence: float = 0.0,
) -> Finding:
    """Return a finding of tier "none"."""
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
