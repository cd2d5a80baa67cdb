"""A history of dcd1649 with everything in it is read as that version read it."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.codes import Ending, Failure, Hold
from gpuwatchd.store import legacy_text, profiles, records, tables
from tests.making import alert
from tests.store import asking, released
from tests.store.filling import away, names, structs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import msgspec

NEVER_STORED = {
    "ProcessInfo": {
        "state",
        "frameworks",
        "role",
        "uid",
        "unit",
        "pod",
        "group",
        "rank",
        "world",
        "model",
        "parents",
        "foreign",
        "was",
    },
    "Decision": {"finding_id", "facts"},
    # Written from version 6 on.
    "Action": {"code"},
    "Alert": {"ended_facts", "held_facts", "critical_at_s", "saved_at_s", "evidence"},
    "Chart": {"died_at_s"},
    "Message": {"proposal"},
    "Delivery": {"facts"},
    "Finding": {"grounds", "commands", "hardware_at_s"},
    "Blame": {"rank"},
    "Clause": {"about", "short", "verb", "forecast"},
    "Grounds": {"code", "lead"},
    "Profile": {"stages"},
    "TitlePart": {"short"},
}
"""What the tables of version 5 had no column for, and what that version knew nothing of."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asking.loaded(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def said(directory: Path) -> dict[str, Any]:
    return asking.answers(directory)


@pytest.fixture
def history(directory: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(directory / "history.db")) as it:
        yield it


def everything(history: sqlite3.Connection) -> list[Any]:
    alerts, strange = records.load_alerts(history)
    deliveries, stranger = records.load_deliveries(history, "TRUE")
    assert (strange, stranger) == (0, 0)
    return [
        *alerts,
        *deliveries,
        *records.load_devices(history),
        *records.load_processes(history, "TRUE"),
        *profiles.load_runs(history),
        *tables.SILENCES.load(history, "TRUE"),
        *tables.LABELS.load(history),
        *tables.CHECKPOINTS.load(history),
        *tables.load_actions(history),
        *tables.load_decisions(history),
    ]


@pytest.mark.slow
def test_somewhere_every_field_of_every_struct_is_away_from_its_default(
    history: sqlite3.Connection,
) -> None:
    found: dict[type[msgspec.Struct], set[str]] = defaultdict(set)
    for one in structs(everything(history)):
        found[type(one)] |= away(one) | NEVER_STORED.get(type(one).__name__, set())
    lacks = {kind.__name__: names(kind) - those for kind, those in found.items()}
    assert {name: those for name, those in lacks.items() if those} == {}
    assert len(found) >= 23


def test_somewhere_every_column_has_a_value(tmp_path: Path) -> None:
    with closing(sqlite3.connect(released.load_text(released.FULL, tmp_path))) as it:
        tables = [
            name for (name,) in it.execute("SELECT name FROM sqlite_schema WHERE type='table'")
        ]
        empty = [
            (table, column)
            for table in tables
            for _, column, *_ in it.execute(f"PRAGMA table_info({table})").fetchall()
            if not it.execute(
                f"SELECT 1 FROM {table} WHERE {column} IS NOT NULL AND {column} NOT IN (0, '')"
            ).fetchone()
        ]
    assert empty == []


def test_everything_is_in_every_state(history: sqlite3.Connection) -> None:
    def values(column: str, table: str) -> set[str]:
        return {one for (one,) in history.execute(f"SELECT DISTINCT {column} FROM {table}")}

    assert values("state", "alert") == {"watch", "firing", "resolved"}
    assert values("kind", "alert") == {"leak", "gpu", "held"}
    assert values("severity", "alert") == {"info", "warning", "critical"}
    assert values("state", "delivery") == {"pending", "sent", "failed"}
    assert values("notice", "delivery") == {"firing", "escalated", "repeat", "resolved", "digest"}
    assert values("kind", "decision") == {"notify", "hold", "act"}
    assert values("phase", "action") == {"asked", "done", "refused"}
    assert values("word", "feedback") == {"normal", "leak"}
    over = [alert for alert in records.load_alerts(history)[0] if alert.state == "resolved"]
    assert len({alert.ended for alert in over}) == 25
    later = {Ending.LEGACY, Ending.RAN_OUT, Ending.BELOW_LIMIT}
    assert {alert.ended_code for alert in over} == set(Ending) - later
    decided = tables.load_decisions(history)
    assert len({one.reason for one in decided if one.kind == "hold"}) == 15
    held = {one.held_code for one in records.load_alerts(history)[0]}
    assert held | {one.code for one in decided} == {None, *Hold} - {Hold.LEGACY, Hold.PART_OF_JOB}
    failed = {one.code for one in records.load_deliveries(history, "state = 'failed'")[0]}
    assert failed == set(Failure) - {Failure.LEGACY}
    assert [one.saved for one in tables.load_actions(history)].count(True) == 1


def test_a_text_that_no_version_wrote_has_the_code_of_none() -> None:
    over = legacy_text.alert(alert(state="resolved", ended="it had enough", held_back="why not"))
    assert (over.ended_code, over.held_code) == (Ending.LEGACY, Hold.LEGACY)
    assert legacy_text.alert(over) == over


def test_every_question_is_asked(said: dict[str, Any]) -> None:
    assert said.keys() == asking.recorded().keys()
    assert sum(words.startswith("explain") for words in said) > 30
    assert {one["code"] for one in said.values()} == {0}


@pytest.mark.parametrize("question", asking.recorded())
def test_it_is_answered_as_it_was(question: str, said: dict[str, Any]) -> None:
    """Where a change is meant: ``python -m tests.store.asking``."""
    assert list(asking.differences(asking.recorded()[question], said[question])) == []
