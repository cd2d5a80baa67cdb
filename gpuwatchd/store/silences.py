"""What the user does not want to hear of for a while: one small table that any program writes.

One row in a transaction of its own, like the user's word on an alert (:mod:`labels`): it is kept
whether the daemon runs or not, and survives a power cut once it is acknowledged. The daemon sees by
the file's ``data_version`` that somebody has written, and reads the table again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.core import typed
from gpuwatchd.core.model import Matcher, Silence
from gpuwatchd.store import client_connection, records

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from gpuwatchd.core.model import Alert


LONGEST_S: Final = 30 * 86_400.0
"""No silence lasts longer: what is forgotten must be heard of again."""

_JSON = msgspec.json.Encoder()
_MATCHER = typed.decoder(Matcher)
STANDING: Final = "cleared_ts_ms IS NULL"
"""Those that were not taken back; their time may be over."""


def of_alert(
    alert: Alert,
    *,
    now_s: float,
    for_s: float,
    until_resolved: bool = False,
    even_critical: bool = False,
    who: str = "",
    why: str = "",
) -> Silence:
    """Return a silence of one alert, as the verb "snooze" and the button set it.

    It is told again when it becomes critical, unless that is what it is already: whoever silences
    it then has seen it at its worst.

    Parameters
    ----------
    for_s
        How long, in seconds; cut at :data:`LONGEST_S`.
    until_resolved
        Over as soon as the alert is.
    even_critical
        Also keep still when it becomes critical.
    """
    return Silence(
        matcher=Matcher(key=alert.key),
        from_at_s=now_s,
        until_at_s=now_s + min(for_s, LONGEST_S),
        until_resolved=until_resolved,
        even_critical=even_critical or alert.severity == "critical",
        who=who,
        why=why,
    )


def load(
    connection: sqlite3.Connection, where: str = STANDING, values: tuple[Any, ...] = ()
) -> list[Silence]:
    """Return silences, oldest first; a row that cannot be understood is left out."""
    silences = []
    for row in connection.execute(
        "SELECT id, matcher, from_ts_ms, until_ts_ms, until_resolved, who, why, cleared_ts_ms,"  # noqa: S608
        f" even_critical FROM silence WHERE {where} ORDER BY from_ts_ms, id",
        values,
    ):
        try:
            matcher = _MATCHER.decode(row[1])
        except msgspec.MsgspecError:
            continue
        silences.append(
            Silence(
                row=row[0],
                matcher=matcher,
                from_at_s=row[2] / 1000,
                until_at_s=row[3] / 1000,
                until_resolved=bool(row[4]),
                who=row[5] or "",
                why=row[6] or "",
                cleared_at_s=records.to_s(row[7]),
                even_critical=bool(row[8]),
            )
        )
    return silences


def in_force(connection: sqlite3.Connection, now_s: float) -> list[Silence]:
    """Return those whose time is not over, and whose alert is not, where that ends them."""
    standing = load(connection, f"{STANDING} AND until_ts_ms > ?", (records.to_ms(now_s),))
    return [
        silence
        for silence in standing
        if not silence.until_resolved or is_open(connection, silence.matcher.key)
    ]


def insert(connection: sqlite3.Connection, silence: Silence) -> Silence:
    """Write a silence inside the caller's transaction; return it with its row.

    One on the very same alerts takes the place of what was said of them before.
    """
    matcher = _JSON.encode(silence.matcher).decode()
    connection.execute(
        f"UPDATE silence SET cleared_ts_ms = ? WHERE matcher = ? AND {STANDING}"  # noqa: S608
        " AND until_ts_ms > ?",
        (records.to_ms(silence.from_at_s), matcher, records.to_ms(silence.from_at_s)),
    )
    row: int = connection.execute(
        "INSERT INTO silence(matcher, from_ts_ms, until_ts_ms, until_resolved, who, why,"
        " even_critical) VALUES(?,?,?,?,?,?,?) RETURNING id",
        (
            matcher,
            records.to_ms(silence.from_at_s),
            records.to_ms(silence.until_at_s),
            int(silence.until_resolved),
            silence.who or None,
            silence.why or None,
            int(silence.even_critical),
        ),
    ).fetchone()[0]
    return msgspec.structs.replace(silence, row=row)


def end_silence(connection: sqlite3.Connection, row: int, now_s: float) -> int:
    """End a silence inside the caller's transaction; return how many that were."""
    return connection.execute(
        f"UPDATE silence SET cleared_ts_ms = ? WHERE id = ? AND {STANDING}",  # noqa: S608
        (records.to_ms(now_s), row),
    ).rowcount


def move(connection: sqlite3.Connection, silence: Silence) -> int:
    """Write when a silence ends now: the clock was set, and it must last no longer for that."""
    return connection.execute(
        "UPDATE silence SET from_ts_ms = ?, until_ts_ms = ? WHERE id = ?",
        (records.to_ms(silence.from_at_s), records.to_ms(silence.until_at_s), silence.row),
    ).rowcount


def add(directory: Path, silence: Silence) -> Silence:
    """Keep a silence and return it with its row. Power-cut-safe when it returns.

    For any program; the daemon notices it within a tick.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    return client_connection.transaction(directory, lambda connection: insert(connection, silence))


def clear(directory: Path, rows_: tuple[int, ...], now_s: float) -> int:
    """End silences before their time; return how many were in force.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    return client_connection.transaction(
        directory, lambda connection: sum(end_silence(connection, row, now_s) for row in rows_)
    )


def is_open(connection: sqlite3.Connection, alert_key: str) -> bool:
    """Say whether there is an alert of this key that is not over."""
    found = connection.execute(
        "SELECT 1 FROM alert WHERE key = ? AND resolved_ts_ms IS NULL", (alert_key,)
    ).fetchone()
    return found is not None
