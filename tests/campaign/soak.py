"""Sixty days of a daemon, on a clock that is moved by hand: nothing it holds or writes piles up.

Two GPUs, four processes on each that come and go; every sixth leaks until it has filled its part of
the card and ends. The daemon is stopped and started once a week, as an upgrade does it.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from gpuwatchd.core.model import (
    Device,
    DeviceReading,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
)
from gpuwatchd.store import live
from tests.campaign import Figures, line, require
from tests.making import GIB, MIB
from tests.pipeline.restarts import Machine
from tests.store.world import rows

DAY_S, HOUR_S, INTERVAL_S, CHORES_S = 86_400.0, 3600.0, 60.0, 300.0
RESTART_S = 7 * DAY_S
TOTAL = 80 * GIB
CARDS = tuple(
    Device(uid=f"GPU-{i}", vendor="nvidia", index=i, name="card", memory_total_bytes=TOTAL)
    for i in range(2)
)
SLOTS = 4
LEAK_RATE = 6 * GIB / HOUR_S


class Job(NamedTuple):
    """One process, from its start to its end (monotonic seconds)."""

    info: ProcessInfo
    begun_s: float
    ends_s: float
    base_bytes: int
    leaks: bool

    def held_bytes(self, mono_s: float) -> int:
        """Return what it holds: it loads for two minutes, then stays as it is, or leaks."""
        age_s = mono_s - self.begun_s
        grown = LEAK_RATE * max(0.0, age_s - 1800.0) if self.leaks else 0.0
        return int(self.base_bytes * min(1.0, age_s / 120.0) + grown) // (2 * MIB) * (2 * MIB)


class Measure(NamedTuple):
    """What the process and its files take."""

    rss_bytes: int
    descriptors: int
    threads: int
    history_bytes: int
    live_bytes: int
    tracks: int


class Site(Machine):
    """Two GPUs with their jobs, and the daemon that watches them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.jobs: dict[tuple[int, int], Job] = {}
        self.started = self.leaks = 0
        self.warned: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()
        self.leaked: set[int] = set()
        """Pids of leaks whose end has come."""
        super().__init__(directory, lambda _: 0.0)

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the driver lists."""
        return CARDS

    def _job(self, slot: tuple[int, int]) -> Job:
        """Return who is in a slot now; a new one takes the place of one that has ended."""
        mono_s, job = self.time.mono_s, self.jobs.get(slot)
        if job is not None and mono_s < job.ends_s:
            return job
        if job is not None and job.leaks:
            self.leaked.add(job.info.key.pid)
        self.started += 1
        leaks = self.started % 6 == 0
        self.leaks += leaks
        name = "leaky.py" if leaks else f"train{self.started % 3}.py"
        info = ProcessInfo(
            key=ProcessKey(pid=1000 + self.started, started_at_s=self.time.now_s),
            name="python", user="alice", argv=("python", name, f"--run={self.started}"),
        )  # fmt: skip
        lasts_s = 3.0 * HOUR_S if leaks else self.chance.uniform(1.0, 12.0) * HOUR_S
        self.jobs[slot] = Job(
            info, mono_s, mono_s + lasts_s, self.chance.randint(1, 4) * GIB, leaks
        )
        return self.jobs[slot]

    def _look(self) -> Sample:
        mono_s = self.time.mono_s
        readings = []
        for number, card in enumerate(CARDS):
            jobs = [self._job((number, slot)) for slot in range(SLOTS)]
            uses = tuple(
                ProcessUse(key=job.info.key, used_bytes=job.held_bytes(mono_s)) for job in jobs
            )
            used = min(TOTAL, 300 * MIB + sum(use.used_bytes or 0 for use in uses))
            busy_pct = self.chance.choice((0.0, 55.0, 93.0))
            readings.append(
                DeviceReading(
                    device_uid=card.uid, used_bytes=used, free_bytes=TOTAL - used,
                    total_bytes=TOTAL, util_pct=busy_pct, temp_c=60.0, power_w=250.0, uses=uses,
                )
            )  # fmt: skip
        return Sample(
            taken_at_s=self.time.now_s, taken_mono_s=mono_s, boot_id=self.boot_id,
            readings=tuple(readings), processes=tuple(job.info for job in self.jobs.values()),
        )  # fmt: skip

    def step(self) -> None:
        """Look once, do the chores where they are due, and let a minute go by."""
        for alert in self.pipeline.tick().changes:
            if alert.state == "firing":
                self.warned[alert.key] += 1
            elif alert.state == "resolved" and alert.notices:
                self.resolved[alert.key] += 1
        self.post.taken.clear()
        self.sampled_ms.clear()
        if self.time.mono_s >= self.chores_s:
            self.history.chores(self.time.now_s)
            self.chores_s += CHORES_S
        self.time.pass_s(INTERVAL_S)

    def measure(self) -> Measure:
        """Return what the process and its files take now."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = (self.directory / "state").glob("history.db*")
        return Measure(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len([*Path("/proc/self/fd").iterdir()]),
            threading.active_count(),
            sum(file.stat().st_size for file in files),
            (self.directory / "run" / live.FILE_NAME).stat().st_size,
            sum(len(device.tracks()) for device in self.pipeline.state.devices.values()),
        )


