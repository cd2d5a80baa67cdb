"""Histories to look at: thirty days of eight GPUs, none at all, one sample, a crowd, rude names.

Each is written into a state directory. The long one takes some seconds to make: it is kept below
``build/`` under a name that says what it was made of, and copied from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import Alert, EtaRange, Finding, ProcessKey, Subject
from gpuwatchd.store import database, records, retention, schema

if TYPE_CHECKING:
    from collections.abc import Iterator

GPUS: Final = 8
DAYS: Final = 30
BOOT: Final = "boot-histories"
TOTAL: Final = 80 * 1024**3
GAPS: Final = ((20.0, 65), (10.0, 40), (2.0, 25))
"""(days ago, minutes): what is missing, 2 h 10 min in all."""
LIVES: Final = (1, 5, 30, 120)
"""Processes one after the other in each of the four places of a GPU."""
NAMES: Final = ("python", "ollama", "python", "python")
_HOUR_S: Final = 3600
_BUILD: Final = Path(__file__).resolve().parent.parent / "build" / "histories"


def uid(gpu: int) -> str:
    """Return the UUID of a card."""
    return f"GPU-{gpu:08x}-5e1f-4a3b-9c1d-000000000000"


def thirty_days(directory: Path, now_s: float | None = None) -> None:
    """Write thirty days of eight GPUs with four processes each, ending now.

    Of devices every sample of the last day is there, of processes of the last 6 h; roll-ups are as
    the daemon leaves them. GPU 0's first process has leaked since 20 h, with an open alert.
    """
    now_s = time.time() if now_s is None else now_s
    until_s = (int(now_s) // _HOUR_S + 1) * _HOUR_S
    path = directory / schema.FILE_NAME
    shutil.copyfile(_cached(until_s), path)
    with _writing(path) as it:
        _cut(it, now_s)


def _cached(until_s: int) -> Path:
    _BUILD.mkdir(parents=True, exist_ok=True)
    made_of = (
        b"".join(Path(str(one.__file__)).read_bytes() for one in (schema, retention))
        + Path(__file__).read_bytes()
    )
    path = _BUILD / f"{hashlib.sha256(made_of).hexdigest()[:12]}-{until_s}.db"
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            for old in _BUILD.glob("*.db*"):
                # One that another run still copies stays, for an hour.
                if time.time() - old.stat().st_mtime > _HOUR_S:
                    old.unlink(missing_ok=True)
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with _writing(fresh) as it:
                _fill(it, until_s)
            with closing(sqlite3.connect(fresh, isolation_level=None)) as it:
                # The daemon's own chores make the hours; a clock that stands is never over budget.
                it.execute("PRAGMA synchronous = off")
                it.execute("PRAGMA journal_mode = off")
                retention.Retention(StoreSection(), lambda: 0.0).run(it, float(until_s), None)
            fresh.rename(path)
    return path


class _writing:  # noqa: N801 - used like a function
    """A file of the present version, open in one transaction; afterwards without side files."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = off")
        self._file.execute("PRAGMA synchronous = off")
        if not self._file.execute("PRAGMA user_version").fetchone()[0]:
            self._file.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            database.migrate(self._file)
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._file.execute("BEGIN")
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.execute("COMMIT")
        self._file.close()
        self._path.chmod(0o600)


