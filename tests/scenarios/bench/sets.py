"""Which items are evaluated, and with which weights of the score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.scenarios import train, worlds
from tests.scenarios.bench.measure import Task, corpus_of
from tests.scenarios.bench.runner import Bar, Kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


LAB = "tests.scenarios.worlds"
BLIND = "tests.scenarios.corpus"
"""What is reported: only totals of it are."""
ONCE_BLIND = "tests.scenarios.blind"
"""Families that were blind until they had been looked at too often: validation."""
DAY_S = 86400.0
FRESH_SEEDS = 500
"""First seed of the items of known families that nobody has drawn before."""
TITLES = {
    "folds": "one family left out",
    "seeds": "unseen seeds",
    "blind": "blind families",
    "once-blind": "families that were blind once",
}


def folds(families: Sequence[str], seeds: int, weights: Weights) -> list[Task]:
    """Return every family, judged with weights that were fitted without it."""
    return [
        Task(
            group="folds", corpus=LAB, family=family, seed=seed, weights=weights.get(family),
        )
        for family in families
        for seed in worlds.HELD_OUT_SEEDS[:seeds]
    ]  # fmt: skip


def fresh(families: Sequence[str], seeds: int) -> list[Task]:
    """Return every family with seeds that were never drawn before, with the shipped weights."""
    numbers = worlds.HELD_OUT_SEEDS[FRESH_SEEDS : FRESH_SEEDS + seeds]
    return [
        Task(group="seeds", corpus=LAB, family=family, seed=seed)
        for family in families
        for seed in numbers
    ]


def blind(corpus: str, seeds: int, days: float) -> list[Task]:
    """Return a corpus of its own, with as many harmless items as make these GPU-days.

    Beyond the first ``seeds`` of a family only our own false alarms are counted.
    """
    known = corpus_of(corpus)
    group = "once-blind" if corpus == ONCE_BLIND else "blind"
    tasks = [
        Task(group=group, corpus=corpus, family=family, seed=seed)
        for family in known.LEAKS
        for seed in range(seeds)
    ]
    watched, seed = 0.0, 0
    while known.BENIGN and (watched < days * DAY_S or seed < seeds):
        watched += sum(known.build(family, seed).length_s for family in known.BENIGN)
        tasks += [
            Task(group=group, corpus=corpus, family=family, seed=seed) for family in known.BENIGN
        ]
        seed += 1
    return tasks


Weights = dict[str, dict[str, float] | None]


def fold_weights(families: Iterable[str], path: Path, code: str) -> tuple[Weights, str]:
    """Return for each family the weights fitted without it, and how that was done, in words."""
    names = list(families)
    kept = Kept(path, dict[str, float])
    missing = [family for family in names if f"{code}/{family}" not in kept.found]
    if missing:
        bar = Bar(len(missing), "fitting")
        for family in missing:
            fitted = {name: float(weight) for name, weight in train.fold(family).items()}
            kept.add(f"{code}/{family}", fitted)
            bar.step()
    out: Weights = {family: kept.found[f"{code}/{family}"] for family in names}
    return out, "weights fitted on all tuning families but the one that is judged"


def chosen(*, tuning: bool) -> list[str]:
    """Return the families of the laboratory, or those that may be looked at at any time."""
    return [one for one in worlds.FAMILIES if one in worlds.TUNING or not tuning]
