"""What a simulated incident leaves behind: decisions, log, live state, every row of the history."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.recordings import places
from tests.recordings.items import Item
from tests.recordings.worlds import INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.recordings.worlds import Stage

_SMALL = {"demo": {"meta", "segment", "gpu", "decision", "alert"}}
"""Tables whose rows are kept whole."""


def items(stage: Stage) -> Iterator[Item]:
    """Yield what each scenario leaves."""
    for scenario in INCIDENTS:
        yield Item(f"incidents/{scenario}/log", partial(_log, stage, scenario), whole=True)
        yield Item(f"incidents/{scenario}/changes", partial(_changes, stage, scenario))
        yield Item(f"incidents/{scenario}/deliveries", partial(_deliveries, stage, scenario))
        yield Item(f"incidents/{scenario}/state.json", partial(_state, stage, scenario))
        yield Item(f"incidents/{scenario}/files", partial(_files, stage, scenario), whole=True)
        yield Item(f"incidents/{scenario}/schema", partial(_schema, stage, scenario))
        for table in _tables(stage):
            yield Item(
                f"incidents/{scenario}/rows of {table}",
                partial(_rows, stage, scenario, table),
                whole=table in _SMALL.get(scenario, set()),
            )


def _log(stage: Stage, scenario: str) -> str:
    return "\n".join(stage.incident(scenario).log)


def _changes(stage: Stage, scenario: str) -> str:
    return "\n".join(stage.incident(scenario).ticks)


def _deliveries(stage: Stage, scenario: str) -> str:
    taken = stage.incident(scenario).post.taken
    return "\n".join(msgspec.json.encode(one).decode() for one in taken)


def _state(stage: Stage, scenario: str) -> str:
    file = stage.folder(scenario) / "run" / places.live.FILE_NAME
    return msgspec.json.format(file.read_bytes()).decode()


def _files(stage: Stage, scenario: str) -> str:
    place = stage.folder(scenario)
    found = [file for part in ("state", "run") for file in (place / part).rglob("*")]
    # Whether the two beside a database are there depends on who reads it.
    kept = [file for file in found if not file.name.endswith(("-wal", "-shm"))]
    return "\n".join(sorted(f"{file.relative_to(place)} {file.stat().st_mode:o}" for file in kept))


def _schema(stage: Stage, scenario: str) -> str:
    with closing(_history(stage.folder(scenario))) as it:
        rows = it.execute(
            "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
        ).fetchall()
        marks = [
            it.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        ]
    return "\n".join(map(repr, [*rows, *marks]))


def _tables(stage: Stage) -> list[str]:
    with closing(_history(stage.folder("empty"))) as it:
        rows = it.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return sorted(name for (name,) in rows)


def _rows(stage: Stage, scenario: str, table: str) -> str:
    with closing(_history(stage.folder(scenario))) as it:
        found = it.execute(f"SELECT * FROM {table}")
        head = [column[0] for column in found.description]
        rows = sorted(repr(row) for row in found)
    return "\n".join([repr(head), *rows])


def _history(place: Path) -> sqlite3.Connection:
    return sqlite3.connect(place / "state" / places.HISTORY_FILE)
