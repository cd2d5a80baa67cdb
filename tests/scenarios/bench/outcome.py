"""What became of one item in one evaluation: the row that all figures are made of."""

from __future__ import annotations

import msgspec


class Forecast(msgspec.Struct, frozen=True, array_like=True):
    """One forecast while an alert fires; seconds."""

    real_s: float
    low_s: float
    mid_s: float
    high_s: float | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one item; times in seconds since its first sample."""

    group: str
    """The set that it belongs to: folds, seeds, blind."""
    family: str
    seed: int
    tuned: bool
    """Whether its family may be looked at while something is chosen."""
    leak: bool
    patterns: tuple[str, ...]
    """Names that are right."""
    length_s: float
    onset_s: float
    oom_s: float | None
    t_star_s: float | None
    watch_s: float | None
    alert_s: float | None
    watches: int
    alerts: int
    pattern: str
    """What it was called: a leak when alerted (or watched), else at the end."""
    ramps: int = 0
    """Straight ramps of 20 minutes or more while it was harmless."""
    moving: bool = False
    """Whether its maximum was neared or raised late while it was harmless."""
    first_alerts: tuple[float | None, ...] = ()
    """First alert at each of :data:`tests.scenarios.bench.sweep.LEVELS`."""
    forecasts: tuple[Forecast, ...] = ()
    evaluations: int
    judged_us: float
    """What an evaluation took, median, microseconds: one that was interrupted does not count."""
    processes: ProcessView | None = None
    """The same run judged process by process."""
    rivals: dict[str, list[float | None]] = {}
    """Name -> first alarms under each of its pairs of thresholds."""

    @property
    def quiet_s(self) -> float:
        """Seconds observed while harmless: all of it, or until the onset of a leak."""
        return min(self.onset_s, self.length_s) if self.leak else self.length_s


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run that was judged process by process."""

    count: int
    alert_s: float | None
    """First alert on the process that leaks, seconds since the first sample of the run."""
    watch_s: float | None
    false_s: float | None
    """First alert on another one, or before the onset."""
    false_alerts: int
    pattern: str | None
    """What the leak was called when it was alerted (or watched)."""


EARLY_S = 30.0
"""An alert this long before the planted onset is still one of the leak."""


def is_hit(outcome: Outcome) -> bool:
    """Say whether a leak was alerted, and not before it had begun."""
    return (
        outcome.leak
        and outcome.alert_s is not None
        and outcome.alert_s >= outcome.onset_s - EARLY_S
    )


def is_false(outcome: Outcome) -> bool:
    """Say whether an alert was raised while there was no leak."""
    return outcome.alert_s is not None and not is_hit(outcome)


def f1(hits: float, false: float, leaks: float) -> tuple[float, float, float]:
    """Return precision, recall and F1."""
    precision, recall = hits / max(1.0, hits + false), hits / max(1.0, leaks)
    both = precision + recall
    return precision, recall, 2.0 * precision * recall / both if both else 0.0
