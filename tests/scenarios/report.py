"""Prints how well leaks are found: ``python -m tests.scenarios.report [--quick]``.

Every item is replayed through screen, judge and policy at the cadence of the daemon with default
settings. A false alarm is an alert on a harmless item, or before the onset of a leak.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios import rivals, worlds
from tests.scenarios.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one item."""

    family: str
    seed: int
    leak: bool
    days: float
    """Time observed while harmless (until the onset, for a leak)."""
    alerted: bool
    early: bool
    """Alerted before the onset."""
    watched: bool
    watch_latency_s: float | None
    alert_latency_s: float | None
    left: float | None
    """Share of the time from onset to out-of-memory that was left at the alert."""
    left_watch: float | None
    pattern: str
    pattern_right: bool
    eta_errors: tuple[float, ...]
    """|log(forecast / truth)| at each firing evaluation."""
    eta_inside: tuple[bool, ...]
    """Whether the truth lay in the 10-90 % band."""
    evaluations: int
    seconds: float


def run_item(task: tuple[str, int]) -> Result:
    """Replay one (family, seed)."""
    item = worlds.build(*task)
    truth = item.truth
    began = time.perf_counter()
    life = replay(item.series)
    spent = time.perf_counter() - began
    onset = truth.onset_s or 0.0
    early = truth.leak and life.alert_s is not None and life.alert_s < onset - 30.0
    errors: list[float] = []
    inside: list[bool] = []
    if truth.oom_s is not None and not early and truth.oom_s <= item.length_s + 60.0:
        for at, low, mid, high in life.etas:
            real = truth.oom_s - at
            if real > 60.0:
                errors.append(abs(math.log(max(mid, 1.0) / real)))
                inside.append(low <= real <= (high if high is not None else math.inf))
    whole = (truth.oom_s or 0.0) - onset
    final = life.alert or life.watch or life.last
    pattern = life.pattern
    if truth.leak and final is not None and final.tier != "none":
        pattern = final.pattern
    return Result(
        family=item.family,
        seed=item.seed,
        leak=truth.leak,
        days=(onset if truth.leak else item.length_s) / DAY,
        alerted=life.alert_s is not None,
        early=early,
        watched=life.watch_s is not None,
        watch_latency_s=None if life.watch_s is None else life.watch_s - onset,
        alert_latency_s=None if life.alert_s is None else life.alert_s - onset,
        left=None if life.alert_s is None or not truth.leak
        else max(0.0, 1.0 - (life.alert_s - onset) / whole),
        left_watch=None if life.watch_s is None or not truth.leak
        else max(0.0, 1.0 - (life.watch_s - onset) / whole),
        pattern=pattern,
        pattern_right=pattern in truth.patterns,
        eta_errors=tuple(errors),
        eta_inside=tuple(inside),
        evaluations=life.evaluations,
        seconds=spent,
    )  # fmt: skip


def run(families: Iterable[str], seeds: Sequence[int], *, workers: int = 1) -> list[Result]:
    """Replay all items."""
    tasks = [(family, seed) for family in families for seed in seeds]
    if workers <= 1:
        return [run_item(task) for task in tasks]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(run_item, tasks, chunksize=4))


def _minutes(values: Sequence[float]) -> str:
    return f"{np.median(values) / 60:6.1f}" if values else "     -"


