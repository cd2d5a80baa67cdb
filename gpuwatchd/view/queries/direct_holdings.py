"""What ``zombies`` finds out by itself: one look without a daemon, open device files, Slurm."""

from __future__ import annotations

import os
import re
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuwatchd.analysis import attribution
from gpuwatchd.analysis.idle import DAEMONS, DeviceSnapshot, Limits, ProcessMemory, snapshot
from gpuwatchd.collect.host import BootAnchor, Host, procfs
from gpuwatchd.collect.host.procfs import absent, inside_container, probe
from gpuwatchd.core import run_program, text, units
from gpuwatchd.core.errors import GpuwatchdError, SourceUnavailable
from gpuwatchd.core.model import IdleJob, Value
from gpuwatchd.view.queries import current_state, state_location, user_filter
from gpuwatchd.view.queries.current_state import BOOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Holding, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

SCREEN: Final = frozenset({"display", "browser"})
_AGAIN_S: Final = 0.25
"""Between two looks at a process in state D: has it used a CPU meanwhile?"""


class UnlistedOpeners(Value, frozen=True, kw_only=True):
    """Who has device files open without being listed by the driver."""

    found: tuple[tuple[ProcessInfo, procfs.Holder], ...]
    seen: procfs.Holders
    """All that have some open, and how many were looked at."""


NOBODY: Final = UnlistedOpeners(found=(), seen=procfs.Holders(possible=False))


def idle_holdings(view: View, config: Config, before: LiveState | None) -> tuple[Holding, ...]:
    """Return what one look, with whole readings, can prove to be idle.

    What a daemon left behind from ``before`` may know who a process was that is gone.
    """
    limits = Limits(
        minimum_bytes=config.zombies.minimum_mib * 2**20,
        idle_after_s=float(config.zombies.idle_after),
    )
    was: dict[int, ProcessInfo] = {}
    if before is not None:
        known = [use.info for device in before.devices for use in device.processes or ()]
        known += [holding.process for holding in before.holdings if holding.process is not None]
        was = {info.key.pid: info for info in known}
    return snapshot([_board(item, view, was) for item in view.devices], limits)


def _board(item: LiveDevice, view: View, was: Mapping[int, ProcessInfo]) -> DeviceSnapshot:
    reading, uid = item.reading, item.device.uid
    if reading is None or item.processes is None or reading.state != "ok":
        return DeviceSnapshot(uid=uid)
    if any(other.device.parent_uid == uid for other in view.devices):
        return DeviceSnapshot(uid=uid, uses=())  # what is held there, its MIG instances hold
    return DeviceSnapshot(
        uid=uid,
        total_bytes=reading.total_bytes or item.device.memory_total_bytes,
        util_pct=reading.util_pct,
        memory_util_pct=reading.memory_util_pct,
        ledger=attribution.build_ledger(reading, item.device.memory_kind),
        uses=tuple(_held(use, was, local=not item.device.recorded) for use in item.processes),
        complete=reading.uses_reason is None,
        contained=inside_container(Path("/proc"), Path("/")),
    )


def _held(use: LiveProcess, was: Mapping[int, ProcessInfo], *, local: bool) -> ProcessMemory:
    info, pid = use.info, use.info.key.pid
    memory = ProcessMemory(
        info=info,
        used_bytes=use.used_bytes,
        kind=use.kind,
        exempt=info.framework in SCREEN or info.name in DAEMONS or pid == os.getpid(),
    )
    if not local or info.foreign:
        return memory
    if info.key.started_at_s is None and absent(pid):
        info = replace(was.get(pid, info), state="gone")
        return replace(memory, info=info, exists=False, exempt=False)
    now = probe(pid)
    if now is None:
        return memory
    cpu_pct, parent = None, None
    if now.state == "D":
        time.sleep(_AGAIN_S)
        again = probe(pid)
        if again is not None:
            cpu_pct = 100.0 * (again.cpu_s - now.cpu_s) / _AGAIN_S
            now = again
    elif now.state in {"Z", "X"}:
        above = probe(now.parent_pid)
        parent = None if above is None else f"{above.name}[{now.parent_pid}]"
    return replace(memory, exists=True, state=now.state, cpu_pct=cpu_pct, parent=parent)


def unlisted_openers(view: View) -> UnlistedOpeners:
    """Return who has device files open without being listed by the driver on any device.

    Never the screen, the driver's helpers, the daemon or this program.
    """
    seen = procfs.scan()
    listed = {use.info.key.pid for item in view.devices for use in item.processes or ()}
    own = {os.getpid(), view.daemon.pid}
    others = [holder for holder in seen.found if holder.pid not in listed and holder.pid not in own]
    infos: dict[int, ProcessInfo] = {}
    if others:
        boot = BootAnchor(state_location.state_dir() / BOOT, writes=False)
        with closing(Host(maps_per_look=len(others), anchor=boot)) as host:
            infos = host.processes([other.pid for other in others])
    return UnlistedOpeners(
        found=tuple(
            (info, other)
            for other in others
            if (info := infos.get(other.pid)) is not None
            and info.framework not in SCREEN
            and info.name not in DAEMONS
        ),
        seen=seen,
    )


def idle_memory(query: Query, slurm_s: float | None = None) -> tuple[View, UnlistedOpeners]:
    """Return what the daemon lists, or one look can prove, and who has device files open.

    Parameters
    ----------
    slurm_s
        Also the jobs of Slurm that have run for so long and have no process on their GPUs.

    Raises
    ------
    GpuwatchdError
        When no GPU was found anywhere, or none that ``--gpu`` names, or Slurm does not answer.
    """
    view = idle_view(query)
    if slurm_s is not None:
        view = replace(view, jobs=without_process(view, query, slurm_s))
    loose = unlisted_openers(view)
    people = user_filter.People(query.user)
    current_state.of_users(view, query)
    return view, replace(loose, found=tuple(o for o in loose.found if people.own(o[0])))


def idle_view(query: Query) -> View:
    """Return what the daemon lists as idle, or one look can prove; raise as `idle_memory`."""
    state, _ = current_state.read_state()
    if state is not None and current_state.alive(state):
        return current_state.load_view(query, everybody=True)
    try:
        view = current_state.read_sources(query)
    except SourceUnavailable:
        if state is None or not state.devices:
            raise
        return current_state.load_view(query, everybody=True)
    view.holdings = idle_holdings(view, query.load_config().config, state)
    current_state.require_gpus(query, [item.device for item in view.devices])
    items = tuple(item for item in view.devices if query.wants(item.device))
    uids = {item.device.uid for item in items}
    view.devices = items
    view.holdings = tuple(holding for holding in view.holdings if holding.device_uid in uids)
    view.warnings = [warning for warning in view.warnings if warning[0] != "no-trend"]
    once = (
        "no daemon is running: one reading shows dead owners and ghosts; idleness needs a running "
        "daemon"
    )
    view.warnings.append(("one-look", once))
    return view


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
