"""What ``zombies`` finds out by itself: one look without a daemon, and open device files."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from gpuwatchd.analysis import attribution
from gpuwatchd.analysis.idle import DAEMONS, DeviceSnapshot, Limits, ProcessMemory, snapshot
from gpuwatchd.collect.host import BootAnchor, Host, procfs
from gpuwatchd.collect.host.procfs import absent, inside_container, probe
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Value
from gpuwatchd.view.queries import current_state, slurm_jobs, state_location, user_filter
from gpuwatchd.view.queries.current_state import BOOT

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        info = structs.replace(was.get(pid, info), state="gone")
        return structs.replace(memory, info=info, exists=False, exempt=False)
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
    return structs.replace(memory, exists=True, state=now.state, cpu_pct=cpu_pct, parent=parent)


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
        view = structs.replace(view, jobs=slurm_jobs.without_process(view, query, slurm_s))
    loose = unlisted_openers(view)
    people = user_filter.People(query.user)
    current_state.of_users(view, query)
    return view, structs.replace(loose, found=tuple(o for o in loose.found if people.own(o[0])))


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