def _lives(until_s: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (gpu, place, number, first second, last second) of every process."""
    begin_s = until_s - DAYS * 86_400
    for gpu in range(GPUS):
        for place, count in enumerate(LIVES):
            length_s = DAYS * 86_400 // count
            for number in range(count):
                first_s = begin_s + number * length_s
                yield gpu, place, number, first_s, min(first_s + length_s, until_s) - 60


def _cards(it: sqlite3.Connection, until_s: int, gpus: int = GPUS) -> None:
    begin_ms = (until_s - DAYS * 86_400) * 1000
    it.executemany(
        "INSERT INTO gpu(id, uuid, source, vendor, position, name, memory_kind,"
        " memory_total_bytes, first_ts_ms, last_ts_ms) VALUES(?,?,'nvml','nvidia',?,"
        "'NVIDIA H100 80GB HBM3','dedicated',?,?,?)",
        [(gpu + 1, uid(gpu), gpu, TOTAL, begin_ms, until_s * 1000) for gpu in range(gpus)],
    )


def _fill(it: sqlite3.Connection, until_s: int) -> None:
    begin_s = until_s - DAYS * 86_400
    _cards(it, until_s)
    it.execute(
        "CREATE TEMP TABLE life(id INTEGER PRIMARY KEY, gpu INT, place INT, first_s INT,"
        " last_s INT, base INT, swing INT, period INT)"
    )
    for row, (gpu, place, number, first_s, last_s) in enumerate(_lives(until_s), start=1):
        base = (12, 6, 8, 2)[place] * 1024**3 + gpu * 100 * 1024**2
        swing = (0, 3, 1, 2)[place] * 1024**3
        period = (1, 45, 7, 180)[place]
        it.execute(
            "INSERT INTO life VALUES(?,?,?,?,?,?,?,?)",
            (row, gpu + 1, place, first_s, last_s, base, swing, period),
        )
        argv = "ollama serve" if place == 1 else f"python job_{place}.py --run {number}"
        it.execute(
            "INSERT INTO process(id, boot_id, pid, started_ts_ms, started_at_s, user, name, args,"
            " framework, framework_sure, first_ts_ms, last_ts_ms) VALUES(?,?,?,?,?,?,?,?,?,1,?,?)",
            (row, BOOT, 10_000 + row, first_s * 1000, float(first_s), f"user{gpu % 4}",
             NAMES[place], argv, "PyTorch" if place != 1 else "Ollama", first_s * 1000,
             last_s * 1000),
        )  # fmt: skip
    it.execute("CREATE TEMP TABLE minute(ts_s INTEGER PRIMARY KEY)")
    missing = [(until_s - round(days * 86_400), minutes * 60) for days, minutes in GAPS]
    it.executemany(
        "INSERT INTO minute VALUES(?)",
        [
            (ts_s,)
            for ts_s in range(begin_s, until_s, 60)
            if not any(at_s <= ts_s < at_s + length_s for at_s, length_s in missing)
        ],
    )
    # A leak of 1.5 GiB an hour in the last 20 hours of GPU 0's first process.
    used = (
        "l.base + l.swing * ((m.ts_s / 60) % l.period) / l.period + CASE WHEN l.gpu = 1"
        f" AND l.place = 0 THEN max(0, m.ts_s - {until_s - 20 * 3600}) * 447392 ELSE 0 END"
    )
    it.execute(
        "INSERT INTO process_1m(process, gpu, ts_s, n, used_min_bytes, used_max_bytes,"
        " used_last_bytes, host_last_bytes)"
        f" SELECT l.id, l.gpu, m.ts_s, 12, {used}, {used} + 1048576, {used}, 2147483648"
        " FROM life l CROSS JOIN minute m ON m.ts_s BETWEEN l.first_s AND l.last_s"
    )
    it.execute(
        "INSERT INTO gpu_1m SELECT gpu, ts_s, 12, sum(used_last_bytes) + 524288000,"
        " sum(used_last_bytes) + 524812288, sum(used_max_bytes) + 524288000,"
        " sum(used_last_bytes) + 524288000, 60 + ts_s / 60 % 30, 61, 24000000"
        " FROM process_1m GROUP BY gpu, ts_s"
    )
    _raw(it, until_s)
    _happened(it, until_s, [(at_s, length_s) for at_s, length_s in missing])
    it.execute("INSERT INTO meta(key, value) VALUES('gpu_1m.until', ?)", (str(until_s),))


def _raw(it: sqlite3.Connection, until_s: int) -> None:
    steps = ", ".join(f"({5 * step})" for step in range(12))
    it.execute(
        "INSERT INTO gpu_raw(ts_ms, gpu, used_bytes, util_percent, mem_util_percent, temp_c,"
        " power_mw, clock_mhz, unattributed_bytes) SELECT (ts_s + column1) * 1000, gpu,"
        " used_last_bytes, 80, 40, 61, 400000, 1980, 524288000"
        f" FROM gpu_1m CROSS JOIN (VALUES {steps}) WHERE ts_s >= {until_s - 86_400}"
        " ORDER BY 1, 2"
    )
    # Half of the processes change at every sample, the others are written once a minute.
    it.execute(
        "INSERT INTO process_raw(ts_ms, process, gpu, used_bytes, sm_percent, host_bytes)"
        " SELECT (ts_s + column1) * 1000, process, gpu, used_last_bytes + column1, 20, 2147483648"
        f" FROM process_1m CROSS JOIN (VALUES {steps})"
        f" WHERE ts_s >= {until_s - 6 * 3600} AND (column1 = 0 OR process % 2) ORDER BY 1, 2, 3"
    )


def _happened(it: sqlite3.Connection, until_s: int, missing: list[tuple[int, int]]) -> None:
    begin_s = until_s - DAYS * 86_400
    starts = [begin_s, *(at_s + length_s for at_s, length_s in missing)]
    it.executemany(
        "INSERT INTO segment(started_ts_ms, boot_id, mono_ms, reason) VALUES(?,?,?,'start')",
        [(at_s * 1000, BOOT, (at_s - begin_s) * 1000) for at_s in starts],
    )
    it.executemany(
        "INSERT INTO event(ts_ms, kind, gpu_uuid, detail) VALUES(?,?,?,?)",
        [
            ((until_s - 5 * 86_400) * 1000, "xid", uid(3), "XID 31: GPU memory page fault"),
            ((until_s - 3 * 86_400) * 1000, "throttle", uid(5), "clocks held down by heat"),
        ],
    )
    (started,) = it.execute("SELECT started_at_s FROM process WHERE id = 1").fetchone()
    leaker = ProcessKey(pid=10_001, started_at_s=started)
    records.save_alert(it, _alert(Subject(device_uid=uid(0), process=leaker), until_s - 18 * 3600))
    for gpu, days in ((2, 12), (6, 25)):
        at_s = float(until_s - days * 86_400)
        over = msgspec.structs.replace(
            _alert(Subject(device_uid=uid(gpu)), at_s), state="resolved",
            resolved_at_s=at_s + 7200, changed_at_s=at_s + 7200,
   **wording.ending(Ending.STOPPED_GROWING),
            key=f"leak:{uid(gpu)}",
        )  # fmt: skip
        records.save_alert(it, over)
    it.execute(
        "INSERT INTO checkpoint(pid, started_at_s, saved_ts_ms, said_by) VALUES(?,?,?,'user0')",
        (leaker.pid, leaker.started_at_s, (until_s - 3 * 3600) * 1000),
    )


def _alert(subject: Subject, opened_at_s: float) -> Alert:
    found = Finding(
        id=subject.id, subject=subject, judged_at_s=opened_at_s + 60, pattern="gradual",
        tier="alert", severity="warning", confidence=0.93, rate_bytes_per_s=447_392.0,
        eta=EtaRange(low_s=20_000.0, mid_s=26_000.0, high_s=40_000.0), r_squared=0.97,
        detector="trend", onset_at_s=opened_at_s - 7200, reason="the floor rose",
    )  # fmt: skip
    return Alert(
        key=f"leak:{subject.id}", kind="leak", subject=subject, state="firing", severity="warning",
        finding=found, opened_at_s=opened_at_s, changed_at_s=opened_at_s + 60,
        firing_at_s=opened_at_s + 60, watch_at_s=opened_at_s, notices=1,
        title=f"GPU {subject.device_uid[4:12].lstrip('0') or 0} (H100): python[10001] of user0",
    )  # fmt: skip


def _cut(it: sqlite3.Connection, now_s: float) -> None:
    """Take away what has not happened yet."""
    minute_s, now_ms = int(now_s) // 60 * 60, round(now_s * 1000)
    for table in ("gpu_raw", "process_raw"):
        it.execute(f"DELETE FROM {table} WHERE ts_ms > ?", (now_ms,))
    alive = [row for (row,) in it.execute("SELECT id FROM process WHERE last_ts_ms >= ?",
                                          (now_ms - 7_200_000,))]  # fmt: skip
    it.executemany(
        "DELETE FROM process_1m WHERE process = ? AND gpu = ? AND ts_s >= ?",
        [(row, gpu + 1, minute_s) for row in alive for gpu in range(GPUS)],
    )
    it.executemany(
        "DELETE FROM gpu_1m WHERE gpu = ? AND ts_s >= ?",
        [(gpu + 1, minute_s) for gpu in range(GPUS)],
    )
    it.execute("UPDATE process SET last_ts_ms = min(last_ts_ms, ?)", (now_ms,))
    it.execute("UPDATE gpu SET last_ts_ms = ?", (now_ms,))
    hour_s = minute_s // _HOUR_S * _HOUR_S
    for table in ("gpu_1h", "process_1h"):
        it.executemany(
            f"DELETE FROM {table} WHERE gpu = ? AND ts_s >= ?",
            [(gpu + 1, hour_s) for gpu in range(GPUS)],
        )
    it.executemany(
        "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)",
        [("gpu_1m.until", str(minute_s)), ("gpu_1h.until", str(hour_s)),
         ("process_1h.until", str(hour_s))],
    )  # fmt: skip


def empty(directory: Path) -> None:
    """Write a history in which nothing was recorded yet."""
    with _writing(directory / schema.FILE_NAME):
        pass


def one_sample(directory: Path, now_s: float | None = None) -> None:
    """Write a single sample of one GPU with one process, 5 s old."""
    now_s = time.time() if now_s is None else now_s
    at_ms = round((now_s - 5) * 1000)
    with _writing(directory / schema.FILE_NAME) as it:
        _cards(it, int(now_s), 1)
        it.execute("UPDATE gpu SET first_ts_ms = ?, last_ts_ms = ?", (at_ms, at_ms))
        _begin(it, at_ms)
        _process(it, 1, ("python", "python train.py", "alice"), (at_ms, at_ms))
        it.execute("INSERT INTO gpu_raw(ts_ms, gpu, used_bytes) VALUES(?,1,?)", (at_ms, 9 << 30))
        it.execute(
            "INSERT INTO process_raw(ts_ms, process, gpu, used_bytes) VALUES(?,1,1,?)",
            (at_ms, 8 << 30),
        )


def crowd(directory: Path, now_s: float | None = None, processes: int = 1000) -> None:
    """Write an hour of one GPU with a thousand processes."""
    _hour(directory, now_s, [("python", f"python worker.py {n}", f"user{n % 50}")
                             for n in range(processes)])  # fmt: skip


HOSTILE: Final = (
    "\x1b[2J\x1b[31mred", "[bold red]markup[/]", "<script>alert(1)</script>", "</title><img src=x>",
    "\u202edlrow olleh", "a" * 300, "name\nwith\nlines", "\u0645\u0631\u062d\u0628\u0627",
    "'\"&;`$(id)", "日本語のとても長い名前のプロセス", "",
)  # fmt: skip


def hostile(directory: Path, now_s: float | None = None) -> None:
    """Write an hour of one GPU whose processes have rude names, as an old file may hold them."""
    _hour(directory, now_s, [(name, name or "x", name[:40] or "user") for name in HOSTILE])


def _begin(it: sqlite3.Connection, at_ms: int) -> None:
    it.execute(
        "INSERT INTO segment(started_ts_ms, boot_id, mono_ms, reason) VALUES(?,?,0,'start')",
        (at_ms, BOOT),
    )


def _process(
    it: sqlite3.Connection, row: int, who: tuple[str, str, str], seen_ms: tuple[int, int]
) -> None:
    name, args, user = who
    it.execute(
        "INSERT INTO process(id, boot_id, pid, started_ts_ms, started_at_s, user, name, args,"
        " framework_sure, first_ts_ms, last_ts_ms) VALUES(?,?,?,?,?,?,?,?,0,?,?)",
        (row, BOOT, 20_000 + row, seen_ms[0], seen_ms[0] / 1000, user, name,
         "'" + args.replace("'", "") + "'", *seen_ms),
    )  # fmt: skip


def _hour(directory: Path, now_s: float | None, who: list[tuple[str, str, str]]) -> None:
    now_s = time.time() if now_s is None else now_s
    first_ms, last_ms = round((now_s - 3600) * 1000), round(now_s * 1000) - 1000
    each = TOTAL // 2 // len(who)
    with _writing(directory / schema.FILE_NAME) as it:
        _cards(it, int(now_s), 1)
        _begin(it, first_ms)
        for row, one in enumerate(who, start=1):
            _process(it, row, one, (first_ms, last_ms))
        instants = range(first_ms, last_ms, 30_000)
        it.executemany(
            "INSERT INTO gpu_raw(ts_ms, gpu, used_bytes, util_percent) VALUES(?,1,?,50)",
            [(at_ms, TOTAL // 2 + (at_ms - first_ms) * 1000) for at_ms in instants],
        )
        it.executemany(
            "INSERT INTO process_raw(ts_ms, process, gpu, used_bytes) VALUES(?,?,1,?)",
            [(at_ms, row, each) for at_ms in instants[::2] for row in range(1, len(who) + 1)],
        )
