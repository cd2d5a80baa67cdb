"""A history as the daemon would have written it, of programs whose memory is given in numbers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.store.schema import FILE_NAME
from tests.store import world

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray

GIB = 2**30
STEP_S = 10.0
TOTAL = 24 * GIB
BASE = GIB // 2
"""What the device holds without any process."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process: when it began, and what it held every ten seconds from then on."""

    pid: int
    begin_s: float
    used: FloatArray
    name: str = "python"
    program: str | None = None


def ramp(
    minutes: float, gib: float, *, base_gib: float = 4.0, then_minutes: float = 0.0
) -> FloatArray:
    """Return memory that grows by ``gib`` in a straight line, then stands."""
    up = np.linspace(base_gib, base_gib + gib, int(minutes * 60 / STEP_S))
    flat = np.full(int(then_minutes * 60 / STEP_S), base_gib + gib)
    return np.round(np.concatenate((up, flat)) * 512) * (GIB / 512)


def write(
    directory: Path,
    runs: Sequence[Run],
    begin_s: float,
    end_s: float,
    *,
    devices: int = 1,
    rolled: bool = False,
    rolled_until_s: float | None = None,
    busy: Sequence[tuple[float, float]] | None = None,
) -> None:
    """Write the history of devices that all live through the same, of when the daemon ran.

    ``rolled``: only minutes are left of it, as after the retention of samples; ``rolled_until_s``:
    the same, up to an instant. ``busy``: from when to when the devices were at work; None is not
    known.
    """
    until_s = rolled_until_s if rolled_until_s is not None else end_s if rolled else begin_s
    world.opened(directory, world.Time(begin_s)).close()
    t = np.arange(begin_s, end_s, STEP_S)
    whole = np.full(t.size, float(BASE))
    with closing(sqlite3.connect(directory / FILE_NAME)) as it, it:
        for card in range(devices):
            it.execute(
                "INSERT INTO gpu(id, uuid, source, vendor, position, name, memory_kind,"
                " memory_total_bytes, first_ts_ms, last_ts_ms) VALUES(?,?,?,?,?,?,?,?,?,?)",
                (card + 1, f"GPU-{card}", "nvml", "nvidia", card, "NVIDIA RTX 4090", "dedicated",
                 TOTAL, int(begin_s * 1000), int(end_s * 1000)),
            )  # fmt: skip
        for number, run in enumerate(runs, start=1):
            first = int(np.searchsorted(t, run.begin_s))
            last = min(first + run.used.size, t.size)
            whole[first:last] += run.used[: last - first]
            it.execute(
                "INSERT INTO process(id, boot_id, pid, started_ts_ms, started_at_s, user, name,"
                " framework_sure, first_ts_ms, last_ts_ms, program)"
                " VALUES(?,?,?,?,?,?,?,?,?,?,?)",
                (number, world.BOOT, run.pid, int(run.begin_s * 1000), run.begin_s, "alice",
                 run.name, 0, int(t[first] * 1000), int(t[last - 1] * 1000),
                 run.program),
            )  # fmt: skip
            split = int(np.clip(np.searchsorted(t, until_s), first, last))
            for card in range(1, devices + 1):
                old, new = slice(0, split - first), slice(split - first, last - first)
                _process(it, number, card, t[first:split], run.used[old], rolled=True)
                _process(it, number, card, t[split:last], run.used[new], rolled=False)
        split = int(np.searchsorted(t, until_s))
        for card in range(1, devices + 1):
            _device(it, card, t[:split], whole[:split], rolled=True)
            _device(it, card, t[split:], whole[split:], rolled=False)
        if busy is not None:
            for table, at in (("gpu_raw", "util_percent = {} WHERE ts_ms / 1000.0"),
                              ("gpu_1m", "util_mean_percent = {} WHERE ts_s")):  # fmt: skip
                it.execute(f"UPDATE {table} SET {at.format(0)} >= 0")
                it.executemany(f"UPDATE {table} SET {at.format(60)} BETWEEN ? AND ?", busy)


def _process(
    it: sqlite3.Connection, number: int, card: int, t: FloatArray, x: FloatArray, *, rolled: bool
) -> None:
    if not rolled:
        it.executemany(
            "INSERT INTO process_raw(ts_ms, process, gpu, used_bytes) VALUES(?,?,?,?)",
            ((int(at * 1000), number, card, int(v)) for at, v in zip(t, x, strict=True)),
        )
        return
    it.executemany(
        "INSERT INTO process_1m(process, gpu, ts_s, n, used_max_bytes, used_last_bytes)"
        " VALUES(?,?,?,?,?,?)",
        (
            (number, card, int(at), part.size, int(part.max()), int(part[-1]))
            for at, part in _minutes(t, x)
        ),
    )


def _device(
    it: sqlite3.Connection, card: int, t: FloatArray, x: FloatArray, *, rolled: bool
) -> None:
    if not rolled:
        it.executemany(
            "INSERT INTO gpu_raw(ts_ms, gpu, used_bytes) VALUES(?,?,?)",
            ((int(at * 1000), card, int(v)) for at, v in zip(t, x, strict=True)),
        )
        return
    if not t.size:
        return
    it.executemany(
        "INSERT INTO gpu_1m(gpu, ts_s, n, used_min_bytes, used_mean_bytes, used_max_bytes,"
        " used_last_bytes) VALUES(?,?,?,?,?,?,?)",
        (
            (card, int(at), part.size, int(part.min()), int(part.mean()), int(part.max()),
             int(part[-1]))
            for at, part in _minutes(t, x)
        ),
    )  # fmt: skip
    it.execute(
        "INSERT OR REPLACE INTO meta(key, value) VALUES('gpu_1m.until', ?)",
        (str(int(t[-1]) // 60 * 60),),
    )


def _minutes(t: FloatArray, x: FloatArray) -> list[tuple[float, FloatArray]]:
    if not t.size:
        return []
    minute = t // 60.0
    edge = np.flatnonzero(np.diff(minute)) + 1
    return [
        (float(at[0]) // 60.0 * 60.0, part)
        for at, part in zip(np.split(t, edge), np.split(x, edge), strict=True)
    ]


def boot(directory: Path, at_s: float, boot_id: str) -> None:
    """Write that the daemon began a segment of a boot."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as it, it:
        it.execute(
            "INSERT INTO segment(started_ts_ms, boot_id, mono_ms, reason) VALUES(?,?,?,?)",
            (int(at_s * 1000), boot_id, 0, "start"),
        )


def key(pid: int) -> ProcessKey:
    """Return the identity of a process."""
    return ProcessKey(pid=pid, started_at_s=1.0)


def info(pid: int) -> ProcessInfo:
    """Return who it is."""
    return ProcessInfo(key=key(pid), name="python", user="alice")
