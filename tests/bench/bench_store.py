"""What the history costs: ``python -m tests.bench.bench_store``.

Eight devices with eight processes each, a sample every 5 s for six hours, written as the daemon
does; beside it, in the same run, bare ``sqlite3`` with one ``executemany`` a flush into the same
tables. Then thirty days of roll-ups and what a question over them takes.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import time
from bisect import bisect_left
from contextlib import closing
from pathlib import Path

from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import (
    Alert,
    Delivery,
    Device,
    DeviceReading,
    Finding,
    Message,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    Subject,
)
from gpuwatchd.store import schema
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests.bench.measuring import median_ms

GPUS, PROCESSES, STEP_S, TICKS, FLUSH_TICKS = 8, 8, 5, 6 * 720, 12
DAYS = 30
T0 = 1_700_002_800
GIB = 2**30
CARDS = tuple(
    Device(uid=f"GPU-{i}", vendor="nvidia", index=i, name="A100", memory_total_bytes=80 * GIB)
    for i in range(GPUS)
)
KEYS = tuple(
    tuple(ProcessKey(pid=1000 + 10 * i + j, started_at_s=T0 - 9.5) for j in range(PROCESSES))
    for i in range(GPUS)
)
INFOS = {
    key: ProcessInfo(key=key, name="python", user="alice", argv=("python", "train.py"))
    for keys in KEYS
    for key in keys
}


def samples() -> list[Sample]:
    """Return the ticks; every fifth process changes in every tick, the others do not."""
    dice = random.Random(1)
    out = []
    for tick in range(TICKS):
        readings = []
        for i, card in enumerate(CARDS):
            uses = tuple(
                # A new key object each time, as a source makes them.
                ProcessUse(
                    key=ProcessKey(pid=key.pid, started_at_s=key.started_at_s),
                    used_bytes=4 * GIB + (dice.randrange(2**28) if key.pid % 5 == 0 else 0),
                )
                for key in KEYS[i]
            )
            readings.append(
                DeviceReading(
                    device_uid=card.uid,
                    used_bytes=sum(use.used_bytes or 0 for use in uses),
                    free_bytes=None,
                    total_bytes=80 * GIB,
                    util_pct=dice.uniform(0, 100),
                    memory_util_pct=dice.uniform(0, 100),
                    temp_c=60.0,
                    power_w=dice.uniform(80, 400),
                    clock_mhz=1410.0,
                    uses=uses,
                )
            )
        out.append(
            Sample(
                taken_at_s=float(T0 + STEP_S * tick),
                taken_mono_s=float(STEP_S * tick),
                boot_id="bench",
                readings=tuple(readings),
            )
        )
    return out


def ours(directory: Path, ticks: list[Sample]) -> tuple[list[float], list[float]]:
    """Write the ticks as the daemon does; return the seconds of each record and each flush."""
    settings = StoreSection(min_free_mib=0)
    history = History.open(directory, settings, clock=lambda: T0, boot_id="bench")
    records, flushes = [], []
    for tick, sample in enumerate(ticks):
        start = time.perf_counter()
        history.record(sample, CARDS, INFOS)
        middle = time.perf_counter()
        if tick % FLUSH_TICKS == FLUSH_TICKS - 1:
            history.flush(sample.taken_at_s)
            flushes.append(time.perf_counter() - middle)
        records.append(middle - start)
    history.close()
    return records, flushes


def bare(directory: Path, rows: tuple[list[tuple[int, ...]], list[tuple[int, ...]]]) -> float:
    """Write the same rows with executemany, one transaction a flush; return the seconds."""
    History.open(directory, StoreSection(), boot_id="bench").close()
    with closing(sqlite3.connect(directory / schema.FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        start = time.perf_counter()
        width_ms = STEP_S * FLUSH_TICKS * 1000
        for flush in range(TICKS // FLUSH_TICKS):
            low, high = T0 * 1000 + flush * width_ms, T0 * 1000 + (flush + 1) * width_ms
            connection.execute("BEGIN IMMEDIATE")
            for table, values in zip(("gpu_raw", "process_raw"), rows, strict=True):
                part = values[bisect_left(values, (low,)) : bisect_left(values, (high,))]
                marks = ",".join("?" * len(values[0]))
                connection.executemany(f"INSERT INTO {table} VALUES({marks})", part)
            connection.execute("COMMIT")
        return time.perf_counter() - start


def written(directory: Path) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the raw rows of a history."""
    with closing(sqlite3.connect(directory / schema.FILE_NAME)) as connection:
        return (
            connection.execute("SELECT * FROM gpu_raw").fetchall(),
            connection.execute("SELECT * FROM process_raw").fetchall(),
        )


