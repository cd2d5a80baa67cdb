"""Look after look: what resets the count, what keeps the beginning, and what is always true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.analysis.idle import (
    ORDER,
    DeviceSnapshot,
    Limits,
    PersistenceCheck,
    ProcessMemory,
    Server,
)
from gpuwatchd.analysis.idle.ranks import MOST_JOBS, Ranks
from gpuwatchd.core.model import ProcessKey
from tests.making import present
from tests.zombies.facts import GIB, MIB, blind, board, held, info, kinds, ledger, look, server

GONE = board(held(exists=False))
REST = board(held(), util_pct=0.0)


def test_a_failed_list_starts_the_count_anew_and_keeps_the_beginning() -> None:
    vigil = PersistenceCheck()
    assert kinds(look(GONE, vigil=vigil)) == ["gone"]
    assert look(blind(), vigil=vigil, at_s=90, looks=1) == ()
    assert look(GONE, vigil=vigil, at_s=120, looks=2) == ()
    (found,) = look(GONE, vigil=vigil, at_s=180, looks=1)
    assert found.since_s == 0.0


def test_after_a_long_gap_nothing_is_known_of_the_time_before() -> None:
    vigil = PersistenceCheck()
    look(GONE, vigil=vigil)
    (found,) = look(GONE, vigil=vigil, at_s=5000)
    assert found.since_s == 5000.0
    look(blind(), vigil=vigil, at_s=5100, looks=30)
    (found,) = look(GONE, vigil=vigil, at_s=6030)
    assert found.since_s == 6030.0


def test_one_look_without_the_sign_ends_it() -> None:
    vigil = PersistenceCheck()
    look(GONE, vigil=vigil)
    assert look(board(), vigil=vigil, at_s=90, looks=1) == ()
    assert look(GONE, vigil=vigil, at_s=120, looks=2) == ()


def test_memory_that_grows_or_is_given_back_is_being_worked_with() -> None:
    vigil = PersistenceCheck()
    for turn in range(600):
        grown = board(held(gib=9.0 + turn * 0.001), util_pct=0.0)
        assert vigil.update((grown,), (), turn * 30.0, Limits()) == ()
    assert look(REST, vigil=vigil, at_s=18_000.0, looks=1) == ()


def test_a_moment_of_work_starts_the_hours_anew() -> None:
    vigil = PersistenceCheck()
    look(REST, vigil=vigil, looks=200)
    look(board(held(), util_pct=3.0), vigil=vigil, at_s=6000, looks=1)
    assert look(REST, vigil=vigil, at_s=6030, looks=240) == ()
    (found,) = look(REST, vigil=vigil, at_s=6030 + 7200, looks=1)
    assert found.since_s == 6030.0


def test_a_restart_keeps_since_when() -> None:
    first = PersistenceCheck()
    listed = look(GONE, board(held(7), uid="GPU-2", util_pct=0.0), vigil=first, looks=300)
    assert kinds(listed) == ["gone", "idle"]
    second = PersistenceCheck()
    second.resume(listed, [info(7)], 300 * 30.0)
    found = look(GONE, board(held(7), uid="GPU-2", util_pct=0.0), vigil=second, at_s=9100.0)
    assert [one.since_s for one in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("seen_s", "stopped_s", "again_s"), [(0.0, 90.0, 4000.0), (5000.0, 100.0, 200.0)]
)
def test_a_restart_after_a_long_time_or_from_the_future_begins_anew(
    seen_s: float, stopped_s: float, again_s: float
) -> None:
    listed = look(GONE, at_s=seen_s)
    second = PersistenceCheck()
    second.resume(listed, [], stopped_s)
    (found,) = look(GONE, vigil=second, at_s=again_s)
    assert found.since_s == again_s


def test_memory_that_is_not_the_same_after_a_restart_begins_anew() -> None:
    listed = look(REST, looks=300)
    second = PersistenceCheck()
    second.resume(listed, [info()], 9000.0)
    other = board(held(gib=12.0), util_pct=0.0)
    assert look(other, vigil=second, at_s=9030.0) == ()


def test_a_clock_that_is_set_back_keeps_how_long_it_has_been() -> None:
    vigil = PersistenceCheck()
    look(REST, vigil=vigil, at_s=100_000.0, looks=300)
    (found,) = look(REST, vigil=vigil, at_s=50_000.0, looks=1)
    assert 50_000.0 - present(found.since_s) == 299 * 30.0


def test_another_process_with_the_same_pid_begins_anew() -> None:
    vigil = PersistenceCheck()
    look(REST, vigil=vigil, looks=300)
    fresh = info().key
    reused = board(held(who={"key": type(fresh)(pid=fresh.pid, started_at_s=8000.0)}), util_pct=0.0)
    assert look(reused, vigil=vigil, at_s=9000.0) == ()


PROCESSES = st.builds(
    lambda pid, gib, exists, state, busy, cpu, who, kind, exempt, orphan: held(
        pid, gib, exists=exists, state=state, busy_pct=busy, cpu_pct=cpu, who=who, kind=kind,
        exempt=exempt, orphan=orphan,
    ),
    st.integers(1, 4),
    st.none() | st.sampled_from([0.0, 0.1, 2.0, 40.0]),
    st.sampled_from([True, True, False, None]),
    st.none() | st.sampled_from("RSDZX"),
    st.none() | st.sampled_from([0.0, 5.0, 100.0]),
    st.none() | st.sampled_from([0.0, 0.3, 90.0]),
    st.fixed_dictionaries(
        {},
        optional={
            "foreign": st.booleans(),
            "framework": st.sampled_from(["Ollama", "vLLM", "PyTorch"]),
            "group": st.sampled_from(["a", "b"]),
            "parent_pid": st.just(900),
        },
    ),
    st.sampled_from(["C", "G", "C+G", "M+C"]),
    st.sampled_from([False, False, False, True]),
    st.booleans(),
)  # fmt: skip
BOARDS = st.builds(
    lambda uid, uses, util, moved, unowned, state, contained: board(
        *{one.info.key: one for one in uses}.values(),
        uid=uid, util_pct=util, memory_util_pct=moved, contained=contained,
        ledger=None if state is None else ledger(unowned, state=state),
    ),
    st.sampled_from(["GPU-1", "GPU-2"]),
    st.lists(PROCESSES, max_size=4),
    st.none() | st.sampled_from([0.0, 50.0, 100.0]),
    st.none() | st.sampled_from([0.0, 20.0]),
    st.sampled_from([0.0, 3.0, 60.0]),
    st.none() | st.sampled_from(["whole", "partial", "overlap", "none"]),
    st.booleans(),
)  # fmt: skip
SERVERS = st.builds(
    lambda kind, pid, models, left, ok, running: server(
        kind, pid=pid, models=models, left=left, ok=ok, running=running
    ),
    st.sampled_from(["Ollama", "vLLM", "llama.cpp"]),
    st.none() | st.sampled_from([1, 2, 900]),
    st.none() | st.integers(0, 2),
    st.none() | st.just(0.2),
    st.booleans(),
    st.none() | st.integers(0, 1),
)


def _proven(kind: str, one: ProcessMemory, on: DeviceSnapshot, servers: list[Server]) -> bool:
    """Say whether the facts of a process carry what is said of it, in other words than the code."""
    mine = [s for s in servers if s.reading.ok]
    sole = len([use for use in on.uses or () if not use.exempt]) == 1
    known = one.busy_pct is not None or on.util_pct == 0.0 or (sole and on.util_pct is not None)
    util = one.busy_pct if one.busy_pct is not None else on.util_pct
    no_cpu = not known and one.cpu_pct is not None and one.cpu_pct < 1.0
    return {
        "gone": one.exists is False,
        "defunct": one.state in {"Z", "X"},
        "driver-wait": one.state == "D" and (one.cpu_pct or 0.0) < 1.0,
        "orphaned-runner": one.info.framework == "Ollama"
        and (one.orphan or any(s.reading.models == () for s in mine)),
        "no-model": any(s.reading.models == () for s in mine),
        "leaked-kv": any(s.kv_left is not None for s in mine),
        "hung-rank": one.info.group is not None and ((known and util in {0.0, 100.0}) or no_cpu),
        "idle": (known and util == 0.0) or no_cpu,
    }[kind]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(BOARDS, max_size=2, unique_by=lambda b: b.uid), st.lists(SERVERS, max_size=2))
def test_nothing_is_listed_without_its_evidence(
    boards: list[DeviceSnapshot], servers: list[Server]
) -> None:
    found = look(*boards, servers=servers, looks=300)
    assert [ORDER.index(one.kind) for one in found] == sorted(ORDER.index(o.kind) for o in found)
    by_uid = {one.uid: one for one in boards}
    listed = set()
    for one in found:
        on = by_uid[one.device_uid]
        assert one.evidence
        assert one.advice
        assert one.since_s is not None
        if one.process is None:
            assert one.kind == "ghost"
            assert present(on.ledger).state == "whole"
            assert (one.held_bytes or 0) > 512 * MIB
            continue
        key = (one.device_uid, one.process.key)
        assert key not in listed  # once per process and device
        listed.add(key)
        (fact,) = [use for use in on.uses or () if use.info.key == one.process.key]
        assert not fact.exempt
        assert fact.used_bytes is None or fact.used_bytes >= GIB / 2
        assert _proven(one.kind, fact, on, servers)
        assert not (one.process.foreign and one.kind != "idle")


@settings(max_examples=100, deadline=None)
@given(st.lists(BOARDS, max_size=2, unique_by=lambda b: b.uid), st.lists(SERVERS, max_size=2))
def test_nothing_is_listed_while_lists_fail_now_and_then(
    boards: list[DeviceSnapshot], servers: list[Server]
) -> None:
    vigil = PersistenceCheck()
    for turn in range(60):
        seen = boards if turn % 3 else [blind(one.uid) for one in boards]
        assert vigil.update(seen, servers, turn * 30.0, Limits()) == ()


JOB = "torchrun 7f3a"
MINUTES_11 = 23


def rank(
    number: int, util: float, *, moved: float = 30.0, who_key: float | None = None, **changes: Any
) -> DeviceSnapshot:
    """Return the card of one rank."""
    who: dict[str, Any] = {"group": JOB, "rank": number}
    if who_key is not None:
        who["key"] = ProcessKey(pid=200 + number, started_at_s=who_key)
    return board(
        held(100 + number, who=who, **changes),
        uid=f"GPU-{number}",
        util_pct=util,
        memory_util_pct=moved,
    )


def empty(number: int) -> DeviceSnapshot:
    return board(uid=f"GPU-{number}", util_pct=0.0)


def test_a_rank_that_computes_nothing_while_the_others_work_is_hung() -> None:
    job = [rank(0, 99.0), rank(1, 0.0), rank(2, 98.0)]
    assert look(*job, looks=20) == ()
    (found,) = look(*job, looks=21)
    assert (found.kind, found.device_uid) == ("hung-rank", "GPU-1")


def test_two_users_whose_jobs_are_called_the_same_have_two_jobs() -> None:
    """The first job of every Ray cluster is 01000000, and examples call runs alike."""
    mine = rank(0, 0.0)
    theirs = [
        board(
            held(100 + i, who={"group": JOB, "rank": i, "user": "bob"}),
            uid=f"GPU-{i}",
            util_pct=99.0,
        )
        for i in (1, 2)
    ]
    assert look(mine, *theirs, looks=MINUTES_11) == ()
    vigil = PersistenceCheck()
    look(mine, *theirs, vigil=vigil)
    assert look(mine, empty(1), empty(2), vigil=vigil, at_s=90, looks=MINUTES_11) == ()


def test_others_that_only_wait_for_it_are_told_apart() -> None:
    found = look(rank(0, 100.0, moved=0.0), rank(1, 0.0), looks=MINUTES_11)
    assert kinds(found) == ["hung-rank"]


def test_ranks_that_all_rest_or_all_work_are_not_hung() -> None:
    assert look(rank(0, 0.0), rank(1, 0.0), looks=MINUTES_11) == ()
    assert look(rank(0, 99.0), rank(1, 90.0), looks=MINUTES_11) == ()


@pytest.mark.requirement("W5")
def test_a_rank_whose_siblings_have_ended_is_hung_when_it_only_waits() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), rank(2, 99.0), vigil=vigil)
    left = [rank(0, 100.0, moved=0.0), empty(1), empty(2)]
    assert kinds(look(*left, vigil=vigil, at_s=90, looks=MINUTES_11)) == ["hung-rank"]


def test_a_rank_that_goes_on_working_alone_is_not_hung() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), vigil=vigil)
    assert look(rank(0, 60.0), empty(1), vigil=vigil, at_s=90, looks=MINUTES_11) == ()


def test_a_list_that_is_unknown_ends_no_sibling() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 0.0), rank(1, 0.0), vigil=vigil)
    found = look(rank(0, 0.0), blind("GPU-1"), vigil=vigil, at_s=90, looks=MINUTES_11)
    assert found == ()
    lacking = board(uid="GPU-1", util_pct=0.0, complete=False)
    assert look(rank(0, 0.0), lacking, vigil=vigil, at_s=900, looks=MINUTES_11) == ()


def test_a_rank_whose_launcher_has_ended_is_hung_when_it_does_nothing() -> None:
    found = look(rank(0, 0.0, orphan=True), rank(1, 99.0), looks=MINUTES_11)
    assert kinds(found) == ["hung-rank"]


def test_it_is_known_after_a_restart_that_siblings_have_ended() -> None:
    first = PersistenceCheck()
    look(rank(0, 0.0), rank(1, 0.0), vigil=first)
    left = [rank(0, 0.0), empty(1)]
    listed = look(*left, vigil=first, at_s=90, looks=MINUTES_11)
    second = PersistenceCheck()
    second.resume(listed, [info(100, group=JOB, rank=0)], 800.0)
    found = look(*left, vigil=second, at_s=820.0)
    assert kinds(found) == ["hung-rank"]
    assert found[0].since_s == listed[0].since_s


def test_a_dead_sibling_that_is_still_listed_counts_as_ended() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), vigil=vigil)
    job = [rank(0, 0.0), rank(1, 0.0, exists=False)]
    found = look(*job, vigil=vigil, at_s=90, looks=MINUTES_11)
    assert kinds(found) == ["gone", "hung-rank"]


def test_jobs_that_nobody_can_see_the_end_of_are_forgotten_in_time() -> None:
    ranks = Ranks()
    for number in range(3 * MOST_JOBS):
        who = {"group": f"slurm {number}", "rank": 0}
        ranks.update([board(held(number, who=who), complete=False)])
    assert len(ranks) <= MOST_JOBS + 1


def test_another_device_that_is_unknown_hides_no_end() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), vigil=vigil)
    left = [rank(0, 0.0), empty(1), blind("GPU-7")]
    assert kinds(look(*left, vigil=vigil, at_s=90, looks=MINUTES_11)) == ["hung-rank"]


def test_a_job_that_is_started_again_under_its_name_has_lost_nobody() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), vigil=vigil)
    look(empty(0), rank(1, 99.0), vigil=vigil, at_s=90)
    again = [rank(number, 0.0, who_key=9000.0) for number in (0, 1)]
    assert look(*again, vigil=vigil, at_s=180, looks=MINUTES_11) == ()
