"""Who manages a process, and the command by which a person takes a step on it there.

The manager that started a process is the one that ends it or starts it again: otherwise it would
miss it, or bring it back.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.act.target import read
from gpuwatchd.core import text

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessInfo, ProcessKey
    from gpuwatchd.core.model.base import ActStep

_JOB: Final = re.compile(r"slurm (\d+)")
_JOB_VARIABLE: Final = re.compile(
    rb"(?:^|\0)SLURM_(JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID)=(\d{1,19})(?=\0|$)"
)
_USER_UNIT: Final = re.compile(
    rb"^(?:0:|\d+:name=systemd):/(?:[^/\n]+/)*user@(\d+)\.service/(?:[^/\n]+\.slice/)*"
    rb"_?([A-Za-z0-9:.\\@-][\w:.\\@-]*\.service)(?:/|$)",
    re.MULTILINE | re.ASCII,
)
"""A service of a user's manager. A group that somebody made with another name, such as ``*``, is no
unit; systemd puts a ``_`` before names that are a file's in a control group."""
_NSPID: Final = re.compile(rb"^NSpid:\s*\d+[ \t]+\d", re.MULTILINE)
_CONTAINERS: Final = {
    **{name: f"{name} restart" for name in ("docker", "podman")},
    **dict.fromkeys(("containerd", "cri-o"), "crictl stop"),
    "lxc": "lxc-stop -n",
    "machine": "machinectl terminate",
}
_DELETE_POD: Final = (
    'kubectl get pods -A -o jsonpath=\'{{range .items[?(@.metadata.uid=="{}")]}}'
    "{{.metadata.namespace}} {{.metadata.name}}{{end}}' | xargs -r -n2 kubectl delete pod -n"
)
"""Only a uid is known of a pod, and no field selector takes one."""


class Manager(NamedTuple):
    """Who has started a process, and would miss it."""

    kind: Literal["slurm", "user-unit", "bare", "other"]
    """``other`` is a container, a pod, a unit of the system or of another user."""
    name: str = ""
    """Number of the job, or of the task of an array as ``4711_3``; name of the unit."""
    command: str = ""
    """``other``: how a person ends or restarts it."""

    @property
    def target(self) -> str:
        """What stays the same when its process is another one: a job or a unit; "" for none."""
        return f"{self.kind}.{self.name}" if self.kind in {"slurm", "user-unit"} else ""


def manager_of(info: ProcessInfo, *, proc: Path = Path("/proc")) -> Manager:
    """Return who manages a process. Some file reads; never raises."""
    # A pid of another namespace is somebody else's here.
    names = ("environ", "cgroup", "status")
    environ, cgroup, status = (
        b"" if info.foreign else read(proc, info.key.pid, name) for name in names
    )
    if number := _job(info, environ):
        return Manager("slurm", number)
    command = ""
    units = set(_USER_UNIT.findall(cgroup))
    if info.container is not None:
        runtime, _, name = info.container.partition(" ")
        command = f"{_CONTAINERS.get(runtime, runtime)} {shlex.quote(name)}"
    elif info.pod is not None:
        command = _DELETE_POD.format(info.pod)
    elif len(units) == 1 and (unit := units.pop())[0] == b"%d" % os.getuid():
        return Manager("user-unit", unit[1].decode())
    elif units or (info.unit is not None and info.unit.endswith(".service")):
        user = "--user " if b"/user@" in cgroup else ""
        command = f"systemctl {user}restart {_word(info.unit or 'UNIT')}"
    elif info.foreign or _NSPID.search(status):
        command = "end it inside its container: it has pids of its own"
    return Manager("other", command=command) if command else Manager("bare")


def _job(info: ProcessInfo, environ: bytes) -> str:
    """Return the job of Slurm: of an array the task, since the number may stand for all of it."""
    variables = {name: text.clean(value) for name, value in _JOB_VARIABLE.findall(environ)}
    job = _JOB.match(info.job or "") or _JOB.match(info.group or "")
    own = variables.get(b"JOB_ID", "")
    number = own if job is None else job[1]
    if own == number and b"ARRAY_JOB_ID" in variables and b"ARRAY_TASK_ID" in variables:
        return f"{variables[b'ARRAY_JOB_ID']}_{variables[b'ARRAY_TASK_ID']}"
    return number


def command_for(
    step: ActStep, manager: Manager, key: ProcessKey, checkpoint_signal: str = "USR1"
) -> str:
    r"""Return the command that takes a step, for people; "" where this manager has none.

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessKey
    >>> key = ProcessKey(pid=42, started_at_s=0.0)
    >>> command_for("requeue", Manager("slurm", "4711_3"), key)
    'scontrol requeue 4711_3'
    >>> command_for("end", Manager("user-unit", "a\\x2db.service"), key)
    "systemctl --user stop 'a\\x2db.service'"
    >>> command_for("restart", Manager("bare"), key)
    ''
    """
    name, signal = _word(manager.name), f"--signal={shlex.quote(checkpoint_signal)}"
    if manager.kind == "other":
        return "" if step == "checkpoint" else manager.command
    again = {
        "slurm": f"scontrol requeue {name}",
        "user-unit": f"systemctl --user restart {name}",
        "bare": "",
    }
    commands = {
        # Without -b the signal goes to the steps, and does not reach a batch script.
        ("slurm", "checkpoint"): f"scancel -b {signal} {name}",
        ("slurm", "end"): f"scancel {name}",
        ("user-unit", "checkpoint"): f"systemctl --user kill --kill-who=main {signal} {name}",
        ("user-unit", "end"): f"systemctl --user stop {name}",
        ("bare", "checkpoint"): f"gpuwatchctl ask-checkpoint {key.pid} --yes",
        ("bare", "end"): f"gpuwatchctl reap {key.pid} --yes",
    }
    return commands.get((manager.kind, step), again[manager.kind])


def _word(name: str) -> str:
    """Return a name as one word that no program takes for an option."""
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)
