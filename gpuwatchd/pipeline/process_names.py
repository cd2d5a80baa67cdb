"""Who the processes are: what a source knows of them, or the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.collect.host.process_identity import WAS
from gpuwatchd.core.codes import NameKind
from gpuwatchd.core.model import ProcessInfo, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Container

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import DeviceReading, ProcessKey, Sample
    from gpuwatchd.pipeline.tracks import ProcessInfos

_Uses = tuple[ProcessUse, ...]
_Lists = tuple[dict[str, tuple[_Uses | None, set[int]]], frozenset[int]]
"""UUID -> the last process list as it was read, and whom the host is asked about; all of these."""
MEMORY_EVERY_TICKS = 2
"""Every so many ticks the host is asked for its next few figures."""


class ProcessNames:
    """Everybody who was lately on a device."""

    def __init__(self, infos: ProcessInfos, host: Host | None) -> None:
        self.infos = infos
        """Always the same dictionary."""
        self.updates = 0
        """How often something about a process has become known."""
        self.host_bytes: dict[int, int] = {}
        """pid -> what it holds on the host."""
        self._host = host
        self._bound: dict[int, ProcessInfo] = {}
        self._ticks = 0
        self._lists: _Lists = ({}, frozenset())
        self._found: dict[int, ProcessInfo] = {}
        self._measured: dict[int, ProcessInfo] | None = None
        """Of whom it was last asked what each of them holds."""
        self._same = False
        """Whether these are the same as in the tick before."""
        self._stirred: set[int] = set()
        """pids whose memory on the host has just been found to have changed."""
        self._resolved: dict[str, tuple[_Uses, _Uses, list[ProcessInfo | None]]] = {}
        """UUID -> the last process list, as it was read and with identities, and these."""

    def identify(self, sample: Sample) -> dict[int, ProcessInfo]:
        """Return who has the pids of a sample now, as far as the sample does not say."""
        self.updates += len(sample.processes)
        for info in sample.processes:
            self.infos[info.key] = info
        self._same = False
        if self._host is None:
            return {}
        pids = self._asked(sample)
        if not pids:
            return {}
        processes = self._host.processes(pids)
        self._same = processes is self._found or processes == self._found
        self._found = processes
        self._ticks += 1
        self._stirred.clear()
        if self._ticks % MEMORY_EVERY_TICKS == 0:
            kept = self.host_bytes
            known, self._measured = self._measured is processes, processes
            for pid, held in self._host.memory(processes, newest=known).items():
                if held != kept.get(pid):
                    self._stirred.add(pid)
                    if held is None:
                        del kept[pid]
                    else:
                        kept[pid] = held
        return processes

    def _asked(self, sample: Sample) -> frozenset[int]:
        """Return whom the host is asked about, the same set until there is anybody else."""
        (lists, pids), now = self._lists, {}
        same = len(sample.readings) == len(lists)
        for reading in sample.readings:
            uid, uses = reading.device_uid, reading.uses
            before = lists.get(uid)
            if before is None or before[0] is not uses:
                keys = [use.key for use in uses or ()]
                here = {key.pid for key in keys if key.started_at_s is None}
                same = same and before is not None and before[1] == here
                before = (uses, here)
            now[uid] = before
        if not same:
            pids = frozenset().union(*[each for _, each in now.values()])
        self._lists = now, pids
        return pids

    def resolve(self, reading: DeviceReading, processes: dict[int, ProcessInfo]) -> DeviceReading:
        """Return a reading whose processes have their identity, and what they hold on the host.

        While nothing changes, its processes are the very same as in the reading before.
        """
        raw = reading.uses
        if not raw or (not processes and self._host is None):
            for use in raw or ():
                self.infos.setdefault(use.key, ProcessInfo(key=use.key, name=""))
            return reading
        uid = reading.device_uid
        before = self._resolved.get(uid)
        uses: _Uses | None = None
        if before is not None and before[0] == raw:
            stirred = self._stirred
            if (self._same or before[2] == [processes.get(use.key.pid) for use in raw]) and (
                not stirred or stirred.isdisjoint([use.key.pid for use in raw])
            ):
                uses = before[1]
        if uses is None:
            uses = tuple([self._named(use, processes) for use in raw])
            self._resolved[uid] = (raw, uses, [processes.get(use.key.pid) for use in raw])
        return msgspec.structs.replace(reading, uses=uses)

    def _named(self, use: ProcessUse, processes: dict[int, ProcessInfo]) -> ProcessUse:
        key = use.key
        pid = key.pid
        info = processes.get(pid)
        if info is None:
            if key not in self.infos:
                gone = self._host.gone(pid) if self._host is not None else None
                was = gone.label if gone is not None else ""
                self.infos[key] = ProcessInfo(
                    key=key,
                    name=f"{WAS}{was}" if gone is not None else "gone",
                    name_kind=NameKind.GONE,
                    was=was,
                    user=gone.user if gone is not None else None,
                )
            return use
        bound = self._bound.get(pid)
        if bound is not info:
            if bound is not None and bound.key != info.key:
                self.host_bytes.pop(pid, None)  # Another process's.
            self._bound[pid], before = info, self.infos.changes
            self.infos[info.key] = info
            self.updates += self.infos.changes != before
        host_bytes = self.host_bytes.get(pid, use.host_bytes)
        if info.key == key and host_bytes == use.host_bytes:
            return use
        return ProcessUse(
            key=info.key,
            used_bytes=use.used_bytes,
            kind=use.kind,
            sm_pct=use.sm_pct,
            host_bytes=host_bytes,
        )

    def forget_all_but(self, here: Container[ProcessKey]) -> None:
        """Forget who processes were that are on no device any more."""
        for key in [key for key in self.infos if key not in here]:
            del self.infos[key]
            self._bound.pop(key.pid, None)
            self.host_bytes.pop(key.pid, None)
