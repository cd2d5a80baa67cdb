"""Prints what history is worth: ``python -m tests.scenarios.history [--programs N]``.

Every run is replayed through screen, judge and policy with 0, 1, 2, 3 and 5 earlier runs of its
program known; the same run each time. i: the same again. iii: everything 1.2 to 1.6 times as
large; iii': only what it grows by. ii: the program with a leak added. iv: the same, and its earlier
runs leaked too and were stopped early. Below, with three earlier runs: poisoned and wrong
histories, the user's word, siblings of one job, the same hour of yesterday.
"""

from __future__ import annotations

import argparse
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.analysis import forecast, verdict
from gpuwatchd.core.config import DetectionSection
from tests.scenarios import history_families as families
from tests.scenarios.bench import ramps
from tests.scenarios.replay import replay, series_at
from tests.scenarios.world import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.model import Profile
    from tests.scenarios.history_families import Program, Ran

KNOWN = (0, 1, 2, 3, 5)
DAY = 86400.0
SIBLINGS = 8
REFRESH_S = 300.0
"""How often what the siblings do is looked at anew."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one replayed run."""

    test: str
    kind: str
    known: int
    leak: bool
    days: float
    """Harmless days seen."""
    alarmed: bool
    """Alerted while harmless."""
    watched: bool
    """Watched while harmless."""
    ramps: int = 0
    """Straight ramps of 20 minutes or more while harmless."""
    watch_s: float | None = None
    """From the onset to the watch."""
    alert_s: float | None = None
    left: float = 0.0
    """Share of the time from onset to out-of-memory left at the alert; 0 when missed."""


def known(ran: Ran, *, busy: bool = True, word: str | None = None) -> Profile:
    """Return the profile of a finished run, as the daemon keeps it."""
    last = verdict.judge(ran.series, DetectionSection())
    found = forecast.profile(
        ran.series,
        busy=ran.busy if busy else None,
        alerted=last.tier == "alert",
        ended_at_s=float(ran.series.t_s[-1]),
    )
    assert found is not None
    return msgspec.structs.replace(found, word=word)


def length_of(program: Program, number: int) -> float:
    """Return how long an earlier run lasts: half an hour to six hours, a quarter is cut short."""
    rng = np.random.default_rng([zlib.crc32(program.kind.encode()), program.seed, number])
    short = rng.random() < 0.25
    return float(rng.uniform(0.2, 0.6) if short else rng.uniform(0.6, 6.0)) * HOUR


def earlier(program: Program, number: int) -> list[Profile]:
    """Return the profiles of so many healthy earlier runs."""
    runs = [program.run(k, length_s=length_of(program, k)) for k in range(100, 100 + number)]
    return [known(ran) for ran in runs]


def poisoned(program: Program, number: int, how: str, *, busy: bool = True) -> list[Profile]:
    """Return the profiles of earlier runs that leaked: to the "limit", "early" or "idle" end."""
    leak, out = program.leak, []
    for k in range(200, 200 + number):
        rng = np.random.default_rng([program.seed, k])
        until = leak.onset_s + float(rng.uniform(0.3, 0.6)) * min(leak.full_s, families.LONGEST_S)
        if how == "limit":
            ran = program.run(k, length_s=leak.onset_s + 1.2 * leak.full_s, leak=leak)
        elif how == "early":
            ran = program.run(k, length_s=until, leak=leak)
        else:
            idle_s = 0.6 * until
            ran = program.run(k, length_s=until + idle_s, leak=leak, idle_s=idle_s)
        out.append(known(ran, busy=busy))
    return out


def outcome(
    test: str,
    program: Program,
    ran: Ran,
    past: Sequence[Profile],
    *,
    history: Callable[[float], tuple[Profile, ...]] | None = None,
) -> Row:
    """Replay one run with what is known."""
    series = msgspec.structs.replace(ran.series, history=tuple(past))
    leak = ran.onset_s is not None
    life = replay(series, stop_at_alert=leak, history=history)
    onset = ran.onset_s if ran.onset_s is not None else np.inf
    alert = life.alert_s if life.alert_s is not None else np.inf
    watch = life.watch_s if life.watch_s is not None else np.inf
    hit = leak and onset - 30.0 <= alert < np.inf
    seen = float(series.t_s[-1] - series.t_s[0])
    whole = (ran.oom_s or 0.0) - onset if leak else 1.0
    end = int(series.t_s.searchsorted(series.t_s[0] + onset))
    total = series.total_bytes or float(series.used_bytes.max())
    return Row(
        test=test, kind=program.kind, known=len(past), leak=leak,
        days=min(seen, onset) / DAY,
        alarmed=alert < min(onset - 30.0, np.inf), watched=watch < min(onset - 30.0, np.inf),
        ramps=ramps.ramps(series.t_s[:end], series.used_bytes[:end], total),
        watch_s=watch - onset if leak and onset - 30.0 <= watch < np.inf else None,
        alert_s=alert - onset if hit else None,
        left=max(0.0, 1.0 - (alert - onset) / whole) if hit else 0.0,
    )  # fmt: skip


