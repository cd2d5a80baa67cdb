# ruff: noqa: INP001
"""Write an nvidia-smi CSV log of a chosen shape, to try ``gpuwatchctl analyze`` without a GPU.

The columns are those of::

    nvidia-smi --query-gpu=timestamp,index,name,memory.used,memory.total,utilization.gpu \
               --format=csv -l 5
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024**2
HEADER = "timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"
_BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def _gradual(age_s: float, rate: float) -> float:
    return rate * age_s / 60


def _steps(age_s: float, rate: float) -> float:
    return age_s // 600 * rate * 10


def _cyclic(age_s: float, rate: float) -> float:
    return age_s // 300 * rate * 5 + 1500 * (age_s % 300) / 300


def _warmup(age_s: float, rate: float) -> float:
    return rate * 60 * -math.expm1(-age_s / 900)


def _sawtooth(age_s: float, rate: float) -> float:
    return rate * (age_s % 240) / 60 * 10


def _spike(age_s: float, rate: float) -> float:
    return rate * 40 if age_s > 1800 else 0.0


def _flat(age_s: float, rate: float) -> float:  # noqa: ARG001 - flat at any rate
    return 0.0


SHAPES: dict[str, Callable[[float, float], float]] = {
    "gradual": _gradual,
    "steps": _steps,
    "cyclic": _cyclic,
    "warmup": _warmup,
    "sawtooth": _sawtooth,
    "spike": _spike,
    "flat": _flat,
}
"""Shape -> (seconds since the start, MB/min) -> MB above the start."""


def rows(flags: argparse.Namespace) -> Iterator[str]:
    """Yield the log line by line, header first, until the time is over or the card is full."""
    yield HEADER
    dice = random.Random(flags.seed)  # noqa: S311 - noise, not secrets
    shape = SHAPES[flags.shape]
    steps = int(flags.hours * 3600 / flags.interval)
    for step in range(steps + 1):
        age_s = step * flags.interval
        used_mib = flags.start + shape(age_s, flags.rate) * 1e6 / MIB
        used_mib += dice.gauss(0.0, flags.noise) if flags.noise else 0.0
        if used_mib >= flags.total:
            return  # the process would have died here, and the log of it ends
        stamp = (_BEGIN + timedelta(seconds=age_s)).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        used = max(0, round(used_mib))
        yield f"{stamp}, 0, {flags.name}, {used} MiB, {flags.total} MiB, {dice.randint(70, 99)} %"


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Write an nvidia-smi CSV log of a chosen shape.")
    flags.add_argument("shape", choices=SHAPES)
    flags.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    flags.add_argument(
        "--rate", type=float, default=50.0, metavar="MB/MIN", help="default %(default)g"
    )
    flags.add_argument(
        "--start", type=float, default=12288.0, metavar="MIB", help="default %(default)g"
    )
    flags.add_argument(
        "--total", type=int, default=24564, metavar="MIB", help="default %(default)d"
    )
    flags.add_argument("--hours", type=float, default=2.0, metavar="H", help="default %(default)g")
    flags.add_argument(
        "--interval", type=float, default=5.0, metavar="S", help="default %(default)g"
    )
    flags.add_argument(
        "--noise", type=float, default=8.0, metavar="MIB", help="default %(default)g"
    )
    flags.add_argument("--seed", type=int, default=7, help="default %(default)d")
    flags.add_argument("--name", default="NVIDIA GeForce RTX 4090", help="default %(default)s")
    return flags


def _write(flags: argparse.Namespace, stream: TextIO) -> None:
    stream.writelines(row + "\n" for row in rows(flags))
    stream.flush()


def main(argv: list[str] | None = None) -> int:
    """Write the log; return the exit code."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if flags.interval <= 0 or flags.hours <= 0 or flags.total <= 0:
        parser.error("--interval, --hours and --total must be more than 0")
    try:
        if flags.output is None:
            _write(flags, sys.stdout)
            return 0
        with Path(flags.output).open("w", encoding="utf-8") as stream:
            _write(flags, stream)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        sys.stderr.write(f"make_log: {flags.output or 'stdout'}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
