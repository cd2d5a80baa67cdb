"""What was done to processes is kept before and after, by whom, and of which process."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import StoreError
from gpuwatchd.store import access, actions
from gpuwatchd.store.actions import Action
from tests.making import KEY
from tests.store.world import T0, opened

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_kept_in_order(tmp_path: Path) -> None:
    opened(tmp_path).close()
    asked = Action(at_s=T0, verb="checkpoint", process=None, phase="asked", who="alice")
    done = Action(
        at_s=T0 + 1, verb="checkpoint", process=None, phase="done", result="asked", who="alice"
    )
    for one in (asked, done):
        actions.add(tmp_path, one)
    with closing(access.connect(access.find(tmp_path), "mode=ro")) as connection:
        kept = actions.load(connection)
    assert [(one.phase, one.result, one.who, one.at_s) for one in kept] == [
        ("asked", "", "alice", T0),
        ("done", "asked", "alice", T0 + 1),
    ]


def test_the_process_is_the_one_that_was_seen(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(access.connect(access.find(tmp_path), "mode=rw")) as connection:
        connection.execute(
            "INSERT INTO process(boot_id, pid, started_ts_ms, started_at_s, name, framework_sure,"
            " first_ts_ms, last_ts_ms) VALUES('b', ?, ?, ?, 'python', 0, 0, 0)",
            (KEY.pid, int((KEY.started_at_s or 0) * 1000), KEY.started_at_s),
        )
    actions.add(tmp_path, Action(at_s=T0, verb="checkpoint", process=KEY, phase="asked"))
    with closing(access.connect(access.find(tmp_path), "mode=ro")) as connection:
        (kept,) = actions.load(connection)
    assert kept.process == KEY


def test_without_a_history_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no history"):
        actions.add(tmp_path, Action(at_s=T0, verb="checkpoint", process=None, phase="asked"))
