"""What it is worth to have seen a program before: the same runs with 0, 1, 3 and 5 earlier ones."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from tests.scenarios import history
from tests.scenarios import history_families as families
from tests.scenarios.bench import figures as made
from tests.scenarios.bench.outcome import f1
from tests.scenarios.bench.runner import Kept, results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNTS = (0, 1, 3, 5)
TESTS = {
    "i": "the same again",
    "iii": "everything larger",
    "iii'": "only its growth larger",
    "ii": "a leak added",
}


def of_program(task: tuple[str, int]) -> list[history.Row]:
    """Replay one program: the same again, larger, with a leak; ``task`` is its kind and seed."""
    program = families.Program(kind=task[0], seed=task[1])
    more = 1.2 + 0.05 * (task[1] % 9)
    runs = {
        "i": program.run(1),
        "iii": program.run(4, scale=more),
        "iii'": program.run(5, growth=more),
        "ii": program.run(3, leak=program.leak),
    }
    healthy = history.earlier(program, COUNTS[-1])
    return [
        history.outcome(test, program, ran, healthy[:count])
        for count in COUNTS
        for test, ran in runs.items()
    ]


def rows(
    number: int, path: Path, *, workers: int, code: str, tuning: bool = False
) -> list[history.Row]:
    """Return what became of so many programs; what ``path`` holds already is not run again."""
    kinds = families.TUNING if tuning else families.REPORT
    tasks = [(one.kind, one.seed) for one in families.programs(kinds, number)]
    kept = Kept(path, list[history.Row])
    return [*chain(*results(tasks, kept, of_program, workers, code, "history"))]


def figures(found: Sequence[history.Row]) -> dict[str, Any]:
    """Return the figures for each number of earlier runs."""
    return {
        "programs": len(found) // (len(COUNTS) * len(TESTS)),
        "by_count": [_of_count(count, [r for r in found if r.known == count]) for count in COUNTS],
    }


def _of_count(count: int, mine: Sequence[history.Row]) -> dict[str, Any]:
    harmless = [row for row in mine if not row.leak]
    leaks = [row for row in mine if row.leak]
    hits = [row for row in leaks if row.alert_s is not None]
    days = sum(row.days for row in mine)
    false = sum(row.alarmed for row in mine)
    precision, recall, both = f1(len(hits), false, len(leaks))
    out: dict[str, Any] = {
        "known": count, "ramps_per_day": sum(row.ramps for row in mine) / max(days, 1e-9),
        "precision": precision, "recall": recall, "f1": both, "days": days,
        "per_day": false / max(days, 1e-9), "per_day_bound": made.poisson_bound(false) / days,
        "left_median": made.median([row.left for row in hits]),
        "before_half": made.share([row.left >= made.HALF for row in leaks]),
        "alert_minutes": made.median([(row.alert_s or 0.0) / 60.0 for row in hits]),
        "watched": made.share([row.watched for row in harmless]),
    }  # fmt: skip
    for test in ("i", "iii", "iii'"):
        part = [row for row in harmless if row.test == test]
        out[f"alarmed_{test}"] = [sum(row.alarmed for row in part), len(part)]
    return out
