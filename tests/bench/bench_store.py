"""What the history costs the disk: ``python -m tests.bench.bench_store``.

A day of 8 GPUs x 8 processes, a sample every 5 s, on a simulated clock, through the daemon's own
writer and chores. Utilisation, power, temperature and activity wobble as on busy cards; memory is
flat, but for one process that grows. The file has the rows of months before, so that as much is
deleted as written. Bytes written are counted by the kernel (``/proc/self/io``, which counts a page
once until it is on the disk: so every half minute of the clock the files are synced, as the kernel
does by itself) and by what was passed to ``write``; then the bytes of a row, what the tables come
to at the limits of retention, and what a question takes.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sqlite3
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import Device, DeviceReading, ProcessInfo, ProcessKey, ProcessUse, Sample
from gpuwatchd.store import curves, occupancy, schema
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests.bench.measuring import median_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GPUS, PROCESSES, STEP_S, DAY_S = 8, 8, 5, 86_400
WRITTEN_LIMIT_MB, SIZE_LIMIT_MB = 120, 90
T0 = 1_700_006_400
GIB = 2**30
CARDS = tuple(
    Device(uid=f"GPU-{i}", vendor="nvidia", index=i, name="A100", memory_total_bytes=80 * GIB)
    for i in range(GPUS)
)
KEYS = tuple(
    tuple(ProcessKey(pid=1000 + 10 * i + j, started_at_s=T0 - 9.5) for j in range(PROCESSES))
    for i in range(GPUS)
)
ARGUMENTS = ("python", "train.py", *(f"--option-{i}=value-{i}" for i in range(6)))
INFOS = {
    key: ProcessInfo(
        key=key, name="python", user="alice", argv=ARGUMENTS, program="sha256:" + "a" * 40
    )
    for keys in KEYS
    for key in keys
}


def samples(begin_s: int, end_s: int) -> Iterator[Sample]:
    """Yield the ticks of a span."""
    dice = random.Random(begin_s)
    host = {key: 3 * GIB + key.pid for keys in KEYS for key in keys}
    for at_s in range(begin_s, end_s, STEP_S):
        readings = []
        for i, card in enumerate(CARDS):
            if at_s % 60 == 0:
                # The anonymous memory of one process in eight is another at each reading.
                host[KEYS[i][3]] = 3 * GIB + dice.randrange(2**24) * 4096
            leaked = (at_s - T0) % DAY_S * 200_000 if i == 3 else 0
            uses = tuple(
                ProcessUse(
                    key=ProcessKey(pid=key.pid, started_at_s=key.started_at_s),
                    used_bytes=9 * GIB + key.pid * 2**20 + (leaked if j == 4 else 0),
                    sm_pct=float(dice.randrange(60, 100)),
                    host_bytes=host[key],
                )
                for j, key in enumerate(KEYS[i])
            )
            readings.append(
                DeviceReading(
                    device_uid=card.uid,
                    used_bytes=sum(use.used_bytes or 0 for use in uses) + 2**28,
                    free_bytes=None,
                    total_bytes=80 * GIB,
                    util_pct=float(dice.randrange(80, 101)),
                    memory_util_pct=float(dice.randrange(30, 70)),
                    temp_c=float(dice.randrange(58, 64)),
                    power_w=dice.uniform(250, 400),
                    clock_mhz=float(dice.choice((1395, 1410))),
                    uses=uses,
                )
            )
        yield Sample(
            taken_at_s=float(at_s),
            taken_mono_s=float(at_s - T0),
            boot_id="bench",
            readings=tuple(readings),
        )


class Spent(NamedTuple):
    """What writing a span took."""

    kernel_bytes: int | None
    """None where the system does not count them."""
    passed_bytes: int | None
    cpu_s: float
    """Of the history alone."""


def _counted() -> tuple[int | None, int | None]:
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None, None
    counts = {name: int(count) for name, count in (line.split(": ") for line in lines)}
    return counts["write_bytes"], counts["wchar"]


def live(directory: Path, begin_s: int, end_s: int) -> Spent:
    """Write a span as the daemon does, and say what it took."""
    clock: Callable[[], float] = lambda: now_s  # noqa: E731
    now_s = float(begin_s)
    settings = StoreSection(min_free_mib=0, max_db_mib=1024)
    history = History.open(
        directory, settings, clock=clock, monotonic=lambda: now_s - T0, boot_id="bench"
    )
    # They stay open as long as the history: to close one would drop the locks of SQLite.
    files = [os.open(path, os.O_RDONLY) for path in directory.glob(f"{schema.FILE_NAME}*")]
    before, cpu_s = _counted(), 0.0
    for sample in samples(begin_s, end_s):
        now_s = sample.taken_at_s
        begun_s = time.process_time()
        history.record(sample, CARDS, INFOS, {card.uid: 2**28 for card in CARDS})
        history.flush_due(now_s)
        if now_s % 60 == 15:
            history.chores(now_s)
        cpu_s += time.process_time() - begun_s
        if now_s % 30 == 20:
            for file in files:
                os.fsync(file)
    after = _counted()
    history.close()
    for file in files:
        os.close(file)
    spent = [None if a is None or b is None else a - b for a, b in zip(after, before, strict=True)]
    return Spent(spent[0], spent[1], cpu_s)


TABLES: Final = {
    "gpu_raw": 7,
    "process_raw": 2,
    "gpu_1m": 90,
    "process_1m": 30,
    "gpu_1h": 365,
    "process_1h": 90,
}
"""Days of rows that a file of a year has."""


def age(directory: Path, day: int) -> None:
    """Give a file the rows of the days before, as many as are kept: copies of one day."""
    with closing(sqlite3.connect(directory / schema.FILE_NAME, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for table, days in TABLES.items():
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            at = "ts_ms" if "ts_ms" in names else "ts_s"
            by = 1000 if at == "ts_ms" else 1
            moved = [f"{n} - {by} * :by_s" if n.endswith(at) else n for n in names]
            for back in range(days, 0, -1):
                connection.execute(
                    f"INSERT OR REPLACE INTO {table} SELECT {', '.join(moved)} FROM {table}"
                    f" WHERE {at} >= :from_s * {by} AND {at} < (:from_s + {DAY_S}) * {by}",
                    {"by_s": back * DAY_S, "from_s": day},
                )
        for table in ("gpu", "process"):
            connection.execute(
                f"UPDATE {table} SET first_ts_ms = first_ts_ms - ?",
                (400 * DAY_S * 1000,),
            )
        connection.execute("COMMIT")


def rows_of_day(directory: Path, day: int) -> dict[str, tuple[int, float]]:
    """Return how many rows a day makes in each large table, and the bytes of a row by its pages."""
    out = {}
    with closing(sqlite3.connect(directory / schema.FILE_NAME)) as connection:
        for table in TABLES:
            (total,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            at, by = ("ts_ms", 1000) if table.endswith("_raw") else ("ts_s", 1)
            (count,) = connection.execute(
                f"SELECT count(*) FROM {table} WHERE {at} >= ? AND {at} < ?",
                (day * by, (day + DAY_S) * by),
            ).fetchone()
            before = _used_pages(connection)
            connection.execute("BEGIN")
            connection.execute(f"DELETE FROM {table}")
            after = _used_pages(connection)
            connection.execute("ROLLBACK")
            out[table] = count, (before - after) * schema.PAGE_BYTES / max(total, 1)
    return out


def _used_pages(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages) - int(free)


def questions(directory: Path, end_s: int) -> Iterator[tuple[str, float]]:
    """Yield what a question takes, in milliseconds."""
    process = KEYS[3][4]
    spans = (("1 h", 3600), ("24 h", DAY_S), ("7 d", 7 * DAY_S), ("30 d", 30 * DAY_S))
    with Reader.open(directory) as reader:
        for name, span_s in spans:
            span = float(end_s - span_s), float(end_s)
            asked: dict[str, Callable[[], object]] = {
                "device rows": partial(reader.device_rows, "GPU-3", *span),
                "process rows": partial(reader.process_rows, "GPU-3", *span),
                "picture of a process": partial(
                    reader.ask, curves.of_process, "GPU-3", process, span, 600
                ),
                "who held what": partial(reader.occupancy_by_hour, "GPU-3", *span),
                "coverage": partial(reader.ask, occupancy.holders, *span),
            }
            for what, ask in asked.items():
                yield f"{what}, {name}", median_ms(ask, 3)


def _held(figure: float, limit: float) -> str:
    return f"(at most {limit}: {'met' if figure <= limit else 'missed'})"


def main() -> None:
    """Print the figures beside their targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    parser.add_argument("--hours", type=int, default=24, help="length of what is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        directory = Path(folder)
        live(directory, T0, T0 + DAY_S + 7200)
        rows = rows_of_day(directory, T0)
        age(directory, T0)
        begin_s = T0 + DAY_S + 7200
        end_s = begin_s + options.hours * 3600
        live(directory, begin_s, begin_s + 3600)  # what was too old is gone then
        spent = live(directory, begin_s + 3600, end_s + 3600)
        print(
            f"{GPUS} GPUs x {PROCESSES} processes, every {STEP_S} s, busy; {sqlite3.sqlite_version}"
        )
        for name, count in (("kernel", spent.kernel_bytes), ("passed", spent.passed_bytes)):
            if count is not None:
                print(f"written a day ({name}) {count / 1e6 * 24 / options.hours:8.1f} MB"
                      f" {_held(count / 1e6 * 24 / options.hours, WRITTEN_LIMIT_MB)}")  # fmt: skip
        print(f"CPU a day {spent.cpu_s * 24 / options.hours:8.2f} s, resident at most "
              f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MiB")  # fmt: skip
        total = 0.0
        for table, (count, size) in rows.items():
            total += count * size * TABLES[table]
            print(f"{table:12}{count:8} rows a day {size:6.1f} bytes a row "
                  f"{count * size * TABLES[table] / 1e6:7.1f} MB")  # fmt: skip
        print(f"a node-year {total / 1e6:8.1f} MB {_held(total / 1e6, SIZE_LIMIT_MB)}; the file is "
              f"{(directory / schema.FILE_NAME).stat().st_size / 1e6:.1f} MB")  # fmt: skip
        for what, took_ms in questions(directory, end_s + 3600):
            print(f"{what:32}{took_ms:8.2f} ms")


if __name__ == "__main__":
    main()
