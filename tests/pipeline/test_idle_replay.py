"""``backtest --act`` of idle memory: what the rule that acts would have done, and to whom."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.codes import ActHold, Ending
from gpuwatchd.core.config import Config, OverrideSection
from gpuwatchd.core.config.schema import ActSection
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline import idle_replay
from gpuwatchd.store import records, tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.schema import FILE_NAME
from gpuwatchd.store.tables import Action
from tests import making
from tests.making import present
from tests.pipeline import recorded
from tests.pipeline.recorded import Run, key, ramp

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.pipeline.idle_replay import IdleTally

HOUR_S = 3600.0
BEGIN_S = 1_700_000_040.0
END_S = BEGIN_S + 7 * HOUR_S
WORKS = (BEGIN_S, BEGIN_S + HOUR_S)
"""At first it works, in all of these histories."""


def run(pid: int = 1, hours: float = 6.0) -> Run:
    """Return a process that holds 4 GiB."""
    return Run(pid=pid, begin_s=BEGIN_S, used=ramp(0, 0.0, then_minutes=60.0 * hours))


def play(
    where: Path, config: Config | None = None, owner: str | None = "alice", of: str = "GPU-0"
) -> IdleTally:
    """Return what would have been done in a history."""
    with Reader.open(where) as history:
        span = (BEGIN_S - 60.0, END_S)
        return idle_replay.play(
            history, history.devices(), span, config or Config(), owner, of=frozenset({of})
        )


def write(where: Path, runs: list[Run], **more: Any) -> None:
    """Write a history."""
    recorded.write(where, runs, BEGIN_S, END_S, **more)


@pytest.mark.parametrize("rolled", [False, True])
def test_one_that_never_worked_again_is_ended_after_two_notices(
    tmp_path: Path, *, rolled: bool
) -> None:
    write(tmp_path, [run()], busy=[WORKS], rolled=rolled)
    tally = play(tmp_path)
    (case,) = tally.cases
    assert (tally.taken, tally.right, tally.wrong, tally.not_judged) == (1, 1, 0, 0)
    assert (case.step, case.hold, case.outcome, case.by_alert) == ("end", None, "ended", False)
    waited_s = present(case.at_s) - case.idle_since_at_s
    # Two hours of idleness, then a quarter of an hour twice, and on to the whole minute.
    assert 9000.0 <= waited_s <= 9000.0 + 180.0
    assert case.idle_since_at_s == pytest.approx(WORKS[1], abs=120.0)
    assert present(case.freed_s) == pytest.approx(5 * HOUR_S - waited_s, abs=180.0)


def test_one_that_worked_again_was_ended_wrongly(tmp_path: Path) -> None:
    again_s = BEGIN_S + 5 * HOUR_S
    write(tmp_path, [run()], busy=[WORKS, (again_s, again_s + 60.0)])
    (case,) = play(tmp_path).cases
    assert (case.outcome, case.right, case.freed_s) == ("worked", False, None)
    assert present(case.until_at_s) == pytest.approx(again_s, abs=120.0)


def test_one_that_grew_again_was_in_use(tmp_path: Path) -> None:
    used = run().used.copy()
    used[-100:] += recorded.GIB
    write(tmp_path, [Run(pid=1, begin_s=BEGIN_S, used=used)], busy=[WORKS])
    assert [case.outcome for case in play(tmp_path).cases] == ["worked"]


@pytest.mark.parametrize(
    ("hours", "busy", "outcome"),
    [(7.0, [WORKS], "running"), (6.0, None, "")],
    ids=["idle to the end of the record", "use not recorded"],
)
def test_what_is_not_known_is_no_right_step(
    hours: float, busy: list[tuple[float, float]] | None, outcome: str, tmp_path: Path
) -> None:
    write(tmp_path, [run(hours=hours)], busy=busy)
    tally = play(tmp_path)
    assert tally.right == tally.wrong == 0
    assert [case.outcome for case in tally.cases] == ([outcome] if outcome else [])
    assert tally.not_judged == (busy is None)


def test_on_a_shared_gpu_at_work_nobody_is_judged_and_on_one_at_rest_everybody(
    tmp_path: Path,
) -> None:
    both = [run(1), run(2, hours=5.5)]
    write(tmp_path, both, busy=[(BEGIN_S, END_S)])
    tally = play(tmp_path)
    assert (tally.taken, tally.processes, tally.not_judged, tally.cases) == (0, 2, 2, ())
    other = tmp_path / "other"
    other.mkdir()
    write(other, both, busy=[WORKS])
    tally = play(other)
    assert (tally.taken, tally.right, tally.not_judged) == (2, 2, 0)


def test_an_own_share_of_a_shared_gpu_tells_who_worked(tmp_path: Path) -> None:
    write(tmp_path, [run(1), run(2)], busy=[(BEGIN_S, END_S)])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it, it:
        it.execute("UPDATE process_raw SET sm_percent = CASE process WHEN 1 THEN 0 ELSE 60 END")
    tally = play(tmp_path)
    (case,) = tally.cases
    assert (case.subject.process.pid, case.right) == (1, True)  # type: ignore[union-attr]
    assert tally.not_judged == 0


def test_what_works_on_another_gpu_is_not_idle_on_this_one(tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS], devices=2)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it, it:
        it.execute("UPDATE gpu_raw SET util_percent = 60 WHERE gpu = 2")
    tally = play(tmp_path)
    assert (tally.processes, tally.taken, tally.cases) == (1, 0, ())


def test_a_step_on_what_holds_memory_of_two_gpus_is_told_of_for_either(tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS], devices=2)
    assert [play(tmp_path, of=uid).taken for uid in ("GPU-0", "GPU-1")] == [1, 1]


def test_an_alert_of_then_tells_it_and_so_does_its_end(tmp_path: Path) -> None:
    write(tmp_path, [run(1), run(2)], busy=[(BEGIN_S, END_S)])
    subject = Subject(
        device_uid="GPU-0", process=msgspec.structs.replace(key(1), started_at_s=BEGIN_S)
    )
    alert = msgspec.structs.replace(
        making.alert(), key="held:1", kind="held", subject=subject, opened_at_s=BEGIN_S + HOUR_S,
        firing_at_s=BEGIN_S + 3 * HOUR_S, resolved_at_s=BEGIN_S + 5 * HOUR_S, state="resolved",
        ended_code=Ending.AT_WORK,
    )  # fmt: skip
    transaction(tmp_path, records.save_alert, alert)
    (case,) = play(tmp_path).cases
    assert (case.by_alert, case.outcome, case.right) == (True, "worked", False)
    assert present(case.at_s) - BEGIN_S == pytest.approx(3.5 * HOUR_S, abs=180.0)


def test_a_gap_in_the_record_leaves_it_open_whether_it_worked(tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it, it:
        for table in ("gpu_raw", "process_raw"):
            span = [1000.0 * (BEGIN_S + hours * HOUR_S) for hours in (4.5, 5.0)]
            it.execute(f"DELETE FROM {table} WHERE ts_ms BETWEEN ? AND ?", span)
    assert [(case.outcome, case.right) for case in play(tmp_path).cases] == [("unknown", None)]


def test_one_that_was_ended_by_a_step_does_not_say_that_the_step_was_right(tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS])
    asked = Action(
        at_s=BEGIN_S + 6 * HOUR_S - 10.0, verb="reap", phase="asked",
        process=msgspec.structs.replace(key(1), started_at_s=BEGIN_S),
    )  # fmt: skip
    transaction(tmp_path, tables.write_action, asked)
    assert [(case.outcome, case.right) for case in play(tmp_path).cases] == [("acted", None)]


@pytest.mark.parametrize(
    ("hold", "config", "owner"),
    [
        (ActHold.NOT_OWN, {}, "bob"),
        (ActHold.MACHINE, {}, None),
        (ActHold.PROPOSE, {"override": (OverrideSection(user="alice", act="propose"),)}, "alice"),
        (ActHold.NOTICES, {"act": ActSection(notices=10)}, "alice"),
    ],
)
def test_what_holds_a_step_back(
    hold: ActHold, config: dict[str, Any], owner: str | None, tmp_path: Path
) -> None:
    write(tmp_path, [run(hours=4.0)], busy=[WORKS])
    (case,) = play(tmp_path, Config(**config), owner).cases
    assert (case.at_s, case.hold, case.right) == (None, hold, None)


def test_a_hold_of_then_counts_until_it_was_cleared(tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS])
    process = msgspec.structs.replace(key(1), started_at_s=BEGIN_S)
    for hours, verb in ((1.0, "hold"), (4.0, "clear-hold")):
        row = Action(at_s=BEGIN_S + hours * HOUR_S, verb=verb, process=process, phase="done")
        transaction(tmp_path, tables.write_action, row)
    (case,) = play(tmp_path).cases
    assert present(case.at_s) - BEGIN_S == pytest.approx(4.5 * HOUR_S, abs=180.0)


def test_three_steps_of_a_host_within_a_day(tmp_path: Path) -> None:
    write(tmp_path, [run(pid) for pid in range(1, 6)], busy=[WORKS])
    tally = play(tmp_path)
    assert tally.taken == 3
    assert {case.hold for case in tally.cases} == {None, ActHold.BUDGET_HOST}


@pytest.mark.parametrize("values", [(-5, None), (1 << 60, 1 << 60)])
def test_damaged_rows_are_not_known_memory(values: tuple[int, int], tmp_path: Path) -> None:
    write(tmp_path, [run()], busy=[WORKS])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it, it:
        it.execute("UPDATE process_raw SET used_bytes = ?, sm_percent = ?", values)
    assert play(tmp_path).taken == 0


def test_an_empty_history_and_one_of_another_time_come_to_nothing(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert play(tmp_path) == idle_replay.IdleTally()
    with Reader.open(tmp_path) as history:
        span = (END_S + 1e6, END_S + 1e6 + 60.0)
        tally = idle_replay.play(
            history, history.devices(), span, Config(), "alice", of=frozenset({"GPU-0"})
        )
    assert tally == idle_replay.IdleTally()
