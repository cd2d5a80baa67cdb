"""The questions of :mod:`curves`, as SQL: rows of every level in one shape, and how to join them.

A row is (first_ms, last_ms, n, low, mean, high): of a sample both instants are the same. ``n`` is
what it weighs: samples of a device, minutes of a process.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Tables(NamedTuple):
    """The rows of one kind of subject."""

    raw: str
    late: str
    """Samples since ``from_s``, of what is not rolled up yet."""
    minute: str
    hour: str
    hourly: str
    """Table whose roll-up says up to when ``hour`` is complete."""
    oldest: dict[str, str]


_SAMPLE = """ts_ms AS first_ms, ts_ms AS last_ms, used_bytes IS NOT NULL AS n,
  used_bytes AS low, used_bytes AS mean, used_bytes AS high"""
_RANGE = "ts_ms >= max(:since_ms, {from_s} * 1000) AND ts_ms < :until_ms"
_BUCKET = "ts_s >= max(:since_ms / 1000, {from_s}) AND ts_s < min((:until_ms + 999) / 1000, {to_s})"
_DEVICE_BUCKET = """ts_s * 1000 AS first_ms, (ts_s + {width}) * 1000 AS last_ms, n,
  used_min_bytes AS low, used_mean_bytes AS mean, used_max_bytes AS high"""


def _device(table: str, width: int) -> str:
    columns = _DEVICE_BUCKET.replace("{width}", str(width))
    return f"SELECT {columns} FROM {table} WHERE gpu = :card AND {_BUCKET}"  # noqa: S608


_DEVICE_RAW = f"SELECT {_SAMPLE} FROM gpu_raw WHERE {_RANGE} AND gpu = :card"  # noqa: S608
DEVICE: Final = Tables(
    raw=_DEVICE_RAW.format(from_s=0),
    late=_DEVICE_RAW,
    minute=_device("gpu_1m", 60),
    hour=_device("gpu_1h", 3600),
    hourly="gpu_1h",
    oldest={
        "raw": "SELECT min(ts_ms) / 1000.0 FROM gpu_raw",
        "minute": "SELECT min(ts_s) FROM gpu_1m WHERE gpu = :card",
        "hour": "SELECT min(ts_s) FROM gpu_1h WHERE gpu = :card",
    },
)

_PROCESS_RAW = f"""SELECT {_SAMPLE} FROM process_raw
WHERE {_RANGE} AND process = :process AND gpu = :card"""  # noqa: S608
# A process has more samples while it changes: each minute counts the same.
_PROCESS_MINUTE = f"""SELECT ts_s * 1000 AS first_ms, (ts_s + 60) * 1000 AS last_ms, 1 AS n,
  ifnull(used_min_bytes, used_last_bytes) AS low, used_last_bytes AS mean, used_max_bytes AS high
FROM process_1m WHERE process = :process AND gpu = :card AND {_BUCKET}"""  # noqa: S608
_PROCESS_HOUR = f"""SELECT first_ts_s * 1000 AS first_ms, (last_ts_s + 60) * 1000 AS last_ms,
  minutes AS n, used_min_bytes AS low, used_mean_bytes AS mean, used_max_bytes AS high
FROM process_1h WHERE gpu = :card AND process = :process AND {_BUCKET}"""  # noqa: S608
PROCESS: Final = Tables(
    raw=_PROCESS_RAW.format(from_s=0),
    late=_PROCESS_RAW,
    minute=_PROCESS_MINUTE,
    hour=_PROCESS_HOUR,
    hourly="process_1h",
    oldest={
        "raw": "SELECT min(ts_ms) / 1000.0 FROM process_raw",
        "minute": "SELECT min(ts_s) FROM process_1m WHERE process = :process AND gpu = :card",
        "hour": "SELECT min(ts_s) FROM process_1h WHERE gpu = :card",
    },
)

JOINED: Final = """SELECT min(first_ms), max(last_ms), count(*), min(n), min(low),
  sum(mean * 1.0 * n) / sum(CASE WHEN mean IS NOT NULL THEN n END), max(high)
FROM ({rows}) GROUP BY first_ms / :width_ms ORDER BY 1"""
INSTANTS: Final = "SELECT first_ms, last_ms FROM ({rows}) ORDER BY 1"
PRESENT: Final = """SELECT p.pid, p.started_at_s, p.first_ts_ms, p.last_ts_ms, max(h.peak)
FROM (SELECT process, max(used_max_bytes) AS peak FROM process_1h
    WHERE gpu = :card AND ts_s >= :since_ms / 1000 - 3599 AND ts_s < :until_ms / 1000
    GROUP BY process
  UNION ALL
  SELECT m.process, max(m.used_max_bytes) FROM process p CROSS JOIN process_1m m
    WHERE p.last_ts_ms >= max(:since_ms, :hours_s * 1000) AND p.first_ts_ms < :until_ms
      AND m.process = p.id AND m.gpu = :card AND m.ts_s < :until_ms / 1000
      AND m.ts_s >= max(:since_ms / 1000, :hours_s)
    GROUP BY m.process) h
JOIN process p ON p.id = h.process GROUP BY p.id"""
"""Of what is rolled up by the hour; since ``hours_s`` from minutes."""
