"""What was decided is kept with the alert that it is about, bounded, and forgotten in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Decision
from gpuwatchd.store import decisions
from gpuwatchd.store.reader import Reader
from tests.making import alert
from tests.store.world import T0, Time, opened, rows

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def decision(number: int = 0, key: str = "leak:a", **changes: object) -> Decision:
    values: dict[str, object] = {
        "finding_id": "",
        "alert_key": key,
        "kind": "hold",
        "target": "email",
        "notice": "firing",
        "reason": f"quiet hours {number}",
        "at_s": T0 + number,
        "code": Hold.QUIET_HOURS,
        "facts": {"clock": "07:00"},
    }
    return Decision(**{**values, **changes})  # type: ignore[arg-type]


def test_it_is_written_with_the_alert_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = opened(tmp_path)
    commits = []
    commit = history._commit

    def counted() -> dict[int, int]:
        commits.append(True)
        return commit()

    monkeypatch.setattr(history, "_commit", counted)
    history.decide([decision(), decision(1, kind="notify", target="desktop")])
    assert rows(tmp_path, "SELECT count(*) FROM decision") == [(0,)]
    history.apply([alert(key="leak:a")], [])
    assert len(commits) == 1
    with Reader.open(tmp_path) as reader:
        assert reader.decisions("leak:a") == [
            decision(),
            decision(1, kind="notify", target="desktop"),
        ]
        assert reader.decisions("leak:b") == []
        assert len(reader.decisions()) == 2
        assert [one.reason for one in reader.decisions(since_s=T0 + 1)] == ["quiet hours 1"]
    history.close()


def test_without_an_alert_it_is_written_at_the_end_of_the_tick(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.flush(time.now_s)
    time.pass_s(10)
    history.decide([decision()])
    history.flush_due(time.now_s)
    assert rows(tmp_path, "SELECT reason FROM decision") == [("quiet hours 0",)]
    history.close()


def test_only_the_newest_of_one_alert_are_kept(tmp_path: Path) -> None:
    history = opened(tmp_path)
    many = decisions.KEPT_PER_ALERT + 7
    history.decide([decision(i) for i in range(many)])
    history.decide([decision(0, key="leak:b")])
    history.flush(T0)
    with Reader.open(tmp_path) as reader:
        kept = reader.decisions("leak:a")
        assert len(kept) == decisions.KEPT_PER_ALERT
        assert kept[-1] == decision(many - 1)
        assert reader.decisions("leak:b") == [decision(0, key="leak:b")]
    history.close()


def test_what_is_old_is_forgotten(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time, events=1000)
    history.decide([decision(0), decision(5000)])
    history.flush(time.now_s)
    for _ in range(30):
        time.pass_s(50)
        history.chores(T0 + 5500 - 1500 + (time.now_s - T0))
    with Reader.open(tmp_path) as reader:
        assert [one.at_s for one in reader.decisions()] == [T0 + 5000]
    history.close()
