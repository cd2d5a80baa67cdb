"""What the probe costs a job: ``python -m tests.bench.bench_probe``.

The start of an interpreter with `run` and without it; a training step with it and without it, where
``--torch PYTHON`` names an interpreter with PyTorch; and how long the job stands still for one
census, beside a bare fork of the same process and a collection of its heap.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BOOT = Path(__file__).resolve().parents[2] / "gpuwatchd" / "probe" / "boot"
GIB = 1 << 30
STEP = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, 128)
def step():
    optimizer.zero_grad(); model(batch).mean().backward(); optimizer.step()
for _ in range(50): step()
time.sleep(float(sys.argv[1]))
begun = time.perf_counter()
for _ in range(400): step()
print((time.perf_counter() - begun) / 400)
"""
PAUSE = """
import ctypes, gc, json, mmap, os, statistics, sys, time
from _gpuwatchd_probe import heap, inspection
class Tensor:
    shape, nbytes = (1,), 4
objects, resident, rounds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
kept = [[Tensor()] if number % 50 == 0 else [number] for number in range(objects)]
pages = mmap.mmap(-1, resident, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, resident, 4096):
    pages[place] = 1
fork = ctypes.PyDLL(None).fork
def bare():
    begun = time.perf_counter()
    pid = fork()
    if not pid:
        os._exit(0)
    took = time.perf_counter() - begun
    os.waitpid(pid, 0)
    return 1000 * took
def census():
    begun = time.perf_counter()
    answer = heap.in_child(lambda: inspection._in_child((Tensor,), [], 60.0, last=False), 60.0)
    return answer["pause_ms"], 1000 * (time.perf_counter() - begun)
def collect():
    begun = time.perf_counter()
    gc.collect()
    return 1000 * (time.perf_counter() - begun)
bares, pauses, wholes, collects = [], [], [], []
for _ in range(rounds):
    bares.append(bare())
    pause, whole = census()
    pauses.append(pause); wholes.append(whole); collects.append(collect())
middle = {"fork": bares, "pause": pauses, "child": wholes, "collect": collects}
print(json.dumps({name: round(statistics.median(row), 2) for name, row in middle.items()}))
"""


def compiled(python: str, folder: str) -> Path:
    """Return a copy of what `run` puts in front, compiled as pip does it."""
    boot = Path(shutil.copytree(BOOT, Path(folder) / "boot"))
    subprocess.run([python, "-m", "compileall", "-q", str(boot)], check=True)
    return boot


def started(python: str, runs: int, boot: Path | None) -> list[float]:
    """Return the seconds that a bare interpreter takes, of each run."""
    took = []
    for _ in range(runs):
        begun_s = time.perf_counter()
        subprocess.run([python, "-c", "pass"], check=True, env=environ(boot))
        took.append(time.perf_counter() - begun_s)
    return took


def environ(boot: Path | None) -> dict[str, str]:
    """Return the environment that `run` would make; after `execvp` nothing else of it is left."""
    more = {"PYTHONPATH": str(boot), "GPUWATCHD_PROBE": "1"} if boot else {}
    more |= {"GPUWATCHD_PROBE_DIR": tempfile.gettempdir() + "/bench-probe"} if boot else {}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def output(command: list[str], env: dict[str, str]) -> str:
    """Return what a command prints; what it says of a failure ends this one."""
    answer = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if answer.returncode:
        raise SystemExit(answer.stderr)
    return answer.stdout


def start_ratio(python: str, runs: int) -> float:
    """Return the best of three ratios of first quartiles."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        boot = compiled(python, folder)
        for _ in range(3):
            plain, with_probe = (
                statistics.quantiles(started(python, runs, place))[0] for place in (None, boot)
            )
            ratios.append(with_probe / plain)
    return min(ratios)


def steps(python: str, pairs: int, wait_s: float) -> dict[str, float]:
    """Return the median of the paired differences of a step, in per cent, and their spread."""
    changes = []
    for number in range(pairs):
        took = {}
        for probe in (number % 2 == 0, number % 2 == 1):
            command = [python, "-c", STEP, str(wait_s)]
            took[probe] = float(output(command, environ(BOOT if probe else None)))
        changes.append(100 * (took[True] / took[False] - 1))
    low, middle, high = statistics.quantiles(changes)
    return {"lower_pct": low, "median_pct": middle, "upper_pct": high}


def paused(python: str, objects: int, resident: int, rounds: int) -> Any:
    """Return the middle figures of a heap of so many objects and bytes, in milliseconds."""
    command = [python, "-c", PAUSE, str(objects), str(resident), str(rounds)]
    return json.loads(output(command, environ(BOOT)))


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="what the probe costs a job")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", help="an interpreter with PyTorch, for the step")
    parser.add_argument("--runs", type=int, default=30, help="starts of an interpreter")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gib", type=float, nargs="*", default=[2.0, 6.0], help="resident memory")
    parser.add_argument("--objects", type=float, nargs="*", default=[2e5, 2e6])
    asked = parser.parse_args()
    if asked.runs:
        print(
            f"start: {start_ratio(asked.python, asked.runs):.2f} x a bare interpreter", flush=True
        )
    if asked.torch:
        print("step:", steps(asked.torch, asked.pairs, 11.0), flush=True)
    for gib in asked.gib:
        for objects in asked.objects:
            figures = paused(asked.python, int(objects), int(gib * GIB), asked.rounds)
            ratio = figures["pause"] / figures["fork"]
            print(f"{objects:.0e} objects, {gib} GiB: {figures}, {ratio:.2f} x fork", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