def of_program(task: tuple[str, int, str, int]) -> list[Row]:
    """Replay everything about one program; ``task`` is its kind and seed, and those of another."""
    program = families.Program(kind=task[0], seed=task[1])
    other = families.Program(kind=task[2], seed=task[3])
    rng = np.random.default_rng([task[1], 77])
    more = float(rng.uniform(1.2, 1.6))
    same, again = program.run(1), program.run(2)
    leaking = program.run(3, leak=program.leak)
    scaled, grown = program.run(4, scale=more), program.run(5, growth=more)
    healthy = earlier(program, KNOWN[-1])
    leaked = poisoned(program, KNOWN[-1], "early")
    rows = []
    for k in KNOWN:
        past = healthy[:k]
        rows += [
            outcome("i", program, same, past),
            outcome("i", program, again, past),
            outcome("iii", program, scaled, past),
            outcome("iii'", program, grown, past),
            outcome("ii", program, leaking, past),
            outcome("iv", program, leaking, leaked[:k]),
        ]
    rows.append(outcome("early", program, leaking, leaked[:3]))
    for name, how, busy in (
        ("limit", "limit", True), ("idle", "idle", True), ("idle unknown", "idle", False),
    ):  # fmt: skip
        rows.append(outcome(name, program, leaking, poisoned(program, 3, how, busy=busy)))
    rows.append(outcome("early+2", program, leaking, [leaked[0], *healthy[:2]]))
    wrong = earlier(other, 3)
    rows += [
        outcome("wrong i", program, same, wrong),
        outcome("wrong ii", program, leaking, wrong),
    ]
    return rows + words(program, same, again, leaking)


def words(program: Program, same: Ran, again: Ran, leaking: Ran) -> list[Row]:
    """Replay with one earlier run and the user's word on it."""
    normal = [known(program.run(100), word="normal")]
    leak = [known(program.run(200, leak=program.leak), word="leak")]
    return [
        outcome("normal i", program, same, normal),
        outcome("normal i", program, again, normal),
        outcome("normal ii", program, leaking, normal),
        outcome("leak i", program, same, leak),
        outcome("leak ii", program, leaking, leak),
    ]


def of_job(task: tuple[str, int]) -> list[Row]:
    """Replay ranks of one job: all healthy, one that leaves the others, all leaking."""
    program = families.Program(kind=task[0], seed=task[1])
    rows = []
    for test, leaking in (("all alike", 0), ("one leaves", 1), ("all leak", SIBLINGS)):
        ranks = [
            program.run(300 + k, leak=program.leak if k < leaking else None, jitter=0.03)
            for k in range(SIBLINGS)
        ]
        for k in (0, 1) if test == "one leaves" else (0,):
            others = [one for j, one in enumerate(ranks) if j != k]
            name = test if test != "one leaves" or k == 0 else "the others"
            rows.append(outcome(name + ", alone", program, ranks[k], ()))
            rows.append(outcome(name, program, ranks[k], (), history=siblings(others)))
    return rows


