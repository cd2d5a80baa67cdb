"""What is no leak, or not yet: its name, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.detectors.cycle import Cycle
from gpuwatchd.analysis.detectors.plateau import Plateau
from gpuwatchd.analysis.detectors.spike import GROWING, SETTLED, TOO_EARLY, Spike
from gpuwatchd.analysis.frameworks import POOL_SHARE, PREALLOCATES, advice
from gpuwatchd.analysis.numerics import MIB
from gpuwatchd.analysis.verdict.growth import (
    LEAST_AGE_S,
    decelerates,
    seems_to_rise,
)
from gpuwatchd.analysis.verdict.limit import ending
from gpuwatchd.core import units
from gpuwatchd.core.codes import Reason
from gpuwatchd.core.model import Finding
from gpuwatchd.core.model.findings import Clause, collecting, reason_fields, with_reason

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Pattern, Series, Signal

FLAT_SHARE = 0.02
NEWS_S = 1800.0
"""A jump is news for half an hour; then what matters is that memory has been flat since."""
CALM_SHARE = 0.3
"""In a short record, flat for this share of it is flat."""
MAIN_SHARE = 0.6
"""One jump that makes up this share of the whole range is what happened in the record."""
MOST_ALIKE = 2.0
"""More jumps of its size than this are no single event."""
SCATTER_SHARE = 0.5
"""Swings come back to one floor when their troughs scatter by this share of them, or less."""
LARGER = 1.5
"""A rise this many times the swings that followed it is what happened."""
POOL_LEVEL, POOL_JUMP = 0.75, 0.3
"""A jump by this share of the device to this level, flat since, may be a pool."""
POOL_FRACTIONS = ((0.73, 0.78), (0.86, 1.0))
"""Shares of a device that frameworks take at start: JAX 75 %, SGLang 88 %, vLLM 90 %, TensorFlow
nearly all; the contexts of CUDA come on top."""
KEPT = 0.8
"""What holds this share of a jump has not been given back."""
START_SHARE, START_S = 0.1, 120.0
"""A jump within the first tenth of a record, or two minutes, is how it begins: no event in it."""
LEAST_SPARSE = 8
"""A record as long as the whole window is named from so many samples on."""
FAINT = 0.25
"""Growth within what counts as flat is not spoken of below this confidence."""
LEAST_RISING = 5
"""So many samples that rise are called growing, before they are enough for a verdict."""
RISING_Z = 2.2
"""Of the rank correlation with time (Kendall 1938), in standard deviations: five samples must all
rise, of six one pair may be the wrong way round."""
LATE_SHARE = 0.1
"""The last third of what still grows has brought this share of it."""
_CYCLE, _PLATEAU = Cycle(), Plateau()
_POOLS = frozenset(name.lower() for name in PREALLOCATES)


def unjudged(series: Series, view: SeriesWindow, settings: DetectionSection) -> Finding:
    """Return the finding of a record that is too short for a verdict: what is still missing."""
    want_s = float(settings.minimum_duration)
    missing = collecting(view.samples, settings.minimum_samples, view.span_s, want_s)
    return finding(series, view, "unknown", missing, code=Reason.COLLECTING)


def unconfirmed(found: Finding, view: SeriesWindow, settings: DetectionSection) -> Finding:
    """Return a finding of growth in fewer than ``minimum-samples`` that says what is missing."""
    return with_reason(found, f"not confirmed: {_needed(view, settings)}", Reason.UNCONFIRMED)


def _needed(view: SeriesWindow, settings: DetectionSection) -> str:
    wait_s = float(settings.minimum_duration) - view.span_s
    more = max(settings.minimum_samples - view.samples, math.ceil(wait_s / view.interval_s))
    return f"{more} more sample{'s are' if more != 1 else ' is'} needed"


def _rising(
    series: Series,
    view: SeriesWindow,
    settings: DetectionSection,
    least: float,
    growing: Growth | None,
) -> Finding | None:
    """Return what to say of a record that is short and rises; None where it does not."""
    values = view.mean
    n, grown = values.size, float(values[-1] - values[0])
    expected = growing is not None and growing.expected
    if n < LEAST_RISING or view.span_s < LEAST_AGE_S or grown < least or expected:
        return None
    steps = values[1:] - values[:-1]
    order = float(np.triu(np.sign(values[None, :] - values[:, None])).sum())
    by_chance = math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    late = float(values[-1] - values[-1 - max(1, steps.size // 3)])
    # One jump is a load, not growth; nor is what has stopped since.
    if order < RISING_Z * by_chance or late < LATE_SHARE * grown:
        return None
    if float(steps.max()) > MAIN_SHARE * grown:
        return None
    text = f"rose in {int((steps > 0.0).sum())} of {steps.size} intervals"
    rise = Clause(about="growing, not confirmed: ", text=f"{text}, {_needed(view, settings)}")
    sure = 0.0 if growing is None else growing.confidence
    found = finding(series, view, "gradual", rise, code=Reason.UNCONFIRMED, confidence=sure)
    pace = grown / view.span_s
    return msgspec.structs.replace(found, rate_bytes_per_s=pace, growth_bytes=grown)


def _is_enough(view: SeriesWindow, settings: DetectionSection) -> bool:
    """Say whether a record can be named: of many samples, or of a few over a long time."""
    if view.samples >= settings.minimum_samples:
        return view.span_s >= settings.minimum_duration
    return view.samples >= LEAST_SPARSE and view.span_s >= settings.analysis_window_hours * 3600.0


def harmless(
    series: Series,
    view: SeriesWindow,
    settings: DetectionSection,
    least: float,
    *,
    growing: Growth | None,
) -> Finding:
    """Name what is no leak (yet): what happened over the record, gaps included."""
    short = view.samples < settings.minimum_samples or not _is_enough(view, settings)
    rising = _rising(series, view, settings, least, growing) if short else None
    if rising is not None or not _is_enough(view, settings):
        return rising or unjudged(series, view, settings)
    wide = _wide(series, view, settings)
    spike = Spike(settings.spike_percent, settings.spike_window).look_at(wide)
    level = float(view.mean[-1])
    pool = _preallocated(series, view, spike, level)
    if pool is not None:
        return pool
    span = float(wide.high.max() - wide.low.min())
    faint = growing is None or growing.confidence < FAINT
    if span <= max(least, FLAT_SHARE * level, 8.0 * wide.noise_bytes) and faint:
        return finding(series, view, "stable", f"flat at {units.size(level)}")
    calm_s = _calm_since(wide, least)
    event = _event(series, view, wide, spike, calm_s)
    if event is not None:
        return event
    if calm_s is None and growing is not None:
        return _unsure(series, view, growing)
    return _rest(series, view, wide, calm_s)


def _event(
    series: Series,
    view: SeriesWindow,
    wide: SeriesWindow,
    spike: Signal | None,
    calm_s: float | None,
) -> Finding | None:
    """Return what happened in the record, if that has a name: swings, one jump, a rise."""
    plateau = _PLATEAU.look_at(wide)
    cycle = _CYCLE.look_at(wide)
    if cycle is not None and _goes_on(wide, cycle, calm_s, plateau):
        return _sawtooth(series, view, cycle)
    if spike is not None and (_main(wide, spike) or _news(spike, calm_s)):
        if calm_s is None or not _begins(wide, spike):
            return _spike(series, view, spike)
        text = f"flat at {units.size(float(view.mean[-1]))} for {units.duration(calm_s)}"
        return finding(series, view, "stable", text, signals=(spike,))
    return _plateau(series, view, plateau) if plateau is not None else None


def _rest(series: Series, view: SeriesWindow, wide: SeriesWindow, calm_s: float | None) -> Finding:
    """Name a record in which nothing stands out."""
    low, high = float(wide.low.min()), float(wide.high.max())
    kept = float(wide.floor[-1] - wide.floor[0])
    rose = kept >= 0.5 * (high - low)
    text = f"rose by {units.size(kept)} over the record, " if rose else ""
    if calm_s is not None:
        text += f"flat at {units.size(float(view.mean[-1]))} for {units.duration(calm_s)}"
        return finding(series, view, "plateau" if rose else "stable", text)
    if rose and wide.samples > view.samples:
        text += f"with a gap {units.duration(view.span_s)} ago: "
        return finding(series, view, "unknown", text + "too early to tell if it continues")
    text = f"moves between {units.size(low)} and {units.size(high)}, no lasting growth"
    return finding(series, view, "stable", text)


def _wide(series: Series, view: SeriesWindow, settings: DetectionSection) -> SeriesWindow:
    """Return the view of all that was recorded, across gaps."""
    if view.samples >= series.t_s.size:
        return view
    return numerics.prepare(series, settings.analysis_window_hours * 3600.0, across_gaps=True)


def _main(wide: SeriesWindow, spike: Signal) -> bool:
    """Say whether one jump is what happened in the record."""
    span = float(wide.high.max() - wide.low.min())
    return spike.facts["jump_bytes"] >= MAIN_SHARE * span and spike.facts["alike"] <= MOST_ALIKE


def _settled(spike: Signal) -> bool:
    """Say whether what a jump brought is still held, and no more has come since."""
    return spike.facts["kept"] >= KEPT and spike.facts["after"] == SETTLED


def _begins(wide: SeriesWindow, spike: Signal) -> bool:
    """Say whether a record begins with a jump: what it shows is what came after."""
    before_s = wide.span_s - spike.facts["age_s"]
    return _settled(spike) and before_s <= max(START_SHARE * wide.span_s, START_S)


def _news(spike: Signal, calm_s: float | None) -> bool:
    """Say whether the jump is what there is to say now: it is young, and not one of many."""
    if spike.facts["after"] == TOO_EARLY:
        return True
    single = spike.facts["alike"] <= MOST_ALIKE
    return single and (calm_s is None or spike.facts["age_s"] < NEWS_S)


def _goes_on(
    view: SeriesWindow, cycle: Signal, calm_s: float | None, plateau: Signal | None
) -> bool:
    """Say whether these swings are what the record is about.

    They have not ended long ago, and no warm-up that brought more than they do is the larger
    story. What the present swing holds does not count for either.
    """
    facts = cycle.facts
    if calm_s is not None and calm_s > max(3.0 * facts["period_s"], 0.5 * view.span_s):
        return False
    kept = float(np.interp(-facts["last_fall_s"], view.t_s, view.floor) - view.floor[0])
    return plateau is None or kept < LARGER * facts["swing_bytes"]


def _calm_since(view: SeriesWindow, least: float) -> float | None:
    """Return for how long memory has been flat, in seconds; None when not for long enough."""
    level = float(view.mean[-1])
    allowed = max(least, 0.5 * FLAT_SHARE * level, 8.0 * view.noise_bytes)
    tops = np.maximum.accumulate(view.high[::-1])[::-1]
    # floor is the minimum and tops the maximum from each instant to now.
    calm = tops - view.floor <= allowed
    if not calm[-1]:
        return None
    first = int(np.argmax(calm))
    since = -float(view.t_s[first])
    return since if since >= min(NEWS_S, CALM_SHARE * view.span_s) else None


def _preallocated(
    series: Series, view: SeriesWindow, spike: Signal | None, level: float
) -> Finding | None:
    total = series.total_bytes or series.limit_bytes
    if not total or series.subject.host or series.subject.unattributed:
        return None  # Nobody takes a pool there: what jumps is left behind, or not listed.
    recent = view.mean[np.searchsorted(view.t_s, -120.0) :]
    flat = float(recent.max() - recent.min()) <= max(0.01 * total, 64.0 * MIB)
    name = (series.framework or "").lower()
    known = name in _POOLS and level >= POOL_SHARE * total
    jump = spike.facts["jump_bytes"] if spike is not None and _settled(spike) else 0.0
    at_once = jump >= POOL_JUMP * total and (
        level >= POOL_LEVEL * total or jump >= POOL_SHARE * total
    )
    if not flat or not (known or at_once):
        return None
    signals = (spike,) if spike is not None else ()
    share = f"{units.size(level)}, {units.percent(level / total)} of the device"
    if not known and not any(
        low <= part / total <= high for part in (jump, level) for low, high in POOL_FRACTIONS
    ):
        text = f"taken at once, flat since ({share})"
        return finding(series, view, "plateau", text, signals=signals)
    text = f"memory is a preallocated pool ({share}), flat by design"
    texts = advice.lines("pool", series.framework, series.role)
    inside = "a leak inside it is invisible here"
    found = finding(series, view, "preallocated", text, inside, signals=signals)
    return msgspec.structs.replace(found, advice=texts)


def _plateau(series: Series, view: SeriesWindow, plateau: Signal) -> Finding:
    facts = plateau.facts
    text = f"grew by {units.size(facts['growth_bytes'])} in {units.duration(facts['rise_s'])}, "
    level = units.size(facts["level_bytes"])
    text += f"then levelled off at {level}" if facts["ended"] else f"slowing down towards {level}"
    return finding(series, view, "plateau", text, signals=(plateau,))


def _sawtooth(series: Series, view: SeriesWindow, cycle: Signal) -> Finding:
    facts = cycle.facts
    text = (
        f"rises and falls by {units.size(facts['swing_bytes'])} about every "
        f"{units.duration(facts['period_s'])}"
    )
    scatter = facts["scatter_bytes"] > SCATTER_SHARE * facts["swing_bytes"]
    kept = peaks = ""
    if seems_to_rise(cycle):
        kept = f"its minimum rises by {units.rate(facts['slope_bytes_per_s'])}, "
        kept += "too little for a verdict"
    else:
        text += ", no lasting growth" if scatter else " and comes back"
    level_floor = facts["floor_growth_bytes"] < 0.02 * facts["swing_bytes"]
    higher = facts["peaks_slope_bytes_per_s"] * view.span_s
    if level_floor and higher > 0.1 * facts["swing_bytes"]:
        peaks = "its peaks rise, its minimum does not"
    swings = Clause(text=text, verb=True)
    return finding(series, view, "sawtooth", swings, kept, peaks, signals=(cycle,))


def _spike(series: Series, view: SeriesWindow, spike: Signal) -> Finding:
    facts = spike.facts
    ago = units.duration(facts["age_s"])
    text = f"one jump by {units.size(facts['jump_bytes'])} {ago} ago"
    early = ""
    if facts["after"] == TOO_EARLY:
        early = "too early to tell whether it settles"
    elif facts["kept"] < 0.5:
        text += ", released since"
    else:
        text += ", growing since" if facts["after"] == GROWING else ", settled since"
    return finding(series, view, "spike", text, early, signals=(spike,))


def _unsure(series: Series, view: SeriesWindow, growth: Growth) -> Finding:
    """Growth that is not worth a watch: say what speaks against it, or what is missing."""
    windows, index = growth.found, growth.best
    age_s = float(windows.age_s[index])
    speed = units.rate(float(windows.growth[index]) / age_s)
    text = f"{units.size(float(windows.growth[index]))} more than before, at {speed}, but "
    slows, level, ends = decelerates(view, growth), None, ""
    if windows.stall[index] >= 2.0:
        text += f"no growth for {units.duration(-float(windows.end_s[index]))}"
        pattern: Pattern = "plateau"
    elif slows is not None:
        level, ends = ending(growth, slows.level_bytes, series.limit_bytes)
        text += "slowing down"
        pattern = "plateau"
    elif windows.calm[index] < 1.0:
        text += "it also releases as much"
        pattern = "stable"
    elif growth.expected:
        if growth.bounds is not None:  # it need not slow down before
            level = growth.bounds.level_bytes
            ends = f"expected to end at {units.size(level)}"
        text = f"{units.size(float(windows.growth[index]))} more in {units.duration(age_s)}, "
        text += growth.compared()
        pattern = "plateau"
    else:
        events = round(float(windows.events[index]))
        value = f"{events} rise{'s' if events != 1 else ''} in {units.duration(age_s)}"
        text += (
            f"too little to tell a leak from a warm-up ({value}): wait until it continues or stops"
        )
        pattern = "unknown"
    found = finding(series, view, pattern, text, ends, confidence=growth.confidence)
    facts = growth.facts(series) or UNSET
    return msgspec.structs.replace(found, levels_off_bytes=level, facts=facts)


def finding(
    series: Series,
    view: SeriesWindow,
    pattern: Pattern,
    *reasons: Clause | str,
    code: Reason = Reason.OTHER,
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
        **reason_fields(*reasons, code=code),
        framework=series.framework,
        limit_bytes=series.limit_bytes,
        samples=view.samples,
        signals=signals,
    )
