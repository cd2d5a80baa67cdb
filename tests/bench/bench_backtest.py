"""What ``gpuwatchctl backtest`` takes: ``python -m tests.bench.bench_backtest [DAYS [GPUS]]``.

A history as a daemon leaves it behind: minutes, and samples of the last days. Jobs of two to ten
hours follow each other: warm up and stand, step through phases, saw; one of twelve leaks.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.cli import main as gpuwatchctl
from gpuwatchd.cli import parallel
from tests.pipeline import recorded
from tests.pipeline.recorded import GIB, Run

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

DAYS, GPUS = 3, 2
SAMPLED_S = 2 * 86400.0
STEP_S = recorded.STEP_S


def job(rng: np.random.Generator, seconds: float) -> FloatArray:
    """Return the memory of one job."""
    t = np.arange(0.0, seconds, STEP_S)
    kind = rng.integers(0, 12)
    base, size = rng.uniform(2, 6), rng.uniform(2, 10)
    if kind == 0:
        x = base + 16.0 * t / t[-1]
    elif kind < 5:
        x = base + size * (1.0 - np.exp(-t / rng.uniform(120, 1800)))
    elif kind < 8:
        x = base + size * ((t // 3600) % 3) / 3
    elif kind < 10:
        x = base + size * ((t % 600) / 600)
    else:
        x = np.full(t.size, base + size)
    x = x + np.where(rng.random(t.size) < 0.05, rng.uniform(0.0, 0.2, t.size), 0.0)
    out: FloatArray = np.round(x * 512) * (GIB / 512)
    return out


def main() -> None:
    """Write a history, play it, say what it took."""
    days = float(sys.argv[1]) if len(sys.argv) > 1 else DAYS
    devices = int(sys.argv[2]) if len(sys.argv) > 2 else GPUS
    end_s = time.time() // 60.0 * 60.0
    begin_s = end_s - days * 86400.0
    rng = np.random.default_rng(1)
    runs: list[Run] = []
    at_s = begin_s
    while at_s < end_s - 3600.0:
        seconds = min(rng.uniform(2.0, 10.0) * 3600.0, end_s - at_s)
        runs.append(Run(pid=1000 + len(runs), begin_s=at_s, used=job(rng, seconds)))
        at_s += seconds + 120.0
    with tempfile.TemporaryDirectory() as where:
        recorded.write(
            Path(where), runs, begin_s, end_s, devices=devices, rolled_until_s=end_s - SAMPLED_S
        )
        os.environ["GPUWATCHD_STATE_DIR"] = where
        begun = time.perf_counter()
        gpuwatchctl(["backtest", "--since", f"{days + 1:g}d", "--quiet"])
        took = time.perf_counter() - begun
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"\n{days:g} days of {devices} GPUs, {len(runs)} jobs each: {took:.1f} s with "
        f"{parallel.usable_cores()} cores, "
        f"{(cpu.ru_utime + own.ru_utime) / days / devices:.2f} s of processor per GPU and day; "
        f"at most {cpu.ru_maxrss / 1024:.0f} MiB a process"
    )


if __name__ == "__main__":
    main()
