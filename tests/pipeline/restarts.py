"""A machine whose daemon is killed and started again: real pipeline and history, injected clock.

``python -m tests.pipeline.restarts`` prints how early fast leaks are mailed;
``--first-seed 200 --draws 40`` does so for other draws of segments at random times.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.store.writer import History
from tests.making import GIB, MIB, sample
from tests.pipeline.play import Postbox, Script
from tests.pipelines import make_pipeline
from tests.store.world import T0, Time, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.track import Track

INTERVAL_S = 5.0
DOWN_S = 6.0
"""From a kill to the first tick after it: systemd waits for five seconds."""
QUANTUM = 2 * MIB
BASE = 12 * GIB
CHORES_S = 60.0


def card(gib: int) -> Device:
    """Return a device with so much memory."""
    return Device(
        uid="GPU-1", vendor="nvidia", index=0, name="card", memory_total_bytes=gib * GIB
    )  # fmt: skip


def leak(
    minutes: float, gib: int, *, segments: bool = False, load_s: float = 0.0, seed: int = 1
) -> Callable[[float], float]:
    """Return what a process holds that fills a device of ``gib`` GiB in so many minutes.

    It begins at 12 GiB, or has loaded them by ``load_s``, and the minutes count from then on. It
    grows evenly, or in segments of 20 to 64 MiB at random times.
    """
    room, full_s = gib * GIB - BASE, 60.0 * minutes
    if not segments:
        grown, at_s = np.array([0.0, room]), np.array([0.0, full_s])
        return lambda age_s: (
            (BASE * age_s / load_s)
            if age_s < load_s
            else BASE + float(np.interp(age_s - load_s, at_s, grown))
        )
    dice = np.random.default_rng(seed)
    sizes = np.cumsum(dice.uniform(20.0, 64.0, size=room // (20 * MIB)) * MIB)
    sizes = np.concatenate(([0.0], sizes[sizes <= room]))
    at_s = np.sort(dice.uniform(0.0, full_s, size=sizes.size - 1))
    return lambda age_s: BASE + float(sizes[at_s.searchsorted(age_s, side="right")])


def fill(
    first_gib: float, first_s: float, more_gib: float, minutes: float
) -> Callable[[float], float]:
    """Return what a process holds that loads, fills a cache evenly, and stops."""
    at_s = np.array([0.0, first_s, first_s + 60.0 * minutes])
    held = np.array([0.5, 0.5 + first_gib, 0.5 + first_gib + more_gib]) * GIB
    return lambda age_s: float(np.interp(age_s, at_s, held))


def steps(gib: float, every_s: float, most: int) -> Callable[[float], float]:
    """Return what a process holds whose batch grows step by step, and stops."""
    return lambda age_s: (6.0 + gib * min(age_s // every_s, most)) * GIB


class Machine:
    """One device of ``gib``, one process, and a daemon that is killed.

    In ``directory`` are the history and the live state. ``curve`` tells the bytes that the process
    holds, by its age in seconds; at the ages ``kills_s`` the daemon is killed.
    """

    config = Config()

    def __init__(
        self,
        directory: Path,
        curve: Callable[[float], float],
        gib: int = 24,
        *,
        kills_s: Iterable[float] = (),
    ) -> None:
        self.directory = directory
        self.curve = curve
        self.device = card(gib)
        self.kills_s = sorted(kills_s)
        self.time = Time(T0 + 17.0)
        self.boot_id = "boot-1"
        self.begin(4711)
        self.changes: list[tuple[float, Alert]] = []
        """Ages of the process, and alerts whose state changed then."""
        self.messages: list[tuple[float, str]] = []
        """Ages of the process, and what was handed to the channel then."""
        self.sampled_ms: list[int] = []
        for name in ("state", "run"):
            (directory / name).mkdir(parents=True)
        self.start()

    def begin(self, pid: int) -> None:
        """Let a new process take the place of the old one; it began two seconds ago."""
        self.began_s = self.time.now_s - 2.0
        self.began_mono_s = self.time.mono_s - 2.0
        self.info = ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=self.began_s),
            name="python",
            user="alice",
            argv=("python", "train.py"),
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the driver lists."""
        return (self.device,)

    @property
    def age_s(self) -> float:
        """Age of the process."""
        return self.time.mono_s - self.began_mono_s

    @property
    def track(self) -> Track:
        """What the daemon knows of the process."""
        key = Subject(device_uid=self.device.uid, process=self.info.key).id
        return self.pipeline.state.tracks[key]

    def start(self) -> None:
        """Start a daemon."""
        self.history = History.open(
            self.directory / "state",
            settings(),
            clock=self.time.clock,
            monotonic=self.time.monotonic,
            boot_id=self.boot_id,
        )
        self.post = self.make_post()
        self.pipeline = make_pipeline(
            config=self.config,
            sources=[Script(lambda _: self._look(), devices=self.devices)],
            history=self.history,
            runtime_dir=self.directory / "run",
            message_dispatcher=self.post,
            wall=self.time.clock,
            mono=self.time.monotonic,
        )
        self.pipeline.resume()
        self.chores_s = self.time.mono_s + CHORES_S

    def make_post(self) -> Postbox:
        """Return who carries the messages of the next daemon."""
        return Postbox()

    def restart(self, down_s: float = DOWN_S, *, clean: bool = False) -> None:
        """Kill the daemon, or stop it in order, and start it again."""
        if clean:
            self.pipeline.close()
        else:
            self.kill()
        self.time.pass_s(down_s)
        self.start()

    def kill(self) -> None:
        """End the daemon as SIGKILL does: it writes nothing any more."""
        self.history._drop_connection()
        for worker in self.pipeline.sources.workers.values():
            worker.close()

    def _look(self) -> Sample:
        now_s = self.time.now_s
        self.sampled_ms.append(round(now_s * 1000))
        held = int(self.curve(self.age_s)) // QUANTUM * QUANTUM
        one = sample(
            self.time.mono_s,
            [(self.info, held)],
            device=self.device,
            wall_s=now_s,
            used_bytes=min(held + 300 * MIB, self.device.memory_total_bytes or 0),
        )
        return msgspec.structs.replace(one, boot_id=self.boot_id)

    def live(self, until_s: float) -> None:
        """Let time go by until the process has this age; the daemon is killed on the way."""
        while self.age_s < until_s:
            if self.kills_s and self.age_s >= self.kills_s[0]:
                del self.kills_s[0]
                self.restart()
            taken = len(self.post.taken)
            tick = self.pipeline.tick()
            self.changes += [(self.age_s, alert) for alert in tick.changes]
            self.messages += [(self.age_s, d.message.notice) for d in self.post.taken[taken:]]
            if self.time.mono_s >= self.chores_s:
                self.history.chores(self.time.now_s)
                self.chores_s += CHORES_S
            self.time.pass_s(INTERVAL_S)

    def first(self, state: str) -> tuple[float, Alert] | None:
        """Return when an alert first reached a state, and that alert."""
        return next(((at_s, one) for at_s, one in self.changes if one.state == state), None)

    @property
    def mailed_s(self) -> float | None:
        """Age of the process when the first alert was handed to the channel."""
        return next((at_s for at_s, notice in self.messages if notice == "firing"), None)

    @property
    def fired(self) -> bool:
        """Whether any alert has fired."""
        return self.first("firing") is not None


