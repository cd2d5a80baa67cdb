"""A machine on which programs run again and again, with a history on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.store import labels
from gpuwatchd.store.labels import UserLabel
from tests.making import CARD, MIB, sample
from tests.pipeline.play import Postbox, Script
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.watcher import Track
    from gpuwatchd.store.writer import History

MINUTE = 60.0


class Lab:
    """One machine over many runs and restarts, with a history on disk."""

    def __init__(self, directory: Path, devices: Sequence[Device] = (CARD,)) -> None:
        self.directory = directory
        self.time = Time(1_700_000_040.0)
        self.devices = tuple(devices)
        self.alive: dict[ProcessInfo, tuple[Device, Callable[[float], float]]] = {}
        self.post = Postbox()
        self.pids = 4000
        self.step_s = 10.0
        self.changes: list[Alert] = []
        self.start()

    def start(self) -> None:
        self.history: History = opened(self.directory, self.time)
        self.pipeline = Pipeline(
            config=Config(),
            sources=[Script(lambda _: self.look(), devices=self.devices)],
            history=self.history,
            courier=self.post,
            wall=self.time.clock,
            mono=self.time.monotonic,
        )
        self.pipeline.resume()

    def stop(self) -> None:
        self.pipeline.close()

    def restart(self) -> None:
        self.stop()
        self.time.pass_s(30)
        self.start()

    def look(self) -> Sample:
        now_s = self.time.now_s
        readings, infos = [], []
        for device in self.devices:
            uses = [
                (info, int(curve(now_s - (info.key.started_at_s or 0.0))) // (2 * MIB) * (2 * MIB))
                for info, (where, curve) in self.alive.items()
                if where is device
            ]
            one = sample(self.time.mono_s, uses, device=device, wall_s=now_s)
            readings += [msgspec.structs.replace(r, util_pct=90.0) for r in one.readings]
            infos += [info for info, _ in uses]
        return msgspec.structs.replace(
            sample(self.time.mono_s, [], wall_s=now_s),
            boot_id="boot-1",
            readings=tuple(readings),
            processes=tuple(infos),
        )

    def begin(
        self,
        curve: Callable[[float], float],
        *,
        program: str | None = "abc",
        device: Device = CARD,
        parent: int = 1,
    ) -> ProcessInfo:
        self.pids += 1
        info = ProcessInfo(
            key=ProcessKey(pid=self.pids, started_at_s=self.time.now_s),
            name="python",
            user="alice",
            argv=("python", "train.py"),
            program=program,
            parent_pid=parent,
        )
        self.alive[info] = (device, curve)
        return info

    def pass_minutes(self, minutes: float) -> list[Alert]:
        """Let time go by; return the alerts whose state changed."""
        seen: list[Alert] = []
        for _ in range(int(minutes * MINUTE / self.step_s)):
            self.time.pass_s(self.step_s)
            seen += self.pipeline.tick().changes
            if self.time.now_s % MINUTE < self.step_s:
                self.history.flush(self.time.now_s)
                self.history.chores(self.time.now_s)
        self.changes += seen
        return seen

    def run(self, curve: Callable[[float], float], minutes: float = 100) -> list[Alert]:
        """Let a program run and end; return the alerts whose state changed."""
        info = self.begin(curve)
        seen = self.pass_minutes(minutes)
        del self.alive[info]
        seen += self.pass_minutes(2)
        return seen

    def track(self, info: ProcessInfo, device: Device = CARD) -> Track:
        return self.pipeline.watcher.tracks[Subject(device_uid=device.uid, process=info.key).id]

    def say(self, alert: Alert, word: str, why: str | None = None) -> UserLabel:
        return labels.write(
            self.directory,
            UserLabel(
                alert_key=alert.key,
                opened_at_s=alert.opened_at_s,
                subject=alert.subject,
                title=alert.title,
                word="normal" if word == "normal" else "leak",
                given_at_s=self.time.now_s,
                why=why,
                who="alice",
            ),
        )
