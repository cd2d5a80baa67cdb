"""What the user said of alerts: one small table that ``gpuwatchctl`` writes itself.

One row in a transaction of its own: so a word is kept whether the daemon runs or not, survives a
power cut once it is acknowledged, and needs no second place that could disagree. The daemon notices
it by the file's ``data_version``, which costs microseconds to ask; a word that comes while it is
stopped is found when it starts. A word is never copied into a profile: who reads joins the two, so
that taking it back is one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from gpuwatchd.core.model import ProcessKey, Subject, Value
from gpuwatchd.store import client_connection, records

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


class UserLabel(Value, frozen=True, kw_only=True):
    """What the user said of one alert."""

    alert_key: str
    opened_at_s: float
    subject: Subject
    title: str
    word: Literal["normal", "leak"]
    given_at_s: float
    why: str | None = None
    who: str | None = None
    undone_at_s: float | None = None
    row: int | None = None


def load_words(connection: sqlite3.Connection, where: str = "TRUE") -> list[UserLabel]:
    """Return what the user said, oldest first."""
    return [
        UserLabel(
            row=row[0],
            alert_key=row[1],
            opened_at_s=row[2] / 1000,
            subject=Subject(
                device_uid=row[3],
                process=None if row[4] is None else ProcessKey(pid=row[4], started_at_s=row[5]),
                unattributed=bool(row[6]),
                host=bool(row[13]),
            ),
            title=row[7],
            word=row[8],
            why=row[9],
            who=row[10],
            given_at_s=row[11] / 1000,
            undone_at_s=records.to_s(row[12]),
        )
        for row in connection.execute(
            "SELECT id, alert_key, opened_ts_ms, gpu_uuid, pid, started_at_s, unattributed, title,"  # noqa: S608
            f" word, why, who, given_ts_ms, undone_ts_ms, host FROM feedback WHERE {where}"
            " ORDER BY given_ts_ms, id",
        )
    ]


def write(directory: Path, word: UserLabel) -> UserLabel:
    """Write the user's word on an alert, over what was said of it before; return it with its row.

    For programs other than the daemon: power-cut-safe when it returns.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    process = word.subject.process

    def work(connection: sqlite3.Connection) -> int:
        _take_back(connection, word.alert_key, word.given_at_s)
        row: int = connection.execute(
            "INSERT INTO feedback(alert_key, opened_ts_ms, gpu_uuid, pid, started_at_s,"
            " unattributed, title, word, why, who, given_ts_ms, host)"
            " VALUES(?,?,?,?,?,?,?,?,?,?,?,?)"
            " RETURNING id",
            (
                word.alert_key,
                records.to_ms(word.opened_at_s),
                word.subject.device_uid,
                None if process is None else process.pid,
                None if process is None else process.started_at_s,
                int(word.subject.unattributed),
                word.title,
                word.word,
                word.why,
                word.who,
                records.to_ms(word.given_at_s),
                int(word.subject.host),
            ),
        ).fetchone()[0]
        return row

    return msgspec.structs.replace(word, row=client_connection.transaction(directory, work))


def remove_label(directory: Path, alert_key: str, now_s: float) -> int:
    """Take back what was said of an alert; return how many words that were.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    return client_connection.transaction(directory, lambda it: _take_back(it, alert_key, now_s))


def _take_back(connection: sqlite3.Connection, alert_key: str, now_s: float) -> int:
    return connection.execute(
        "UPDATE feedback SET undone_ts_ms = ? WHERE alert_key = ? AND undone_ts_ms IS NULL",
        (records.to_ms(now_s), alert_key),
    ).rowcount
