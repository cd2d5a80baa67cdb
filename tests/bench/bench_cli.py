"""What asking once costs, cold: ``python -m tests.bench.bench_cli``.

Whole processes, the rows taken in turns so that a busy moment hits all of them alike; "x ours" is
of CPU time. 8 GPUs with 8 processes each, from the stand-in library, so no driver time is in the
figures; where it cannot be built, the rows that need GPUs are left out and said to be. ``--runs``
changes the effort; ``--against GPUWATCHCTL`` adds the rows of ``status`` with the program of
another checkout, run in turns with ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatchd.store import live
from tests.bench.bench_daemon import BUSY, STATES
from tests.bench.measuring import run_ms, sleepers
from tests.fakenvml import FakeNvml
from tests.tui import world

BIN = Path(sys.executable).parent
GPUS, PROCESSES = STATES[BUSY].gpus, STATES[BUSY].processes
STATUS = "gpuwatchctl status (daemon runs)"
TARGETS_MS = {STATUS: 60.0, "gpuwatchctl --help": 60.0}
NEEDS_GPUS = "left out: the stand-in for the NVIDIA library needs Linux and a C compiler"


class Row(NamedTuple):
    """One command."""

    name: str
    argv: tuple[str, ...]
    runtime: str = "none"
    """Runtime directory: "full" has a live state, "none" has nothing."""
    gpus: bool = False
    """Whether it needs the stand-in."""


ROWS = (
    Row("python -c pass", (sys.executable, "-c", "pass")),
    Row("gpuwatchctl --version", (str(BIN / "gpuwatchctl"), "--version")),
    Row("gpuwatchctl --help", (str(BIN / "gpuwatchctl"), "--help")),
    Row(STATUS, (str(BIN / "gpuwatchctl"), "status"), "full"),
    Row("gpuwatchctl status --json", (str(BIN / "gpuwatchctl"), "status", "--json"), "full"),
    Row("gpuwatchctl status (direct look)", (str(BIN / "gpuwatchctl"), "status"), gpus=True),
    Row("nvitop -1", (str(BIN / "nvitop"), "-1"), gpus=True),
    Row("gpustat --json", (str(BIN / "gpustat"), "--json"), gpus=True),
)


def write_state(directory: Path) -> None:
    """Write the live state of a daemon (ourselves) that watches 8 x 8."""
    directory.mkdir(mode=0o700)
    state = world.state(GPUS, PROCESSES, at_s=time.time() + 3600, pid=os.getpid())
    live.write(directory, msgspec.structs.replace(state, coded=True))


def environment(folder: Path, fake: FakeNvml | None, runtime: str) -> dict[str, str]:
    """Return the environment of one row; byte code is kept, as in an installation."""
    base = dict(os.environ) if fake is None else fake.env()
    base.pop("PYTHONDONTWRITEBYTECODE", None)
    base.pop("PYTHONPATH", None)  # each checkout runs its own code
    return {
        **base,
        "GPUWATCHD_RUNTIME_DIR": str(folder / runtime),
        "GPUWATCHD_STATE_DIR": str(folder / "state"),
        "TERM": "xterm",
    }


def run(runs: int, against: str | None = None) -> dict[str, tuple[float, float] | str]:
    """Return row -> median milliseconds of the wall clock and the CPU, or why there are none."""
    others = [
        row._replace(name=f"{row.name}, the other", argv=(against, *row.argv[1:]))
        for row in ROWS
        if against and row.argv[1] == "status"
    ]
    measured = (*ROWS, *others)
    results: dict[str, tuple[float, float] | str] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    with sleepers(GPUS * PROCESSES) as pids, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeNvml(folder) if FakeNvml.available() else None
        if fake is not None:
            fake.write(*STATES[BUSY].lines(pids))
        write_state(folder / "full")
        rows = {row: environment(folder, fake, row.runtime) for row in measured}
        for number in range(runs + 1):
            for row, environ in rows.items():
                if row.gpus and fake is None:
                    results[row.name] = NEEDS_GPUS
                elif not Path(row.argv[0]).exists():
                    results[row.name] = "not installed"
                else:
                    taken_ms = run_ms(row.argv, environ)
                    if number:  # the first round only fills caches
                        times.setdefault(row.name, []).append(taken_ms)
    for name, taken in times.items():
        wall_ms, cpu_ms = map(statistics.median, zip(*taken, strict=True))
        results[name] = wall_ms, cpu_ms
    return {row.name: results[row.name] for row in measured}


def table(results: dict[str, tuple[float, float] | str], runs: int) -> str:
    """Return the results for people, with how many times dearer than ours each is."""
    ours = results[STATUS]
    lines = [
        f"{GPUS} GPUs x {PROCESSES} processes, medians of {runs} cold starts, no driver time",
        f"{'':44} {'wall ms':>9} {'CPU ms':>9} {'x ours':>8}",
    ]
    for name, value in results.items():
        if isinstance(value, str) or isinstance(ours, str):
            lines.append(f"{name:44} {value}")
        else:
            most = TARGETS_MS.get(name, value[1])
            over = f"  NOT MET: at most {most:.0f} ms of CPU" if value[1] > most else ""
            row = f"{value[0]:9.1f} {value[1]:9.1f} {value[1] / ours[1]:8.2f}{over}"
            lines.append(f"{name:44} {row}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="cold wall time of asking once")
    parser.add_argument("--runs", type=int, default=15, help="runs per row")
    parser.add_argument("--against", metavar="GPUWATCHCTL", help="of another checkout")
    options = parser.parse_args()
    results = run(options.runs, options.against)
    print(table(results, options.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
