"""Rows per second of reading a log: ``python -m tests.bench.bench_parse``.

Beside it, in the same run and on the same file, what the csv module takes only to split the rows,
and what numpy takes to pick two columns out of them without looking at any for damage. Processor
time, so that other work on the machine counts little; the ratios are what to compare.
"""

from __future__ import annotations

import csv
import tempfile
import time
from pathlib import Path

import numpy as np

from gpuwatchd.collect.replay import read_log
from tests.bench.measuring import median_s

GPUS, SECONDS, RUNS = 8, 60_000, 5
HEADER = "timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"


def write(file: Path, *, torn: bool = False, units: bool = True) -> int:
    """Write eight GPUs at one sample a second; with ``torn`` every 500th row is cut short."""
    mib = " MiB" if units else ""
    with file.open("w") as out:
        out.write(HEADER)
        for second in range(SECONDS):
            hour, rest = divmod(second, 3600)
            stamp = f"2026/04/{1 + hour // 24:02d} {hour % 24:02d}:{rest // 60:02d}:{rest % 60:02d}"
            out.writelines(
                f"{stamp}.{(second * 7 + gpu) % 1000:03d}, {gpu}, Example GPU 80GB, "
                f"{3000 + (second + gpu * 77) % 40000}{mib}, 81559{mib}, {second % 100} %\n"
                for gpu in range(GPUS)
            )
            if torn and second % 60 == 59:
                out.write(f"{stamp}.999, 0, Example GPU 8\n")
    return GPUS * SECONDS + (SECONDS // 60 if torn else 0)


def split_only(file: Path) -> int:
    """Return the number of rows that the csv module splits."""
    with file.open(newline="") as source:
        return sum(1 for _ in csv.reader(source))


def two_columns(file: Path) -> float:
    """Return a sum over index and memory, picked out by numpy."""
    table = np.loadtxt(
        file, delimiter=",", skiprows=1, usecols=(1, 3), converters={3: _number}, encoding="utf-8"
    )
    return float(table.sum())


def _number(text: str) -> float:
    return float(text.split(maxsplit=1)[0])


def main() -> None:
    """Print the figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        plain, torn = Path(folder) / "plain.csv", Path(folder) / "torn.csv"
        rows, more = write(plain), write(torn, torn=True)
        log = read_log(plain)
        assert (log.rows, log.bad_rows, len(log.series)) == (rows, 0, GPUS)
        ours = rows / median_s(lambda: read_log(plain), RUNS, time.process_time)
        damaged = more / median_s(lambda: read_log(torn), RUNS, time.process_time)
        module = rows / median_s(lambda: split_only(plain), RUNS, time.process_time)
        table = rows / median_s(lambda: two_columns(plain), RUNS, time.process_time)
    print(f"{rows:,} rows")
    for name, speed in (
        ("read_log", ours),
        ("read_log, a torn row in each 480", damaged),
        ("csv module, splitting only", module),
        ("numpy.loadtxt, two columns only", table),
    ):
        print(f"{name:36} {speed:12,.0f} rows/s   {speed / ours:5.2f} of read_log")


if __name__ == "__main__":
    main()
