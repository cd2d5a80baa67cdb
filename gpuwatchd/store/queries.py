"""The questions that the reader asks, as SQL."""

from __future__ import annotations

COLUMNS = (
    "n, used_min_bytes, used_mean_bytes, used_max_bytes, used_last_bytes, util_mean_percent,"
    " temp_max_c, energy_mj"
)
RAW = """SELECT ts_ms AS at_ms, used_bytes IS NOT NULL AS n, used_bytes AS used_min_bytes,
  used_bytes AS used_mean_bytes, used_bytes AS used_max_bytes, used_bytes AS used_last_bytes,
  util_percent AS util_mean_percent, temp_c AS temp_max_c, NULL AS energy_mj
FROM gpu_raw WHERE ts_ms >= max(:since_ms, {from_ms}) AND ts_ms < :until_ms AND gpu = :card"""
BUCKETS = f"""SELECT ts_s * 1000 AS at_ms, {COLUMNS}
FROM {{table}} WHERE gpu = :card AND ts_s >= max(:since_ms / 1000, {{from_s}})
  AND ts_s < min((:until_ms + 999) / 1000, {{to_s}})"""  # noqa: S608 - our own table names and whole numbers
PROCESS_RAW = """SELECT r.ts_ms, p.pid, p.started_at_s, r.used_bytes, r.used_bytes,
  r.host_bytes
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.ts_ms >= :since_ms AND r.ts_ms < :until_ms AND r.gpu = :card ORDER BY p.id, r.ts_ms"""
# CROSS JOIN fixes the order: processes of that time first, then the range of each.
PROCESS_MINUTES = """SELECT m.ts_s * 1000, p.pid, p.started_at_s, m.used_max_bytes,
  m.used_last_bytes, m.host_last_bytes
FROM process p CROSS JOIN process_1m m
WHERE p.last_ts_ms >= :since_ms AND p.first_ts_ms < :until_ms
  AND m.process = p.id AND m.gpu = :card
  AND m.ts_s >= :since_ms / 60000 * 60 AND m.ts_s * 1000 < :until_ms
ORDER BY p.id, m.ts_s"""


def joined(source: str, bucket_ms: int) -> str:
    """Return a query that joins the rows of ``source`` (of shape RAW) into buckets."""
    start = f"at_ms / {bucket_ms} * {bucket_ms}"
    return f"""SELECT {start} AS at_ms, sum(n) AS n, min(used_min_bytes) AS used_min_bytes,
  CAST(round(sum(used_mean_bytes * 1.0 * n) / sum(n)) AS INTEGER) AS used_mean_bytes,
  max(used_max_bytes) AS used_max_bytes, max(last_bytes) AS used_last_bytes,
  CAST(round(avg(util_mean_percent)) AS INTEGER) AS util_mean_percent,
  max(temp_max_c) AS temp_max_c, sum(energy_mj) AS energy_mj
FROM (SELECT *, first_value(used_last_bytes) OVER (PARTITION BY {start}
        ORDER BY used_last_bytes IS NULL, at_ms DESC) AS last_bytes FROM ({source}))
GROUP BY {start}"""  # noqa: S608 - our own text and whole numbers
