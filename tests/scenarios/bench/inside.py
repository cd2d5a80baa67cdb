"""What it is worth to see inside a process: the same runs with and without its probe."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tests.scenarios import blind, inside, worlds
from tests.scenarios.bench import figures as made
from tests.scenarios.bench.measure import called, harmless_shape
from tests.scenarios.bench.outcome import Outcome, is_false, is_hit
from tests.scenarios.bench.runner import Kept, results
from tests.scenarios.replay import replay, series_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VIEWS = ("curve", "literal", "informed")
SETS = ("tuning", "validation", "once-blind")
HARMLESS_S = 4 * 3600.0
"""Harmless processes are followed for so long."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one process with each thing that may be known of it."""

    group: str
    cause: str
    views: dict[str, Outcome]


def tasks(seeds: int, *, blind_too: bool, every: int = 1) -> list[tuple[str, str, int]]:
    """Return set, family and seed of what is to be replayed: each ``every``-th family."""
    groups = {
        "tuning": [*(one for one in worlds.FAMILIES if one in worlds.TUNING), *inside.AGAIN],
        "validation": [one for one in worlds.FAMILIES if one in worlds.VALIDATION],
        "once-blind": list(blind.FAMILIES) if blind_too else [],
    }
    return [
        (group, family, seed + (worlds.TUNING_SEEDS[0] if group == "tuning" else 0))
        for group, families in groups.items()
        for family in families[::every]
        for seed in range(seeds)
    ]


def of_process(task: tuple[str, str, int]) -> list[Row]:
    """Replay one process with each thing that may be known of it; nothing where none leaks."""
    group, family, seed = task
    probed = inside.probed("blind" if group == "once-blind" else "lab", family, seed)
    if probed is None:
        return []
    alone = inside.Beside(probed, facts=False)
    views = {"curve": _outcome(group, seed, probed, alone)}
    informed = inside.Beside(probed, facts=True)
    if informed.allocator is None:
        views |= {"literal": views["curve"], "informed": views["curve"]}
    else:
        views["informed"] = _outcome(group, seed, probed, informed)
        same = all(
            probed.walk(at, literal=True) == probed.walk(at, literal=False)
            for at in informed.walks.asked
        )
        literal = inside.Beside(probed, facts=True, literal=True)
        views["literal"] = views["informed"] if same else _outcome(group, seed, probed, literal)
    return [Row(group=group, cause=probed.cause, views=views)]


def _outcome(group: str, seed: int, probed: inside.Probed, beside: inside.Beside) -> Outcome:
    series, truth = probed.series, probed.truth
    until_s = None if truth.leak else HARMLESS_S
    life = replay(series, stop_at_alert=truth.leak, until_s=until_s, beside=beside)
    length_s = float(series.t_s[-1] - series.t_s[0])
    seen = int(series.t_s.searchsorted(series.t_s[0] + (until_s or length_s), side="right"))
    return Outcome(
        group=group,
        family=probed.family,
        seed=seed,
        tuned=group == "tuning",
        leak=truth.leak,
        patterns=tuple(sorted(truth.patterns)),
        length_s=length_s if until_s is None else min(length_s, until_s),
        onset_s=float(truth.onset_s or 0.0),
        oom_s=None if truth.oom_s is None else float(truth.oom_s),
        t_star_s=None,
        watch_s=life.watch_s,
        alert_s=life.alert_s,
        watches=life.watches,
        alerts=life.alerts,
        pattern=called(life, leak=truth.leak),
        **harmless_shape(series_at(series, seen), truth),
        evaluations=life.evaluations,
        judged_us=1e6 * float(np.median(life.spent_s)) if life.spent_s else 0.0,
    )


def rows(
    wanted: Sequence[tuple[str, str, int]], path: Path, *, workers: int, code: str
) -> list[Row]:
    """Return what became of them; what ``path`` holds already is not run again."""
    kept = Kept(path, list[Row])
    return [*chain(*results(wanted, kept, of_process, workers, code, "inside"))]


def figures(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one line for each set and each thing known."""
    return [
        _of(group, view, [row for row in found if row.group == group])
        for group in SETS
        for view in VIEWS
        if any(row.group == group for row in found)
    ]


def _of(group: str, view: str, mine: Sequence[Row]) -> dict[str, Any]:
    outcomes = [row.views[view] for row in mine]
    pairs = [(row.views["curve"], row.views[view]) for row in mine]
    both = [
        ((before.alert_s or 0.0) - (after.alert_s or 0.0)) / 60.0
        for before, after in pairs
        if is_hit(before) and is_hit(after)
    ]
    harmless = [one for one in outcomes if not one.leak]
    summary = made.summary(outcomes)
    chosen = (
        "left_median", "before_half", "benign_days", "ramps_per_day", "false_alerts", "per_day",
        "per_day_bound",
    )  # fmt: skip
    return {key: summary[key] for key in chosen} | {
        "set": group,
        "view": view,
        "leaks": len(outcomes) - len(harmless),
        "found": sum(is_hit(one) for one in outcomes),
        "lost": sum(is_hit(before) and not is_hit(after) for before, after in pairs),
        "alert_minutes": summary["alert"]["minutes"],
        "earlier": [made.quantile(both, q) for q in (0.25, 0.5, 0.75)],
        "later": sum(gain < -1.0 for gain in both),
        "harmless": len(harmless),
        "harmless_alerted": sum(is_false(one) for one in harmless),
        "watches": sum(one.watches for one in harmless),
    }
