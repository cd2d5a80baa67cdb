"""Steps that a daemon would take on what does no harm: a log is played as a driver would tell it.

Where nobody knows how busy the device was, it is played as unknown, or as a job that works with
pauses that are shorter than idle memory takes to be listed.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from gpuwatchd.core.config.schema import Seconds
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from tests.making import GIB, sample
from tests.pipeline.idle_machine import UID, IdleMachine, config
from tests.store.world import T0

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import Sample

INTERVAL_S = 60.0
IDLE_AFTER_S = 1800.0
Work = Literal["unknown", "works", "idle"]


class Played(IdleMachine):
    """A device of a log, and its processes; one that holds it all where none are listed."""

    def __init__(
        self, directory: Path, device: LogSeries, parts: list[LogSeries], work: Work, seed: int
    ) -> None:
        self.work, self.whole = work, device
        self.chance = random.Random(seed)
        self.pause_ticks = 0
        self.start_s = float(device.t_s[0])
        infos = []
        for number, part in enumerate(parts or [device]):
            begun_s = T0 + float(part.t_s[0]) - self.start_s - 2.0
            key = ProcessKey(pid=5000 + number, started_at_s=begun_s)
            infos.append(
                (ProcessInfo(key=key, name="python", argv=("python", f"{number}"), uid=UID), part)
            )
        self.infos = infos
        settings = config(notice_gap=Seconds(300.0))
        settings = msgspec.structs.replace(
            settings,
            zombies=msgspec.structs.replace(settings.zombies, idle_after=Seconds(IDLE_AFTER_S)),
            daemon=msgspec.structs.replace(settings.daemon, interval=Seconds(INTERVAL_S)),
        )
        super().__init__(directory, settings)

    def _look(self) -> Sample:
        since_s = self.time.now_s - T0 - 17.0
        at_s = self.start_s + since_s
        uses = [
            (info, int(_at(part, at_s)))
            for info, part in self.infos
            if part.t_s[0] <= at_s <= part.t_s[-1] and _at(part, at_s) > 0.0
        ]
        device = msgspec.structs.replace(self.device, memory_total_bytes=max(
            int(self.whole.used_bytes.max()) + GIB, 8 * GIB
        ))  # fmt: skip
        one = sample(
            self.time.mono_s, uses, device=device, wall_s=self.time.now_s,
            used_bytes=int(_at(self.whole, at_s)),
        )  # fmt: skip
        (reading,) = one.readings
        busy_pct = self._busy_pct(at_s)
        told = tuple(msgspec.structs.replace(use, sm_pct=busy_pct) for use in reading.uses or ())
        reading = msgspec.structs.replace(reading, uses=told, util_pct=busy_pct)
        return msgspec.structs.replace(one, boot_id=self.boot_id, readings=(reading,))

    def _busy_pct(self, at_s: float) -> float | None:
        known = self.whole.activity.get("utilisation")
        if self.work == "idle":
            return 0.0
        if known is not None:
            return float(known[1][max(0, int(np.searchsorted(known[0], at_s, side="right")) - 1)])
        if self.work == "unknown":
            return None
        if self.pause_ticks:
            self.pause_ticks -= 1
            return 0.0
        if self.chance.random() < 0.05:
            most = int(0.9 * IDLE_AFTER_S / INTERVAL_S)
            self.pause_ticks = self.chance.randint(1, most)
        return self.chance.uniform(5.0, 100.0)

    def play(self, for_s: float) -> None:
        """Let a span go by, look by look."""
        for _ in range(int(for_s / INTERVAL_S)):
            self.pipeline.tick()
            self.time.pass_s(INTERVAL_S)


def _at(part: LogSeries, at_s: float) -> float:
    found = int(np.searchsorted(part.t_s, at_s, side="right")) - 1
    return float(part.used_bytes[max(0, found)])


def acts(log: LogFile, *works: Work, seed: int = 1) -> int:
    """Return how many steps are taken on the devices of a log, however busy they are said to be."""
    count = 0
    for device in (one for one in log.series if one.process is None and one.t_s.size > 1):
        parts = [
            one
            for one in log.series
            if one.process is not None and one.t_s.size
            and one.subject.device_uid == device.subject.device_uid and one.run == device.run
        ]  # fmt: skip
        span_s = float(device.t_s[-1] - device.t_s[0])
        for work in works:
            with tempfile.TemporaryDirectory() as folder:
                machine: Any = Played(Path(folder, "machine"), device, parts, work, seed)
                machine.play(span_s)
                count += len(machine.taken)
                machine.kill()
    return count
