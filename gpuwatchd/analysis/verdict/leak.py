"""Growth -> a finding that it leaks: pattern, tier, rate, time left, words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.forecast import BINS, HORIZON_S
from gpuwatchd.analysis.frameworks import POOL_SHARE, advice
from gpuwatchd.analysis.verdict.growth import (
    LEAST_AGE_S,
    SHIFT,
    after_load,
    classify_pattern,
    line,
    p_value_since,
)
from gpuwatchd.analysis.verdict.harmless import finding
from gpuwatchd.analysis.verdict.limit import LimitForecast, ending, limit_forecast
from gpuwatchd.core import units
from gpuwatchd.core.model.findings import Clause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth, PatternMatch
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import EtaRange, Finding, Series, Severity, Tier

WATCH_CONFIDENCE = 1.0 / (1.0 + math.exp(SHIFT))
"""The watch level, even odds, on the scale of ``confidence``."""
EXPECTED_LEVEL = 0.68
"""No setting below this, the default, makes an alert of growth that earlier runs had as well."""
LEAST_SAMPLES = 5
LEAST_EVENTS = 2.5
"""One jump, or two, prove nothing: a load, a larger batch."""
GIVEN_BACK = 0.5
"""A fall by this share of a growth is worth a word."""
EVEN_SHARE = 0.01
"""An interval of a growth with more than this share of it has risen."""
HEARD_SHARE, HEARD_S = 0.4, 90.0
"""People are to hear of growth when this share of its time to full is gone; from the first evidence
of an alert to its message it takes so long."""
LEAST_WAIT = 0.6
"""It is never alerted on before this share of ``minimum-duration``: harmless loads take that."""
NEW_SHARE = 0.75
"""What has brought more than this share of what is held is being loaded, as far as is known."""
MANY_EVENTS = 20.0
"""A ramp of few and large steps, such as that of a batch size, is not plain to see so early."""
LOADS_BYTES_PER_S = 8e9 / 60.0
"""So fast disks and networks are, and few leaks."""
FORETOLD = 0.25
"""Below this confidence nobody is told when memory is full: most of such growth ends before."""
ENOUGH_EVENTS, PER_EVENT = 8.0, 0.5
"""Fewer events than so many leave open whether they go on; log odds that each of them lacks."""
KEPT_SHARE = 0.9
"""Growth that is as long, as a share of the window, keeps its begin."""
_INFO_BYTES, _CRITICAL_BYTES = 1e8, 1e9
_CRITICAL_S, _WARNING_S = 3600.0, 86400.0


def leak(
    series: Series, view: SeriesWindow, settings: DetectionSection, growth: Growth
) -> Finding | None:
    """Return the finding if the growth deserves a watch or an alert, else None.

    Gates of the settings: ``min-slope-mb-per-sec`` for every pattern, ``min-r-squared`` for
    gradual ones, ``minimum-samples`` and ``minimum-duration`` for the alert but not the watch,
    ``eta-horizon`` beyond which it is information.
    """
    named = classify_pattern(view, growth)
    rate = named.rate
    if rate <= 0.0 or rate < settings.min_slope_mb_per_sec * 1e6:
        return None
    if named.signal is not None and named.pattern in {"cyclic", "step"}:
        # The first trough or riser that counts is older than the window that scores best.
        growth = growth._replace(onset_s=min(growth.onset_s, named.signal.since_s - view.now_s))
    _, _, r_squared = line(view, growth.onset_s)
    if named.pattern == "gradual" and r_squared < settings.min_r_squared:
        return None
    since_s = after_load(view, growth.onset_s) if named.pattern == "gradual" else growth.onset_s
    if growth.expected:
        level = max(settings.confidence_threshold, EXPECTED_LEVEL)
        settings = msgspec.structs.replace(settings, confidence_threshold=level)
    tier = _tier(view, settings, growth, named, since_s)
    growth = growth._replace(confidence=_weighed(series, growth))
    tier = _lowered(tier, growth, settings)
    if tier == "none":
        return None
    if named.slows is not None:
        return _slowing(series, view, growth, named, settings)
    prospect = limit_forecast(series, growth, rate, settings)
    eta = prospect.eta
    severity = _severity(tier, eta, growth, settings)
    if eta is None and prospect.levels_off_bytes is not None:
        # It almost surely ends before the limit.
        tier, severity = "watch", "info"
    left_s = float(view.mean[-1]) / rate if eta is None else eta.mid_s
    horizon_s = float(settings.eta_horizon)
    if left_s > (horizon_s if eta is not None else max(horizon_s, HORIZON_S)):
        # Without a limit, the time to twice the level stands in for what is left.
        tier, severity = "watch", "info"
    if growth.confidence < FORETOLD and tier == "watch":
        prospect = prospect._replace(eta=None)
        eta, severity = None, "info"
    growth = growth._replace(onset_s=since_s)
    onset_at_s, grown_bytes = _since_begin(series, view, growth, rate, settings)
    trend = next((signal for signal in named.signals if signal.detector == "trend"), None)
    p_value = trend.facts["p_value"] if trend is not None else p_value_since(view, growth.onset_s)
    extent = (view.now_s - onset_at_s, grown_bytes)
    reason = _leak_reason(growth, named, prospect, series, extent)
    return msgspec.structs.replace(
        _finding(series, view, growth, named, *reason),
        tier=tier,
        severity=severity,
        eta=eta,
        r_squared=r_squared,
        p_value=p_value,
        detector=named.signal.detector if named.signal is not None else "trend",
        onset_at_s=onset_at_s,
        growth_bytes=grown_bytes,
        levels_off_bytes=prospect.levels_off_bytes,
    )


def _slowing(
    series: Series,
    view: SeriesWindow,
    growth: Growth,
    named: PatternMatch,
    settings: DetectionSection,
) -> Finding:
    """Return the watch on growth that provably slows down: shown, told to nobody, no time left."""
    guess = None if named.slows is None else named.slows.level_bytes
    level, ends = ending(growth, guess, series.limit_bytes)
    onset_at_s, grown = _since_begin(series, view, growth, named.rate, settings)
    text = f"{units.size(grown)} more in {units.duration(view.now_s - onset_at_s)}, "
    text += f"slowing down, now {units.rate(named.rate)}"
    reason = (text, ends, growth.compared(beyond=True))
    return msgspec.structs.replace(
        _finding(series, view, growth, named, *reason),
        tier="watch",
        detector="plateau",
        onset_at_s=onset_at_s,
        growth_bytes=grown,
        levels_off_bytes=level,
    )


def _finding(
    series: Series, view: SeriesWindow, growth: Growth, named: PatternMatch, *reason: Clause | str
) -> Finding:
    """Return what all findings of growth have in common."""
    found = finding(
        series, view, named.pattern, *reason, confidence=growth.confidence, signals=named.signals
    )
    total = series.total_bytes or series.limit_bytes
    topic = advice.topic_of(
        named.pattern,
        series.framework,
        leaks=True,
        host=series.subject.host,
        unattributed=series.subject.unattributed,
        pool_full=total is not None and float(view.mean[-1]) >= POOL_SHARE * total,
    )
    texts = () if topic is None else advice.lines(topic, series.framework, series.role)
    facts = growth.facts(series) or UNSET
    return msgspec.structs.replace(found, rate_bytes_per_s=named.rate, advice=texts, facts=facts)


def _weighed(series: Series, growth: Growth) -> float:
    """Return the confidence, less what few events leave open.

    Even stairs of a schedule are the same data as a leak of as many steps. Growth beyond what
    earlier runs of the program did is not, and what a pause has just brought is no single step.
    """
    view, missing = growth.found.view, ENOUGH_EVENTS - float(growth.found.events[growth.best])
    paused = view.t_s[-1] - view.t_s[-2] > numerics.PAUSE_STEPS * view.step_s
    if missing <= 0.0 or paused or any(fact.beyond for fact in growth.facts(series)):
        return growth.confidence
    share = min(growth.confidence, 1.0 - 1e-9)
    return share / (share + (1.0 - share) * math.exp(PER_EVENT * missing))


def _is_old_enough(
    view: SeriesWindow, settings: DetectionSection, growth: Growth, since_s: float
) -> bool:
    """Say whether growth may alert: after ``minimum-duration``, or sooner where that is too late.

    Waiting that long would cost a leak that fills the device in ten minutes half of its time. So
    growth that is plain to see waits only as long as its message can still come before half of the
    time is gone, at least :data:`LEAST_WAIT` of the setting. Loading looks the same, but begins
    with little, or is as fast as a disk: what may be that waits as long as everything else.
    """
    usual_s = float(settings.minimum_duration)
    if -growth.onset_s >= usual_s and view.span_s >= usual_s:
        return True
    many = float(growth.found.events[growth.best]) >= MANY_EVENTS
    if growth.headroom is None or not (growth.plain and many):
        return False
    now, age_s = float(view.floor[-1]), -since_s
    grown = now - float(np.interp(since_s, view.t_s, view.floor))
    rate = grown / age_s
    if not 0.0 < grown <= NEW_SHARE * now or rate > LOADS_BYTES_PER_S:
        return False
    wait_s = HEARD_SHARE * (age_s + max(growth.headroom, 0.0) / rate) - HEARD_S
    return wait_s < usual_s and age_s >= max(wait_s, LEAST_WAIT * usual_s)


def _tier(
    view: SeriesWindow,
    settings: DetectionSection,
    growth: Growth,
    named: PatternMatch,
    since_s: float,
) -> Tier:
    enough = view.samples >= settings.minimum_samples and _is_old_enough(
        view, settings, growth, since_s
    )
    if view.samples < LEAST_SAMPLES or -growth.onset_s < LEAST_AGE_S:
        return "none"
    confidence = growth.confidence if growth.found.events[growth.best] >= LEAST_EVENTS else 0.0
    if confidence >= settings.confidence_threshold and enough:
        return "alert"
    level = min(WATCH_CONFIDENCE, settings.confidence_threshold)
    if not growth.expected and (confidence >= level or _worth_watching(growth, named)):
        return "watch"
    return "none"


def _lowered(tier: Tier, growth: Growth, settings: DetectionSection) -> Tier:
    """Return the tier after few events were counted: no alert; a watch, but on what is expected."""
    if tier != "alert" or growth.confidence >= settings.confidence_threshold:
        return tier
    return "none" if growth.expected else "watch"


def _worth_watching(growth: Growth, named: PatternMatch) -> bool:
    """Say whether growth is plain to see, though it may still end by itself."""
    signal = named.signal
    if named.pattern == "cyclic":
        return signal is not None and signal.n >= 4 and signal.confidence >= 0.3
    if named.pattern == "step":
        return signal is not None and signal.n >= 3 and signal.confidence >= 0.3
    return growth.plain


def _grown(growth: Growth) -> float:
    view = growth.found.view
    end = float(growth.found.end_s[growth.best])
    low, high = np.interp([growth.onset_s, end], view.t_s, view.floor).tolist()
    return max(high - low, float(growth.found.growth[growth.best]))


def _since_begin(
    series: Series, view: SeriesWindow, growth: Growth, rate: float, settings: DetectionSection
) -> tuple[float, float]:
    """Return since when it has grown, and by how much, also where that began before the window.

    Growth about as long as the window goes on from what its alert was judged by last, unless memory
    was given back since: the begin of stairs or waves is dated anew at every step otherwise.
    """
    onset_at_s, grown, before = view.now_s + growth.onset_s, _grown(growth), series.alerted
    window_s = settings.analysis_window_hours * 3600.0
    if before is None or before.subject != series.subject or before.growth_bytes is None:
        return onset_at_s, grown
    begun_s, passed_s = before.onset_at_s, view.now_s - before.judged_at_s
    if begun_s is None or begun_s >= onset_at_s or not 0.0 <= passed_s <= window_s:
        return onset_at_s, grown
    since = view.floor[view.t_s.searchsorted(-passed_s) :]
    kept = numerics.drawdown(since) <= GIVEN_BACK * max(grown, before.growth_bytes)
    if not kept or view.now_s - begun_s < KEPT_SHARE * window_s:
        return onset_at_s, grown
    held = float(view.mean[-1])
    return begun_s, max(grown, min(before.growth_bytes + rate * passed_s, held))


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


def intervals_risen(growth: Growth) -> tuple[int, int]:
    """Return in how many intervals of how many it rose: sixteenths, or those between samples.

    Sixteenths of a growth with fewer samples are interpolated: they are no evidence of their own.
    """
    windows, best = growth.found, growth.best
    within = (windows.begin_s[best] - 1e-6, windows.end_s[best] + 1e-6)
    first, last = windows.view.t_s.searchsorted(within).tolist()
    rises = windows.view.rises[first : max(last, first + 2) - 1]
    shares = windows.shares[best] if rises.size > BINS else rises / windows.growth[best]
    return int((shares > EVEN_SHARE).sum()), int(shares.size)


def _leak_reason(
    growth: Growth,
    named: PatternMatch,
    prospect: LimitForecast,
    series: Series,
    extent: tuple[float, float],
) -> Iterator[Clause | str]:
    """Yield the parts of the reason; ``extent``: for how long it has grown, and by how much."""
    yield _how(growth, named, prospect, extent)
    yield growth.compared(beyond=True)
    yield prospect.words
    eta = prospect.eta
    if eta is None:
        if series.limit_bytes is None:
            yield "the limit is not known"
        elif not prospect.words:
            yield "too early to say when memory is full"
        return
    room = growth.headroom or 0.0
    left = "its recent peak would no longer fit"
    if room > 0.0:
        gone = extent[1] / (extent[1] + room)
        left = f"{units.percent(gone)} of the free memory is used, {units.size(room)} left"
    full = f"{left}, full in {units.band(eta.low_s, eta.mid_s, eta.high_s)}"
    yield Clause(text=full, short=left, forecast=True)


def _how(
    growth: Growth, named: PatternMatch, prospect: LimitForecast, extent: tuple[float, float]
) -> Clause:
    """Return how it grows."""
    for_s, grown = units.duration(extent[0]), units.size(extent[1])
    speed = units.rate(named.rate)
    view = growth.found.view
    since = view.mean[view.t_s.searchsorted(growth.onset_s) :]
    kept = "nothing released" if numerics.drawdown(since) <= GIVEN_BACK * _grown(growth) else ""
    if named.pattern == "step" and named.signal is not None:
        facts = named.signal.facts
        text = (
            f"rises in steps of {units.size(facts['riser_bytes'])} every "
            f"{units.duration(facts['pause_s'])}, {named.signal.n} so far{kept and f', {kept}'}"
        )
        return Clause(text=text, verb=True)
    if named.pattern == "cyclic" and named.signal is not None:
        facts = named.signal.facts
        short = (
            f"rises and falls every {units.duration(facts['period_s'])}, and memory kept after "
            f"each of {named.signal.n} cycles creeps up"
        )
        return Clause(text=f"{short} by {speed}", short=short, verb=True)
    how, steady = ("grows", "") if prospect.words else ("grows steadily", "steady, ")
    kept = kept and f"{kept}, "
    rose = "{} of {} intervals".format(*intervals_risen(growth))
    return Clause(
        text=f"{how} by {speed} for {for_s}, {grown} so far, {kept}grew in {rose}",
        short=f"{steady}{kept}grew in {rose}",
        verb=True,
    )
