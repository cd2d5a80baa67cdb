"""A machine for tests of holdings: devices with processes, and what the kernel says of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.host.liveness import ProcessStat
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import ZombiesSection
from gpuwatchd.core.model import (
    Device,
    DeviceReading,
    Holding,
    Ledger,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    ServerReading,
)
from gpuwatchd.pipeline.idle_memory import IdleMemory

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30
BOOTED_S = 1_000.0


def key(pid: int, started_s: float | None = 50.0) -> ProcessKey:
    return ProcessKey(pid=pid, started_at_s=None if started_s is None else BOOTED_S + started_s)


def info(pid: int, **changes: Any) -> ProcessInfo:
    values: dict[str, Any] = {
        "key": key(pid), "name": "python", "user": "alice", "argv": ("python", "train.py"),
        "parent_pid": 40,
    }  # fmt: skip
    return ProcessInfo(**{**values, **changes})


class Said:
    """What serving engines have said."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def readings(self) -> tuple[ServerReading, ...]:
        return tuple(past[-1] for past in self._machine.answers.values())

    def recent(self, url: str) -> tuple[ServerReading, ...]:
        return tuple(self._machine.answers[url])

    def members(self, url: str) -> tuple[ProcessKey, ...]:
        return self._machine.members.get(url, ())


class Machine:
    """Devices with processes, a host, and what the kernel says of each pid."""

    def __init__(self, **settings: Any) -> None:
        self.devices: dict[str, Any] = {}
        self.infos: dict[ProcessKey, ProcessInfo] = {}
        self.kernel: dict[int, ProcessStat] = {}
        self.dead: set[int] = set()
        self.asked: list[int] = []
        self.told: list[int] = []
        self.buried: dict[int, ProcessInfo] = {}
        self.now_s = 10_000.0
        self.readings: tuple[Any, ...] = ()
        host = SimpleNamespace(
            booted_at_s=BOOTED_S,
            is_contained=settings.pop("contained", False),
            gone=self.buried.get,
            recall=lambda infos: self.buried.update({one.key.pid: one for one in infos}),
            states=self.told.extend,
        )
        self.answers: dict[str, list[ServerReading]] = {}
        self.members: dict[str, tuple[ProcessKey, ...]] = {}
        serving = Said(self)
        self.holdings = IdleMemory(
            Config(**{"zombies": ZombiesSection(), **settings}),
            self,  # type: ignore[arg-type]
            serving,  # type: ignore[arg-type]
            host,  # type: ignore[arg-type]
            look=self._look,
            is_absent=self.dead.__contains__,
        )

    def _look(self, pid: int) -> ProcessStat | None:
        self.asked.append(pid)
        return self.kernel.get(pid)

    def card(
        self,
        uses: Iterable[ProcessInfo] | None,
        *,
        gib: float = 9.0,
        util: float | None = 80.0,
        source: str = "nvml",
        uid: str = "GPU-1",
        ledger: Ledger | None = None,
    ) -> None:
        """Put these processes on a device."""
        listed = None
        if uses is not None:
            listed = tuple(ProcessUse(key=one.key, used_bytes=int(gib * GIB)) for one in uses)
            self.infos |= {one.key: one for one in uses}
        reading = DeviceReading(
            device_uid=uid, used_bytes=60 * GIB, free_bytes=20 * GIB, total_bytes=80 * GIB,
            util_pct=util, uses=listed,
        )  # fmt: skip
        device = Device(
            uid=uid, vendor="nvidia", index=0, name="A100", memory_total_bytes=80 * GIB,
            source=source,
        )  # fmt: skip
        self.devices[uid] = SimpleNamespace(device=device, reading=reading, ledger=ledger)

    def run(
        self,
        pid: int,
        state: str = "S",
        *,
        parent: int = 40,
        started_s: float = 50.0,
        cpu_s: float = 1.0,
    ) -> None:
        self.kernel[pid] = ProcessStat("python", state, parent, started_s, cpu_s)

    def ticks(self, count: int, *, every_s: float = 5.0) -> tuple[Holding, ...]:
        for _ in range(count):
            self.holdings.update(self.now_s)
            self.now_s += every_s
        return self.holdings.found
