"""Which processes are ranks of one job: torchrun, DeepSpeed, accelerate, MPI, Slurm, Ray, serving.

What the launcher put into the environment says it best. A program that writes a title over its
command line destroys its environment too (setproctitle: vLLM, SGLang, Ray), and another user's is
not readable: then the control group, the parent's environment and the ancestors must do. Only the
few variables named here are ever looked at, and only what follows from them is kept.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuwatchd.collect.host.cgroup import Place
    from gpuwatchd.collect.host.program import Ancestor

_NAMES: Final = (
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("CROSS_SIZE", "ACCELERATE_MIXED_PRECISION"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMIX_RANK"),
    *("PMI_RANK", "PMI_SIZE", "PMI_JOBID", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    *("RAY_JOB_ID", "RAY_RAYLET_PID"),
)
_FACT: Final = re.compile(
    rb"(?:^|(?<=\0))(" + "|".join(_NAMES).encode() + rb")=([^\0]{0,256})(?:\0|$)"
)
_VARIABLE: Final = re.compile(rb"(?:^|(?<=\0))[A-Za-z_]\w*=")
_UUID: Final = re.compile(r"([0-9a-f]{8})-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_NO_STEP: Final = 0xFFFF_FFF0
"""Numbers from here on stand for Slurm's batch, extern and interactive steps."""
_LOOPBACK: Final = re.compile(r"localhost|127\.[\d.]+|::1|0\.0\.0\.0|::")

_AGENTS: Final = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"), "mpi"),
    **dict.fromkeys(("orterun", "orted", "prterun", "prted"), "mpi"),
}
"""Programs and modules whose children are ranks."""
_STEPD: Final = re.compile(r"slurmstepd: \[(\d+)\.(\d+)\]")
_SERVING: Final = re.compile(
    r"(VLLM|sglang)::(?:Worker|scheduler|EngineCore)((?:_(?:DP|PP|TP|EP|CP)\d+)+)\b",
    re.IGNORECASE,
)
_DIMENSION: Final = re.compile(r"_(?:DP|PP|TP)(\d+)")
"""Of expert and context parallelism the ranks are those of the tensors."""
_NAMED: Final = {"vllm": "vLLM", "sglang": "SGLang"}
_RAY: Final = re.compile(r"ray::([A-Za-z_][\w.<>]*)")


class Membership(NamedTuple):
    """To which job a process belongs, as one of its ranks."""

    group: str | None = None
    """The same text for every rank: "torchrun 7f3a1b2c", "slurm 42.0"."""
    rank: int | None = None
    world: int | None = None
    """Ranks of the job, on all machines."""


NOBODY: Final = Membership()


def facts(environ: bytes) -> dict[str, str] | None:
    r"""Return what an environment says of ranks; None when it says nothing of anything.

    Parameters
    ----------
    environ
        Content of /proc/PID/environ; empty where it may not be read. A program's title that was
        written over it is no environment.

    Examples
    --------
    >>> facts(b"PATH=/bin\0RANK=3\0HF_TOKEN=x\0")
    {'RANK': '3'}
    >>> facts(b"ore_DP0" + bytes(99)), facts(b"")
    (None, None)
    """
    if len(_VARIABLE.findall(environ)) < 2:
        return None
    values = {name.decode(): clean(value, limit=96) for name, value in _FACT.findall(environ)}
    return {name: value for name, value in values.items() if value}


