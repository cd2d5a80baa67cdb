"""Which processes are ranks of one job."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.host import Host, processes
from gpuwatchd.collect.host.process_identity import (
    NOBODY,
    Membership,
    Place,
    facts,
    launcher,
    membership,
)
from gpuwatchd.collect.host.program import Ancestor
from gpuwatchd.core.text import clean
from tests.children import Child
from tests.conftest import present
from tests.host.world import STARTED, TORCH_MAPS, Clock, FakeProc, host_of, linux

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessInfo

RUN = "7f3a1b2c-0000-4000-8000-00000000abcd"
RANKED = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
DOCKER = Place("docker", "ab" * 32)


def agent(name: str, *argv: str, pid: int = 40) -> Ancestor:
    return Ancestor(pid, 0xABC, name, argv or (name,))


@pytest.mark.parametrize(
    ("env", "place", "found"),
    [
        (RANKED | {"TORCHELASTIC_RUN_ID": RUN}, Place(), ("torchrun 7f3a1b2c", 3, 8)),
        (RANKED | {"TORCHELASTIC_RUN_ID": "exp-7"}, Place(), ("torchrun exp-7", 3, 8)),
        # The id that torchrun gives to every run that was given none
        (
            RANKED | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
            Place(),
            ("torchrun node1:29500", 3, 8),
        ),
        (RANKED | {"CROSS_SIZE": "1"}, Place(), ("deepspeed node1:29500", 3, 8)),
        (
            RANKED | {"ACCELERATE_MIXED_PRECISION": "bf16"},
            Place(),
            ("accelerate node1:29500", 3, 8),
        ),
        (RANKED, Place(), ("job node1:29500", 3, 8)),
        (RANKED, DOCKER, ("job node1:29500", 3, 8)),
        (
            RANKED | {"MASTER_ADDR": "127.0.0.1"},
            DOCKER,
            ("job 127.0.0.1:29500 in docker abababababab", 3, 8),
        ),
        (RANKED | {"RANK": "x"}, Place(), ("job node1:29500", None, 8)),
        # An address alone is no rank
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, Place(), NOBODY),
        (
            {
                "SLURM_JOB_ID": "42",
                "SLURM_STEP_ID": "1",
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "16",
                "SLURM_NTASKS": "32",
            },
            Place(),
            ("slurm 42.1", 5, 16),
        ),
        # A shell on a node: what is started in it is no job
        (
            {
                "SLURM_JOB_ID": "42",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
            },
            Place(),
            NOBODY,
        ),
        # The batch script itself is no rank
        ({"SLURM_JOB_ID": "42", "SLURM_PROCID": "0"}, Place(), NOBODY),
        (
            {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},
            Place(),
            NOBODY,
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "PMIX_NAMESPACE": "prterun-node1-77@1",
            },
            Place(),
            ("mpi prterun-node1-77@1", 2, 4),
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, Place(), ("mpi 40-abc", 2, 4)),
        ({"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "9"}, Place(), ("ray 01000000", None, None)),
        ({}, Place(), NOBODY),
    ],
)
def test_what_the_launcher_put_there(
    env: dict[str, str], place: Place, found: tuple[str, int, int]
) -> None:
    family = (agent("bash", pid=41), agent("mpirun"))
    assert membership(env, None, family, place, "python") == Membership(*found)


def test_only_what_is_of_use_is_taken_from_an_environment() -> None:
    secret = b"PATH=/bin\0HF_TOKEN=planted\0RANK=1\0XRANK=2\0WORLD_SIZE=\x1b[2J4\0PMI_JOBID=\0"
    assert facts(secret) == {"RANK": "1", "WORLD_SIZE": "4"}
    assert facts(b"RANK=1\0WORLD_SIZE=2") == {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    "raw", [b"", bytes(500), b"ineCore_DP0" + bytes(300), b"--port=80" + bytes(9), b"A=1\0\0\0"]
)
def test_a_destroyed_environment_says_nothing(raw: bytes) -> None:
    assert facts(raw) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_taken(raw: bytes) -> None:
    found = facts(raw)
    assert found is None or all(clean(value) == value for value in found.values())


@pytest.mark.parametrize(
    ("family", "group"),
    [
        ([agent("torchrun")], "torchrun 40-abc"),
        ([agent("python3", "/usr/bin/python3", "/venv/bin/torchrun", "-n")], "torchrun 40-abc"),
        ([agent("python3", "python3", "-u", "-m", "torch.distributed.run")], "torchrun 40-abc"),
        ([agent("bash", pid=41), agent("torchrun")], "torchrun 40-abc"),
        ([agent("accelerate")], "accelerate 40-abc"),
        ([agent("python", "python", "-m", "deepspeed.launcher.launch")], "deepspeed 40-abc"),
        ([agent("hydra_pmi_proxy")], "mpi 40-abc"),
        ([agent("slurmstepd", "slurmstepd: [42.0]")], "slurm 42.0"),
        ([agent("slurmstepd", "slurmstepd: [42.batch]")], None),
        ([agent("python", "python", "train.py", "-m", "torch.distributed.run")], None),
        ([agent("bash")], None),
        ([], None),
    ],
)
def test_ranks_have_the_same_agent(family: list[Ancestor], group: str | None) -> None:
    assert membership(None, None, family, Place(), "python") == Membership(group)


def test_the_control_group_knows_the_step() -> None:
    step = Place(slurm_job="42", slurm_step="0")
    assert membership(None, None, [], step, "python") == Membership("slurm 42.0")
    batch = Place(slurm_job="42", slurm_step="batch")
    assert membership(None, None, [], batch, "python") == NOBODY


def test_the_parents_job_is_ours_but_not_its_rank() -> None:
    found = membership(None, RANKED, [agent("python")], Place(), "renamed")
    assert found == Membership("job node1:29500", None, 8)


@pytest.mark.parametrize(
    ("title", "group", "rank"),
    [
        ("VLLM::Worker_TP3", "vLLM 40-abc", 3),
        ("VLLM::Worker_TP1_EP1", "vLLM 40-abc", 1),
        ("VLLM::Worker_DP1_TP0", "vLLM 40-abc", None),
        ("VLLM::EngineCore_DP0", "vLLM 40-abc", 0),
        ("VLLM::EngineCore", None, None),
        ("sglang::scheduler_TP1", "SGLang 40-abc", 1),
        ("sglang::scheduler_PP2_TP0", "SGLang 40-abc", None),
        ("sglang::detokenizer", None, None),
        ("ray::TrainWorker.fit", "ray TrainWorker 40-abc", None),
        ("ray::IDLE", None, None),
    ],
)
def test_a_title_names_the_rank(title: str, group: str | None, rank: int | None) -> None:
    found = membership(None, {}, [agent("raylet")], Place(), title)
    assert found == Membership(group, rank)


def _look(proc: FakeProc, *pids: int) -> list[ProcessInfo]:
    return list(host_of(proc).processes(pids).values())


def test_a_record_says_its_rank_and_nothing_else_of_the_environment(proc: FakeProc) -> None:
    proc.process(40, name=b"torchrun", argv=b"python3\0/venv/bin/torchrun\0")
    for rank in range(2):
        env = f"RANK={rank}\0WORLD_SIZE=2\0TORCHELASTIC_RUN_ID=a\0HF_TOKEN=planted\0"
        proc.process(50 + rank, parent=40, environ=env.encode())
    found = _look(proc, 50, 51)
    assert [(i.group, i.rank, i.world) for i in found] == [
        ("torchrun a", 0, 2),
        ("torchrun a", 1, 2),
    ]
    assert found[0].parents == ("torchrun[40]",)
    assert "planted" not in repr(found)


def test_the_nearest_environment_that_is_left_counts(proc: FakeProc) -> None:
    step = b"SLURM_JOB_ID=42\0SLURM_STEP_ID=0\0SLURM_PROCID=3\0SLURM_STEP_NUM_TASKS=4\0"
    proc.process(40, environ=step)
    proc.process(41, parent=40, argv=b"engine::core" + bytes(80), environ=bytes(80))
    proc.process(42, parent=41, argv=b"engine::worker" + bytes(80), environ=b"ker" + bytes(80))
    proc.process(43, parent=42, argv=b"engine::x" + bytes(80), environ=bytes(80))
    proc.process(44, parent=43, argv=b"engine::far" + bytes(80), environ=bytes(80))
    found = _look(proc, 42, 43, 44)
    assert [(i.group, i.rank, i.world) for i in found] == [
        ("slurm 42.0", None, 4),
        ("slurm 42.0", None, 4),
        (None, None, None),
    ]


def test_a_group_outlives_its_agent(proc: FakeProc, clock: Clock) -> None:
    proc.process(40, name=b"torchrun")
    proc.process(50, parent=40, maps=TORCH_MAPS)
    host = host_of(proc, clock)
    first = host.processes([50])[50]
    assert first.group == f"torchrun 40-{STARTED:x}"
    proc.process(50, parent=1, maps=TORCH_MAPS)
    clock.now_s += processes.MAPS_AGAIN_S + 1
    now = host.processes([50])[50]
    assert (now.group, now.parent_pid, now.parents) == (first.group, 1, ())


RENAMED = """
import ctypes, sys, time
# As setproctitle does: the title, then zeros to the end of the environment.
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[45]), int(fields[48])
title = b"VLLM::Worker_TP1"
ctypes.memmove(start, title.ljust(end - start, bytes(1)), end - start)
print(1, flush=True)
time.sleep(60)
"""


@linux
@pytest.mark.usefixtures("not_the_first")
def test_a_real_child_that_has_overwritten_its_environment(host: Host) -> None:
    env = dict(os.environ) | RANKED
    with Child([sys.executable, "-c", RENAMED], stdout=subprocess.PIPE, env=env) as child:
        present(child.stdout).readline()
        info = host.processes([child.pid])[child.pid]
        child.kill()
    assert info.argv == ("VLLM::Worker_TP1",)
    assert info.framework == "vLLM"
    assert present(info.group).startswith(f"vLLM {os.getpid()}-")
    assert (info.rank, info.world) == (1, None)


@pytest.mark.parametrize(
    ("argv", "title", "launched"),
    [
        (("python", "/usr/bin/torchrun", "train.py"), "python", True),
        (("python", "-m", "torch.distributed.run", "train.py"), "python", True),
        (("python", "train.py"), "VLLM::Worker_TP1", True),
        (("slurmstepd", "slurmstepd: [42.batch]"), "VLLM::EngineCore", True),
        (("bash", "train.sh"), "python", False),
        (("python", "train.py"), "python", False),
    ],
)
def test_what_has_started_a_rank(argv: tuple[str, ...], title: str, launched: bool) -> None:
    above = agent(argv[0], *argv)
    assert launcher([above], title) == (above if launched else None)
    assert launcher([], title) is None
