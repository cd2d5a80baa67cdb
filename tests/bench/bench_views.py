"""What looking at thirty days of eight GPUs costs: ``python -m tests.bench.bench_views``.

Every picture is compared with a bare query of the same rows by the standard library's sqlite3, in
the same run: the ratio bears a busy machine, the milliseconds do not. Then whole commands, each a
process of its own, with the state that a daemon left behind and from the history alone; beside the
wall clock stands the CPU time, which a busy machine stretches less.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tests import histories
from tests.bench.measuring import median_ms, run_ms

DAY_S = 86_400.0
_COLUMNS = "used_min_bytes, used_mean_bytes, used_max_bytes"
_CALL = "import sys; from gpuwatchd.cli import main; sys.exit(main())"
VERBS = (
    ("plot",), ("plot", "0", "--since", "30d"), ("plot", "--pid", "10001"),
    ("plot", "--user", "*", "--since", "30d"), ("cost", "--since", "30d"),
    ("report", "--since", "30d", "--output", "-", "--format", "html"),
    ("history", "--since", "30d"),
)  # fmt: skip


def leave_state(runtime: Path) -> None:
    """Write the live state of a daemon that has ended: what the history says was there last."""
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.store import live
    from gpuwatchd.view.queries import history_query

    view = history_query.judged(Globals(), [])
    assert view is not None
    runtime.mkdir(exist_ok=True)
    at_s = view.taken_at_s
    live.write(
        runtime,
        live.LiveState(pid=2**22 - 1, version="", started_at_s=at_s, taken_at_s=at_s,
                       interval_s=5.0, devices=view.devices),
    )  # fmt: skip


def verbs(runs: int) -> dict[str, tuple[float, float]]:
    """Return command -> (milliseconds of the wall clock, of the CPU), medians."""
    found: dict[str, tuple[float, float]] = {}
    for words in VERBS:
        taken = [run_ms([sys.executable, "-c", _CALL, *words]) for _ in range(runs)]
        wall_ms, cpu_ms = map(statistics.median, zip(*taken, strict=True))
        found[" ".join(words)] = (wall_ms, cpu_ms)
    return found


def measure(directory: Path, runs: int) -> dict[str, tuple[float, float | None]]:
    """Return row -> (milliseconds, milliseconds of the bare query or None)."""
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.view.queries import charts, cost_entries, current_state, history_query

    now_s = time.time()
    found: dict[str, tuple[float, float | None]] = {}
    view = current_state.load_view(Globals(), want_trend=True)
    item = view.devices[0]
    process = (item.processes or ())[0]
    path = directory / "history.db"
    with (
        history_query.reader() as history,
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as it,
    ):

        def bare(query: str) -> float:
            return median_ms(lambda: it.execute(query).fetchall(), runs)

        for name, days in (("30 days", 30), ("7 days", 7), ("24 h", 1)):
            asked = charts.Asked(now_s - days * DAY_S, now_s)
            rows, since = ("1h" if days > 14 else "1m"), int(asked.begin_s)
            found[f"a device, {name}"] = (
                median_ms(lambda a=asked: charts.of_device(history, view, item, a), runs),  # type: ignore[misc]
                bare(f"SELECT {_COLUMNS} FROM gpu_{rows} WHERE gpu = 1 AND ts_s >= {since}"),
            )
            found[f"a process, {name}"] = (
                median_ms(lambda a=asked: charts.of_process(history, view, item, process, a), runs),  # type: ignore[misc]
                bare(
                    "SELECT used_max_bytes, used_last_bytes FROM process_"
                    f"{rows} WHERE process = 1 AND gpu = 1 AND ts_s >= {since}"
                ),
            )
        asked = charts.Asked(now_s - 30 * DAY_S, now_s)
        found["8 devices, 30 days"] = (
            median_ms(
                lambda: [charts.of_device(history, view, one, asked) for one in view.devices], runs
            ),
            bare(f"SELECT {_COLUMNS} FROM gpu_1h WHERE ts_s >= {int(asked.begin_s)}"),
        )
    found["cost of 30 days"] = (
        median_ms(lambda: cost_entries.gather(Globals(), now_s - 30 * DAY_S), runs),
        None,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="cost of looking at 30 days of 8 GPUs")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GPUWATCHD_STATE_DIR": folder, "GPUWATCHD_RUNTIME_DIR": f"{folder}/run"}
        histories.thirty_days(Path(folder))
        found = measure(Path(folder), options.runs)
        alone = verbs(min(options.runs, 3))
        leave_state(Path(folder) / "run")
        beside_state = verbs(min(options.runs, 3))
    print(f"30 days, 8 GPUs, 1,248 processes; medians of {options.runs}")
    print(f"{'':24} {'ms':>8} {'bare ms':>8} {'ratio':>7}")
    for name, (ours, bare) in found.items():
        beside = "" if bare is None else f"{bare:8.2f} {ours / bare:7.1f}"
        print(f"{name:24} {ours:8.1f} {beside}")
    print(f"\n{'gpuwatchctl ...':46} {'history alone':>16} {'live state':>16}   wall/CPU ms")
    for name, (wall, cpu) in alone.items():
        other = beside_state[name]
        print(f"{name:46} {wall:8.0f}/{cpu:7.0f} {other[0]:8.0f}/{other[1]:7.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
