"""Replays a series at its own clock through screen, judge and policy, as the pipeline does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuwatchd import policy, screen, verdict
from gpuwatchd.config import DetectionSection
from gpuwatchd.model import Alert, Finding, Pattern, Series, Subject

SLOW_S = 60.0
FIRST_S = 30.0
STIR_BYTES = 8.0 * 2**20
"""The pipeline looks again at once when a subject rises by this much above what it last saw."""


@dataclass(kw_only=True)
class Life:
    """What would have been raised, and when; times in seconds since the first sample."""

    watch_s: float | None = None
    alert_s: float | None = None
    watches: int = 0
    alerts: int = 0
    watch: Finding | None = None
    alert: Finding | None = None
    last: Finding | None = None
    pattern: Pattern = "unknown"
    """What the last evaluation, or the screen before it, said."""
    evaluations: int = 0
    etas: list[tuple[float, float, float, float | None]] = field(default_factory=list)
    """(at, low, mid, high) of every firing evaluation."""
    patterns: list[tuple[float, Pattern, str]] = field(default_factory=list)
    """(at, pattern, tier) of every evaluation."""


def series_at(whole: Series, end: int) -> Series:
    """Return what was known after ``end`` samples. ``limit_bytes`` stays."""
    return Series(
        subject=whole.subject,
        t_s=whole.t_s[:end],
        used_bytes=whole.used_bytes[:end],
        limit_bytes=whole.limit_bytes,
        total_bytes=whole.total_bytes,
        framework=whole.framework,
    )


def make(
    t_s: npt.NDArray[np.floating[Any]],
    used: npt.NDArray[np.floating[Any]],
    total: float,
    framework: str | None = None,
) -> Series:
    """Return a series on a card of ``total`` bytes that nobody else uses."""
    return Series(
        subject=Subject(device_uid="GPU-test"),
        t_s=np.asarray(t_s, dtype=np.float64),
        used_bytes=np.asarray(used, dtype=np.float64),
        limit_bytes=total,
        total_bytes=total,
        framework=framework,
    )


def replay(
    whole: Series,
    settings: DetectionSection | None = None,
    *,
    until_s: float | None = None,
    stop_at_alert: bool = False,
) -> Life:
    """Return the life of the subject's alert under default policy."""
    settings = settings or DetectionSection()
    rules = policy.Rules()
    life = Life()
    t = whole.t_s
    start = float(t[0])
    stop = float(t[-1]) if until_s is None else start + until_s
    alert: Alert | None = None
    due = start + FIRST_S
    calm_looks = 0
    index = 0
    while index < t.size and t[index] <= stop:
        if t[index] < due:
            index = int(np.searchsorted(t, due))
            continue
        now = float(t[index])
        series = series_at(whole, index + 1)
        pattern = screen.first_look([series], settings)[0]
        finding = verdict.judge(series, settings) if pattern is None else None
        life.evaluations += 1
        at = now - start
        life.pattern = finding.pattern if finding is not None else pattern or "unknown"
        if finding is not None:
            life.last = finding
            life.patterns.append((at, finding.pattern, finding.tier))
            alert = _step(life, finding, alert, rules, now, at)
            if stop_at_alert and life.alerts:
                break
        elif alert is not None and alert.state == "pending":
            alert = None
        calm_looks = 0 if finding is not None and finding.tier != "none" else calm_looks + 1
        pause = SLOW_S
        if finding is not None:
            young = finding.samples < 2 * settings.minimum_samples
            pause = policy.pause_s(finding, alert, young=young, calm_looks=calm_looks)
        due = now + pause
        index += 1
        if pause > policy.FAST_S and calm_looks:
            due = _stirred(whole, index, now, due)
    return life


def _stirred(whole: Series, index: int, now: float, due: float) -> float:
    """Return the earlier instant at which a rise makes the pipeline look sooner."""
    begin = int(np.searchsorted(whole.t_s, now + policy.FAST_S))
    end = int(np.searchsorted(whole.t_s, due))
    if begin >= end:
        return due
    seen = float(whole.used_bytes[index - 1])
    high = np.flatnonzero(whole.used_bytes[begin:end] > seen + STIR_BYTES)
    return float(whole.t_s[begin + high[0]]) if high.size else due


def _step(
    life: Life, finding: Finding, alert: Alert | None, rules: policy.Rules, now: float, at: float
) -> Alert | None:
    before = alert.state if alert is not None else None
    outcome = policy.evaluate(finding, alert, rules, now_s=now, title="test")
    alert = outcome.alert
    state = alert.state if alert is not None else None
    if state == "watch" and before != "watch" and outcome.changed:
        life.watches += 1
        if life.watch_s is None:
            life.watch_s, life.watch = at, finding
    if state == "firing":
        if before != "firing":
            life.alerts += 1
            if life.watch_s is None:
                life.watch_s, life.watch = at, finding
            if life.alert_s is None:
                life.alert_s, life.alert = at, finding
        if finding.eta is not None and finding.tier != "none":
            life.etas.append((at, finding.eta.low_s, finding.eta.mid_s, finding.eta.high_s))
    return None if state == "resolved" else alert
