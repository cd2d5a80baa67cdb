"""The page of the database: tables and columns as a new file has them, with a word on each."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from gpuwatchd.store import database, schema

TABLES = {
    "action": "what was done to a process, or would have been",
    "alert": "one episode of one alert; `finding` is the judgement as JSON",
    "baseline": "the least memory that nobody owned on an idle device",
    "checkpoint": "when jobs saved their work, and who said so",
    "decision": "what policy decided on a message, channel by channel, and why",
    "delivery": "one message to one channel; `state` is pending, sent or failed",
    "event": "what happened: a GPU lost, an Xid, recording began, the clock was set",
    "feedback": "what people said of alerts: normal, or a leak",
    "gpu": "every GPU and MIG instance that was ever seen",
    "gpu_1h": "a GPU hour by hour",
    "gpu_1m": "a GPU minute by minute; NULL is as `used_last_bytes`: read `gpu_minutes`",
    "gpu_raw": "every sample of a GPU",
    "meta": "facts about the file itself",
    "process": "every process that was seen on a GPU; secrets in `args` are masked",
    "process_1h": "a process hour by hour; `taken_s` is its part of the device's time",
    "process_1m": "`minutes` equal minutes of a process, `n` samples each: read `process_minutes`",
    "process_counters": "what the allocator of a prepared process says, when that changed",
    "process_counters_1m": "the same minute by minute",
    "process_raw": "samples of a process on a GPU, when its memory changed",
    "profile": "what an earlier run of a program did; `profile` is JSON",
    "segment": "stretches without a gap: a start, a change of the clock",
    "silence": "what is snoozed, until when, and by whom",
    "told": "which alerts a message was about",
}
VIEWS = {
    "gpu_history": "`gpu_raw` with names and readable times",
    "gpu_hourly": "`gpu_1h` with names and readable times",
    "gpu_minutes": "a GPU minute by minute: `gpu_1m`, with every figure",
    "known_programs": "programs that have run before, and how often",
    "open_alerts": "alerts that are not over, with readable times",
    "process_minutes": "a process minute by minute: `process_1m`, each minute, with every figure",
}
_INTRODUCTION = f"""
The history is one SQLite file ([where](files.md)). Its tables are plain and may be read by
anything, also while the daemon runs; write into them by `gpuwatchctl` alone. This is version
{schema.VERSION} (`PRAGMA user_version`), `application_id` is {schema.APPLICATION_ID:#x}. A file of
an earlier version is copied beside itself and brought up to date when the daemon starts; columns
are added, never renamed, within a major version of gpuwatchd.

Units are in the names: `_ts_ms` milliseconds and `_ts_s` seconds since 1970 (UTC), `_bytes`,
`_percent`, `_c` degrees Celsius, `_mw` milliwatts, `_mj` millijoules, `_mhz`. NULL is unknown,
never 0; in both tables of minutes it may also stand for the figure beside it: read their views.

What is kept for how long: [storage](../explanation/storage.md).

```
sqlite3 -readonly ~/.local/state/gpuwatchd/history.db "SELECT * FROM gpu_hourly LIMIT 5"
gpuwatchctl history --since 2h --sql
```
""".strip()


def _fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    database.migrate(connection)
    return connection


def names(kind: str) -> list[str]:
    """Return the tables or views of a new file."""
    with closing(_fresh()) as connection:
        asked = "SELECT name FROM sqlite_master WHERE type = ? AND name NOT LIKE 'sqlite_%'"
        return sorted(row[0] for row in connection.execute(asked, (kind,)))


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    lines = ["| column | type | |", "|---|---|---|"]
    for _, name, kind, required, default, key in rows:
        words = ["key"] if key else []
        words += ["never NULL"] if required and not key else []
        words += [f"default {default}"] if default is not None else []
        lines.append(f"| `{name}` | {kind or 'any'} | {', '.join(words)} |")
    return lines


def page() -> list[str]:
    """Return the lines of the page, without its mark."""
    lines = ["# Database", "", *_INTRODUCTION.splitlines(), ""]
    with closing(_fresh()) as connection:
        for title, notes in (("Tables", TABLES), ("Views", VIEWS)):
            lines += [f"## {title}", ""]
            for name, words in notes.items():
                lines += [f"### {name}", "", f"{words[:1].upper()}{words[1:]}.", ""]
                lines += [*_columns(connection, name), ""]
    return [re.sub(r" +$", "", line) for line in lines]
