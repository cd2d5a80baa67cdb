"""Reading who one process is: user, program, job and rank, from its files under /proc."""

from __future__ import annotations

import os
import pwd
import re
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.host import program
from gpuwatchd.collect.host.procfs import (
    PROC,
    full_name,
    libraries_in,
    parse_stat,
    parse_status,
    read_bytes,
    words_of,
)
from gpuwatchd.collect.host.program import ancestors
from gpuwatchd.core.codes import NameKind
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv, mask_title

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuwatchd.collect.host.procfs import Stat, Status
    from gpuwatchd.collect.host.program import Ancestor


# Where a process belongs, from the control groups that /proc/PID/cgroup names.
# All lines are read, and the most specific answer counts: a container, pod or job before the
# systemd unit that happens to hold it. Ids must have the shape of ids: a group that somebody called
# ``/job_hello`` is nothing. Names of containers and pods would need the socket of the container
# runtime, which is as good as root: only ids are told.

T = TypeVar("T")

_SHORT: Final = 12
"""Digits of a container's id that its runtime shows too."""

_SCOPES: Final = (
    ("docker", re.compile(r"docker-([0-9a-f]{64})(?:\.scope)?")),
    ("podman", re.compile(r"libpod-(?:conmon-)?([0-9a-f]{64})(?:\.scope)?")),
    ("containerd", re.compile(r"(?:.*:)?(?:cri-containerd|nerdctl)[-:]([0-9a-f]{64})(?:\.scope)?")),
    ("cri-o", re.compile(r"crio-(?:conmon-)?([0-9a-f]{64})(?:\.scope)?")),
    ("lxc", re.compile(r"lxc\.payload\.(.+)")),
    ("machine", re.compile(r"machine-(.+)\.scope")),
)
"""Containers that one part of the path names."""
_POD_UUID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
# Pods that the node itself starts have a hash for a uid.
_POD: Final = re.compile(rf"(?:.*kubepods.*-)?pod({_POD_UUID}|[0-9a-f]{{32}})(?:\.slice)?(?::.*)?")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SLURM: Final = re.compile(r"(?:.*_)?slurmstepd\.scope|slurm(?:_.+)?")
_JOB: Final = re.compile(r"job_(\d+)")
_STEP: Final = re.compile(r"step_(\d+|batch|extern|interactive)")
_USER: Final = re.compile(r"user-(\d+)\.slice|uid_(\d+)")
_ESCAPE: Final = re.compile(r"\\x([0-9a-f]{2})")


class Place(NamedTuple):
    """Where a process belongs; None for what its groups do not say."""

    runtime: str | None = None
    """"docker", "podman", "containerd", "cri-o", "lxc" or "machine"."""
    container_id: str | None = None
    """Whole id, or the name where that is the id (lxc, machine)."""
    pod: str | None = None
    """Uid of the Kubernetes pod, with dashes."""
    slurm_job: str | None = None
    slurm_step: str | None = None
    """Number, "batch", "extern" or "interactive"."""
    unit: str | None = None
    """systemd unit; none inside a container, pod or job."""
    uid: int | None = None
    """User in whose slice it is."""

    @property
    def container(self) -> str | None:
        """The container as people know it: "docker 6ff8daebd14c", "lxc web"."""
        if self.runtime is None or self.container_id is None:
            return None
        short = _HEX.fullmatch(self.container_id) is not None
        return f"{self.runtime} {self.container_id[:_SHORT] if short else self.container_id}"

    @property
    def job(self) -> str | None:
        """The batch job: "slurm 42.0" for a step with a number, "slurm 42 batch" for another."""
        if self.slurm_job is None:
            return None
        if self.slurm_step is None:
            return f"slurm {self.slurm_job}"
        mark = "." if self.slurm_step.isdigit() else " "
        return f"slurm {self.slurm_job}{mark}{self.slurm_step}"


