"""Signals -> at most one finding per subject: is this a leak, which kind, how sure, how long left.

The score of :mod:`gpuwatchd.analysis.forecast` decides; the detectors name the pattern, veto, and
give the facts. ``confidence`` is the score with its scale moved so that 0.80 of the formula reads
0.75; the watch level (0.50) then reads 0.43. An alert fires on its mean (:mod:`gpuwatchd.alerts`).

Everything is a function of the series alone: same series, same finding. What must last before
people are told is policy's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.verdict import allocator, epochs
from gpuwatchd.analysis.verdict.days import hours_of, judge_days
from gpuwatchd.analysis.verdict.growth import find
from gpuwatchd.analysis.verdict.harmless import harmless, unconfirmed, unjudged
from gpuwatchd.analysis.verdict.leak import WATCH_CONFIDENCE, leak

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, Series

__all__ = ["WATCH_CONFIDENCE", "hours_of", "judge", "judge_days", "minimum_growth"]


def minimum_growth(series: Series, settings: DetectionSection) -> float:
    """Return the least growth in bytes that makes a candidate."""
    return settings.least_growth_bytes(series.total_bytes or series.limit_bytes)


def judge(series: Series, settings: DetectionSection) -> Finding:
    """Return the judgement on one subject at the instant of its last sample.

    ``series``: everything known about the subject, up to now; its arrays are not changed. What is
    older than ``analysis-window-hours``, or before a gap, is not looked at.

    Returns
    -------
    Finding
        Always one; harmless and unknown patterns have tier "none". ``tier`` is what the evidence
        of this instant supports. ``eta`` is None without a limit or without growth.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuwatchd.core.config import DetectionSection
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 3600.0, 5.0)
    >>> leak = Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=12e9 + t * 1e6,
    ...               limit_bytes=24e9)
    >>> found = judge(leak, DetectionSection())
    >>> found.pattern, found.tier, round(found.eta.mid_s / 60)
    ('gradual', 'alert', 140)
    """
    least = minimum_growth(series, settings)
    whole = _of_curve(series, settings, least)
    tensors = None if series.allocator is None else allocator.tensor_series(series)
    if tensors is not None:
        inside = _of_curve(tensors, settings, least)
        whole = allocator.combined(series, whole, inside, least)
    return whole if series.holder is None else allocator.with_holder(series, whole, settings)


def _of_curve(series: Series, settings: DetectionSection, least: float) -> Finding:
    window_s = settings.analysis_window_hours * 3600.0
    view = numerics.prepare(series, window_s)
    if view.samples < 2:
        return unjudged(series, view, settings)
    growth = find(series, view, least)
    if growth is not None:
        found = leak(series, view, settings, growth)
        if found is not None:
            if view.samples < settings.minimum_samples:
                return unconfirmed(found, view, settings)
            onset_at_s, activity = found.onset_at_s, series.activity
            period = None if activity is None else activity(view.now_s)
            if period is None or onset_at_s is None:
                return found
            begun = epochs.begun_since(onset_at_s, period, view)
            return _by_epoch(found, series, view, settings, growth=growth, begun=begun)
    return harmless(series, view, settings, least, growing=growth)


def _by_epoch(
    found: Finding,
    series: Series,
    view: SeriesWindow,
    settings: DetectionSection,
    *,
    growth: Growth,
    begun: epochs.Begun,
) -> Finding:
    """Return the finding with what the job's epochs say: an alert may wait for the next of them."""
    least, early = minimum_growth(series, settings), begun.seen < epochs.LEAST_BEGUN
    if epochs.are_fewer(begun, growth, found):
        fewer = find(series, view, least, begun.seen)
        counted = None if fewer is None else leak(series, view, settings, fewer)
        early = early or counted is None or counted.tier != found.tier
        # As sure as before: only the number that is shown is another one.
        named = leak(series, view, settings, growth._replace(most_events=begun.seen))
        found = named if named is not None and named.tier == found.tier else found
    if early and found.tier == "alert":
        # Nothing waits for longer than an epoch.
        before = _of_curve(epochs.an_epoch_ago(series, begun.period), settings, least)
        early = before.tier != "alert"
    return epochs.with_period(found, begun, early=early)
