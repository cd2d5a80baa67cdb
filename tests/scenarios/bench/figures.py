"""Outcomes -> figures. Pure; every number that is printed or put into a page comes from here."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from tests.scenarios import rivals
from tests.scenarios.bench.outcome import EARLY_S, f1, is_false, is_hit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.bench.outcome import Forecast, Outcome

DAY_S = 86400.0
ROUNDS = 2000
"""Resamples of the bootstrap over families."""
NOMINAL = (0.05, 0.5, 0.95)
"""Quantiles that the low, middle and high of a forecast claim to be."""
LEFT_EDGES_H = (0.0, 1.0, 4.0, 12.0, math.inf)
"""Forecasts are also counted by the time that was really left."""
HALF = 0.5
"""An alert is in time while this share of the time from onset to out-of-memory is left."""
Figures = dict[str, Any]


class Drawn(Protocol):
    """An item of a family."""

    @property
    def family(self) -> str:
        """Name of the family."""

    @property
    def seed(self) -> int:
        """What it was drawn with."""


T = TypeVar("T", bound=Drawn)


def share(hits: Iterable[bool]) -> float | None:
    """Return the share of true ones; None of nothing."""
    rows = list(hits)
    return sum(rows) / len(rows) if rows else None


def median(values: Iterable[float]) -> float | None:
    """Return the median; None of nothing."""
    rows = list(values)
    return float(np.median(rows)) if rows else None


def quantile(values: Iterable[float], q: float) -> float | None:
    """Return a quantile; None of nothing."""
    rows = list(values)
    return float(np.quantile(rows, q)) if rows else None


def poisson_bound(count: int, level: float = 0.95) -> float:
    """Return the upper confidence bound of a Poisson mean; 3.0 for none (the rule of three)."""
    low, high = float(count), 4.0 * count + 10.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        term = total = math.exp(-middle)
        for k in range(1, count + 1):
            term *= middle / k
            total += term
        low, high = (middle, high) if total > 1.0 - level else (low, middle)
    return 0.5 * (low + high)


def bootstrap_f1(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of F1 when whole families are drawn again."""
    families = sorted({one.family for one in outcomes})
    rows = np.zeros((len(families), 3))
    place = {family: k for k, family in enumerate(families)}
    for one in outcomes:
        rows[place[one.family]] += (is_hit(one), is_false(one), one.leak)
    return _interval(rows)


def _interval(rows: FloatArray) -> tuple[float, float]:
    rng = np.random.default_rng(7)
    drawn = rng.multinomial(len(rows), np.full(len(rows), 1.0 / len(rows)), size=ROUNDS)
    hits, false, leaks = (drawn @ rows).T
    precision = hits / np.maximum(hits + false, 1.0)
    recall = hits / np.maximum(leaks, 1.0)
    both = 2.0 * precision * recall / np.maximum(precision + recall, 1e-9)
    low, high = np.quantile(both, [0.025, 0.975]).tolist()
    return low, high


def left(outcome: Outcome, at_s: float | None) -> float:
    """Return the share of the time from onset to out-of-memory that is left; 0 when missed."""
    if at_s is None or outcome.oom_s is None:
        return 0.0
    whole = max(outcome.oom_s - outcome.onset_s, 1.0)
    return min(1.0, max(0.0, 1.0 - (at_s - outcome.onset_s) / whole))


