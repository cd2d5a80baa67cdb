"""Ranks of one job: whose siblings have ended, and who lets the others wait."""

from __future__ import annotations

from typing import Any

from gpuwatchd.analysis.idle import Board, PersistenceCheck
from gpuwatchd.analysis.idle.ranks import MOST_JOBS, Ranks
from gpuwatchd.core.model import ProcessKey
from tests.zombies.facts import blind, board, held, info, kinds, look

JOB = "torchrun 7f3a"
MINUTES_11 = 23


def rank(
    number: int, util: float, *, moved: float = 30.0, who_key: float | None = None, **changes: Any
) -> Board:
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


def empty(number: int) -> Board:
    return board(uid=f"GPU-{number}", util_pct=0.0)


def test_a_rank_that_computes_nothing_while_the_others_work_is_hung() -> None:
    job = [rank(0, 99.0), rank(1, 0.0), rank(2, 98.0)]
    assert look(*job, looks=20) == ()
    (found,) = look(*job, looks=21)
    assert (found.kind, found.device_uid) == ("hung-rank", "GPU-1")
    assert "2 other ranks are at work while rank 1 of torchrun 7f3a" in found.evidence


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
    (found,) = look(rank(0, 100.0, moved=0.0), rank(1, 0.0), looks=MINUTES_11)
    assert "1 other rank is only waiting" in found.evidence


def test_ranks_that_all_rest_or_all_work_are_not_hung() -> None:
    assert look(rank(0, 0.0), rank(1, 0.0), looks=MINUTES_11) == ()
    assert look(rank(0, 99.0), rank(1, 90.0), looks=MINUTES_11) == ()


def test_a_rank_whose_siblings_have_ended_is_hung_when_it_only_waits() -> None:
    vigil = PersistenceCheck()
    look(rank(0, 99.0), rank(1, 99.0), rank(2, 99.0), vigil=vigil)
    left = [rank(0, 100.0, moved=0.0), empty(1), empty(2)]
    (found,) = look(*left, vigil=vigil, at_s=90, looks=MINUTES_11)
    assert "2 ranks of torchrun 7f3a have ended and rank 0 only waits" in found.evidence


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
    (found,) = look(rank(0, 0.0, orphan=True), rank(1, 99.0), looks=MINUTES_11)
    assert "the launcher of torchrun 7f3a has ended" in found.evidence


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
    assert "other ranks of torchrun 7f3a have ended" in found[0].evidence


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


def test_jobs_that_have_ended_are_forgotten() -> None:
    ranks = Ranks()
    ranks.update([rank(0, 99.0), rank(1, 99.0)])
    for _ in range(3):
        ranks.update([empty(0), empty(1)])
    assert len(ranks) == 0


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