def row_bytes(directory: Path) -> dict[str, float]:
    """Return the bytes of a row of each large table, by the pages that it fills."""
    out = {}
    with closing(sqlite3.connect(directory / schema.FILE_NAME)) as connection:
        for table in ("gpu_raw", "process_raw"):
            (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            before = _used_pages(connection)
            connection.execute("BEGIN")
            connection.execute(f"DELETE FROM {table}")
            after = _used_pages(connection)
            connection.execute("ROLLBACK")
            out[table] = (before - after) * schema.PAGE_BYTES / count
    return out


def _used_pages(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages) - int(free)


def fill_month(directory: Path) -> None:
    """Write thirty days: seven of raw rows, and roll-ups of all."""
    history = History.open(directory, StoreSection(min_free_mib=0, max_db_mib=1024), boot_id="b")
    for sample in samples()[:1]:
        history.record(sample, CARDS, INFOS)
    history.flush(T0)
    history.close()
    minutes = DAYS * 1440
    with closing(sqlite3.connect(directory / schema.FILE_NAME, isolation_level=None)) as connection:
        count = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {})"
        connection.executescript(
            f"""BEGIN;
            INSERT INTO gpu_raw(ts_ms, gpu, used_bytes, util_percent, mem_util_percent, temp_c,
              power_mw, clock_mhz) {count.format(7 * 86400 // STEP_S)}
              SELECT {T0 + 23 * 86400}000 + i * {STEP_S * 1000}, g.id, 40000000000 + i, i % 100, 5,
                60, 300000, 1410 FROM c, gpu g ORDER BY 1, 2;
            INSERT OR REPLACE INTO gpu_1m {count.format(minutes)}
              SELECT g.id, {T0} + i * 60, 12, 4000000000, 4000000000 + i, 40000000000 + i,
                40000000000, 50, 60, 18000000 FROM gpu g, c;
            INSERT OR REPLACE INTO gpu_1h {count.format(minutes // 60)}
              SELECT g.id, {T0} + i * 3600, 720, 4000000000, 4000000000 + i, 40000000000 + i,
                40000000000, 50, 60, 1080000000 FROM gpu g, c;
            INSERT OR REPLACE INTO meta VALUES('gpu_1m.until', '{T0 + DAYS * 86400}'),
              ('gpu_1h.until', '{T0 + DAYS * 86400}');
            COMMIT; ANALYZE;"""
        )


def alert_ms(directory: Path) -> float:
    """Return the median time of an alert with its mail, synced fully."""
    history = History.open(directory, StoreSection(min_free_mib=0), boot_id="bench")
    subject = Subject(device_uid="GPU-0", process=KEYS[0][0])
    finding = Finding(
        id="f", subject=subject, judged_at_s=T0, pattern="gradual", tier="alert",
        severity="warning", confidence=0.9, rate_bytes_per_s=1e5, eta=None,
    )  # fmt: skip
    numbers = iter(range(1000))

    def one() -> None:
        number = next(numbers)
        alert = Alert(
            key=f"leak:{number}", kind="leak", subject=subject, state="firing",
            severity="warning", finding=finding, opened_at_s=T0, changed_at_s=T0,
        )  # fmt: skip
        message = Message(
            id=f"m{number}", notice="firing", severity="warning", subject="s", body="b" * 500
        )
        mail = Delivery(
            alert_key=alert.key, channel="email", message=message, state="pending", attempts=0,
            created_at_s=T0,
        )  # fmt: skip
        history.apply([alert], [mail])

    found = median_ms(one, 60)
    history.close()
    return found


def main() -> None:
    """Print the figures."""
    ticks = samples()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        records, flushes = ours(root / "ours", ticks)
        raw = written(root / "ours")
        ours_s, bare_s = sum(flushes), bare(root / "bare", raw)
        total = sum(map(len, raw))
        print(f"{GPUS} GPUs x {PROCESSES} processes, {STEP_S} s, {TICKS} ticks, {total} rows")
        print(f"record, a tick          {statistics.median(records) * 1e6:8.1f} µs (median)")
        print(f"flush, every 60 s       {statistics.median(flushes) * 1e3:8.2f} ms (median)")
        print(f"flush, a tick           {ours_s / TICKS * 1e6:8.1f} µs (mean)")
        print(f"bare executemany, a tick{bare_s / TICKS * 1e6:8.1f} µs: ours is "
              f"{ours_s / bare_s:.1f} times that")  # fmt: skip
        share = len(raw[1]) / (TICKS * GPUS * PROCESSES)
        print(f"process rows kept       {share * 100:8.1f} % (20 % of processes change)")
        for table, size in row_bytes(root / "ours").items():
            print(f"{table:24}{size:8.1f} bytes a row")
        print(f"alert + mail, FULL sync {alert_ms(root / 'ours'):8.2f} ms (median)")
        fill_month(root / "month")
        size = (root / "month" / schema.FILE_NAME).stat().st_size
        print(f"\n{DAYS} days: {size / 2**20:.1f} MiB")
        end = float(T0 + DAYS * 86400)
        with Reader.open(root / "month") as reader:
            for name, span_s in (("30 d", 30 * 86400), ("14 d", 14 * 86400), ("24 h", 86400),
                                 ("6 h", 6 * 3600), ("1 h", 3600)):  # fmt: skip
                found = len(reader.device_rows("GPU-3", end - span_s, end))
                cost = median_ms(lambda s=span_s: reader.device_rows("GPU-3", end - s, end))  # type: ignore[misc]
                print(f"one GPU, {name:>4}          {cost:8.2f} ms for {found} rows")
            query = "SELECT * FROM gpu_raw WHERE gpu = 4"
            cost = median_ms(lambda: reader.ask(lambda it: it.execute(query).fetchall()), 5)
            print(f"one GPU, all raw rows (7 d, what is avoided) {cost:8.2f} ms")


if __name__ == "__main__":
    main()
