"""Two mixes of the same outcomes: hard, all families alike, and field, as often as in the field.

In the hard mix straight harmless ramps are far more frequent than on real machines, because
families are written to be hard. In the field mix harmless time is weighed by what its own record
looks like (:mod:`tests.scenarios.bench.ramps`), so that straight ramps are as frequent as in public
telemetry, and so are jobs that near or raise their maximum late. Leaks weigh alike in both: no base
rate of theirs is known. Lead and time left are of leaks alone, hence the same in both.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tests.scenarios.bench import figures as made
from tests.scenarios.bench.outcome import f1, is_hit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.bench.outcome import Outcome

FIELD_DAYS, FIELD_RAMPS = 12.3, 2
"""GPU-days of public telemetry without a known leak, and its straight ramps of 20 min or more."""
PRIOR = 0.5
"""Jeffreys' prior of a Poisson rate: after k events in T days it is Gamma(k + 0.5, T)."""
MOVING = (20.0, 40.0)
"""Beta law of the share of jobs that near or raise their maximum late, .22 to .46: .16 to .37 of
those over an hour raise it late, a tenth near it late (more with one project of long stairs)."""
DRAWS, SEED = 4000, 11
KINDS = ("ramp", "moving", "still")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of one item in one evaluation."""

    family: str
    seed: int
    leak: bool
    left_s: float | None = None
    """Time from the alert to out-of-memory; None without a (right) alert."""
    fill_s: float = 0.0
    """Time from the onset to out-of-memory."""
    false: int
    """Alerts while it was harmless."""
    quiet_s: float
    """Time observed while it was harmless."""
    ramps: int
    moving: bool

    @property
    def kind(self) -> str:
        """What its harmless time is weighed as."""
        return "ramp" if self.ramps else "moving" if self.moving else "still"


def row_of(outcome: Outcome) -> Row:
    """Return what counts of an outcome."""
    hit = is_hit(outcome)
    false = 0 if outcome.alert_s is None or hit else 1 if outcome.leak else max(1, outcome.alerts)
    oom_s = outcome.onset_s if outcome.oom_s is None else outcome.oom_s
    return Row(
        family=outcome.family,
        seed=outcome.seed,
        leak=outcome.leak,
        left_s=max(oom_s - (outcome.alert_s or 0.0), 0.0) if hit else None,
        fill_s=oom_s - outcome.onset_s,
        false=false,
        quiet_s=outcome.quiet_s,
        ramps=outcome.ramps,
        moving=outcome.moving,
    )


def _sums(rows: Sequence[Row]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return harmless days, false alerts and ramps of each kind, in the order of KINDS."""
    out = np.zeros((3, len(KINDS)))
    for row in rows:
        out[:, KINDS.index(row.kind)] += (row.quiet_s / made.DAY_S, row.false, row.ramps)
    return out[0], out[1], out[2]


def shares(days: FloatArray, ramps: FloatArray, rate: FloatArray, moving: FloatArray) -> FloatArray:
    """Return the share of time (n, kinds) that each kind has in a mix.

    ``rate`` (n,): ramps a day that the mix is to have, which it reaches unless even ramps alone
    have fewer; ``moving`` (n,): the share of what is left then. A kind of which there is nothing
    has no share.
    """
    density = ramps[0] / days[0] if days[0] else 0.0
    ramp = np.minimum(1.0, rate / density) if density else np.zeros_like(rate)
    ramp = ramp if days[1:].any() else np.ones_like(rate)
    moving = moving if days[1:].all() else np.full_like(rate, float(days[1] > 0.0))
    return np.stack((ramp, (1.0 - ramp) * moving, (1.0 - ramp) * (1.0 - moving)), axis=1)


def _center(days: FloatArray, ramps: FloatArray) -> FloatArray:
    """Return the shares at the means of the base rates."""
    rate = np.array([(FIELD_RAMPS + PRIOR) / FIELD_DAYS])
    center: FloatArray = shares(days, ramps, rate, np.array([MOVING[0] / sum(MOVING)]))[0]
    return center


