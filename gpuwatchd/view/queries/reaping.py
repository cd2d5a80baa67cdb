"""Ending one process that ``zombies`` lists: who it is now, and whether its memory came back."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from gpuwatchd.act import reap
from gpuwatchd.collect.host import Host, process_identity, program
from gpuwatchd.collect.host.procfs import PROC, parse_stat, read_bytes
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, TargetChanged, TargetGone
from gpuwatchd.view.queries import current_state, direct_holdings, state_location
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

    from gpuwatchd.act.target import Target
    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.view.queries.current_state import View

BACK_S: Final = 60.0
"""So long the memory is waited for."""
_AGAIN_S: Final = 0.5
_LEAST_BYTES: Final = 64 * 2**20
"""Less is what a driver may take or give at any time."""


class Candidate(NamedTuple):
    """A process that may be ended, held by the kernel."""

    target: Target
    signals: tuple[signal.Signals, ...]
    view: View
    """With its holdings alone."""

    @property
    def evidence(self) -> str:
        """Return how it is known, in a line."""
        return "; ".join(dict.fromkeys(f"{it.kind}: {it.evidence}" for it in self.view.holdings))


@contextmanager
def candidate(query: Query, pid: int) -> Iterator[Candidate]:
    """Hold a process and yield it with what it holds and what would be sent.

    Raises
    ------
    NotAllowed
        It is not to be ended by us: ``page`` says why.
    TargetGone, TargetChanged
        It has ended, or the pid is not that of the listed process.
    """
    view, subject, booted_at_s = _read(query, pid)
    holders = [holding.process for holding in view.holdings if holding.process is not None]

    def subject_now() -> reap.Subject:
        nonlocal view
        view, subject, _ = _read(query, pid)
        return subject

    key = (holders[0] if holders else subject.info).key
    with reap.hold(key, subject_now, booted_at_s=booted_at_s) as (target, signals):
        yield Candidate(target, signals, view)


def _read(query: Query, pid: int) -> tuple[View, reap.Subject, float | None]:
    """Return what is listed of a process, who it is, and when the system was booted."""
    # On every GPU: what is idle on one may be at work on another.
    view = direct_holdings.idle_view(Query(config=query.config))
    local = {item.device.uid for item in view.devices if not item.device.recorded}
    mine = [it for it in view.holdings if it.process is not None and it.process.key.pid == pid]
    view = structs.replace(view, holdings=tuple(it for it in mine if it.device_uid in local))
    kinds = frozenset(holding.kind for holding in view.holdings)
    reap.require_freed(f"pid {pid}", kinds)
    boot = state_location.state_dir() / current_state.BOOT
    with closing(Host(anchor=boot, writes_anchor=False)) as host:
        info = host.processes([pid]).get(pid)
    if info is None:
        raise TargetGone(f"pid {pid}: there is no such process")
    state, _ = current_state.read_state()
    if state is not None and state.boot_id and host.boot_id and state.boot_id != host.boot_id:
        raise TargetChanged(f"pid {pid} was listed before the system was booted")
    after = units.duration(float(query.load_config().config.zombies.idle_after))
    needs = f"needed: no work for {after}, memory unchanged, as `zombies` then lists it"
    if not view.daemon.running:  # what it saw last may be at work by now
        kinds = frozenset()
        needs = "needed: a daemon that has been watching, gpuwatchctl service install"
    elif any(code == "daemon-late" for code, _ in view.warnings):
        kinds, needs = frozenset(), "needed: a sample of now, the daemon's last one is old"
    busy_on, launcher = _busy_on(view, query, pid), _launcher(pid, (*info.argv, info.name)[0])
    return view, reap.Subject(info, kinds, busy_on, launcher, needs), host.booted_at_s


def _busy_on(view: View, query: Query, pid: int) -> str:
    """Return a device on which a process works, or has memory that is not listed as idle."""
    least = query.load_config().config.zombies.minimum_mib * 2**20
    idle = {holding.device_uid: holding.kind for holding in view.holdings}
    for item in view.devices if idle else ():
        for use in item.processes or ():
            kind = idle.get(item.device.uid)
            more = kind is None and (use.used_bytes is None or use.used_bytes >= least)
            if use.info.key.pid == pid and (more or (use.sm_pct and kind in {None, "idle"})):
                return item.device.label
    return ""


def _launcher(pid: int, title: str) -> tuple[int, str] | None:
    stat = parse_stat(read_bytes(PROC / str(pid) / "stat"))
    family = () if stat is None else program.ancestors(PROC, pid, stat)
    found = process_identity.launcher(family, title)
    return None if found is None else (found.pid, found.label)


def still_held_bytes(candidate: Candidate, ended_at_s: float) -> int | None:
    """Wait until the memory of a process that has ended is back; return what of it is not.

    None where that cannot be known: nobody has read the devices since.
    """
    end_s, found = time.monotonic() + BACK_S, None
    while True:
        with suppress(GpuwatchdError):  # the daemon has stopped, and nothing else reads a GPU
            view = direct_holdings.idle_view(Query())
            found = _held_bytes(candidate, view) if view.taken_at_s >= ended_at_s else found
        if found == 0:
            return 0
        if time.monotonic() >= end_s:
            return found
        time.sleep(_AGAIN_S)


def _held_bytes(candidate: Candidate, view: View) -> int | None:
    """Return what the driver lists of a process that has ended, or that nobody owns since then."""
    before = {item.device.uid: item for item in candidate.view.devices}
    now = {item.device.uid: item for item in view.devices}
    total = 0
    for holding in candidate.view.holdings:
        uid = holding.device_uid
        if uid not in now or not current_state.list_is_known(now[uid]):
            return None
        listed = _listed_bytes(now[uid], candidate.target.key.pid)
        unowned = (before[uid].unattributed_bytes, now[uid].unattributed_bytes)
        beside = 0 if None in unowned else max(0, (unowned[1] or 0) - (unowned[0] or 0))
        held = _listed_bytes(before[uid], candidate.target.key.pid)
        total += min(listed + beside, max(held, listed))
    return total if total >= _LEAST_BYTES else 0


def _listed_bytes(item: LiveDevice, pid: int) -> int:
    uses = item.processes or ()
    return sum(use.used_bytes or 0 for use in uses if use.info.key.pid == pid)
