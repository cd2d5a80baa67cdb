"""Forty hours of two GPUs whose truth is known to the minute, for reports.

GPU 0: bob holds 20 GiB from the begin to hour 20. Nothing is recorded from hour 20 to 24. Alice's
``python train.py`` holds 8 GiB at hour 30 and 78 GiB at hour 38, where it dies; foreseen at hour
32 for hour 38 (36 - 40). GPU 1: alice's other job has leaked since hour 37 and does so still;
carol holds 10 GiB from hour 34 on, without work since hour 36.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.core import config
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import (
    AlertSubject,
    Decision,
    EtaRange,
    Finding,
    Holding,
    Matcher,
    ProcessInfo,
    ProcessKey,
    Subject,
)
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world
from tests.making import GIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, Sample

HOUR_S: Final = 3600.0
HOURS: Final = 40
PRICE: Final = 2.0
HELD: Final = {"bob": 20.0, "carol": 10.0}


class Truth:
    """The world, written when it is made; ``at(hour)`` is an instant of it."""

    def __init__(self, *, name: str = "python", user: str = "alice") -> None:
        self.now_s = float(int(time.time()) // 60 * 60)
        self.begun_s = self.now_s - HOURS * HOUR_S
        self._clock_s = self.begun_s
        self.name, self.user = name, user
        self.bob = self._who(31099, "bob", 0.0, "python", "serve.py", job="slurm 7")
        self.dead = self._who(4711, user, 30.0, name, "train.py", job="slurm 42")
        self.open = self._who(5000, user, 35.0, name, "tune.py", job="slurm 43")
        self.carol = self._who(6000, "carol", 34.0, "jupyter", "lab.py")
        self.history = History.open(
            config.state_dir(), StoreSection(min_free_mib=0), boot_id="boot",
            clock=lambda: self._clock_s, monotonic=lambda: self._clock_s - self.begun_s + 1e5,
        )  # fmt: skip
        self._record()
        self.crash = self._crash()
        self.leak = self._leak()
        self._post()
        self.history.flush(self.now_s)

    def at(self, hour: float) -> float:
        """Return an instant, epoch seconds."""
        return self.begun_s + hour * HOUR_S

    def close(self) -> None:
        """Let go of the file."""
        self.history.close()

    def _who(
        self, pid: int, user: str, hour: float, name: str, script: str, **more: Any
    ) -> ProcessInfo:
        key = ProcessKey(pid=pid, started_at_s=self.begun_s + hour * HOUR_S)
        return ProcessInfo(
            key=key, name=name, user=user, argv=(name, script), framework="PyTorch",
            framework_sure=True, **more,
        )  # fmt: skip

    def gib(self, hour: float) -> tuple[dict[ProcessInfo, float], dict[ProcessInfo, float]]:
        """Return who holds how much of the first and the second GPU."""
        first: dict[ProcessInfo, float] = {}
        second: dict[ProcessInfo, float] = {}
        if hour < 20:
            first[self.bob] = HELD["bob"]
        if 30 <= hour < 38:
            first[self.dead] = 8.0 + (hour - 30) * 70.0 / 8.0
        if hour >= 34:
            second[self.carol] = HELD["carol"]
        if hour >= 35:
            second[self.open] = 10.0 + max(0.0, hour - 37) * 4.0
        return first, second

    def _record(self) -> None:
        for minute in range(HOURS * 60):
            hour = minute / 60.0
            if 20 <= hour < 24:
                continue
            at_s = self.at(hour)
            self._clock_s = at_s
            if hour == 24:
                self.history.segment("start", None, 4 * HOUR_S)
            if minute % 30 == 0:
                self.history.flush(at_s)
                self.history.chores(at_s)
            sample, people = self._sample(at_s, hour)
            self.history.record(sample, (making.CARD, world.SECOND), people)
        self._clock_s = self.now_s
        self.history.event("xid", "XID 13: graphics exception", making.CARD.uid)
        self.history.event("gpu-lost", "it fell off the bus", world.SECOND.uid)

    def _sample(self, at_s: float, hour: float) -> tuple[Sample, dict[ProcessKey, ProcessInfo]]:
        held = [
            [(info, int(amount * GIB)) for info, amount in one.items()] for one in self.gib(hour)
        ]
        one = making.sample(at_s, held[0])
        other = making.sample(at_s, held[1], device=world.SECOND)
        readings = tuple(
            msgspec.structs.replace(reading, util_pct=util)
            for reading, util in zip((*one.readings, *other.readings), (50.0, 100.0), strict=True)
        )
        people = {info.key: info for part in held for info, _ in part}
        return msgspec.structs.replace(one, readings=readings), people

    def finding(self, info: ProcessInfo, uid: str, hour: float, **changes: Any) -> Finding:
        """Return a leak of a process as judged at an hour."""
        values: dict[str, Any] = {
            "subject": Subject(device_uid=uid, process=info.key), "judged_at_s": self.at(hour),
            "advice": (f"Check what {info.argv[-1]} keeps from step to step.",),
        }  # fmt: skip
        return making.finding(**{**values, **changes})

    def alert(self, info: ProcessInfo, uid: str, finding: Finding, **changes: Any) -> Alert:
        """Return a firing alert on a process, and keep it."""
        subject = Subject(device_uid=uid, process=info.key)
        label = "GPU 0" if uid == making.CARD.uid else "GPU 1"
        values: dict[str, Any] = {
            "key": f"leak:{subject.id}", "subject": subject, "finding": finding, "notices": 1,
            "title": f"{label} (A100): {info.numbered} of {info.user}",
            "about": AlertSubject(user=info.user or "", process=info.name, pid=info.key.pid,
                           job=info.job or "", framework="PyTorch"),
        }  # fmt: skip
        found = making.alert(**{**values, **changes})
        self.history.apply([found], [])
        return found

    def _crash(self) -> Alert:
        uid, eta = making.CARD.uid, EtaRange(low_s=4 * HOUR_S, mid_s=6 * HOUR_S, high_s=8 * HOUR_S)
        self.foreseen = self.finding(
            self.dead, uid, 32.0, eta=eta, onset_at_s=self.at(30), limit_bytes=79.0 * GIB,
            rate_bytes_per_s=70.0 * GIB / 8 / HOUR_S, severity="critical",
        )  # fmt: skip
        later = msgspec.structs.replace(
            self.foreseen,
            judged_at_s=self.at(37),
            eta=EtaRange(low_s=1800, mid_s=3600, high_s=5400),
        )  # fmt: skip
        return self.alert(
            self.dead, uid, later, opened_at_s=self.at(31.9), changed_at_s=self.at(38),
            firing_at_s=self.at(32), resolved_at_s=self.at(38), state="resolved",
            severity="critical",
            **wording.ending(Ending.ENDED_NEAR_LIMIT),
        )  # fmt: skip

    def _leak(self) -> Alert:
        uid = world.SECOND.uid
        finding = self.finding(
            self.open, uid, 40.0, eta=EtaRange(low_s=9 * HOUR_S, mid_s=12 * HOUR_S, high_s=None),
            onset_at_s=self.at(37), rate_bytes_per_s=4.0 * GIB / HOUR_S, limit_bytes=70.0 * GIB,
        )  # fmt: skip
        return self.alert(
            self.open, uid, finding, opened_at_s=self.at(37.5), changed_at_s=self.at(39.9),
            firing_at_s=self.at(38),
        )  # fmt: skip

    def _post(self) -> None:
        key, at_s = self.crash.key, self.at(32)
        told = world.message(id="m1", severity="critical", alert_key=key, finding=self.foreseen)
        sent = world.delivery(key, "desktop", at_s, message=told, sent_at_s=at_s, known="shown")
        failed = world.delivery(
            key, "email", at_s, message=told, state="failed", attempts=5, sent_at_s=None,
            error="no mail server at mx.example",
        )  # fmt: skip
        self.history.decide(
            [
                Decision(
                    finding_id="", alert_key=self.leak.key, kind="hold", target="desktop",
                    notice="firing", reason="quiet hours until 07:00", at_s=self.at(38),
                )
            ]
        )  # fmt: skip
        self.history.apply([], [sent, failed])

    def snooze(self) -> None:
        """Have silenced the open leak for two hours, an hour ago."""
        from gpuwatchd.store import tables

        one = world.silence(
            matcher=Matcher(key=self.leak.key), from_at_s=self.at(39), until_at_s=self.at(41),
            who=self.user, why="I know",
        )  # fmt: skip
        transaction(config.state_dir(), tables.write_silence, one)

    def live(self, **changes: Any) -> None:
        """Write the live state of a daemon that runs."""
        held = self.gib(HOURS - 1 / 60)[1]
        processes = tuple(
            LiveProcess(
                info=info,
                used_bytes=int(amount * GIB),
                finding=self.leak.finding if info is self.open else None,
            )
            for info, amount in held.items()
        )
        holding = Holding(
            kind="idle", device_uid=world.SECOND.uid, process=self.carol,
            held_bytes=int(HELD["carol"] * GIB), since_s=self.at(36), evidence="idle for 4 h",
            advice=("Ask carol to restart the kernel.",), gib_hours=40.0, cost_usd=1.0,
        )  # fmt: skip
        plain: dict[str, Any] = {
            "taken_at_s": time.time() - 0.5, "holdings": (holding,), "alerts": (self.leak,),
            "devices": (
                LiveDevice(device=making.CARD, reading=world.reading(making.CARD.uid, 0),
                           samples=900, processes=()),
                LiveDevice(device=world.SECOND, reading=world.reading(world.SECOND.uid, 32),
                           samples=900, finding=self.leak.finding, processes=processes),
            ),
        }  # fmt: skip
        world.write(**{**plain, **changes})
