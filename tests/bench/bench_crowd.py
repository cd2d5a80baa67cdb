"""What it costs that many growing processes take turns: ``python -m tests.bench.bench_crowd``.

The same worlds go through the real pipeline, on a clock of their own, once with turns and once
without, where whoever is due is judged in that tick. Alerts that fire count. *lost*: kept for a
minute or longer without turns, never opened with them; *only*: the other way round. *false*: of
plateaus. Delays, seconds, are of alerts that both opened. *warned*: share of the leaks that had an
alert before the first card was full, or the end. Of two figures the first is without turns.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import tempfile
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import msgspec

from gpuwatchd.core.config import Config, StoreSection
from gpuwatchd.core.model import ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline import tracks
from gpuwatchd.store.writer import History
from tests.making import CARD, GIB, MIB, sample
from tests.pipeline.play import Script
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK_S, BEGIN_S, FROM_S = 5.0, 1_000_000.0, 120.0
KINDS = ("straight", "steps", "noisy", "slow", "plateau")


class Shape(NamedTuple):
    """One process: how its memory grows from the third minute on, at ``rate`` bytes a second."""

    kind: str
    rate: float
    phase: int

    def bytes_at(self, t_s: float) -> int:
        """Return what it holds, in quanta of 2 MiB."""
        age_s = max(0.0, t_s - FROM_S - 3.0 * (self.phase % 40))
        grown = self.rate * age_s
        if self.kind == "steps":
            grown = self.rate * (age_s - age_s % 120.0)
        elif self.kind == "plateau":
            grown = 600.0 * self.rate * -math.expm1(-age_s / 300.0)
        elif self.kind == "noisy":
            grown += 64 * MIB * random.Random(f"{self.phase} {t_s}").random()
        return GIB // 4 + int(grown / (2 * MIB)) * 2 * MIB


def world(count: int, gpus: int, seed: int, *, mixed: bool) -> list[Shape]:
    """Return its processes: where all are straight, they fill each card in 42 to 78 minutes."""
    drawn = random.Random(seed)
    usual = 80 * GIB / (count / gpus) / (3600.0 * drawn.uniform(0.7, 1.3))
    if not mixed:
        return [Shape("straight", usual, number) for number in range(count)]
    kinds = [(number, KINDS[number % len(KINDS)]) for number in range(count)]
    least = {"slow": 0.125}
    return [Shape(k, least.get(k, 1.0) * usual * drawn.uniform(0.5, 2.0), n) for n, k in kinds]


class Played(NamedTuple):
    """What came of a world."""

    opened: dict[int, float]
    """Pid -> seconds until its alert fired."""
    kept: set[int]
    """Those that fired for a minute or longer."""
    judged: int
    ms: float
    """CPU a tick, mean."""


def play(shapes: Sequence[Shape], gpus: int, minutes: float, *, turns: bool) -> Played:
    """Let the pipeline look at a world."""
    each = -(-len(shapes) // gpus)
    cards = [msgspec.structs.replace(CARD, uid=f"GPU-{n}", index=n) for n in range(gpus)]
    infos = [
        ProcessInfo(key=ProcessKey(pid=n, started_at_s=BEGIN_S), name="a", program=it.kind)
        for n, it in enumerate(shapes)
    ]
    clock, full = [BEGIN_S], [False]
    opened: dict[int, float] = {}
    ended: dict[int, float] = {}

    def read(tick: int) -> Sample:
        parts = []
        for n, card in enumerate(cards):
            own = range(n * each, min((n + 1) * each, len(shapes)))
            uses = [(infos[k], shapes[k].bytes_at(tick * TICK_S)) for k in own]
            full[0] = full[0] or sum(held for _, held in uses) >= 0.98 * 80 * GIB
            parts.append(sample(clock[0], uses, device=card))
        readings = tuple(part.readings[0] for part in parts)
        return msgspec.structs.replace(parts[0], readings=readings, processes=tuple(infos))

    few, saved = (tracks.FEW, tracks.SAVED) if turns else (math.inf, math.inf)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        mock.patch.multiple(tracks, FEW=few, SAVED=saved),
    ):
        now, source = partial(itemgetter(0), clock), Script(read, devices=tuple(cards))
        store = History(Path(folder), StoreSection(), clock=now, monotonic=now, boot_id="boot")
        pipeline = make_pipeline(
            config=Config(), sources=[source], history=store, wall=now, mono=now
        )
        begun_s, ticks = time.process_time(), 0
        while ticks < minutes * 60 / TICK_S and not full[0]:
            for change in pipeline.tick().changes:
                process, t_s = change.subject.process, clock[0] - BEGIN_S
                if process is not None and change.state == "firing":
                    opened.setdefault(process.pid, t_s)
                elif process is not None and change.state == "resolved":
                    ended.setdefault(process.pid, t_s)
            ticks, clock[0] = ticks + 1, clock[0] + TICK_S
        ms = 1000 * (time.process_time() - begun_s) / ticks
        judged, end_s = pipeline.state.tracks.evaluations, clock[0] - BEGIN_S
        pipeline.close()
    kept = {n for n, t_s in opened.items() if ended.get(n, end_s) - t_s >= 60.0}
    return Played(opened, kept, judged, ms)


def row(shapes: Sequence[Shape], free: Played, own: Played) -> str:
    """Return the figures of a world: without turns, with them, or between the two."""
    lost, only = len(free.kept - own.opened.keys()), len(own.kept - free.opened.keys())
    both = free.opened.keys() & own.opened.keys()
    late = sorted(own.opened[n] - free.opened[n] for n in both) or [math.nan]
    p50, p90 = statistics.median(late), late[int(0.9 * (len(late) - 1))]
    wrong, warned = [], []
    for it in (free, own):
        wrong.append(sum(shapes[n].kind == "plateau" for n in it.opened))
        warned.append((len(it.opened) - wrong[-1]) / sum(one.kind != "plateau" for one in shapes))
    return (
        f"{len(free.opened):6}{len(own.opened):4}{lost:6}{only:6}{wrong[0]:6}{wrong[1]:4}"
        f"{p50:6.0f}{p90:6.0f}{late[-1]:6.0f}{warned[0]:7.2f}{warned[1]:5.2f}"
        f"{free.judged:8}{own.judged:6}{free.ms:7.1f}{own.ms:6.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--counts", type=int, nargs="+", default=[8, 64, 200])
    chosen = parser.parse_args()
    print(f"{'':18}    opened  lost  only     false   p50   p90   max      warned"
          "        judged      ms/tick")  # fmt: skip
    for count, gpus, mixed in itertools.product(chosen.counts, (1, 8), (False, True)):
        shapes = world(count, gpus, chosen.seed, mixed=mixed)
        free, own = (play(shapes, gpus, chosen.minutes, turns=turns) for turns in (False, True))
        name = f"{count} {'mixed' if mixed else 'alike'}, {gpus} GPU"
        print(f"{name:18}{row(shapes, free, own)}", flush=True)


if __name__ == "__main__":
    main()
