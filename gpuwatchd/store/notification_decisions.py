"""What policy decided, message by message: told by what, held back and why. A bounded table.

It is written in the same transaction as the alert that it is about, so that what people find here
is what was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Decision
from gpuwatchd.store import legacy_text, records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

KEPT_PER_ALERT: Final = 200
"""Decisions that are kept of one alert key; the newest stay."""


def save(connection: sqlite3.Connection, decisions: Iterable[Decision]) -> int:
    """Write decisions inside the caller's transaction; return how many were refused."""
    refused = 0
    keys = set()
    for decision in decisions:
        try:
            connection.execute(
                "INSERT INTO decision(ts_ms, alert_key, kind, notice, channel, reason, code,"
                " facts) VALUES(?,?,?,?,?,?,?,?)",
                (
                    records.to_ms(decision.at_s),
                    decision.alert_key,
                    decision.kind,
                    decision.notice,
                    decision.target,
                    decision.reason,
                    decision.code,
                    records.facts_json(decision.facts),
                ),
            )
        except records.REFUSED:
            refused += 1
        else:
            keys.add(decision.alert_key)
    for key in keys:
        connection.execute(
            "DELETE FROM decision WHERE alert_key = ? AND id NOT IN"
            " (SELECT id FROM decision WHERE alert_key = ? ORDER BY id DESC LIMIT ?)",
            (key, key, KEPT_PER_ALERT),
        )
    return refused


def load(
    connection: sqlite3.Connection, alert_key: str | None = None, since_s: float = 0.0
) -> list[Decision]:
    """Return decisions of an alert key (None: of all) since an instant, oldest first."""
    where, values = ("TRUE", ()) if alert_key is None else ("alert_key = ?", (alert_key,))
    return [
        Decision(
            finding_id="",
            alert_key=row[1],
            kind=row[2],
            notice=row[3],
            target=row[4],
            reason=row[5],
            at_s=row[0] / 1000,
            code=Hold(row[6]) if row[6] else _legacy(row[2], row[5]),
            facts=records.facts_of(row[7]),
        )
        for row in connection.execute(
            "SELECT ts_ms, alert_key, kind, notice, channel, reason,"  # noqa: S608
            f" {records.code_columns(connection)} FROM decision WHERE {where} AND ts_ms >= ?"
            " ORDER BY id",
            (*values, records.to_ms(since_s)),
        )
    ]


def _legacy(kind: str, reason: str) -> Hold | None:
    """Return the code of a row that was written without one; what left at once has none."""
    code = legacy_text.hold(reason)
    return None if kind != "hold" and code is Hold.LEGACY else code


def expire(connection: sqlite3.Connection, before_ms: int) -> None:
    """Delete what is too old, inside the caller's transaction."""
    connection.execute("DELETE FROM decision WHERE ts_ms < ?", (before_ms,))
