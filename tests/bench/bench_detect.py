"""Prints what a judgement costs: ``python -m tests.bench.bench_detect``.

Microseconds, best of several runs, beside a bare ``numpy.polyfit`` of the same series in the same
run: on a shared machine the ratio is what can be compared. Then the screen of a hundred thousand
series, beside a copy of the same bytes.
"""

from __future__ import annotations

import statistics
import timeit
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics, screen, verdict
from gpuwatchd.core.config import DetectionSection
from tests.bench import bench_judgement

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import FloatArray, Series

MIB, GIB = 2.0**20, 2.0**30
SETTINGS = DetectionSection()


def cost_us(call: Callable[[], object], number: int = 20, repeat: int = 15) -> float:
    """Return microseconds per call, best of ``repeat``."""
    call()
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def each_us(call: Callable[[], object], number: int = 300) -> tuple[float, float]:
    """Return the best and the median of single calls, microseconds: what else runs disturbs few."""
    call()
    taken = timeit.repeat(call, number=1, repeat=number)
    return min(taken) * 1e6, statistics.median(taken) * 1e6


def subjects(hours: float, interval_s: float) -> dict[str, Series]:
    """Return one series of each kind."""
    t = np.arange(0.0, hours * 3600.0, interval_s)
    return {
        name: bench_judgement.series(t, used) for name, used in bench_judgement.shapes(t).items()
    }


def rows(count: int = 100_000, points: int = 240) -> tuple[FloatArray, FloatArray]:
    """Return (S, n) bytes of a fleet, and its instants: flat, sawing, noisy; one of 50 leaks."""
    t = np.arange(0.0, 10.0 * points, 10.0)
    rng = np.random.default_rng(1)
    out = np.repeat(rng.uniform(1.0, 20.0, count)[:, None] * GIB, points, axis=1)
    kind = rng.integers(0, 50, count)
    out[kind == 0] += 1e6 * t
    sawing = (kind > 0) & (kind < 10)
    out[sawing] += 2e9 * ((t + rng.uniform(0, 600, int(sawing.sum()))[:, None]) % 600) / 600
    noisy = (kind >= 10) & (kind < 15)
    out[noisy] += rng.normal(0.0, 30 * MIB, (int(noisy.sum()), points))
    return np.round(out / (2 * MIB)) * 2 * MIB, t


def fleet() -> None:
    """Print what the screen of a fleet takes beside a copy of the same bytes."""
    double, t = rows()
    scale = np.full(len(double), 24 * GIB)
    for used in (double, double.astype(np.float32)):
        copied = cost_us(used.copy, number=1, repeat=5)
        looked = cost_us(
            lambda u=used: screen.look_at_array(u, t, scale, SETTINGS),  # type: ignore[misc]
            number=1,
            repeat=5,
        )
        codes = screen.look_at_array(used, t, scale, SETTINGS)
        print(
            f"screen of {used.shape[0]:,} series of {used.shape[1]} points ({used.dtype}): "
            f"{looked / 1e6:.3f} s, a copy of the same bytes {copied / 1e6:.3f} s, ratio "
            f"{looked / copied:.2f}; {np.mean(codes == screen.JUDGE):.1%} left to judge"
        )


def main() -> None:
    """Print the table."""
    for hours, interval_s in ((1.0, 5.0), (6.4, 5.0), (6.4, 10.0)):
        print(f"{hours} h every {interval_s:.0f} s")
        for name, series in subjects(hours, interval_s).items():
            fit = cost_us(lambda s=series: np.polyfit(s.t_s, s.used_bytes, 1))  # type: ignore[misc]
            judged, median = each_us(lambda s=series: verdict.judge(s, SETTINGS))  # type: ignore[misc]
            view = cost_us(lambda s=series: numerics.prepare(s))  # type: ignore[misc]
            print(
                f"  {name:22s} judge {judged:6.0f} us, median {median:6.0f}  view {view:4.0f} us  "
                f"polyfit {fit:6.0f} us  judge/polyfit {judged / fit:5.1f}"
            )
    batch = [one for one in subjects(1.0, 10.0).values() for _ in range(20)]
    whole = cost_us(lambda: screen.first_look(batch, SETTINGS))
    print(f"screen of {len(batch)} series of 1 h: {whole / len(batch):.1f} us per series")
    fleet()


if __name__ == "__main__":
    main()
