r"""Where a process belongs, from the control groups that /proc/PID/cgroup names.

The file has one line per hierarchy, ``number:controllers:path``; a machine with both versions has
lines of both. All are read, and the most specific answer counts: a container, pod or job before
the systemd unit that happens to hold it. Ids must have the shape of ids: a group that somebody
called ``/job_hello`` is nothing. Names of containers and pods would need the socket of the
container runtime, which is as good as root: only ids are told.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
