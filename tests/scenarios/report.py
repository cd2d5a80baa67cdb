"""Prints how well leaks are found, family by family: ``python -m tests.scenarios.report``.

For work on the detectors: it shows the tuning families alone unless asked for more. Every item is
replayed at the pace of the daemon with default settings. A false alarm is an alert on a harmless
item, or before the onset of a leak. The whole comparison is ``python -m tests.scenarios.bench``.
The digest at the end is equal where every decision on every item is.
"""

from __future__ import annotations

import argparse
import hashlib
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from tests.scenarios import worlds
from tests.scenarios.bench import figures, measure, tables
from tests.scenarios.bench.outcome import is_false, is_hit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.scenarios.bench.outcome import Outcome


def run(
    families: Iterable[str],
    seeds: Sequence[int],
    *,
    workers: int = 1,
    processes: bool = False,
) -> list[Outcome]:
    """Replay all items."""
    tasks = [
        measure.Task(
            group="report", corpus="tests.scenarios.worlds", family=family, seed=seed,
            rivals=False, processes=processes, sweep=False,
        )
        for family in families
        for seed in seeds
    ]  # fmt: skip
    if workers <= 1:
        return [measure.run(task) for task in tasks]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(measure.run, tasks, chunksize=4))


def show(outcomes: Sequence[Outcome], *, verbose: bool) -> None:
    """Print the families, both sets, and (verbose) what went wrong."""
    print(tables.families(figures.families(outcomes)))
    for name, tuned in (("tuning", True), ("validation", False)):
        part = [one for one in outcomes if one.tuned == tuned]
        if part:
            print(f"\n{tables.headline({name: figures.summary(part)})}")
    for one in outcomes if verbose else ():
        if is_false(one) or (one.leak and not is_hit(one)):
            print(f"wrong: {one.family} {one.seed} alert {one.alert_s} onset {one.onset_s}")


def digest(outcomes: Iterable[Outcome]) -> str:
    """Return a hash of all that was decided; how long it took does not count."""
    mixed = hashlib.sha256()
    for one in outcomes:
        mixed.update(msgspec.json.encode(msgspec.structs.replace(one, judged_us=0.0)))
    return mixed.hexdigest()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 items a family instead of 16")
    parser.add_argument("--items", type=int, default=0, help="items a family")
    parser.add_argument("--set", choices=("both", "tuning", "held-out"), default="tuning")
    parser.add_argument("--family", action="append", help="only this family (may be repeated)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--processes", action="store_true", help="also judge process by process")
    parser.add_argument("--verbose", action="store_true", help="one line per wrong item")
    options = parser.parse_args()
    number = options.items or (4 if options.quick else 16)
    outcomes: list[Outcome] = []
    for name, families, seeds in (
        ("tuning", worlds.TUNING, worlds.TUNING_SEEDS),
        ("held-out", worlds.VALIDATION, worlds.HELD_OUT_SEEDS),
    ):
        if options.set not in {"both", name}:
            continue
        chosen = [one for one in worlds.FAMILIES if one in families]
        if options.family:
            chosen = [one for one in chosen if one in options.family]
        outcomes += run(
            chosen, seeds[:number], workers=options.workers, processes=options.processes
        )
    show(outcomes, verbose=options.verbose)
    print(f"\ndigest of {len(outcomes)} items: {digest(outcomes)[:16]}")


if __name__ == "__main__":
    main()