def restarted(
    machine: Machine, minutes: float, runs_s: Iterable[float], down_s: float, *, clean: bool
) -> Machine:
    """Let a leak fill its device while the daemon ends after each of ``runs_s``."""
    for run_s in runs_s:
        machine.live(machine.age_s + run_s)
        machine.restart(down_s, clean=clean)
    machine.live(60.0 * minutes)
    machine.kill()
    return machine


def used_share(
    minutes: float, curve: Callable[[float], float], kills_s: tuple[float, ...] = ()
) -> float | None:
    """Return which share of its time a leak has used up when its mail is handed over, or None."""
    with TemporaryDirectory() as folder:
        machine = Machine(Path(folder), curve, kills_s=kills_s)
        machine.live(60.0 * minutes)
        machine.kill()
    return None if machine.mailed_s is None else machine.mailed_s / (60.0 * minutes)


def main() -> None:
    """Print which share of its time each leak has used up when its mail is handed over."""
    parser = ArgumentParser(prog="python -m tests.pipeline.restarts")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    kills: dict[str, tuple[float, ...]] = {
        "never": (),
        "at 60, 120, 170 s": (60.0, 120.0, 170.0),
        "every 40 s": tuple(range(40, 301, 40)),
    }
    for minutes in (10, 12, 15, 17, 20, 30):
        even = leak(minutes, 24)
        shares = [(name, used_share(minutes, even, at_s)) for name, at_s in kills.items()]
        row = "; ".join(f"{name} {'-' if used is None else f'{used:.2f}'}" for name, used in shares)
        print(f"full in {minutes} min, even growth, killed: {row}", flush=True)
    seeds = range(options.first_seed, options.first_seed + options.draws)
    for minutes in (10, 12, 20, 30):
        draws = [used_share(minutes, leak(minutes, 24, segments=True, seed=s)) for s in seeds]
        used = sorted(1.0 if share is None else share for share in draws)
        print(
            f"full in {minutes} min, segments, seeds {seeds[0]} to {seeds[-1]}: median "
            f"{np.median(used):.2f}, largest {used[-1]:.2f}, "
            f"{sum(share >= 0.5 for share in used)} of {len(used)} at .5 or later",
            flush=True,
        )


if __name__ == "__main__":
    main()