def membership(
    own: Mapping[str, str] | None,
    parent: Mapping[str, str] | None,
    family: Sequence[Ancestor],
    place: Place,
    title: str,
) -> Membership:
    """Return the job of which a process is a rank.

    Parameters
    ----------
    own
        The :func:`facts` of its environment; None where that is unreadable or destroyed.
    parent
        The same of its parent, for then.
    family
        Its ancestors, nearest first.
    place
        Where it belongs.
    title
        The first word of its command line, or all of a title that was written over it.
    """
    serving = _SERVING.match(title)
    if serving is not None and family:
        group = f"{_NAMED[serving[1].lower()]} {_once(family[0])}"
        numbers = _DIMENSION.findall(serving[2])
        return Membership(group, int(numbers[0]) if len(numbers) == 1 else None)
    if own is not None:
        return _by_environment(own, family, place)
    ray = _RAY.match(title)
    if place.slurm_step is not None and place.slurm_step.isdigit():
        return Membership(place.job)
    if parent:
        inherited = _by_environment(parent, family[1:], place)
        if inherited.group is not None:
            # The job is the parent's too, its rank is not.
            return inherited._replace(rank=None)
    if ray is not None and family and ray[1] != "IDLE":
        return Membership(f"ray {ray[1].partition('.')[0]} {_once(family[0])}")
    return Membership(_agent(family))


def _by_environment(env: Mapping[str, str], family: Sequence[Ancestor], place: Place) -> Membership:
    run = env.get("TORCHELASTIC_RUN_ID", "none")
    if "RANK" in env and run != "none":
        group = f"torchrun {_short(run)}"
        return Membership(group, _number(env, "RANK"), _number(env, "WORLD_SIZE"))
    if "RANK" in env and "MASTER_ADDR" in env and "MASTER_PORT" in env:
        group = f"{_launcher(env)} {env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        if _LOOPBACK.fullmatch(env["MASTER_ADDR"]) and (inside := place.container or place.pod):
            group += f" in {inside}"  # each container has a loopback of its own
        return Membership(group, _number(env, "RANK"), _number(env, "WORLD_SIZE"))
    step = _number(env, "SLURM_STEP_ID")
    if step is not None and step < _NO_STEP and "SLURM_JOB_ID" in env and "SLURM_PROCID" in env:
        world = _number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        if world != 1:  # what somebody starts in a shell of one task belongs not together
            group = f"slurm {env['SLURM_JOB_ID']}.{step}"
            return Membership(group, _number(env, "SLURM_PROCID"), world)
    return _by_mpi(env, family)


def _by_mpi(env: Mapping[str, str], family: Sequence[Ancestor]) -> Membership:
    rank = _number(env, "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")
    if rank is not None:
        name = env.get("PMIX_NAMESPACE") or env.get("PMI_JOBID")
        group = f"mpi {_short(name)}" if name else _agent(family)
        world = _number(env, "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
        return Membership(group, rank, world)
    return Membership(f"ray {env['RAY_JOB_ID']}") if "RAY_JOB_ID" in env else NOBODY


def _launcher(env: Mapping[str, str]) -> str:
    if "CROSS_SIZE" in env:
        return "deepspeed"
    if "ACCELERATE_MIXED_PRECISION" in env:
        return "accelerate"
    return "torchrun" if "TORCHELASTIC_RESTART_COUNT" in env else "job"


def _agent(family: Sequence[Ancestor]) -> str | None:
    """Return the group of an agent among the ancestors, which started the ranks."""
    for ancestor in family:
        stepd = _STEPD.match(ancestor.name) or _STEPD.match(" ".join(ancestor.argv))
        if stepd is not None:
            return f"slurm {stepd[1]}.{stepd[2]}"
        kind = next((_AGENTS[word] for word in _started(ancestor) if word in _AGENTS), None)
        if kind is not None:
            return f"{kind} {_once(ancestor)}"
    return None


def _started(ancestor: Ancestor) -> Iterator[str]:
    """Yield the names of what may be running: the program, an interpreter's script or module."""
    yield ancestor.name
    if ancestor.name.startswith("python"):
        for word, following in pairwise((*ancestor.argv[1:6], "")):
            if word == "-m":
                yield following
            elif not word.startswith("-"):
                yield word.rpartition("/")[2]
                return


def _once(agent: Ancestor) -> str:
    """Return what no other process of this boot has: pid and start."""
    return f"{agent.pid}-{agent.starttime:x}"


def _short(name: str) -> str:
    match = _UUID.fullmatch(name)
    return match[1] if match else name


def _number(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        value = env.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 12:
            return int(value)
    return None