def now_and_then(
    look: Callable[[float], tuple[Profile, ...]],
) -> Callable[[float], tuple[Profile, ...]]:
    """Return what is seen by a look that is taken every few minutes."""
    kept: dict[int, tuple[Profile, ...]] = {}

    def seen(now_s: float) -> tuple[Profile, ...]:
        slot = int(now_s // REFRESH_S)
        if slot not in kept:
            kept[slot] = look(now_s)
        return kept[slot]

    return seen


def siblings(others: Sequence[Ran]) -> Callable[[float], tuple[Profile, ...]]:
    """Return what the other ranks do, looked at every few minutes."""

    def look(now_s: float) -> tuple[Profile, ...]:
        out = []
        for one in others:
            end = int(np.searchsorted(one.series.t_s, now_s, side="right"))
            if end < one.series.t_s.size or one.series.t_s[-1] > now_s - 60.0:
                out.append(
                    forecast.profile(
                        series_at(one.series, end), busy=one.busy[:end], ended_at_s=now_s,
                        kind="sibling",
                    )
                )  # fmt: skip
        return tuple(found for found in out if found is not None)

    return now_and_then(look)


def of_server(seed: int) -> list[Row]:
    """Replay the second day of a server, without and with what it did at this hour yesterday."""
    rows = []
    program = families.Program(kind="wander", seed=seed)
    for test, leak in (("diurnal", False), ("diurnal leak", True)):
        ran = families.server(seed, leak=leak)
        whole = ran.series
        first = int(np.searchsorted(whole.t_s, whole.t_s[0] + DAY))
        second = msgspec.structs.replace(
            whole, t_s=whole.t_s[first:], used_bytes=whole.used_bytes[first:], age_s=DAY
        )
        onset = ran.onset_s - DAY if ran.onset_s is not None else None
        oom = ran.oom_s - DAY if ran.oom_s is not None else None
        today = families.Ran(series=second, busy=ran.busy[first:], onset_s=onset, oom_s=oom)
        rows.append(outcome(test + ", alone", program, today, ()))
        rows.append(outcome(test, program, today, (), history=yesterday(ran)))
    return rows


def yesterday(ran: Ran) -> Callable[[float], tuple[Profile, ...]]:
    """Return what the same hour of yesterday shows, looked at every few minutes."""

    def look(now_s: float) -> tuple[Profile, ...]:
        end = int(np.searchsorted(ran.series.t_s, now_s, side="right"))
        found = forecast.profile_of_yesterday(series_at(ran.series, end), now_s=now_s)
        return () if found is None else (found,)

    return now_and_then(look)


def _line(rows: Sequence[Row]) -> str:
    """Return alarms, watches, found, lead and latency of some rows."""
    harmless = [row for row in rows if not row.leak]
    leaks = [row for row in rows if row.leak]
    out = ""
    if harmless:
        out += f"alarmed {sum(row.alarmed for row in harmless)}/{len(harmless)}"
        out += f", watched {sum(row.watched for row in harmless)}/{len(harmless)}  "
    if leaks:
        hits = [row for row in leaks if row.alert_s is not None]
        seen = [row.watch_s for row in leaks if row.watch_s is not None]
        lead = float(np.median([row.left for row in hits])) if hits else 0.0
        late = float(np.median([row.alert_s for row in hits])) / 60.0 if hits else 0.0
        watch = float(np.median(seen)) / 60.0 if seen else 0.0
        out += f"found {len(hits)}/{len(leaks)}, lead {lead:.2f}"
        out += f" (missed = 0: {np.median([row.left for row in leaks]):.2f})"
        out += f", alert {late:.0f} min, watch {watch:.0f} min"
        out += f", before the onset {sum(row.alarmed for row in leaks)}"
    return out


def figures(rows: Sequence[Row], count: int) -> dict[str, float]:
    """Return the figures for so many earlier runs, tests i to iv."""
    mine = [row for row in rows if row.known == count and row.test in {"i", "ii", "iii", "iii'"}]
    harmless = [row for row in mine if not row.leak]
    leaks = [row for row in mine if row.leak]
    false = sum(row.alarmed for row in mine)
    found = sum(row.alert_s is not None for row in leaks)
    days = sum(row.days for row in harmless)
    return {
        "f1": 2.0 * found / max(1, found + false + len(leaks)),
        "alerts_per_day": sum(row.alarmed for row in harmless) / max(days, 1e-9),
        "lead": float(np.median([row.left for row in leaks])) if leaks else 0.0,
    }


def table(rows: Sequence[Row]) -> str:
    """Return the figures of some programs as text."""
    lines = []
    for count in KNOWN:
        some = figures(rows, count)
        lines.append(
            f"{count} earlier runs: F1 {some['f1']:.3f}, alerts per harmless day "
            f"{some['alerts_per_day']:.2f}"
        )
        for test in ("i", "iii", "iii'", "ii", "iv"):
            part = [row for row in rows if row.known == count and row.test == test]
            lines.append(f"    {test:5s} {_line(part)}")
    rest = [row.test for row in rows if row.test not in {"i", "ii", "iii", "iii'", "iv"}]
    lines += [
        f"{test:20s} {_line([row for row in rows if row.test == test])}"
        for test in dict.fromkeys(rest)
    ]
    return "\n".join(lines)


def run(kinds: str, number: int, *, workers: int = 1, others: bool = True) -> list[Row]:
    """Replay so many programs of the "tuning" or "report" kinds."""
    chosen = families.programs(families.TUNING if kinds == "tuning" else families.REPORT, number)
    tasks = [
        (one.kind, one.seed, chosen[k - 1].kind, chosen[k - 1].seed) for k, one in enumerate(chosen)
    ]
    jobs = [task[:2] for task in tasks[: max(number // 3, 1)]] if others else []
    first = 0 if kinds == "tuning" else 100
    servers = list(range(first, first + number // 2)) if others else []
    if workers <= 1:
        parts = [of_program(task) for task in tasks]
        parts += [of_job(job) for job in jobs] + [of_server(seed) for seed in servers]
    else:
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(of_program, tasks))
            parts += list(pool.map(of_job, jobs)) + list(pool.map(of_server, servers))
    return [row for part in parts for row in part]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=6, help="programs in each half")
    parser.add_argument("--half", choices=("both", "tuning", "report"), default="both")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    for half in ("tuning", "report"):
        if options.half in {"both", half}:
            kinds = families.TUNING if half == "tuning" else families.REPORT
            print(f"{half} programs: {', '.join(kinds)}")
            print(table(run(half, options.programs, workers=options.workers)), flush=True)


if __name__ == "__main__":
    main()