def _latency(
    leaks: Sequence[Outcome], at: Callable[[Outcome], float | None]
) -> dict[str, float | None]:
    """Return how long after the onset, and how many times T*."""
    # What was watched before the onset was watched for another reason.
    seen = [
        (one, value)
        for one in leaks
        if (value := at(one)) is not None and value >= one.onset_s - EARLY_S
    ]
    late = [max(0.0, value - one.onset_s) for one, value in seen]
    ratio = [max(0.0, value - one.onset_s) / one.t_star_s for one, value in seen if one.t_star_s]
    return {
        "minutes": _per(median(late), 60.0),
        "minutes_90": _per(quantile(late, 0.9), 60.0),
        "times_limit": median(ratio),
        "times_limit_90": quantile(ratio, 0.9),
    }


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def summary(outcomes: Sequence[Outcome]) -> Figures:
    """Return the figures of one set of outcomes.

    F1 counts as many seeds of each family as the family with the fewest has, so that a set with
    more harmless items than leaks is not judged by that; alerts per day count all of them.
    """
    even = evened(outcomes)
    leaks = [one for one in even if one.leak]
    benign = [one for one in outcomes if not one.leak]
    hits = [one for one in leaks if is_hit(one)]
    false = [one for one in even if is_false(one)]
    precision, recall, both = f1(len(hits), len(false), len(leaks))
    low, high = bootstrap_f1(even) if even else (0.0, 0.0)
    lefts = [left(one, one.alert_s) for one in hits]
    in_time = sum(value >= HALF for value in lefts)
    named = [one.pattern in one.patterns for one in even if not one.leak or one.watch_s is not None]
    return {
        "families": len({one.family for one in even}),
        "leaks": len(leaks),
        "benign": len(even) - len(leaks),
        "precision": precision,
        "recall": recall,
        "f1": both,
        "f1_in_time": f1(in_time, len(false), len(leaks))[2],
        "f1_low": low,
        "f1_high": high,
        **_alarms(outcomes),
        "left_median": median(lefts),
        "left_watch_median": median(
            [
                left(one, one.watch_s)
                for one in leaks
                if one.watch_s is not None and one.watch_s >= one.onset_s - EARLY_S
            ]
        ),
        "before_half": in_time / max(1, len(leaks)),
        "benign_watched": share([one.watch_s is not None for one in benign]),
        "watch": _latency(hits, lambda one: one.watch_s),
        "alert": _latency(hits, lambda one: one.alert_s),
        "pattern_right": share(named),
        "pattern_right_leaks": share(
            [one.pattern in one.patterns for one in leaks if one.watch_s is not None]
        ),
        "eta": calibration(hits),
        "us_median": median([one.judged_us for one in outcomes]),
        "us_90": quantile([one.judged_us for one in outcomes], 0.9),
        "evaluations": sum(one.evaluations for one in outcomes),
    }


def evened(outcomes: Sequence[T]) -> list[T]:
    """Return the same number of seeds of every family: the lowest ones."""
    count = Counter(one.family for one in outcomes)
    number = min(count.values(), default=0)
    taken: Counter[str] = Counter()
    out = []
    for one in sorted(outcomes, key=lambda row: (row.family, row.seed)):
        taken[one.family] += 1
        if taken[one.family] <= number:
            out.append(one)
    return out


def _alarms(outcomes: Sequence[Outcome]) -> Figures:
    """Return false alarms over all harmless time, with the 95 % bound."""
    days = sum(one.quiet_s for one in outcomes) / DAY_S
    false = [one for one in outcomes if is_false(one)]
    alerts = sum(max(1, one.alerts) if not one.leak else 1 for one in false)
    return {
        "benign_days": days,
        "ramps_per_day": _ramps_per_day(outcomes),
        "false_items": len(false),
        "false_alerts": alerts,
        "per_day": alerts / max(days, 1e-9),
        "per_day_bound": poisson_bound(alerts) / max(days, 1e-9),
    }


def _ramps_per_day(outcomes: Sequence[Outcome]) -> float:
    """Return how often straight ramps come in harmless time, without which no figure compares."""
    return sum(one.ramps for one in outcomes) * DAY_S / max(sum(o.quiet_s for o in outcomes), 1.0)


