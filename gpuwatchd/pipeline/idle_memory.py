"""Idle memory, as far as it was seen tick after tick."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from gpuwatchd.analysis import cost
from gpuwatchd.analysis.frameworks.engine_addresses import idle_kv
from gpuwatchd.analysis.idle import (
    DAEMONS,
    STOPPED,
    DeviceSnapshot,
    Limits,
    PersistenceCheck,
    ProcessMemory,
    Server,
)
from gpuwatchd.collect.host.procfs import absent, probe
from gpuwatchd.core.codes import NameKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.collect.host import Host
    from gpuwatchd.collect.host.procfs import ProcessStat
    from gpuwatchd.core.model import Holding, ProcessInfo, ProcessKey, ProcessUse
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import TrackedDevice
    from gpuwatchd.store.live import LiveState

EVERY_TICKS: Final = 6
AT_LEAST_EVERY_S: Final = 30.0
GLANCES: Final = 4
"""Processes whose state is read in one look, in turn; those in question come on top."""
GAP_S: Final = 600.0
_SCREEN: Final = frozenset({"display", "browser"})
_SAME_S: Final = 2.0
"""Start times are known to about a second."""
_STUCK: Final = frozenset({"D", "Z", "X"})


class _ProcessProbe(Struct, eq=False):
    """What the last glance at a process said."""

    born_of: int | None
    at_s: float = 0.0
    cpu_s: float | None = None
    cpu_pct: float | None = None
    now: ProcessStat | None = None


class IdleMemory:
    """What ``gpuwatchctl zombies`` lists.

    Looked at every :data:`EVERY_TICKS` ticks, at least every :data:`AT_LEAST_EVERY_S`; in between
    only the use of each device is noted.
    """

    def __init__(
        self,
        state: State,
        host: Host | None = None,
        *,
        look: Callable[[int], ProcessStat | None] = probe,
        is_absent: Callable[[int], bool] = absent,
    ) -> None:
        self._state = state
        # It is told when a process is seen to be stuck, so that everybody else knows too.
        self._host = host
        self._glance = look
        self._is_absent = is_absent
        self._vigil = PersistenceCheck()
        self._ticks = 0
        self._looked_s: float | None = None
        self._util: dict[str, float] = {}
        """Highest use of each device since the last look, where it could be read."""
        self._resting: set[str] = set()
        """Devices with processes that did nothing at the last look."""
        self._bursts: dict[tuple[str, ProcessKey], float] = {}
        """What processes on these have done since."""
        self._past: dict[ProcessKey, _ProcessProbe] = {}
        self._turn = 0
        self._kept: dict[str, dict[ProcessKey, tuple[ProcessUse, ProcessInfo, ProcessMemory]]] = {}
        """What is known of each process, as long as nothing is new."""
        self._suspects: set[ProcessKey] = set()
        """Seen to be stuck at the last look."""

    def resume(self, before: LiveState | None) -> None:
        """Take up what an earlier run of the daemon left in its live state."""
        if before is None:
            return
        infos = [use.info for device in before.devices for use in device.processes or ()]
        infos += [h.process for h in before.holdings if h.process is not None]
        if self._host is not None:
            self._host.recall(infos)
        self._vigil.resume(before.holdings, infos, before.taken_at_s)

    def update(self, now_s: float) -> None:
        """Look once at what is held now: in most ticks only at how busy the devices are."""
        util = self._util
        for uid, device in self._state.devices.items():
            reading = device.reading
            if reading is not None and reading.util_pct is not None:
                util[uid] = max(reading.util_pct, util.get(uid, 0.0))
            if uid in self._resting and reading is not None:
                for use in reading.uses or ():
                    if use.sm_pct:
                        self._bursts[uid, use.key] = use.sm_pct
        last_s = self._looked_s
        recent = last_s is not None and 0.0 <= now_s - last_s < AT_LEAST_EVERY_S
        self._ticks += 1
        if recent and self._ticks < EVERY_TICKS:
            return
        self.refresh(now_s)

    def refresh(self, now_s: float) -> None:
        """Look now, with all that has been seen since the last look."""
        self._ticks = 0
        self._looked_s = now_s
        self._examine(now_s)
        self._util.clear()
        self._bursts.clear()

    def _examine(self, now_s: float) -> None:
        section = self._state.settings.config.zombies
        limits = Limits(
            minimum_bytes=section.minimum_mib * 2**20,
            idle_after_s=float(section.idle_after),
            gap_s=max(GAP_S, 3.0 * float(self._state.settings.config.daemon.interval)),
        )
        fresh = self._glances(now_s, limits.minimum_bytes)
        devices = self._state.devices.values()
        cut = {
            device.device.parent_uid for device in devices if device.device.parent_uid is not None
        }
        boards = [self._board(device, fresh, cut) for device in devices]
        for uid in self._kept.keys() - self._state.devices.keys():
            del self._kept[uid]
        self._resting = {
            board.uid for board in boards if any(held.busy_pct == 0 for held in board.uses or ())
        }
        holdings = self._vigil.update(boards, self._servers(), now_s, limits)
        totals = {board.uid: board.total_bytes for board in boards}
        self._state.holdings = tuple(
            self._priced(holding, totals.get(holding.device_uid), now_s) for holding in holdings
        )

    def _priced(self, holding: Holding, total_bytes: int | None, now_s: float) -> Holding:
        held_s = None if holding.since_s is None else now_s - holding.since_s
        price = self._state.prices.of(holding.device_uid, now_s)
        return structs.replace(
            holding,
            gib_hours=cost.gib_hours(holding.held_bytes, held_s),
            cost_usd=cost.usd(
                holding.held_bytes,
                held_s,
                total_bytes=total_bytes,
                usd_per_gpu_hour=None if price is None else price.running_usd_per_hour,
            ),
        )

    def _is_local(self, device: TrackedDevice) -> bool:
        """Say whether a device's pids are those of this machine."""
        return self._host is not None and not device.device.recorded

    def _look_at(self, key: ProcessKey) -> ProcessStat | None:
        """Return the state of a process; None when the pid is another's by now."""
        stat = self._glance(key.pid)
        # The kernel tells another time of boot once the clock has been set; identities keep theirs.
        booted_at_s = None if self._host is None else self._host.booted_at_s
        if stat is None or key.started_at_s is None or booted_at_s is None:
            return None
        begun_s = booted_at_s + stat.started_s
        return stat if abs(begun_s - key.started_at_s) < _SAME_S else None

    def _glances(self, now_s: float, least_bytes: float) -> dict[ProcessKey, ProcessStat]:
        """Read the state of some processes: those in question, and some others in turn."""
        infos = self._state.infos
        here: dict[ProcessKey, ProcessInfo] = {}
        for device in self._state.devices.values():
            if device.reading is None or not self._is_local(device):
                continue
            for use in device.reading.uses or ():
                key, used = use.key, use.used_bytes
                if use.sm_pct or key.started_at_s is None:
                    continue  # at work, or nobody who could be looked at
                if used is None or used >= least_bytes:
                    info = here[key] = infos[key]
                    if info.state in _STUCK:
                        self._suspects.add(key)
        for key in [key for key in self._past if key not in infos]:
            del self._past[key]
        keys = list(here)
        begin = self._turn % len(keys) if keys else 0
        turn = (keys[begin:] + keys[:begin])[:GLANCES]
        self._turn = begin + len(turn)
        fresh: dict[ProcessKey, ProcessStat] = {}
        for key in dict.fromkeys((*turn, *(key for key in self._suspects if key in here))):
            stat = self._look_at(key)
            if stat is not None:
                fresh[key] = stat
                self._note(here[key], stat, now_s)
        self._suspects = {
            key for key, process_stat in fresh.items() if process_stat.state in _STUCK
        }
        return fresh

    def _note(self, info: ProcessInfo, stat: ProcessStat, now_s: float) -> None:
        """Remember what one glance said."""
        probe = self._past.get(info.key)
        if probe is None:
            probe = self._past[info.key] = _ProcessProbe(info.parent_pid)
        if probe.cpu_s is not None and now_s > probe.at_s:
            probe.cpu_pct = 100.0 * max(0.0, stat.cpu_s - probe.cpu_s) / (now_s - probe.at_s)
        probe.now, probe.cpu_s, probe.at_s = stat, stat.cpu_s, now_s
        changed = stat.parent_pid != info.parent_pid
        if self._host is not None and (changed or stat.state in _STUCK or info.state in _STUCK):
            self._host.states((info.key.pid,))

    def _board(
        self, device: TrackedDevice, fresh: dict[ProcessKey, ProcessStat], cut: set[str]
    ) -> DeviceSnapshot:
        reading = device.reading
        uid = device.device.uid
        if reading is None or reading.uses is None or reading.state != "ok":
            return DeviceSnapshot(uid=uid)
        if uid in cut:
            return DeviceSnapshot(uid=uid, uses=())  # what is held there, its instances hold
        local = self._is_local(device)
        infos = self._state.infos
        kept = self._kept.get(uid, {})
        now: dict[ProcessKey, tuple[ProcessUse, ProcessInfo, ProcessMemory]] = {}
        for use in reading.uses:
            key = use.key
            info, before = infos[key], kept.get(key)
            known = before is not None and before[0] is use and before[1] is info
            if before is None or not known or key in fresh or self._may_differ(use, before[2]):
                now[key] = use, info, self._held(uid, use, info, fresh.get(key), local=local)
            else:
                now[key] = before
        self._kept[uid] = now
        return DeviceSnapshot(
            uid=uid,
            total_bytes=reading.total_bytes or device.device.memory_total_bytes,
            util_pct=self._util.get(uid, reading.util_pct),
            memory_util_pct=reading.memory_util_pct,
            ledger=device.ledger,
            uses=tuple([held for _, _, held in now.values()]),
            complete=reading.uses_reason is None,
            contained=local and self._host is not None and self._host.is_contained,
        )

    def _may_differ(self, use: ProcessUse, held: ProcessMemory) -> bool:
        """Say whether more than the use itself must be looked at anew."""
        burst = use.sm_pct == 0 and (self._bursts or held.busy_pct != 0)
        return bool(burst or not held.exists or held.state in _STUCK)

    def _held(
        self, uid: str, use: ProcessUse, info: ProcessInfo, now: ProcessStat | None, *, local: bool
    ) -> ProcessMemory:
        busy_pct = use.sm_pct
        if busy_pct == 0 and self._bursts:
            busy_pct = self._bursts.get((uid, use.key), busy_pct)
        exempt = info.framework in _SCREEN or info.name in DAEMONS
        if not local:
            return ProcessMemory(
                info=info, used_bytes=use.used_bytes, kind=use.kind, busy_pct=busy_pct,
                exempt=exempt,
            )  # fmt: skip
        exists = True if use.key.started_at_s is not None else None
        if exists is None and not info.foreign and self._is_absent(use.key.pid):
            exists, info = False, self._who_was(info)
        probe = self._past.get(use.key)
        parent = None
        if now is not None and now.state in _STUCK:
            above = self._glance(now.parent_pid)
            parent = None if above is None else f"{above.name}[{now.parent_pid}]"
            if info.parents and info.parents[0].endswith(f"[{now.parent_pid}]"):
                parent = info.parents[0]
        state = info.state if info.state != "D" else None
        if now is not None:
            state = now.state
        elif probe is not None and probe.now is not None and probe.now.state in STOPPED:
            state = probe.now.state
        return ProcessMemory(
            info=info,
            used_bytes=use.used_bytes,
            kind=use.kind,
            busy_pct=busy_pct,
            exists=exists,
            state=state,
            cpu_pct=None if probe is None else probe.cpu_pct,
            parent=parent,
            orphan=probe is not None and _orphaned(info, probe),
            exempt=exempt or use.key.pid == os.getpid(),
        )

    def _who_was(self, info: ProcessInfo) -> ProcessInfo:
        """Return who a process was that does not exist any more."""
        pid = info.key.pid
        was = self._host.gone(pid) if self._host is not None else None
        if was is None:
            return structs.replace(info, state="gone", name="?", name_kind=NameKind.OWN, was="")
        return structs.replace(was, state="gone")

    def _servers(self) -> list[Server]:
        servers = []
        for reading in self._state.engines.readings:
            left = idle_kv(self._state.engines.recent(reading.url))
            servers.append(
                Server(
                    reading=reading,
                    members=frozenset(self._state.engines.members(reading.url)),
                    kv_left=None if left is None else left.share,
                    kv_idle_s=None if left is None else left.for_s,
                )
            )
        return servers


def _orphaned(info: ProcessInfo, probe: _ProcessProbe) -> bool:
    """Say whether whoever started a process has ended: it has got another parent since.

    One that has been a child of init from the start is a daemon, unless it is in a user's session.
    """
    if probe.now is None:
        return False
    if probe.born_of is not None and probe.now.parent_pid != probe.born_of:
        return True
    session = info.unit is not None and info.unit.endswith(".scope")
    return probe.now.parent_pid == 1 and session