def _share(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f}" if values else "  - "


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Return the figures of one set of items."""
    leaks = [r for r in results if r.leak]
    benign = [r for r in results if not r.leak]
    hits = [r for r in leaks if r.alerted and not r.early]
    false = [r for r in benign if r.alerted] + [r for r in leaks if r.early]
    precision = len(hits) / max(1, len(hits) + len(false))
    recall = len(hits) / max(1, len(leaks))
    days = sum(r.days for r in results)
    errors = [e for r in hits for e in r.eta_errors]
    inside = [e for r in hits for e in r.eta_inside]
    named = [r for r in results if not r.leak or r.watched]
    lefts = [r.left or 0.0 for r in hits]
    return {
        "leaks": len(leaks),
        "benign": len(benign),
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(1e-9, precision + recall),
        "false_alarms": len(false),
        "benign_days": days,
        "false_per_day": len(false) / max(days, 1e-9),
        "false_per_day_95": max(3.0, len(false) + 2 * math.sqrt(len(false)) + 2) / max(days, 1e-9),
        "benign_watched": sum(r.watched for r in benign) / max(1, len(benign)),
        "left_median": float(np.median(lefts)) if lefts else 0.0,
        "before_half": sum(v >= 0.5 for v in lefts) / max(1, len(leaks)),
        "eta_error": float(np.median(errors)) if errors else math.nan,
        "eta_inside": float(np.mean(inside)) if inside else math.nan,
        "pattern_right": sum(r.pattern_right for r in named) / max(1, len(named)),
        "us_per_evaluation": 1e6
        * sum(r.seconds for r in results)
        / max(1, sum(r.evaluations for r in results)),
    }


def table(results: Sequence[Result]) -> str:
    """Return the table per family."""
    head = (
        f"{'family':18s} {'set':5s} {'n':>3s} {'alert':>5s} {'early':>5s} {'watch':>5s} "
        f"{'w min':>6s} {'a min':>6s} {'left':>5s} {'eta err':>7s} {'inside':>6s}  named"
    )
    lines = [head]
    for family in worlds.FAMILIES:
        mine = [r for r in results if r.family == family]
        if not mine:
            continue
        errors = [e for r in mine for e in r.eta_errors]
        inside = [e for r in mine for e in r.eta_inside]
        names = Counter(r.pattern for r in mine).most_common(4)
        lines.append(
            f"{family:18s} {'tune' if family in worlds.TUNING else 'held':5s} {len(mine):3d} "
            f"{sum(r.alerted for r in mine):5d} {sum(r.early for r in mine):5d} "
            f"{sum(r.watched for r in mine):5d} "
            f"{_minutes([r.watch_latency_s for r in mine if r.watch_latency_s is not None])} "
            f"{_minutes([r.alert_latency_s for r in mine if r.alert_latency_s is not None])} "
            f"{_share([r.left for r in mine if r.left is not None]):>5s} {_share(errors):>7s} "
            f"{(f'{np.mean(inside):.2f}' if inside else '-'):>6s}  "
            + " ".join(f"{name}:{count}" for name, count in names)
        )
    return "\n".join(lines)


def rival_item(task: tuple[str, int]) -> tuple[bool, float, float, dict[str, float | None]]:
    """Return leak?, onset, time of out-of-memory and first alerts of one (family, seed)."""
    item = worlds.build(*task)
    truth = item.truth
    end = truth.oom_s if truth.oom_s is not None else item.length_s
    return truth.leak, truth.onset_s or 0.0, end, rivals.first_alerts(item)


def rival_table(tasks: Sequence[tuple[str, int]], workers: int) -> str:
    """Return precision, recall and lead of the rules of others on the same items."""
    with ProcessPoolExecutor(workers) as pool:
        rows = list(pool.map(rival_item, tasks, chunksize=4))
    lines = [f"{'rule of others':22s} {'P':>6s} {'R':>6s} {'F1':>6s} {'false':>6s} {'left':>6s}"]
    for name in rivals.RIVALS:
        hit, false, left = 0, 0, []
        for leak, onset, end, alerts in rows:
            at = alerts[name]
            if at is None:
                continue
            if leak and at >= onset - 30.0:
                hit += 1
                left.append(max(0.0, 1.0 - (at - onset) / (end - onset)))
            else:
                false += 1
        leaks = sum(row[0] for row in rows)
        precision, recall = hit / max(1, hit + false), hit / max(1, leaks)
        f1 = 2 * precision * recall / max(1e-9, precision + recall)
        median = float(np.median(left)) if left else 0.0
        lines.append(
            f"{name:22s} {precision:6.2f} {recall:6.2f} {f1:6.2f} {false:6d} {median:6.2f}"
        )
    return "\n".join(lines)


def show(results: Sequence[Result], *, verbose: bool) -> None:
    """Print the families, both sets, and (verbose) what went wrong."""
    print(table(results))
    for name, families in (("tuning", worlds.TUNING), ("held-out", worlds.HELD_OUT)):
        part = [r for r in results if r.family in families]
        if part:
            print(f"\n{name}")
            for key, value in summary(part).items():
                print(f"  {key:18s} {value:.3f}")
    for r in results if verbose else ():
        if r.alerted != r.leak or r.early:
            print(f"wrong: {r.family} {r.seed} alerted={r.alerted} early={r.early}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 items a family instead of 16")
    parser.add_argument("--items", type=int, default=0, help="items a family")
    parser.add_argument("--set", choices=("both", "tuning", "held-out"), default="both")
    parser.add_argument("--family", action="append", help="only this family (may be repeated)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rivals", action="store_true", help="also run the rules of others")
    parser.add_argument("--verbose", action="store_true", help="one line per wrong item")
    options = parser.parse_args()
    number = options.items or (4 if options.quick else 16)
    everything: list[Result] = []
    tasks: list[tuple[str, int]] = []
    for name, families, seeds in (
        ("tuning", worlds.TUNING, worlds.TUNING_SEEDS),
        ("held-out", worlds.HELD_OUT, worlds.HELD_OUT_SEEDS),
    ):
        if options.set not in {"both", name}:
            continue
        chosen = [f for f in worlds.FAMILIES if f in families]
        if options.family:
            chosen = [f for f in chosen if f in options.family]
        tasks += [(family, seed) for family in chosen for seed in seeds[:number]]
        everything += run(chosen, seeds[:number], workers=options.workers)
    show(everything, verbose=options.verbose)
    if options.rivals:
        print("\n" + rival_table(tasks, options.workers))


if __name__ == "__main__":
    main()