def latencies(outcomes: Sequence[Outcome]) -> list[list[float | None]]:
    """Return T*, and minutes from the onset to the watch and to the alert, of each leak found."""
    return [
        [
            one.t_star_s / 60.0,
            None if one.watch_s is None else max(0.0, one.watch_s - one.onset_s) / 60.0,
            None if one.alert_s is None else max(0.0, one.alert_s - one.onset_s) / 60.0,
        ]
        for one in outcomes
        if is_hit(one) and one.t_star_s is not None
    ]


def calibration(hits: Sequence[Outcome]) -> Figures:
    """Return how forecasts while an alert fires compare with the truth; every item weighs the same.

    ``observed`` is the share of truths below the low, middle and high of the forecast, beside the
    quantiles that these claim to be.
    """
    below: list[list[float]] = []
    errors, inside, at_first = [], [], []
    for one in hits:
        rows = [row for row in one.forecasts if row.real_s > 0.0]
        if not rows:
            continue
        real = np.array([row.real_s for row in rows])
        edges = np.array(
            [(r.low_s, r.mid_s, np.inf if r.high_s is None else r.high_s) for r in rows]
        )
        below.append(np.mean(real[:, None] < edges, axis=0).tolist())
        errors.append(float(np.median([_error(row) for row in rows])))
        within = [_covers(row) for row in rows]
        inside.append(sum(within) / len(rows))
        at_first.append(within[0])
    return {
        "items": len(inside),
        "covered": float(np.mean(inside)) if inside else None,
        "covered_at_alert": share(at_first),
        "error": median(errors),
        "by_hours_left": _by_hours(hits),
        "nominal": list(NOMINAL),
        "observed": np.mean(below, axis=0).tolist() if below else None,
    }


def _by_hours(hits: Sequence[Outcome]) -> list[Figures]:
    """Return coverage and error by the hours that were really left; every item weighs the same."""
    out = []
    for low, high in itertools.pairwise(LEFT_EDGES_H):
        inside, errors = [], []
        for one in hits:
            rows = [r for r in one.forecasts if low <= r.real_s / 3600.0 < high]
            if rows:
                inside.append(sum(_covers(row) for row in rows) / len(rows))
                errors.append(float(np.median([_error(row) for row in rows])))
        out.append({
            "hours": [low, None if math.isinf(high) else high], "items": len(inside),
            "covered": float(np.mean(inside)) if inside else None, "error": median(errors),
        })  # fmt: skip
    return out


def _covers(row: Forecast) -> bool:
    return row.low_s <= row.real_s and (row.high_s is None or row.real_s <= row.high_s)


def _error(row: Forecast) -> float:
    return abs(math.log(max(row.mid_s, 1.0) / row.real_s))


