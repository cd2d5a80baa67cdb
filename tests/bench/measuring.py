"""What several benchmarks need: processes that do nothing, and the middle of some runs."""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """Start processes that do nothing; yield their pids."""
    children = [subprocess.Popen(["sleep", "3600"]) for _ in range(count)]
    try:
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def run_ms(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, float]:
    """Run a program to its end; return its milliseconds of the wall clock, and of the CPU."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=env, capture_output=True, check=False, timeout=120)
    wall_ms = 1000 * (time.perf_counter() - begun_s)
    if done.returncode:
        # However fast it was.
        raise RuntimeError(f"{words}: exit {done.returncode}: {done.stderr.decode()[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_ms, 1000 * used_s


def median_s(
    work: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median seconds of some runs."""
    taken = []
    for _ in range(runs):
        begun_s = clock()
        work()
        taken.append(clock() - begun_s)
    return statistics.median(taken)


def median_ms(work: Callable[[], object], runs: int = 15) -> float:
    """Return the median milliseconds of some runs."""
    return 1000 * median_s(work, runs)
