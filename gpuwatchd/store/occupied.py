"""Who held what on a device, minute by minute: what its hours are shared by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.cost import Held
from gpuwatchd.model import ProcessKey

if TYPE_CHECKING:
    import sqlite3

WIDTH_S: Final = 60.0
"""Length of a bucket. Every process has a row in every minute that it was seen in."""

# CROSS JOIN fixes the order: processes of that time first, then the range of each.
_QUERY = """SELECT m.ts_s, p.pid, p.started_at_s, m.used_max_bytes
FROM process p CROSS JOIN process_1m m
WHERE p.last_ts_ms >= :since_s * 1000 AND p.first_ts_ms < :until_s * 1000
  AND m.process = p.id AND m.gpu = :card
  AND m.ts_s >= :since_s AND m.ts_s < min(:until_s, :rolled_s)
UNION ALL
SELECT r.ts_ms / 60000 * 60, p.pid, p.started_at_s, max(r.used_bytes)
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.ts_ms >= max(:since_s, :rolled_s) * 1000 AND r.ts_ms < :until_s * 1000 AND r.gpu = :card
GROUP BY 1, p.id"""


def load(connection: sqlite3.Connection, uid: str, since_s: float, until_s: float) -> list[Held]:
    """Return who held what on a device in each minute that overlaps a span, in any order."""
    card = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    if card is None or until_s <= since_s:
        return []
    rolled = connection.execute("SELECT value FROM meta WHERE key = 'gpu_1m.until'").fetchone()
    values = {
        "card": card[0],
        "since_s": int(since_s // WIDTH_S * WIDTH_S),
        "until_s": int(-(-until_s // 1)),
        "rolled_s": 0 if rolled is None else int(rolled[0]),
    }
    return [
        Held(float(at_s), ProcessKey(pid=pid, started_at_s=started), held)
        for at_s, pid, started, held in connection.execute(_QUERY, values)
    ]


def power_w(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> float | None:
    """Return the mean power of a device as far as it was measured and rolled up; None without."""
    found = connection.execute(
        "SELECT sum(energy_mj) / 1000.0, count(energy_mj) * 60.0 FROM gpu_1m"
        " WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?) AND ts_s >= ? AND ts_s < ?",
        (uid, int(since_s), int(until_s)),
    ).fetchone()
    return found[0] / found[1] if found and found[0] is not None and found[1] else None
