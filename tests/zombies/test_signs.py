"""Each kind of idle memory: what makes it one, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.analysis.idle import Limits, snapshot
from tests.making import present
from tests.zombies.facts import blind, board, held, kinds, ledger, look, server

if TYPE_CHECKING:
    from gpuwatchd.analysis.idle import DeviceSnapshot, ProcessMemory

IDLE: dict[str, Any] = {"util_pct": 0.0}
LONG = 300
"""Looks: two and a half hours."""


@pytest.mark.parametrize(
    "seen",
    [
        board(held()),
        board(held(1), held(2)),
        board(held(kind="G"), **IDLE),
        board(held(exists=False, who={"foreign": True, "name": "?"})),
        blind(),
    ],
    ids=["at work", "several at work", "draws only", "of another namespace", "an unknown list"],
)
def test_what_proves_nothing_is_not_listed(seen: DeviceSnapshot) -> None:
    assert look(seen, looks=LONG) == ()


@pytest.mark.requirement("W2")
def test_a_pid_that_does_not_exist_is_named_with_whom_it_was() -> None:
    (found,) = look(board(held(exists=False, who={"state": "gone"})))
    assert (found.kind, found.since_s) == ("gone", 0.0)
    assert present(found.process).label == "python train.py"


def test_it_takes_three_looks_in_a_row() -> None:
    gone = board(held(exists=False))
    assert look(gone, looks=2) == ()
    assert kinds(look(gone, looks=3)) == ["gone"]


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_defunct_process_names_its_parent(state: str) -> None:
    (found,) = look(board(held(state=state, parent="bash[4600]")))
    assert found.kind == "defunct"


def test_waiting_in_the_kernel_takes_a_minute_and_no_cpu() -> None:
    stuck = board(held(state="D", cpu_pct=0.0))
    assert look(stuck, looks=3, every_s=20) == ()
    assert kinds(look(stuck, looks=4, every_s=20)) == ["driver-wait"]
    assert look(board(held(state="D", cpu_pct=3.0)), looks=9) == ()
    assert look(board(held(state="D", cpu_pct=None)), looks=9) == ()


def test_memory_nobody_owns_is_a_ghost_above_what_the_driver_takes() -> None:
    (found,) = look(board(ledger=ledger(9.0), **IDLE))
    assert (found.kind, found.process, found.held_bytes) == ("ghost", None, 9 * 2**30)
    assert look(board(ledger=ledger(0.8), **IDLE), looks=LONG) == ()
    assert look(board(ledger=None), looks=LONG) == ()


def test_where_work_is_done_and_nobody_listed_the_list_lacks_somebody() -> None:
    assert look(board(ledger=ledger(9.0), util_pct=5.0), looks=LONG) == ()
    screen = held(7, 1.0, exempt=True)
    assert look(board(screen, ledger=ledger(9.0), util_pct=5.0), looks=LONG) == ()
    assert kinds(look(board(ledger=ledger(9.0), util_pct=None))) == ["ghost"]


@pytest.mark.parametrize("state", ["partial", "overlap", "none"])
def test_a_ledger_that_is_not_whole_proves_no_ghost(state: str) -> None:
    assert look(board(ledger=ledger(9.0, state=state), **IDLE), looks=LONG) == ()


def test_a_baseline_that_holds_the_ghost_already_does_not_hide_it() -> None:
    learned = ledger(9.0, baseline_bytes=9 * 2**30)
    assert kinds(look(board(ledger=learned, **IDLE))) == ["ghost"]
    assert kinds(look(board(ledger=ledger(9.0, baseline_bytes=None), **IDLE))) == ["ghost"]
    assert look(board(ledger=ledger(1.9, baseline_bytes=None), **IDLE), looks=LONG) == ()


def test_beside_listed_processes_a_ghost_must_stand_still_for_ten_minutes() -> None:
    beside = board(held(), ledger=ledger(9.0, owned_gib=9.0))
    assert look(beside, looks=20) == ()
    assert kinds(look(beside, looks=21)) == ["ghost"]


def test_one_look_proves_a_ghost_only_where_time_does_not_tell() -> None:
    def seen(*uses: ProcessMemory, **changes: Any) -> list[str]:
        there = board(*uses, ledger=ledger(9.0, owned_gib=9.0 * len(uses)), **IDLE, **changes)
        return kinds(snapshot([there], Limits()))

    assert seen() == ["ghost"]
    assert seen(held()) == []
    assert seen(contained=True) == []


def test_in_a_container_others_may_own_it() -> None:
    inside = ledger(60.0)
    assert look(board(ledger=inside, contained=True), looks=LONG) == ()
    assert look(board(ledger=inside, contained=True, **IDLE), looks=9) == ()
    assert kinds(look(board(ledger=inside, contained=True, **IDLE), looks=LONG)) == ["ghost"]


def test_behind_the_mps_server_nobody_is_a_ghost() -> None:
    assert look(board(held(kind="M+C"), ledger=ledger(9.0)), looks=LONG) == ()
    daemon = held(who={"name": "nvidia-cuda-mps-server"}, exempt=True)
    assert look(board(daemon, ledger=ledger(9.0), **IDLE), looks=LONG) == ()


RUNNER = {"framework": "Ollama", "parent_pid": 900, "name": "ollama"}


@pytest.mark.requirement("G26")
def test_an_ollama_runner_without_a_model_is_orphaned_after_its_keep_alive() -> None:
    runner = board(held(who=RUNNER))
    assert look(runner, servers=[server()], looks=14) == ()
    (found,) = look(runner, servers=[server()], looks=15)
    assert found.kind == "orphaned-runner"
    quick = server(facts={"keep_alive_s": 30.0})
    assert kinds(look(runner, servers=[quick], looks=6)) == ["orphaned-runner"]


def test_a_runner_whose_server_has_ended_is_orphaned_too() -> None:
    left = board(held(orphan=True, who=RUNNER))
    assert look(left, looks=4) == ()
    (found,) = look(left, looks=5)
    assert found.kind == "orphaned-runner"
    assert look(board(held(orphan=True, who={"framework": "vLLM"})), looks=9) == ()


@pytest.mark.parametrize(
    "said",
    [
        server(models=1),
        server(models=None),
        server(ok=False),
        server(pid=31),
        server("llama.cpp", pid=None),
    ],
    ids=["a model", "unknown", "silent", "another server", "another kind"],
)
def test_no_runner_is_orphaned_unless_its_own_server_says_so(said: object) -> None:
    assert look(board(held(who=RUNNER)), servers=[said], looks=60) == ()  # type: ignore[list-item]


def test_a_server_that_holds_memory_with_nothing_loaded() -> None:
    mine = board(held(900, who={"framework": "llama.cpp"}))
    said = server("llama.cpp")
    assert look(mine, servers=[said], looks=10) == ()
    assert kinds(look(mine, servers=[said], looks=11)) == ["no-model"]


def test_a_cache_that_does_not_come_back_is_listed_with_its_share() -> None:
    said = server("vLLM", models=1, left=0.12)
    (found,) = look(board(held(900, who={"framework": "vLLM"})), servers=[said], at_s=1000.0)
    assert (found.kind, found.since_s) == ("leaked-kv", 300.0)
    assert found.held_bytes is None  # a part of the process's memory, of unknown size
    told = server("SGLang", models=1, left=0.25, facts={"kv_cache_memory_usage_gb": 40.0})
    (found,) = look(board(held(900, who={"framework": "SGLang"})), servers=[told], at_s=1000.0)
    assert found.held_bytes == 10 * 2**30


@pytest.mark.parametrize("size_gb", [1e308, -1.0])
def test_a_cache_of_a_size_that_none_has_is_of_unknown_size(size_gb: float) -> None:
    told = server("SGLang", models=1, left=0.25, facts={"kv_cache_memory_usage_gb": size_gb})
    (found,) = look(board(held(900, who={"framework": "SGLang"})), servers=[told], at_s=1000.0)
    assert (found.kind, found.held_bytes) == ("leaked-kv", None)


@pytest.mark.requirement("W9")
def test_holding_memory_idle_for_two_hours() -> None:
    resting = board(held(), **IDLE)
    assert look(resting, looks=240) == ()
    (found,) = look(resting, looks=241)
    assert (found.kind, found.since_s) == ("idle", 0.0)


def test_what_is_idle_is_told_process_by_process_where_that_is_known() -> None:
    both = board(held(1, busy_pct=0.0), held(2, busy_pct=60.0))
    (found,) = look(both, looks=LONG)
    assert present(found.process).key.pid == 1


def test_with_unknown_utilisation_only_an_unused_cpu_is_idle() -> None:
    unknown: dict[str, Any] = {"util_pct": None}
    assert look(board(held(), **unknown), looks=LONG) == ()
    assert look(board(held(cpu_pct=20.0), **unknown), looks=LONG) == ()
    assert kinds(look(board(held(cpu_pct=0.1), **unknown), looks=LONG)) == ["idle"]


def test_an_unused_cpu_proves_nothing_unless_another_can_be_at_work() -> None:
    quiet, other = held(1, cpu_pct=0.0), held(2, cpu_pct=0.1)
    assert look(board(quiet, other), looks=LONG) == ()
    (found,) = look(board(quiet, held(2, cpu_pct=80.0)), looks=LONG)
    assert present(found.process).key.pid == 1


def test_a_server_with_requests_is_not_idle() -> None:
    mine = board(held(900, who={"framework": "vLLM"}), **IDLE)
    for asked in ({"running": 1}, {"waiting": 2}):
        assert look(mine, servers=[server("vLLM", models=1, **asked)], looks=LONG) == ()
    resting = server("vLLM", models=1, running=0, waiting=0)
    assert kinds(look(mine, servers=[resting], looks=LONG)) == ["idle"]


@pytest.mark.parametrize(
    ("who", "advice"),
    [
        ({"argv": ("python", "-m", "ipykernel_launcher", "-f", "x")}, "restart the notebook"),
        ({"framework": "Ollama"}, "ollama stop"),
        ({"framework": "vLLM"}, "waits for requests"),
        ({"unit": "trainer.service"}, "systemctl stop trainer.service"),
        ({"job": "slurm 42"}, "slurm 42"),
        ({"container": "docker 0123"}, "docker 0123"),
        ({"foreign": True, "name": "?"}, "look on its host"),
    ],
)
def test_what_would_free_it_depends_on_what_it_is(who: dict[str, Any], advice: str) -> None:
    (found,) = look(board(held(who=who), **IDLE), looks=LONG)
    assert any(advice in line for line in found.advice), found.advice


def test_one_that_works_on_another_gpu_is_not_advised_to_be_ended() -> None:
    found = look(board(held(), **IDLE), board(held(), uid="GPU-2"), looks=LONG)
    assert [one.device_uid for one in found] == ["GPU-1"]
    assert "CUDA_VISIBLE_DEVICES" in found[0].advice[0]


@pytest.mark.parametrize(
    "changes", [{"exists": False}, {"state": "Z"}, {"state": "D", "cpu_pct": 0.0}, {}]
)
def test_neither_the_daemon_nor_the_screen_nor_the_drivers_helpers(
    changes: dict[str, Any],
) -> None:
    mine = held(exempt=True, **changes)
    assert look(board(mine, **IDLE), looks=LONG) == ()


@pytest.mark.parametrize("changes", [{"exists": False}, {"state": "Z"}, {}])
def test_less_than_the_minimum_is_not_listed(changes: dict[str, Any]) -> None:
    small = board(held(gib=0.4, **changes), **IDLE)
    assert look(small, looks=LONG) == ()
    assert len(look(small, looks=LONG, limits=Limits(minimum_bytes=0.3 * 2**30))) == 1


def test_unknown_memory_is_no_reason_to_hide_a_dead_owner() -> None:
    (found,) = look(board(held(gib=None, exists=False)))
    assert found.held_bytes is None
    assert look(board(held(gib=None), **IDLE), looks=LONG) == ()


def test_what_is_surest_comes_first_then_what_is_largest() -> None:
    found = look(
        board(
            held(1, 2.0, state="Z"),
            held(2, 30.0, state="Z"),
            held(3, 1.0, exists=False),
            held(4, 1.0, busy_pct=0.0),
            ledger=ledger(9.0),
        ),
        looks=LONG,
    )
    pids = [None if one.process is None else one.process.key.pid for one in found]
    assert pids == [3, 2, 1, None, 4]