def confusion(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Return right name(s) -> name given -> count; leaks that nobody saw are left out."""
    table: dict[str, dict[str, int]] = {}
    for one in outcomes:
        if one.leak and one.watch_s is None:
            continue
        truth = one.pattern if one.pattern in one.patterns else " or ".join(one.patterns)
        row = table.setdefault(truth, {})
        row[one.pattern] = row.get(one.pattern, 0) + 1
    return table


def families(outcomes: Sequence[Outcome]) -> list[Figures]:
    """Return one row per family: leaks first, in the order of their names."""
    names = sorted({(not one.leak, one.family) for one in outcomes})
    return [_family(name, [o for o in outcomes if o.family == name]) for _, name in names]


def _family(name: str, mine: Sequence[Outcome]) -> Figures:
    leak = mine[0].leak
    hits = [one for one in mine if is_hit(one)]
    eta = calibration(hits)
    return {
        "family": name,
        "tuned": mine[0].tuned,
        "leak": leak,
        "items": len(mine),
        "found": len(hits) if leak else None,
        "false": sum(is_false(one) for one in mine),
        "watched": sum(one.watch_s is not None for one in mine),
        "left": median([left(one, one.alert_s) for one in hits]),
        "watch_minutes": _latency(hits, lambda one: one.watch_s)["minutes"],
        "alert_minutes": _latency(hits, lambda one: one.alert_s)["minutes"],
        "alert_times_limit": _latency(hits, lambda one: one.alert_s)["times_limit"],
        "covered": eta["covered"],
        "eta_error": eta["error"],
        "named": sum(one.pattern in one.patterns for one in mine),
        "names": dict(Counter(one.pattern for one in mine).most_common(4)),
    }


def by_process(outcomes: Sequence[Outcome]) -> Figures | None:
    """Return the figures of the same runs judged process by process."""
    seen = [(one, one.processes) for one in evened(outcomes) if one.processes is not None]
    if not seen:
        return None
    leaks = sum(one.leak for one, _ in seen)
    hits = [(one, view) for one, view in seen if one.leak and view.alert_s is not None]
    false = sum(view.false_s is not None for _, view in seen)
    precision, recall, both = f1(len(hits), false, leaks)
    every = [(one, one.processes) for one in outcomes if one.processes is not None]
    days = sum(one.quiet_s for one, _ in every) / DAY_S
    alerts = sum(view.false_alerts for _, view in every)
    lefts = [left(one, view.alert_s) for one, view in hits]
    right = [view.pattern in one.patterns for one, view in hits]
    return {
        "leaks": leaks, "benign": len(seen) - leaks,
        "precision": precision, "recall": recall, "f1": both,
        "per_day": alerts / max(days, 1e-9),
        "per_day_bound": poisson_bound(alerts) / max(days, 1e-9),
        "left_median": median(lefts), "pattern_right": share(right),
        "ramps_per_day": _ramps_per_day([one for one, _ in every]),
    }  # fmt: skip


def rivals_table(outcomes: Sequence[Outcome], chosen_on: Sequence[Outcome]) -> list[Figures]:
    """Return the rules of others on the same items, as documented and at their best.

    The best pair of thresholds is the one with the best F1 on ``chosen_on``, of tuning families.
    """
    report = [one for one in evened(outcomes) if one.rivals]
    if not report:
        return []
    tuning = [(one.leak, one.onset_s, one.rivals) for one in chosen_on if one.rivals]
    table = []
    for rival in rivals.RIVALS:
        kinds = [("documented", 0)]
        if tuning:
            kinds.append(("best", rivals.best_pair(rival, tuning)))
        for kind, pair in kinds:
            table.append({
                "name": rival.name, "kind": kind, "says": rival.says(rival.pairs[pair]),
                "pair": pair, **_rival(rival.name, pair, report, outcomes),
            })  # fmt: skip
    return table


def _rival(name: str, pair: int, report: Sequence[Outcome], outcomes: Sequence[Outcome]) -> Figures:
    precision, recall, both = rivals.score(
        (one.leak, one.onset_s, one.rivals[name][pair]) for one in report
    )
    leaks = sum(one.leak for one in report)
    lefts = [
        left(one, at)
        for one in report
        if one.leak and (at := one.rivals[name][pair]) is not None and _on_time(one, at)
    ]
    false = [_false(one, one.rivals[name][pair]) for one in report]
    half = sum(value >= HALF for value in lefts)
    every = [_false(one, one.rivals[name][pair]) for one in outcomes if one.rivals]
    days = sum(one.quiet_s for one in outcomes if one.rivals) / DAY_S
    return {
        "ramps_per_day": _ramps_per_day([one for one in outcomes if one.rivals]),
        "precision": precision, "recall": recall, "f1": both,
        "f1_in_time": f1(half, sum(false), leaks)[2],
        "per_day": sum(every) / max(days, 1e-9), "left_median": median(lefts),
        "before_half": half / max(1, leaks),
    }  # fmt: skip


def _on_time(one: Outcome, at_s: float) -> bool:
    return at_s >= one.onset_s - EARLY_S


def _false(one: Outcome, at_s: float | None) -> bool:
    return at_s is not None and not (one.leak and _on_time(one, at_s))
