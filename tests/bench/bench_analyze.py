"""Rows per second of ``analyze``, and what cores bring: ``python -m tests.bench.bench_analyze``.

Eight GPUs for six hours at one sample a second: one leaks, one warms up, one saws, five are flat
but for noise. Reading, replaying at the log's own clock, judging and policy are all counted; beside
it, in the same run, what the csv module alone takes to split the same file.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gpuwatchd.cli import parallel
from gpuwatchd.cli.verbs.analyze import _analyzed
from gpuwatchd.collect.logs.log_types import LogOptions
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.config import Config
from gpuwatchd.pipeline import replay
from tests.bench.measuring import median_s

GPUS, SECONDS, RUNS = 8, 6 * 3600, 3
LOGS_A_CORE = 2
TOTAL_MIB = 81559


def levels() -> np.ndarray:
    """Return (GPUS, SECONDS) memory in MiB."""
    rng = np.random.default_rng(1)
    t = np.arange(SECONDS)
    out = np.full((GPUS, SECONDS), 20_000.0)
    out[0] += t * 1.5
    out[1] += 15_000 * (1 - np.exp(-t / 900))
    out[2] += 6_000 * ((t % 300) / 300)
    out[3:] += np.cumsum(
        rng.integers(-1, 2, (GPUS - 3, SECONDS)) * (rng.random((GPUS - 3, SECONDS)) < 0.02) * 2,
        axis=1,
    )
    return np.clip(np.round(out / 2) * 2, 0, TOTAL_MIB - 600)


def write(file: Path) -> int:
    """Write the log; return its rows."""
    table = levels().astype(int)
    start = 1_790_000_000
    with file.open("w") as out:
        out.write(
            "timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
        )
        for second in range(SECONDS):
            stamp = datetime.fromtimestamp(start + second, UTC).strftime("%Y/%m/%d %H:%M:%S.123")
            out.writelines(
                f"{stamp}, {gpu}, NVIDIA A100-SXM4-80GB, {table[gpu, second]} MiB, "
                f"{TOTAL_MIB} MiB, 97 %\n"
                for gpu in range(GPUS)
            )
    return GPUS * SECONDS


def spread(file: Path, cores: int) -> tuple[float, float]:
    """Return the seconds that a directory of two logs per core takes, and those of CPU time."""
    files = [str(file)] * (LOGS_A_CORE * parallel.usable_cores())
    jobs = [((name,), LogOptions(), Config()) for name in files]
    begun, used = time.perf_counter(), os.times()
    parallel.spread(_analyzed, jobs, lambda job: job[0][0], shown=False, cores=cores)
    wall_s, now = time.perf_counter() - begun, os.times()
    return wall_s, sum(now[:4]) - sum(used[:4])


def main() -> None:
    """Print rows per second and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpu.csv"
        rows = write(file)

        def split() -> None:
            with file.open(newline="") as text:
                for _ in csv.reader(text):
                    pass

        csv_s = median_s(split, RUNS, time.process_time)
        read_s = median_s(lambda: read_log(file), RUNS, time.process_time)
        log = read_log(file)
        judge_s = median_s(lambda: replay.analyze(log, Config()), RUNS, time.process_time)
        found = replay.analyze(log, Config())
        leaks = [r.device.index for r in found if r.alerts]
        cores = parallel.usable_cores()
        (alone_s, alone_cpu_s), (together_s, cpu_s) = spread(file, 1), spread(file, cores)
    whole_s = read_s + judge_s
    print(f"{rows:,} rows, {GPUS} GPUs, alerts on GPU {leaks}; CPU time, medians of {RUNS}")
    for name, seconds in (
        ("csv.reader alone", csv_s), ("read_log", read_s), ("judge and policy", judge_s),
        ("analyze (both)", whole_s),
    ):  # fmt: skip
        print(
            f"{name:20} {seconds:7.2f} s {rows / seconds:12,.0f} rows/s "
            f"{seconds / csv_s:6.2f} x csv"
        )
    print(
        f"{LOGS_A_CORE * cores} such logs: {alone_s:.2f} s with one process, {together_s:.2f} s "
        f"with {cores}, {alone_s / together_s:.2f} times as fast; CPU time {alone_cpu_s:.2f} s and "
        f"{cpu_s:.2f} s: what spreading itself costs, whatever else runs here"
    )


if __name__ == "__main__":
    main()
