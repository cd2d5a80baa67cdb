"""Jobs of Slurm on this node that hold GPUs without a process on them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuwatchd.analysis.idle import DAEMONS
from gpuwatchd.core import run_program, text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import IdleJob
from gpuwatchd.view.queries import current_state, user_filter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

_LIMIT_S: Final = 10.0
"""For squeue, and for all that scontrol is asked."""
_LIMIT_BYTES: Final = 1 << 20
_FORMAT: Final = "%A|%u|%M|%b"
_LINE: Final = re.compile(
    r"(\d{1,18})\|([^|]{1,256})\|(?:(?:(?:(\d{1,5})-)?(\d{1,2}):)?(\d{1,2}):(\d\d)|INVALID)\|([^|]*)",
    re.ASCII,
)
"""A job: number, user, time used, GRES per node."""
_DETAIL: Final = re.compile(r"^ +Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES(?:_IDX)?=(.*)$", re.MULTILINE)
_GIVEN: Final = re.compile(r"gpu(?::[\w.+-]+)?:(\d{1,4})\(IDX:([\d,-]{1,4096})\)", re.ASCII)
_REQUESTED: Final = re.compile(r"gpu(?::[A-Za-z_][\w.+-]*)?(?::(\d{1,4}))?(?![\w:.])", re.ASCII)
_HOSTS: Final = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?(?:,|$)", re.ASCII)
_CARDS: Final = Path("/proc/driver/nvidia/gpus")


def without_process(view: View, query: Query, grace_s: float) -> tuple[IdleJob, ...]:
    """Return the jobs of this node that have run for ``grace_s`` and have no process on some GPU.

    No claim is made about a GPU whose process list is unknown, or where a process may be the job's.

    Raises
    ------
    GpuwatchdError
        Without Slurm, or where it does not answer, or not as it should.
    """
    if view.source != "direct" and not view.daemon.running:
        raise _failed("what runs on the GPUs is not known now", "gpuwatchctl service status")
    people, by_index = user_filter.People(query.user), _by_index(view)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    found: list[IdleJob] = []
    jobs = [job for job in _running(node) if job.running_s >= grace_s and people.has(job.user)]
    deadline = time.monotonic() + _LIMIT_S
    for job in jobs:
        given = _given(job.number, node, deadline - time.monotonic())
        free = {item.device.uid for item in view.devices if _free_of(item, job)}
        count = job.gpu_count if given is None else len(given)
        if given is not None and by_index and (query.gpu or given <= by_index.keys()):
            uids = tuple(uid for index, uid in by_index.items() if index in given and uid in free)
            found += [replace(job, gpu_count=count, device_uids=uids)] if uids else []
        elif count and not query.gpu and len(free) == len(view.devices):
            found.append(replace(job, gpu_count=count))
    return tuple(found)


def _ask(argv: list[str], timeout_s: float) -> run_program.Answer:
    # What users set there changes what squeue lists, and in which form.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SCONTROL_"))}
    return run_program.ask(
        argv, b"", environ=environ, timeout_s=timeout_s, limit_bytes=_LIMIT_BYTES
    )


def _running(node: str) -> Iterator[IdleJob]:
    """Yield each job that runs here, with the GPUs per node that it asked for."""
    argv = ["squeue", "--noheader", "--states=RUNNING", f"--nodelist={node}", f"--format={_FORMAT}"]
    try:
        answer = _ask(argv, _LIMIT_S)
    except (OSError, ValueError) as error:
        raise _failed(f"squeue cannot be run: {error}", "run it on a node of Slurm") from None
    if answer.code != 0:
        why = answer.said.decode(errors="replace").splitlines()
        code = f"no usable answer within {_LIMIT_S:.0f} s" if answer.code is None else answer.code
        raise _failed(f"squeue failed: {why[-1] if why else code}", f"squeue --nodelist={node}")
    for line in answer.out.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise _failed(f"squeue has another form: {line[:80]!r}", "squeue --version")
        number, user, days, hours, minutes, seconds, gres = match.groups()
        if minutes is None:  # INVALID: the clocks differ
            continue
        running_s = 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes)
        yield IdleJob(
            number=number,
            user=text.clean(user),
            running_s=float(running_s + int(seconds)),
            gpu_count=sum(int(count or 1) for count in _REQUESTED.findall(gres)),
        )


def _failed(message: str, hint: str) -> GpuwatchdError:
    return GpuwatchdError(message, hint=hint, page="errors#slurm")


def _given(number: str, node: str, left_s: float) -> set[int] | None:
    """Return which GPUs of a node a job was given, as Slurm counts; None where that is unknown."""
    if left_s <= 0:
        return None
    try:
        answer = _ask(["scontrol", "--details", "show", "job", number], left_s)
    except (OSError, ValueError):
        return None
    said = answer.out.decode(errors="replace")
    if answer.code != 0 or not re.match(rf"JobId={number}\b", said):
        return None
    here = [gres for hosts, gres in _DETAIL.findall(said) if _covers(hosts, node)]
    if len(here) != 1:
        return None
    indices: set[int] = set()
    for count, ranges in _GIVEN.findall(here[0]):
        these = _numbers(ranges)
        if len(these) != int(count):
            return None
        indices |= these
    return indices if indices or "gpu" not in here[0] else None


def _numbers(ranges: str) -> set[int]:
    """Return the numbers of "0-1,3"; at most a thousand of each range."""
    pairs = ((int(low), int(high or low)) for low, high in _RANGE.findall(ranges))
    return {number for low, high in pairs for number in range(low, min(high, low + 999) + 1)}


def _covers(hosts: str, node: str) -> bool:
    """Return whether "gpu[1-3,7],login" names a node."""
    for prefix, ranges in _HOSTS.findall(hosts):
        rest = node.removeprefix(prefix)
        if prefix == node and not ranges:
            return True
        if ranges and rest != node and rest.isdecimal() and int(rest) in _numbers(ranges):
            return True
    return False


def _by_index(view: View) -> dict[int, str]:
    """Return the UUIDs of GPUs by the number of their device file, which Slurm counts by.

    Where the driver does not list it, by position; none where there are instances of a GPU.
    """
    if any(item.device.parent_uid for item in view.devices):
        return {}
    minors: dict[str, int] = {}
    for file in _CARDS.glob("*/information"):
        pairs = (line.partition(":")[::2] for line in file.read_text(errors="replace").splitlines())
        facts = {name.strip(): value.strip() for name, value in pairs}
        if units.is_number(minor := facts.get("Device Minor", "")):
            minors[facts.get("GPU UUID", "")] = int(minor)
    devices = [item.device for item in view.devices]
    numbers = {device.uid: minors.get(device.uid, device.index) for device in devices}
    return {number: uid for uid, number in numbers.items() if number is not None}


def _free_of(item: LiveDevice, job: IdleJob) -> bool:
    """Return whether a GPU is certain to have no process of a job."""
    return current_state.list_is_known(item) and not any(
        _may_be(use.info, job) for use in item.processes or ()
    )


def _may_be(info: ProcessInfo, job: IdleJob) -> bool:
    scheduler, _, name = (info.job or "").partition(" ")
    if scheduler == "slurm":  # "slurm 42.0" or "slurm 42 batch"
        return name.replace(".", " ").partition(" ")[0] == job.number
    return info.name not in DAEMONS and info.user in {job.user, None}
