"""Growth counted by the epochs of the job: what grows between them grows once per epoch.

A first epoch fills caches, and several buffers that grow at one boundary are one event. So an alert
waits for the third boundary of a growth, for one epoch at most, and only while there is time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core import units
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact, Period
from gpuwatchd.core.model.findings import with_reason

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.model import Finding, Series

LEAST_BEGUN: Final = 3
"""Boundaries that a growth must have been through."""
LEAST_ALIKE: Final = 4
"""Boundaries at all of which it rises alike: a leak per epoch."""
LEFT: Final = 3.0
"""With fewer epochs left than this nothing waits."""
BEFORE, AFTER = 0.1, 0.3
"""What grows so long before a boundary or after it grows there, as shares of the period."""
THERE: Final = 0.8
"""Share of a growth that comes there when it is one of boundaries."""
ALIKE: Final = 2.0
"""Rises are alike within this factor of the usual one."""


class Begun(NamedTuple):
    """The epochs that began since a growth did."""

    period: Period
    seen: int
    between_too: bool
    """It grows during epochs as well: events are no matter of epochs then."""
    rose: int = 0
    """At so many boundaries of those that are over it rose alike."""
    over: int = 0


def begun_since(onset_at_s: float, period: Period, view: SeriesWindow) -> Begun:
    """Return the epochs that have begun since an instant."""
    at = np.array(period.boundaries_s) - view.now_s
    wide = BEFORE * period.period_s, AFTER * period.period_s
    at = at[at >= onset_at_s - view.now_s - wide[0]]
    low, high = (np.interp(at + by, view.t_s, view.floor) for by in (-wide[0], wide[1]))
    gain, over = high - low, at + wide[1] <= 0.0
    onset = float(np.interp(onset_at_s - view.now_s, view.t_s, view.floor))
    there = float(gain.sum()) >= THERE * max(float(view.floor[-1]) - onset, 1.0)
    usual = numerics.median(gain[over]) if over.any() else 0.0
    alike = over & (gain * ALIKE >= usual) & (gain <= usual * ALIKE) & (usual > 0.0)
    return Begun(period, at.size, not (there and at.size), int(alike.sum()), int(over.sum()))


def are_fewer(begun: Begun, growth: Growth, found: Finding) -> bool:
    """Say whether a growth at boundaries was counted as more events than there were epochs."""
    most = max((s.n for s in found.signals if s.detector == "step"), default=0)
    events = max(float(growth.found.events[growth.best]), float(most))
    return not begun.between_too and events > begun.seen


def an_epoch_ago(series: Series, period: Period) -> Series:
    """Return a series as it was known an epoch ago, its epochs apart."""
    known = int(series.t_s.searchsorted(series.t_s[-1] - period.period_s, side="right"))
    age_s = None if series.age_s is None else max(series.age_s - period.period_s, 0.0)
    return msgspec.structs.replace(
        series,
        t_s=series.t_s[:known],
        used_bytes=series.used_bytes[:known],
        age_s=age_s,
        activity=None,
    )


def with_period(found: Finding, begun: Begun, *, early: bool) -> Finding:
    """Return a finding with what epochs say of it; an ``early`` alert waits while there is time."""
    period_s, eta = begun.period.period_s, found.eta
    waits = early and found.tier == "alert" and eta is not None and eta.mid_s >= LEFT * period_s
    leaks = not begun.between_too and begun.rose == begun.over >= LEAST_ALIKE
    if waits:
        found = with_reason(found, f"an alert from epoch {LEAST_BEGUN} of its growth on")
        severity = "warning" if found.severity == "critical" else found.severity
        found = msgspec.structs.replace(found, tier="watch", severity=severity)
    if leaks:
        found = with_reason(found, f"rose in {begun.rose} of {begun.over} epochs")
    if not (waits or leaks or not begun.between_too):
        return found
    fact = GrowthFact(
        name=FactName.PERIOD,
        source=begun.period.source,
        weight=begun.period.weight,
        text=f"an epoch takes {units.duration(period_s)}",
    )
    return msgspec.structs.replace(found, facts=(*(found.facts or ()), fact))
