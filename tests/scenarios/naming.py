"""Prints which patterns are named right: ``python -m tests.scenarios.naming [--items N]``.

Tuning families only, so that it may be looked at while detectors are changed. Each item is judged
at the end of its record, and replayed at the daemon's pace for the name at the first watch and for
how often the name changes. A name is right when the truth lists it. A watch on harmless growth is
counted as well: what is watched should be called what it is.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatchd.analysis import screen, verdict
from gpuwatchd.core.config import DetectionSection
from tests.scenarios import worlds
from tests.scenarios.replay import replay

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding, Series
    from tests.scenarios.world import Truth

SETTINGS = DetectionSection()


@dataclass(frozen=True, kw_only=True)
class Named:
    """What one series was called."""

    family: str
    seed: int
    who: str
    """Name of the process; "" for the device."""
    leak: bool
    right: frozenset[str]
    at_end: str
    """A leak that was alerted: the name then, as people were told; else that at the end."""
    tier: str
    reason: str
    at_watch: str | None
    """None when it was never watched, or not replayed."""
    changes: int
    """Changes of name from one evaluation to the next, "unknown" left out."""
    back: int
    """Changes back to the name before the last: flicker."""
    hours: float
    judge_s: float
    """What the judgement at the end took; 0 where the screen sufficed."""


def name_item(task: tuple[str, int, bool]) -> list[Named]:
    """Judge one (family, seed) and its processes; replay it when asked."""
    family, seed, whole = task
    item = worlds.build(family, seed)
    series = item.series
    rows = [_at_end(family, seed, "", series, item.truth)]
    if whole:
        life = replay(series)
        names = [pattern for _, pattern, _ in life.patterns if pattern != "unknown"]
        runs = [one for k, one in enumerate(names) if k == 0 or names[k - 1] != one]
        told = life.alert.pattern if item.truth.leak and life.alert else rows[0].at_end
        rows[0] = replace(
            rows[0],
            at_end=told,
            at_watch=life.watch.pattern if life.watch is not None else None,
            changes=max(0, len(runs) - 1),
            back=sum(runs[k] == runs[k - 2] for k in range(2, len(runs))),
            hours=item.length_s / 3600.0,
        )
    for name, view in item.processes.items():
        t_s = view.series.t_s
        if item.truth.leak and not view.leaker:
            continue  # A guest: its own truth is not about a shape.
        if t_s.size >= SETTINGS.minimum_samples and t_s[-1] - t_s[0] >= SETTINGS.minimum_duration:
            rows.append(_at_end(family, seed, name, view.series, view.truth))
    return rows


def _at_end(family: str, seed: int, who: str, series: Series, truth: Truth) -> Named:
    began = time.perf_counter()
    certain = screen.first_look([series], SETTINGS)[0]
    found: Finding | None = None
    if certain is None:
        found = verdict.judge(series, SETTINGS)
    spent = time.perf_counter() - began
    return Named(
        family=family,
        seed=seed,
        who=who,
        leak=truth.leak,
        right=truth.patterns,
        at_end=found.pattern if found is not None else certain or "unknown",
        tier=found.tier if found is not None else "none",
        reason=found.reason if found is not None else "",
        at_watch=None,
        changes=0,
        back=0,
        hours=0.0,
        judge_s=spent if found is not None else 0.0,
    )


def confusion(rows: list[Named]) -> str:
    """Return family by name at the end, wrong ones marked with ``!``."""
    lines = [
        f"{'family':20} {'right':>9} {'watch':>9} {'chg/h':>6} {'back/h':>6}  named at the end"
    ]
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        right = sum(row.at_end in row.right for row in mine)
        watched = [row for row in mine if row.at_watch is not None]
        first = sum(row.at_watch in row.right for row in watched)
        hours = max(sum(row.hours for row in mine), 1e-9)
        names = Counter(row.at_end for row in mine).most_common()
        wrong = Counter(row.at_end for row in mine if row.at_end not in row.right)
        text = " ".join(
            f"{name}:{count}" + (f"({wrong[name]}!)" if wrong[name] else "")
            for name, count in names
        )
        seen = Counter(row.at_watch for row in watched if row.at_watch not in row.right)
        if seen:
            text += "   at watch " + " ".join(f"{name}:{n}!" for name, n in seen.most_common())
        lines.append(
            f"{family:20} {right:4}/{len(mine):<4} {first:4}/{len(watched):<4} "
            f"{sum(row.changes for row in mine) / hours:6.2f} "
            f"{sum(row.back for row in mine) / hours:6.2f}  {text}"
        )
    return "\n".join(lines)


def totals(rows: list[Named]) -> str:
    """Return the figures over all items."""
    watched = [row for row in rows if row.at_watch is not None]
    leaks = [row for row in watched if row.leak]
    hours = max(sum(row.hours for row in rows), 1e-9)
    lines = [
        f"named right at the end      {_share([row.at_end in row.right for row in rows])}",
        f"  leaks                     {_share([r.at_end in r.right for r in rows if r.leak])}",
        f"  harmless                  {_share([r.at_end in r.right for r in rows if not r.leak])}",
        f"leaks at the first watch    {_share([row.at_watch in row.right for row in leaks])}",
        f"all at the first watch      {_share([row.at_watch in row.right for row in watched])}",
        f"changes of name per hour    {sum(row.changes for row in rows) / hours:.3f}",
        f"back and forth per hour     {sum(row.back for row in rows) / hours:.3f}",
    ]
    slow = sorted(row.judge_s for row in rows if row.judge_s) or [0.0]
    lines.append(f"judge, median               {1e6 * slow[len(slow) // 2]:.0f} us")
    return "\n".join(lines)


def _share(hits: list[bool]) -> str:
    return f"{sum(hits) / len(hits):.3f} ({sum(hits)}/{len(hits)})" if hits else "-"


def main() -> None:
    """Print the confusion matrix, the totals, and (verbose) what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=12, help="items a family")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first item")
    parser.add_argument("--family", action="append", help="only this family (may be repeated)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--end-only", action="store_true", help="no replay: seconds, not minutes")
    parser.add_argument("--verbose", action="store_true", help="one line per wrong item")
    options = parser.parse_args()
    seeds = worlds.TUNING_SEEDS[options.first : options.first + options.items]
    families = [one for one in worlds.FAMILIES if one in worlds.TUNING]
    if options.family:
        families = [one for one in families if one in options.family]
    tasks = [(family, seed, not options.end_only) for family in families for seed in seeds]
    if options.workers > 1:
        with ProcessPoolExecutor(options.workers) as pool:
            rows = [row for some in pool.map(name_item, tasks, chunksize=4) for row in some]
    else:
        rows = [row for task in tasks for row in name_item(task)]
    devices = [row for row in rows if not row.who]
    processes = [row for row in rows if row.who]
    for title, some in (("devices", devices), ("processes, at the end", processes)):
        print(f"{title}\n{confusion(some)}\n{totals(some)}\n")
    for row in rows if options.verbose else ():
        if row.at_end not in row.right or (row.at_watch or row.at_end) not in row.right:
            print(
                f"wrong: {row.family} {row.seed} {row.who} {row.at_end}/{row.tier}, at watch "
                f"{row.at_watch}: {row.reason}"
            )


if __name__ == "__main__":
    main()
