"""What is normal for a device: how much of it nobody owns while it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.store import records

if TYPE_CHECKING:
    import sqlite3


class IdleLevel(NamedTuple):
    """What nobody owns on an idle device, and in which boot that was learned."""

    least_bytes: int
    boot_id: str


def load(connection: sqlite3.Connection) -> dict[str, IdleLevel]:
    """Return what was learned, by the device's UUID."""
    cursor = connection.execute("SELECT gpu_uuid, least_bytes, boot_id FROM baseline")
    return {uid: IdleLevel(least_bytes, boot_id) for uid, least_bytes, boot_id in cursor}


def save(connection: sqlite3.Connection, norms: dict[str, IdleLevel], now_ms: int) -> int:
    """Write norms, inside the caller's transaction; return how many were refused."""
    refused = 0
    for uid, norm in norms.items():
        try:
            connection.execute(
                "INSERT OR REPLACE INTO baseline(gpu_uuid, least_bytes, boot_id, learned_ts_ms)"
                " VALUES(?, ?, ?, ?)",
                (uid, *norm, now_ms),
            )
        except records.REFUSED:
            refused += 1
    return refused