def place_of(raw: bytes) -> Place:
    """Return where a process belongs.

    Examples
    --------
    >>> place_of(b"0::/system.slice/docker-" + b"ab" * 32 + b".scope").container
    'docker abababababab'
    >>> place_of(b"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0").job
    'slurm 42.0'
    >>> place_of(b"0::/user.slice/user-1000.slice/session-3.scope")[-2:]
    ('session-3.scope', 1000)
    """
    paths = [_path(line) for line in raw.decode("utf-8", "replace").splitlines()]
    # The hierarchy of systemd is the most exact: of the others some may stop further up.
    paths.sort(key=len, reverse=True)
    runtime, container_id = _first(_container, paths) or (None, None)
    pod = _first(_pod, paths)
    job, step = _first(_slurm, paths) or (None, None)
    inside = container_id is not None or pod is not None or job is not None
    return Place(
        runtime=runtime,
        container_id=container_id,
        pod=pod,
        slurm_job=job,
        slurm_step=step,
        unit=None if inside else _first(_unit, paths),
        uid=_first(_uid, paths),
    )


def _first(find: Callable[[Sequence[str]], T | None], paths: Iterable[Sequence[str]]) -> T | None:
    return next((found for path in paths if (found := find(path)) is not None), None)


def _path(line: str) -> Sequence[str]:
    """Return the parts of a line's path; none for a line that is none."""
    fields = line.split(":", 2)
    if len(fields) < 3 or not fields[2].startswith("/"):
        return ()
    return [part for part in fields[2].split("/") if part]


def _container(path: Sequence[str]) -> tuple[str, str] | None:
    """Return (runtime, id) of the outermost container: the one that this machine started."""
    for position, part in enumerate(path):
        for runtime, pattern in _SCOPES:
            if match := pattern.fullmatch(part):
                return runtime, _name(match[1])
        inner = path[position + 1] if position + 1 < len(path) else ""
        if part == "docker" and _HEX.fullmatch(inner):
            return "docker", inner
        if position == 0 and part in {"default", "k8s.io"} and _HEX.fullmatch(inner):
            return "containerd", inner
        if position == 0 and part == "lxc" and inner:
            return "lxc", _name(inner)
    return None


def _pod(path: Sequence[str]) -> str | None:
    for position, part in enumerate(path):
        match = _POD.fullmatch(part)
        if match and any("kubepods" in outer for outer in path[: position + 1]):
            return match[1].replace("_", "-")
    return None


def _slurm(path: Sequence[str]) -> tuple[str, str | None] | None:
    """Return (job, step) of Slurm, of either version of control groups."""
    for position, part in enumerate(path):
        if not _SLURM.fullmatch(part):
            continue
        inner = [word for word in path[position + 1 :] if not _USER.fullmatch(word)]
        job = _JOB.fullmatch(inner[0]) if inner else None
        if job is not None:
            step = _STEP.fullmatch(inner[1]) if len(inner) > 1 else None
            return job[1], step[1] if step else None
    return None


def _unit(path: Sequence[str]) -> str | None:
    units = [part for part in path if part.endswith((".service", ".scope"))]
    return _name(units[-1]) if units else None


def _uid(path: Sequence[str]) -> int | None:
    for part in path:
        if match := _USER.fullmatch(part):
            return int(match[1] or match[2])
    return None


def _name(text: str) -> str:
    r"""Undo systemd's escapes (``\x2d``) in a name, and make it safe."""
    return clean(_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text), limit=128)


MAX_THREADS: Final = 64
_ARGV_BYTES: Final = 16 * 1024
_NEAR: Final = 3
"""A program that renames itself often has a parent that did."""
_ENVIRON_BYTES: Final = 256 * 1024
_MAPS_BYTES: Final = 4 * 1024 * 1024


class Reading(NamedTuple):
    """What one reading of a process's files gave."""

    info: ProcessInfo
    anonymous_bytes: int | None
    """Memory of its own on the host, swapped or not."""