def mixes(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of leaks, and those of precision in the hard and in the field mix.

    Intervals are 95 % ones, of the Poisson laws of the false alerts of each kind and, in the field
    mix, of the base rates too.
    """
    even = made.evened(rows)
    leaks = [row for row in even if row.leak]
    hits = [row for row in leaks if row.left_s is not None]
    days, false, ramps = _sums(rows)
    if not days.sum():
        return {**time_left(leaks), "hard": None, "field": None}
    rng = np.random.default_rng(SEED)
    rates = rng.gamma(false + PRIOR, size=(DRAWS, len(KINDS))) / np.maximum(days, 1e-9)
    base = rng.gamma(FIELD_RAMPS + PRIOR, size=DRAWS) / FIELD_DAYS
    drawn = shares(days, ramps, base, rng.beta(*MOVING, size=DRAWS))
    # What stands still is alerted no more often than what moves: sets have little of it.
    rates[:, 2] = np.minimum(rates[:, 2], rates[:, 1]) if days[1] else rates[:, 2]
    hard = rng.gamma(false.sum() + PRIOR, size=DRAWS) / days.sum()
    field = np.where(drawn > 0.0, drawn * rates, 0.0).sum(axis=1)
    even_days, _, even_ramps = _sums(even)
    plain = np.where(even_days > 0.0, 1.0, 0.0)
    weights = _center(even_days, even_ramps) * even_days.sum() / np.maximum(even_days, 1e-9)
    center = _center(days, ramps)
    return {
        **time_left(leaks),
        "days": float(days.sum()),
        "hard": {
            **_right(even, len(hits), len(leaks), plain),
            **_rate(float(false.sum() / days.sum()), hard),
            **_of_kinds(days / days.sum(), days, ramps),
        },
        "field": {
            **_right(even, len(hits), len(leaks), weights),
            **_rate(float((center * false / np.maximum(days, 1e-9)).sum()), field),
            **_of_kinds(center, days, ramps),
        },
    }


def _right(even: Sequence[Row], hits: int, leaks: int, weights: FloatArray) -> dict[str, float]:
    false = sum(float(weights[KINDS.index(row.kind)]) for row in even if row.false)
    precision, recall, both = f1(hits, false, leaks)
    return {"precision": precision, "recall": recall, "f1": both}


def _rate(center: float, drawn: FloatArray) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    # Without a false alert the centre is 0, below all that is drawn.
    return {"per_day": center, "per_day_low": min(low, center), "per_day_high": high}


def _of_kinds(share: FloatArray, days: FloatArray, ramps: FloatArray) -> dict[str, Any]:
    each = ramps[0] / days[0] if days[0] else 0.0
    return {
        "ramps_per_day": float(share[0] * each),
        "time": dict(zip(KINDS, share.tolist(), strict=True)),
    }


FILL_EDGES_H = (0.0, 2.0, 6.0, float("inf"))
LEFT_MIN = (10, 30, 60)


def time_left(leaks: Sequence[Row]) -> dict[str, Any]:
    """Return what people feel: of all leaks, how many leave how long, and by how fast they fill.

    The lead, the share of the time from onset to out-of-memory that is left at the alert, is the
    median of those found; a missed leak leaves no time.
    """
    return {
        **_left(leaks),
        "left_30_slow": _left([row for row in leaks if row.fill_s > 7200.0])["left_30"],
        "by_fill": [
            {"hours": [low, None if high == float("inf") else high], **_left(part)}
            for low, high in itertools.pairwise(FILL_EDGES_H)
            for part in [[row for row in leaks if low <= row.fill_s / 3600.0 < high]]
        ],
    }


def _left(leaks: Sequence[Row]) -> Mapping[str, Any]:
    lead = [min(row.left_s / max(row.fill_s, 1.0), 1.0) for row in leaks if row.left_s is not None]
    return {
        "leaks": len(leaks),
        "lead": made.median(lead),
        **{
            f"left_{least}": made.share((row.left_s or 0.0) >= 60.0 * least for row in leaks)
            for least in LEFT_MIN
        },
    }
