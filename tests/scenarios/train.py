"""Fits the score: ``make train``, or ``python -m tests.scenarios.train [--write] [--refit]``.

One number is fitted: the intercept, which says how much evidence an alert needs. The other weights
are rounded constants, those of the file itself; ``--refit`` shows what fitting all would bring.
Only tuning families are used; :func:`fold` leaves one of them out. The intercept is the largest,
and so the earliest to alert, that keeps F1 at 0.96, families counting the same.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.forecast import score_weights
from gpuwatchd.analysis.forecast.eta import TERMS
from tests.scenarios import worlds
from tests.scenarios.evidence import Balance, Evidence, Looks, balance, gather
from tests.scenarios.refit import refit

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

SEEDS = tuple(range(1000, 1008))
SHAPE = {name: one for name, one in score_weights.COEFFICIENTS.items() if name != "one"}
"""Weights of all terms but the intercept."""
INTERCEPTS = np.round(np.arange(-1.0, 1.51, 0.05), 2)
F1_KEPT = 0.96
"""Asked for is 0.95 on families that are left out; a point is lost on the way there."""
GROUPS = 8
HEAD = '''"""Weights of the score's terms: plain numbers, written by ``make train``."""

COEFFICIENTS = {
'''


def _gather(task: tuple[str, int]) -> Evidence:
    return gather(worlds.build(*task))


@lru_cache(maxsize=2)
def looks_of(families: frozenset[str], seeds: tuple[int, ...] = SEEDS, workers: int = 2) -> Looks:
    """Return all looks at the items of these families."""
    tasks = [(family, seed) for family in sorted(families) for seed in seeds]
    with ProcessPoolExecutor(workers) as pool:
        items = list(pool.map(_gather, tasks, chunksize=2))
    return Looks(items, vector(0.5))


def vector(intercept: float) -> FloatArray:
    """Return the weights (terms,) with this intercept."""
    weights = {"one": intercept, **SHAPE}
    return np.array([weights.get(name, 0.0) for name in TERMS])


def figures(looks: Looks, weights: FloatArray, families: frozenset[str]) -> Balance:
    """Return the figures of these families under these weights."""
    held, _ = looks.held(weights)
    return _of(looks, looks.alerts(held), families)


def _of(looks: Looks, alerts: list[float | None], families: frozenset[str]) -> Balance:
    chosen = [k for k, part in enumerate(looks.parts) if part.item.family in families]
    return balance([looks.parts[k] for k in chosen], [alerts[k] for k in chosen])


@lru_cache(maxsize=2)
def _courses(looks: Looks) -> tuple[list[float | None], ...]:
    held, _ = looks.held(vector(0.0))
    # An intercept moves every score alike: it is a threshold.
    return tuple(looks.alerts(held, float(np.log(4.0)) - shift) for shift in INTERCEPTS)


def best_intercept(looks: Looks, families: frozenset[str]) -> float:
    """Return the largest intercept that is good enough for these families."""
    kept = [
        shift
        for shift, alerts in zip(INTERCEPTS, _courses(looks), strict=True)
        if _of(looks, alerts, families).f1 >= F1_KEPT
    ]
    return float(max(kept, default=INTERCEPTS[0]))


def fold(family: str) -> dict[str, float]:
    """Return the coefficients fitted on all tuning families but this one."""
    looks = looks_of(worlds.TUNING)
    return {"one": best_intercept(looks, worlds.TUNING - {family}), **SHAPE}


def _row(name: str, got: Balance) -> str:
    return (
        f"{name:42s} F1 {got.f1:.3f}  found {got.found:.3f}  alarmed {got.alarmed:.3f}  "
        f"a day {got.per_day:.2f}  left {got.left:.2f}  before half {got.before_half:.2f}"
    )


def _compare(looks: Looks) -> None:
    """Print what fitting every weight brings on groups of families that were left out."""
    names = sorted(worlds.TUNING)
    start = vector(best_intercept(looks, worlds.TUNING))
    for label, fitted in (("intercept fitted", False), ("all weights fitted", True)):
        alerts: list[float | None] = [None] * len(looks.parts)
        for k in range(GROUPS):
            out = frozenset(names[k::GROUPS])
            rest = worlds.TUNING - out
            weights = refit(looks, start, rest) if fitted else vector(best_intercept(looks, rest))
            held, _ = looks.held(weights)
            for n, at in enumerate(looks.alerts(held)):
                if looks.parts[n].item.family in out:
                    alerts[n] = at
        print(_row(f"{label}, groups left out", _of(looks, alerts, worlds.TUNING)))


def main() -> None:
    """Fit, print, and with ``--write`` keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write score_weights.py")
    parser.add_argument("--refit", action="store_true", help="compare with fitting all weights")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    looks = looks_of(worlds.TUNING, SEEDS, args.workers)
    for shift, alerts in zip(INTERCEPTS[::4], _courses(looks)[::4], strict=True):
        print(_row(f"tuning, intercept {shift:+.2f}", _of(looks, alerts, worlds.TUNING)))
    intercept = best_intercept(looks, worlds.TUNING)
    print(
        _row(f"tuning, chosen {intercept:+.2f}", figures(looks, vector(intercept), worlds.TUNING))
    )
    if args.refit:
        _compare(looks)
    if args.write:
        rows = "".join(f'    "{k}": {v},\n' for k, v in {"one": intercept, **SHAPE}.items())
        Path(score_weights.__file__).write_text(f"{HEAD}{rows}}}\n", encoding="utf-8")
        print(f"written to {Path(score_weights.__file__).name}")


if __name__ == "__main__":
    main()
