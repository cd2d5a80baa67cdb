"""Prints and writes how well leaks are found, and how well others find them.

``python -m tests.scenarios.bench`` judges every item of the laboratory at the pace of the daemon:
each family with weights that were fitted without it (the headline), then fresh seeds with the
weights that are shipped, with ``--blind`` a corpus that nobody looks into, and recorded series
where they are. The rules of others see the same items in the same run. With ``--knowledge`` a
corpus is judged with and without each thing that is known beside its curves. It goes on where an
interrupted run stopped, as long as the code is the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core import units
from tests.scenarios.bench import inside, knowledge, known, page, result, runner, sets, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.scenarios.bench.measure import Task

KINDS = ("folds", "seeds", "blind", "known", "inside", "knowledge", "real")
QUICK, USUAL = 2, 10
BLIND_DAYS, QUICK_DAYS = 200.0, 5.0
PROGRAMS, QUICK_PROGRAMS = 16, 3
INSIDE_SEEDS, QUICK_EVERY = 2, 4


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    out = argparse.ArgumentParser(prog="python -m tests.scenarios.bench", description=__doc__)
    out.add_argument("--quick", action="store_true", help="2 seeds a family instead of 10")
    out.add_argument("--seeds", type=int, default=0, help="seeds a family")
    out.add_argument("--output", type=Path, default=Path("build/bench-detect"), metavar="DIR")
    out.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    out.add_argument("--only", choices=KINDS, action="append", help="this part (may be repeated)")
    out.add_argument("--blind", action="store_true", help="also a corpus that nobody looks into")
    out.add_argument("--inside", action="store_true", help="only what a probe is worth")
    out.add_argument("--corpus", default=sets.BLIND, help="another one instead")
    out.add_argument("--knowledge", metavar="MODULE", help="corpus with facts beside the curve")
    out.add_argument("--knowledge-seeds", type=int, default=1, metavar="N", help="its items each")
    out.add_argument("--tuning", action="store_true", help="only families that may be looked at")
    out.add_argument("--family", action="append", help="only this one (may be repeated)")
    out.add_argument("--no-rivals", action="store_true", help="without the rules of others")
    out.add_argument("--no-processes", action="store_true", help="devices only")
    out.add_argument("--real", type=Path, metavar="DIR", help="folder of recorded series")
    out.add_argument("--docs", type=Path, metavar="JSON", help="put these figures into the page")
    return out


def tasks_of(options: argparse.Namespace, words: dict[str, str], code: str) -> list[Task]:
    """Return what is to be evaluated; ``words`` learns how the folds were fitted."""
    seeds = options.seeds or (QUICK if options.quick else USUAL)
    wanted = options.only or KINDS
    families = sets.chosen(tuning=options.tuning)
    if options.family:
        families = [one for one in families if one in options.family]
    tasks: list[Task] = []
    if "folds" in wanted:
        weights, words["weights"] = sets.fold_weights(
            families, options.output / "weights.jsonl", code
        )
        tasks += sets.folds(families, seeds, weights)
    if "seeds" in wanted:
        tasks += sets.fresh(families, max(1, (3 * seeds) // 5))
    if "blind" in wanted and options.blind and not options.tuning:
        days = QUICK_DAYS if options.quick else BLIND_DAYS
        tasks += sets.blind(options.corpus, seeds, days)
    return [
        msgspec.structs.replace(
            one,
            rivals=one.rivals and not options.no_rivals,
            processes=one.processes and not options.no_processes,
        )
        for one in tasks
    ]


def real_folder(options: argparse.Namespace) -> Path | None:
    """Return where recorded series are looked for; None when they are not wanted."""
    if options.only and "real" not in options.only:
        return None
    if options.real is not None:
        found: Path = options.real
        return found
    return runner.ROOT.parent / "shared" / "data" / "traces"


def command(options: argparse.Namespace) -> str:
    """Return the command that prints the same figures, wherever it writes them."""
    plain = parser()
    words = ["python -m tests.scenarios.bench"]
    for action in plain._actions:
        value = getattr(options, action.dest, None)
        if action.dest in {"help", "output", "workers", "real"} or value in (None, action.default):
            continue
        flag = action.option_strings[0]
        values = value if isinstance(value, list) else [value]
        words += [flag if one is True else f"{flag} {one}" for one in values]
    return " ".join(words)


def history(options: argparse.Namespace, workers: int, code: str) -> dict[str, Any] | None:
    """Return what earlier runs of a program are worth; None when that is not wanted."""
    if options.family or (options.only and "known" not in options.only):
        return None
    number = QUICK_PROGRAMS if options.quick else PROGRAMS
    path = options.output / "history.jsonl"
    return known.figures(
        known.rows(number, path, workers=workers, code=code, tuning=options.tuning)
    )


def probes(options: argparse.Namespace, workers: int, code: str) -> list[inside.Row]:
    """Return what became of processes with and without a probe; none when that is not wanted."""
    if options.family or not (options.inside or "inside" in (options.only or KINDS)):
        return []
    blind_too = (options.inside or options.blind) and not options.tuning
    wanted = inside.tasks(
        options.seeds or (1 if options.quick else INSIDE_SEEDS),
        blind_too=blind_too,
        every=QUICK_EVERY if options.quick else 1,
    )
    if options.tuning:
        wanted = [task for task in wanted if task[0] == "tuning"]
    return inside.rows(wanted, options.output / "inside.jsonl", workers=workers, code=code)


def beside(options: argparse.Namespace, workers: int, code: str) -> list[dict[str, Any]]:
    """Return what each kind of knowledge is worth; nothing without a corpus that has any."""
    if options.knowledge is None or (options.only and "knowledge" not in options.only):
        return []
    seeds, every = max(1, options.knowledge_seeds), QUICK_EVERY if options.quick else 1
    path = options.output / "knowledge.jsonl"
    return knowledge.figures(
        knowledge.rows(options.knowledge, seeds, path, workers=workers, code=code, every=every)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or put its figures into the page."""
    options = parser().parse_args(argv)
    strange = sorted(set(options.family or ()) - set(sets.chosen(tuning=options.tuning)))
    if strange:
        parser().error(f"no such family here: {', '.join(strange)}")
    if "real" in (options.only or ()) and options.real and not any(options.real.glob("*.json*")):
        sys.exit(f"{options.real}: no recordings in it")
    if options.docs is not None:
        return page.fill(options.docs)
    began = time.monotonic()
    words: dict[str, str] = {}
    code = runner.fingerprint()
    workers = max(1, options.workers)
    try:
        if options.inside:
            print(tables.inside(inside.figures(probes(options, workers, code))))
            return 0
        tasks = tasks_of(options, words, code)
        outcomes = runner.evaluate(
            tasks, options.output / "outcomes.jsonl", workers=workers, code=code
        )
        before = history(options, workers, code)
        seen = probes(options, workers, code)
        facts = beside(options, workers, code)
    except KeyboardInterrupt:
        print(f"interrupted; what is done is kept in {options.output}", file=sys.stderr)
        return 130
    figures = result.figures(
        outcomes, words, real_folder(options), before, inside.figures(seen), facts
    )
    spent = time.monotonic() - began
    figures["run"] |= {
        "command": command(options),
        "seconds": round(spent),
        "workers": options.workers,
    }
    text = result.report(figures)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "figures.json").write_bytes(result.written(figures))
    (options.output / "report.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {options.output}, {units.duration(spent)} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
