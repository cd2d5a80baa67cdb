"""What others do, on the same series: the bar to be above.

Each rule is asked once a minute and alarms at its first hit, with the thresholds that its
documents give, and once with the pair of a grid that does best on the tuning families.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from tests.scenarios import rival_papers, rival_rules
from tests.scenarios.bench.outcome import EARLY_S, f1
from tests.scenarios.rival_rules import Seen, first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Series
    from tests.scenarios.rival_rules import Alarms

Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One rule of others."""

    name: str
    documented: Pair
    """Its documented thresholds."""
    grid: tuple[tuple[float, ...], tuple[float, ...]]
    """The values that each may take when the best pair is looked for."""
    words: str
    """How a pair reads, with ``{}`` for each value."""
    alarms: Callable[[Seen, Any, float, float], Alarms]
    gather: Callable[[Seen], Any] = lambda seen: None
    """What it works out once for each series."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The documented pair, then the grid."""
        return (self.documented, *product(*self.grid))

    def says(self, pair: Pair) -> str:
        """Return a pair in words."""
        return self.words.format(*(f"{value:g}" for value in pair))


RIVALS: tuple[Rival, ...] = (
    Rival(
        name="gpulse: slope and R²",
        documented=(0.7, 1.0),
        grid=((0.5, 0.7, 0.8, 0.9, 0.95), (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)),
        words="R² ≥ {}, slope ≥ {} MB/s",
        alarms=lambda seen, _, a, b: rival_rules.slope_alarms(seen, a, b),
    ),
    Rival(
        name="gpulse: spike",
        documented=(20.0, 30.0),
        grid=((10.0, 20.0, 50.0, 100.0, 300.0), (30.0, 120.0, 600.0)),
        words="+{} % within {} s",
        alarms=lambda seen, _, a, b: rival_rules.spike_alarms(seen, a, b),
    ),
    Rival(
        name="gpulse: composite",
        documented=(1.0, 20.0),
        grid=((0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0), (20.0, 50.0, 100.0, 300.0)),
        words="slope ≥ {} MB/s or +{} %",
        alarms=lambda seen, _, a, b: rival_rules.composite_alarms(seen, a, b),
    ),
    Rival(
        name="gpumemprof: leak rule",
        documented=(0.1, 100.0),
        grid=((0.01, 0.03, 0.1, 0.3, 0.5, 0.7), (100.0, 300.0, 1000.0, 3000.0, 10000.0)),
        words="more than {} of the changes positive, over {} MB",
        alarms=lambda seen, _, a, b: rival_rules.growing_alarms(seen, a, b),
    ),
    Rival(
        name="gpumemprof: regression",
        documented=(0.5, 0.0),
        grid=((0.5, 0.7, 0.9, 0.95, 0.97, 0.99), (0.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)),
        words="p < 0.05, r > {}, over {} MB",
        alarms=lambda seen, _, a, b: rival_rules.regression_alarms(seen, a, b),
    ),
    Rival(
        name="Prometheus: predict_linear",
        documented=(4.0, 15.0),
        grid=((0.5, 1.0, 2.0, 4.0, 8.0, 24.0), (0.0, 5.0, 15.0, 30.0, 60.0, 120.0)),
        words="1 h, full within {} h for {} min",
        alarms=lambda seen, _, a, b: rival_rules.predict_alarms(seen, a, b),
    ),
    Rival(
        name="Mann-Kendall and Sen",
        documented=(2.33, 0.0),
        grid=((1.64, 2.33, 3.1, 5.0, 7.0, 9.0), (0.0, 0.15, 0.5, 1.0, 2.0, 5.0, 10.0)),
        words="1 h, z > {}, Sen's slope > {} % of the card an hour",
        gather=rival_rules.trends,
        alarms=rival_rules.mann_kendall_alarms,
    ),
    Rival(
        name="LBR",
        documented=(0.8, 60.0),
        grid=((0.6, 0.7, 0.8, 0.9, 0.95, 0.98), (10.0, 20.0, 30.0, 60.0, 110.0)),
        words="R² > {}, at least {} points",
        gather=rival_papers.backward,
        alarms=rival_papers.lbr_alarms,
    ),
    Rival(
        name="PrecogMF",
        documented=(0.8, 72.0),
        grid=((0.6, 0.7, 0.8, 0.9, 0.95, 0.98), tuple(float(d) for d in rival_papers.DURATIONS)),
        words="R² > {}, trends of at least {} points",
        gather=rival_papers.precog,
        alarms=rival_papers.precog_alarms,
    ),
)

FirstAlarms = dict[str, list[float | None]]
"""Name of the rule -> when it first alarms under each of its pairs, seconds; None is never."""


def first_alarms(series: Series) -> FirstAlarms:
    """Return when each rule first alarms on a series under each of its pairs of thresholds."""
    total = series.total_bytes or series.limit_bytes or 0.0
    seen = Seen(series.t_s - series.t_s[0], series.used_bytes, total)
    out: FirstAlarms = {}
    for rival in RIVALS:
        found = rival.gather(seen)
        out[rival.name] = [first(seen.at, rival.alarms(seen, found, *pair)) for pair in rival.pairs]
    return out


def score(rows: Iterable[tuple[bool, float, float | None]]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of rows (leak, onset, first alarm), times in seconds."""
    known = list(rows)
    alarms = [
        (leak and at_s >= onset_s - EARLY_S) for leak, onset_s, at_s in known if at_s is not None
    ]
    hits = sum(alarms)
    return f1(hits, len(alarms) - hits, sum(leak for leak, _, _ in known))


def best_pair(rival: Rival, rows: Sequence[tuple[bool, float, FirstAlarms]]) -> int:
    """Return the index of the pair with the best F1 on rows (leak, onset, first alarms)."""
    scores = [
        score((leak, onset, alarms[rival.name][k]) for leak, onset, alarms in rows)[2]
        for k in range(len(rival.pairs))
    ]
    return scores.index(max(scores))
