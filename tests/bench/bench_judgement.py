"""What a judgement costs beside another checkout: ``python -m tests.bench.bench_judgement FOLDER``.

The same series are judged by both in turns, each in a process of its own; a ratio is the median
over the rounds of this checkout's best time by the other's. Processor time, one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.forecast import profile
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Series, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import FloatArray

MIB, GIB = 2.0**20, 2.0**30
RUN_S = 14_400.0
HERE = Path(__file__).resolve()


def series(t: FloatArray, used: FloatArray, **more: object) -> Series:
    """Return it in quanta of 2 MiB on a card of 24 GiB."""
    quanta = np.round(used / (2 * MIB)) * 2 * MIB
    return Series(
        subject=Subject(device_uid="G"), t_s=t, used_bytes=quanta, limit_bytes=24 * GIB,
        total_bytes=24 * GIB, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def shapes(t: FloatArray) -> dict[str, FloatArray]:
    """Return one curve of each kind, bytes."""
    cycle = 3e9 * ((t % 600) / 600)
    noise = np.random.default_rng(1).normal(0.0, 50 * MIB, t.size)
    return {
        "flat": np.full(t.size, 6e9),
        "leak": 8e9 + 3e5 * t,
        "noisy leak": 8e9 + 3e5 * t + noise,
        "sawtooth": 8e9 + cycle,
        "staircase": 8e9 + np.floor(t / 600) * 2e8,
        "cyclic": 8e9 + 1e5 * t + cycle,
        "warm-up": 8e9 + 4e9 * (1 - np.exp(-t / 1200)),
    }


def ramp(t: FloatArray, scale: float = 1.0) -> FloatArray:
    """Return a run whose memory rises for fifty minutes, then stays."""
    return 4e9 + 6e9 * scale * np.clip((t - 300) / 3000, 0, 1)


def stairs(t: FloatArray, scale: float = 1.0) -> FloatArray:
    """Return a run of five steps."""
    steps = np.searchsorted(np.array((600, 1500, 2400, 3600, 4800)) * scale, t, side="right")
    return np.asarray(4e9 + 1.2e9 * scale * steps)


def earlier(run: Callable[[FloatArray, float], FloatArray]) -> tuple[object, ...]:
    """Return the profiles of five earlier runs."""
    t = np.arange(0.0, RUN_S, 10.0)
    return tuple(
        profile(
            series(t, run(t, scale), age_s=0.0),
            busy=np.full(t.size, 90.0),
            ended_at_s=1e6 * number + RUN_S,
        )
        for number, scale in enumerate((1.0, 0.97, 1.04, 1.01, 0.98))
    )


def cases() -> dict[str, Series]:
    """Return what is judged: plain curves, and curves of programs with five earlier runs."""
    out: dict[str, Series] = {}
    for hours in (1.0, 6.4):
        t = np.arange(0.0, hours * 3600.0, 10.0)
        out |= {f"{name}, {hours} h": series(t, used) for name, used in shapes(t).items()}
    ramps, steps = earlier(ramp), earlier(stairs)
    for hours in (0.6, 1.0, 3.0):
        t = np.arange(0.0, hours * 3600.0, 10.0)
        curves = {
            "5 ramps, ramp": (ramp(t), ramps),
            "5 stairs, stairs": (stairs(t), steps),
            "5 ramps, leak": (4e9 + 1.5e6 * t, ramps),
            "5 stairs, leak": (4e9 + 1.2e6 * t, steps),
            "5 ramps, flat": (np.full(t.size, 4e9), ramps),
            "5 stairs, sawtooth": (4e9 + 3e9 * ((t % 600) / 600), steps),
        }
        for name, (used, history) in curves.items():
            out[f"{name}, {hours} h"] = series(t, used, history=history, age_s=float(t[-1]))
    return out


def serve() -> None:
    """Judge what is asked for, by name; answer with the best of ten, microseconds."""
    settings, known = DetectionSection(), cases()
    for line in sys.stdin:
        one, taken = known[line.strip()], []
        for _ in range(11):
            begun_s = time.process_time()
            verdict.judge(one, settings)
            taken.append(time.process_time() - begun_s)
        print(min(taken) * 1e6, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="folder of another checkout")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    if asked.other is None:
        print("nothing to compare with: name the folder of another checkout")
        return
    if not (asked.other / "gpuwatchd" / "__init__.py").is_file():
        parser.error(f"{asked.other} is no checkout of gpuwatchd")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", f"import runpy; runpy.run_path({str(HERE)!r})['serve']()"],
            env={**os.environ, "PYTHONPATH": str(folder.resolve()), "OPENBLAS_NUM_THREADS": "1"},
            cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for folder in (asked.other, HERE.parents[2])
    ]  # fmt: skip

    def ask(number: int, name: str) -> float:
        stdin, stdout = workers[number].stdin, workers[number].stdout
        assert stdin is not None
        assert stdout is not None
        print(name, file=stdin, flush=True)
        return float(stdout.readline())

    out = {}
    for name in cases():
        pairs = []
        for number in range(asked.rounds):
            first = number % 2
            taken = {which: ask(which, name) for which in (first, 1 - first)}
            pairs.append((taken[0], taken[1]))
        out[name] = {
            "other_us": min(other for other, _ in pairs),
            "us": min(ours for _, ours in pairs),
            "ratio": statistics.median(ours / other for other, ours in pairs),
        }
    for worker in workers:
        worker.communicate()
    for name, row in out.items():
        print(f"{name:26} {row['other_us']:7.0f} us  {row['us']:7.0f} us  {row['ratio']:.3f}")
    ratios = [row["ratio"] for row in out.values()]
    print(f"ratio: median {statistics.median(ratios):.3f}, largest {max(ratios):.3f}")


if __name__ == "__main__":
    main()