class Files(NamedTuple):
    """What changes of a process's files while it runs, and who it is follows from it."""

    words: bytes
    groups: bytes
    environment: bytes
    """For :func:`facts` only: it may hold secrets."""
    status: Status
    libraries: tuple[str, ...]
    """Of its memory map, where that was read."""
    threads: tuple[str, ...]
    """Their names, where the map may not be read."""


class Registry:
    """Reads who processes are; keeps nothing of them but names of users."""

    def __init__(self, proc: Path, booted_at_s: float | None) -> None:
        self.booted_at_s = booted_at_s
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._users = Users()

    def files(self, pid: int, *, closer: bool) -> Files:
        """Read what tells who a process is; ``closer`` reads its memory map too."""
        folder = f"{self._proc}/{pid}"
        maps = read_bytes(f"{folder}/maps", _MAPS_BYTES) if closer else b""
        return Files(
            read_bytes(f"{folder}/cmdline", _ARGV_BYTES),
            read_bytes(f"{folder}/cgroup"),
            self._environ(pid),
            parse_status(read_bytes(f"{folder}/status")),
            tuple(libraries_in(maps)),
            tuple(self._threads(folder)) if closer and not maps else (),
        )

    def read(self, pid: int, stat: Stat, files: Files | None = None) -> Reading:
        """Build the record of a process; None reads all its files but the memory map."""
        folder = f"{self._proc}/{pid}"
        files = files or self.files(pid, closer=False)
        libraries, argv, place = files.libraries, words_of(files.words), place_of(files.groups)
        status = files.status
        title = stat.name.decode("utf-8", "replace")
        family = ancestors(self._proc, pid, stat)
        own = facts(files.environment)
        near = (facts(self._environ(ancestor.pid)) for ancestor in family[:_NEAR])
        known = (values for values in near if values is not None)
        parent = next(known, None) if own is None else None
        member = membership(own, parent, family, place, argv[0] if argv else title)
        framework, sure = frameworks.recognise(argv, libraries, title, files.threads)
        info = ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=self._started_at_s(stat)),
            name=mask_title(full_name(stat.name, argv)),
            user=None if status.uid is None else self._users.name(status.uid),
            uid=status.uid,
            argv=mask_argv(argv),
            parent_pid=stat.parent_pid,
            state=stat.state,
            container=place.container,
            pod=place.pod,
            job=place.job,
            unit=place.unit,
            group=member.group,
            rank=member.rank,
            world=member.world,
            parents=tuple(ancestor.label for ancestor in family),
            framework=framework,
            framework_sure=sure,
            frameworks=frameworks.loaded(libraries),
            role=frameworks.role(argv, title),
        )
        process = program.keyed(info, folder, argv, libraries)
        return Reading(process, status.anonymous_bytes)

    def moved(self, info: ProcessInfo, stat: Stat) -> ProcessInfo:
        """Return a process in its present state, with its present parents."""
        parents = info.parents
        if stat.parent_pid != info.parent_pid:
            parents = tuple(each.label for each in ancestors(self._proc, info.key.pid, stat))
        return msgspec.structs.replace(
            info, state=stat.state, parent_pid=stat.parent_pid, parents=parents
        )

    def _environ(self, pid: int) -> bytes:
        """Return a process's environment, for :func:`facts` only: it may hold secrets."""
        return read_bytes(f"{self._proc}/{pid}/environ", _ENVIRON_BYTES)

    def _started_at_s(self, stat: Stat) -> float | None:
        if self.booted_at_s is None:
            return None
        return self.booted_at_s + stat.starttime / self._ticks_per_s

    @staticmethod
    def _threads(folder: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(f"{folder}/task") as tasks:
                for task, _ in zip(tasks, range(MAX_THREADS), strict=False):
                    names.append(read_bytes(f"{task.path}/comm").decode("utf-8", "replace"))
        except OSError:
            return names
        return names


def still(before: ProcessInfo, now: ProcessInfo) -> ProcessInfo:
    """Return who a process is now, with the job that it was a rank of: its agent may have died."""
    if before.group is None or now.group is not None:
        return now
    return msgspec.structs.replace(now, group=before.group, rank=before.rank, world=before.world)


def nameless(pid: int, why: str, *, foreign: bool = False) -> ProcessInfo:
    """Return the record of a process that has a number and nothing else."""
    key = ProcessKey(pid=pid, started_at_s=None)
    name = f"pid {pid} ({why})"
    return ProcessInfo(key=key, name=name, name_kind=NameKind.STAND_IN, foreign=foreign)


# Names of users; a directory service (LDAP) that does not answer keeps nobody waiting.

PATIENCE_S: Final = 0.3
"""So long a name is waited for, once per user; until it comes the number stands for it."""


class Users:
    """User id -> name, each asked for once, in a thread of its own."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._asked: set[int] = set()

    def name(self, uid: int) -> str:
        """Return a user's name; the number where there is none, or none has come yet."""
        text = self._names.get(uid)
        if text is None and uid not in self._asked:
            self._asked.add(uid)
            asks = threading.Thread(target=self._ask, args=(uid,), name="user", daemon=True)
            asks.start()
            asks.join(PATIENCE_S)
            text = self._names.get(uid)
        return str(uid) if text is None else text

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = clean(pwd.getpwuid(uid).pw_name)
        except (KeyError, OSError):
            self._names[uid] = str(uid)


MAX_GONE: Final = 1024
WAS: Final = "gone, was "
"""Begins the name that one is shown with whom only this place still knew."""
_NAMELESS: Final = frozenset({"", "?"})


class Gone(dict[int, "ProcessInfo"]):
    """The last known identity of up to :data:`MAX_GONE` pids whose process has ended."""

    def note(self, info: ProcessInfo) -> None:
        """Remember a process that has ended; the oldest is forgotten when there are too many."""
        self.pop(info.key.pid, None)
        self[info.key.pid] = info
        if len(self) > MAX_GONE:
            del self[next(iter(self))]

    def recall(self, infos: Iterable[ProcessInfo]) -> None:
        """Take over whom an earlier run of the daemon knew; whoever lives is forgotten later."""
        for info in infos:
            if info.name_kind is NameKind.GONE:
                info = msgspec.structs.replace(  # noqa: PLW2901
                    info, name=info.was, name_kind=NameKind.OWN, was=""
                )
            if info.name not in _NAMELESS and not info.foreign:
                self.note(info)


# Which processes are ranks of one job: torchrun, DeepSpeed, accelerate, MPI, Slurm, Ray,
# serving.
# What the launcher put into the environment says it best. A program that writes a title over its
# command line destroys its environment too (setproctitle: vLLM, SGLang, Ray), and another user's
# is not readable: then the control group, the parent's environment and the ancestors must do.
# Only the few variables named here are ever looked at, and only what follows from them is kept.

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
    r"(VLLM|sglang)::(?:Worker|scheduler|EngineCore)((?:_(?:DP|PP|TP|EP|CP)\d+)+)\b", re.IGNORECASE
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

    It is empty where it may not be read, and a program's title that was written over it is none.

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

    ``own`` is what its environment says and ``parent`` what its parent's does, where its own says
    nothing; ``family`` are its ancestors, nearest first; ``title`` is the first word of its command
    line, or all of a title that was written over it.
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


def launcher(family: Sequence[Ancestor], title: str) -> Ancestor | None:
    """Return what has started a process as one rank of several; None where that does not live."""
    if _SERVING.match(title):
        return family[0] if family else None
    launchers = {*_AGENTS, "slurmstepd"}
    return next((one for one in family if not launchers.isdisjoint(_started(one))), None)


def launcher_of(info: ProcessInfo) -> tuple[int, str] | None:
    """Return pid and label of what has started a running process as one rank of several."""
    pid = info.key.pid
    stat = parse_stat(read_bytes(PROC / str(pid) / "stat"))
    family = () if stat is None else ancestors(PROC, pid, stat)
    found = launcher(family, (*info.argv, info.name)[0])
    return None if found is None else (found.pid, found.label)


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