def lasted(days: int, seed: int) -> Figures:
    """Let so many days go by; compare what is held at their end with half of them before."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder, "site"), seed)
        begun_s, restart_s = site.time.mono_s, site.time.mono_s + RESTART_S
        half: Measure | None = None
        ticks = round(days * DAY_S / INTERVAL_S)
        for number in range(ticks):
            site.step()
            if site.time.mono_s >= restart_s:
                site.restart(clean=True)
                restart_s += RESTART_S
            if number == ticks // 2:
                half = site.measure()
        end = site.measure()
        assert half is not None
        site.kill()
        stored = rows(
            site.directory / "state",
            "SELECT min(ts_ms), max(ts_ms), (SELECT count(*) FROM alert) FROM gpu_raw",
        )[0]
        now_s = site.time.now_s
        return _judged(site, days, half, end) | {
            "drift_s": abs(site.time.mono_s - begun_s - ticks * INTERVAL_S),
            "raw_days": (now_s - stored[0] / 1000) / DAY_S,
            "alerts": stored[2],
        }


def _judged(site: Site, days: int, half: Measure, end: Measure) -> Figures:
    """Return the figures; raise AssertionError where something has piled up."""
    pids = {int(key.rpartition("/")[2].partition("@")[0]) for key in site.warned if "/" in key}
    figures: Figures = {
        "days": days, "looks": days * DAY_S / INTERVAL_S, "jobs": site.started,
        "leaks": len(site.leaked), "unwarned": len(site.leaked - pids),
        "repeated": sum(count > 1 for count in site.warned.values()),
        "rss_mib_half": half.rss_bytes / 2**20, "rss_mib": end.rss_bytes / 2**20,
        "descriptors": end.descriptors, "threads": end.threads, "tracks": end.tracks,
        "history_mib_half": half.history_bytes / 2**20, "history_mib": end.history_bytes / 2**20,
        "live_kib": end.live_bytes / 1024,
    }  # fmt: skip
    too_much = {
        "rss": end.rss_bytes > 1.1 * half.rss_bytes + 8 * MIB,
        "descriptors": end.descriptors > half.descriptors + 2,
        "threads": end.threads > half.threads + 2,
        # Half of the way covers what is kept for two weeks; the rest is a row an hour.
        "history": days >= 60 and end.history_bytes > 1.25 * half.history_bytes + MIB,
        "live": end.live_bytes > 1.5 * half.live_bytes + 32 * 1024,
        "tracks": end.tracks > 4 * len(CARDS) * (SLOTS + 2),
    }
    if piled := [name for name, is_so in too_much.items() if is_so]:
        raise AssertionError(f"{line(figures)}: {', '.join(piled)} piled up")
    return require(figures, unwarned=0, repeated=0)
