"""A scripted world of GPUs as a source: same seed, same world.

For the demo, for tests, and for trying a configuration on a machine without a GPU. Memory comes
in quanta, a process that asks for more than is left dies of it, cards get lost: the world behaves
like one, and :meth:`SimulateSource.truth` says what was planted in it.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatchd.collect.scenarios.worlds import SCENARIOS, Actor, Card, World, unit
from gpuwatchd.core.errors import ConfigError
from gpuwatchd.core.model import (
    Availability,
    Device,
    DeviceReading,
    Fault,
    Pattern,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    Subject,
    Value,
)
from gpuwatchd.core.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEP_S = 1.0
"""World time between two moments at which processes ask for memory."""
MAX_CATCH_UP_STEPS = 3600
"""After a long sleep of the machine, steps get longer rather than more."""
TRUTH_HORIZON_S = 72 * 3600.0
"""A leak that has not filled its card by then has no time of death."""
FIRST_PID = 4_200_000
"""Above what a kernel hands out (4,194,304), so that no simulated pid is ever a real one."""


class Planted(Value, frozen=True, kw_only=True):
    """The truth about one process: what the judge should have said."""

    subject: Subject
    title: str
    """"GPU 0 (A10): python[4200000] of alice"."""
    program: str
    """Who it is, the same over all restarts: "GPU 0: finetune_lora.py"."""
    leak: bool
    pattern: Pattern
    onset_at_s: float | None
    """When the leak begins, epoch seconds; None for benign processes."""
    rate_bytes_per_s: float
    oom_at_s: float | None
    """When it dies of out-of-memory, found by running the script ahead; None: it does not."""


@dataclass
class _Life:
    """One run of one actor: the only changing state of the world."""

    info: ProcessInfo
    since_s: float
    used: int = 0
    ended_s: float | None = None
    oom_s: float | None = None


class _Stage:
    """One card and the lives on it, moved forward in steps."""

    def __init__(self, card: Card, first_pid: int, epoch_s: float) -> None:
        self.card = card
        self.first_pid = first_pid
        self.epoch_s = epoch_s
        self.lives: list[list[_Life]] = [[] for _ in card.actors]
        self.planned_s = [actor.starts_s for actor in card.actors]
        self.capacity = card.total_bytes - card.reserved_bytes

    def __deepcopy__(self, memo: dict[int, object]) -> _Stage:
        """Copy what changes; the script itself is shared."""
        twin = _Stage(self.card, self.first_pid, self.epoch_s)
        twin.planned_s = list(self.planned_s)
        twin.lives = [[copy.copy(life) for life in lives] for lives in self.lives]
        return twin

    def nobodys(self, now_s: float) -> int:
        """Return the bytes in use that no process owns."""
        return self.card.overhead_bytes + math.ceil(self.card.loose.at(now_s))

    def alive(self) -> list[tuple[Actor, _Life]]:
        """Return who lives now, in the order of the script."""
        return [
            (actor, lives[-1])
            for actor, lives in zip(self.card.actors, self.lives, strict=True)
            if lives and lives[-1].ended_s is None
        ]

    def step(self, now_s: float) -> None:
        """Let everybody start, end and ask for memory at world time ``now_s``."""
        if _within(self.card.lost, now_s):
            for _, life in self.alive():
                life.ended_s, life.used = now_s, 0
            return
        for position, actor in enumerate(self.card.actors):
            self._come_and_go(position, actor, now_s)
        wishes = []
        left = self.capacity - self.nobodys(now_s)
        for actor, life in self.alive():
            quantum = actor.quantum_bytes
            want = math.ceil(actor.shape.at(now_s - life.since_s) / quantum) * quantum
            # What is given back is free before anybody asks for more.
            life.used = min(life.used, want)
            left -= life.used
            if want > life.used:
                wishes.append((want, life))
        for want, life in wishes:
            if want - life.used <= left:
                left -= want - life.used
                life.used = want
            else:
                left += life.used
                life.used, life.ended_s, life.oom_s = 0, now_s, now_s

    def _come_and_go(self, position: int, actor: Actor, now_s: float) -> None:
        lives = self.lives[position]
        last = lives[-1] if lives else None
        if last is not None and last.ended_s is None and now_s - last.since_s >= actor.stays_s:
            last.ended_s, last.used = now_s, 0
        running = last is not None and last.ended_s is None
        if now_s >= self.planned_s[position]:
            planned = self.planned_s[position]
            self.planned_s[position] += actor.every_s
            if not running:
                lives.append(self._born(position, actor, planned))
        elif (
            last is not None
            and last.ended_s is not None
            and actor.restarts_s is not None
            and now_s - last.ended_s >= actor.restarts_s
        ):
            lives.append(self._born(position, actor, now_s))

    def _born(self, position: int, actor: Actor, since_s: float) -> _Life:
        pid = self.first_pid + position * 64 + len(self.lives[position]) % 64
        info = ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=self.epoch_s + since_s),
            name=clean(actor.name),
            user=clean(actor.user),
            argv=mask_argv(actor.argv),
            parent_pid=1,
            state="running",
            container=actor.container,
            job=actor.job,
            framework=actor.framework,
            framework_sure=actor.framework_sure,
        )
        return _Life(info, since_s)


def _within(spans: tuple[tuple[float, float], ...], now_s: float) -> bool:
    return any(start <= now_s < end for start, end in spans)


class SimulateSource:
    """A world of ``scenario``; fits :class:`gpuwatchd.core.ports.Source`.

    Parameters
    ----------
    scenario
        A name of :data:`gpuwatchd.collect.scenarios.worlds.SCENARIOS`.
    world
        Plays this world instead; the scenario is then only what it is called.
    seed
        Moves phases and noise; the story stays the same.
    speed
        World seconds per wall second, > 0.
    clock
        Monotonic seconds; by default the machine's. Not used any more after :meth:`advance`.
    epoch_s
        What the first instant of the world is called, epoch seconds; by default now.

    Raises
    ------
    ConfigError
        When there is no such scenario, or the speed is not positive.
    """

    name = "simulate"

    def __init__(
        self,
        scenario: str = "demo",
        seed: int = 7,
        speed: float = 1.0,
        *,
        world: World | None = None,
        clock: Callable[[], float] | None = None,
        epoch_s: float | None = None,
    ) -> None:
        if world is None and scenario not in SCENARIOS:
            raise ConfigError(
                "",
                "[sources.simulate] scenario",
                f"{scenario!r} is not a scenario",
                hint=f"known: {', '.join(SCENARIOS)}",
            )
        if not speed > 0:
            raise ConfigError("", "[sources.simulate] speed", "must be greater than 0")
        self.scenario = scenario
        self.seed = seed
        self.speed = speed
        self._clock = clock or time.monotonic
        self._born_s = self._clock()
        self._manual = False
        self._elapsed_s = 0.0
        self._epoch_s = time.time() if epoch_s is None else epoch_s
        world = SCENARIOS[scenario](seed) if world is None else world
        self.title = world.title
        self._stages = tuple(
            _Stage(card, FIRST_PID + index * 1024, self._epoch_s)
            for index, card in enumerate(world.cards)
        )
        self._devices = tuple(
            Device(
                uid=f"GPU-simulated-{scenario}-{index}",
                vendor="simulated",
                index=index,
                name=clean(card.name),
                memory_total_bytes=card.total_bytes,
                source=self.name,
                pci_bus=f"00000000:{index + 1:02x}:00.0",
            )
            for index, card in enumerate(world.cards)
        )
        for stage in self._stages:
            stage.step(0.0)

    @property
    def elapsed_s(self) -> float:
        """World seconds since the first instant."""
        return self._elapsed_s

    @property
    def now_s(self) -> float:
        """World time as epoch seconds."""
        return self._epoch_s + self._elapsed_s

    def probe(self) -> Availability:
        """Say that simulated GPUs are always there."""
        return Availability(ok=True, reason=f"simulated: {self.title}")

    def devices(self) -> Sequence[Device]:
        """Return the cards, lost ones included."""
        return self._devices

    def advance(self, seconds: float) -> None:
        """Move the world by hand; from then on the wall clock is not looked at."""
        self._manual = True
        self._move_to(self._elapsed_s + max(0.0, seconds), longest_step=False)

    def read(self) -> Sample:
        """Take one sample of the world as it is now."""
        if not self._manual:
            passed_s = (self._clock() - self._born_s) * self.speed
            self._move_to(max(self._elapsed_s, passed_s), longest_step=True)
        readings: list[DeviceReading] = []
        faults: list[Fault] = []
        processes: list[ProcessInfo] = []
        for stage, device in zip(self._stages, self._devices, strict=True):
            reading = self._reading(stage, device.uid, faults)
            readings.append(reading)
            if reading.uses is not None:
                processes.extend(life.info for _, life in stage.alive())
        return Sample(
            taken_at_s=self.now_s,
            taken_mono_s=self._elapsed_s,
            boot_id=f"simulated-{self.scenario}-{self.seed}",
            readings=tuple(readings),
            processes=tuple(processes),
            faults=tuple(faults),
        )

    def close(self) -> None:
        """Nothing to let go of; may be called twice."""

    def truth(self) -> tuple[Planted, ...]:
        """Return what every process that has lived so far, or lives next, really does.

        The time of death is found by running a copy of the world ahead, card by card.
        """
        pairs = zip(self._stages, self._devices, strict=True)
        return tuple(row for stage, device in pairs for row in self._planted(stage, device))

    def end(self, key: ProcessKey) -> None:
        """Let a process end now, as if it had been asked to."""
        for stage in self._stages:
            for _, life in stage.alive():
                if life.info.key == key:
                    life.ended_s, life.used = self._elapsed_s, 0

    def _planted(self, stage: _Stage, device: Device) -> list[Planted]:
        born = [max(1, len(lives)) for lives in stage.lives]
        ahead = copy.deepcopy(stage)
        moment_s = math.floor(self._elapsed_s / STEP_S) * STEP_S
        while moment_s < TRUTH_HORIZON_S and not _ends_known(ahead, born):
            moment_s += STEP_S
            ahead.step(moment_s)
        return [
            self._row(actor, life, device)
            for actor, lives, count in zip(stage.card.actors, ahead.lives, born, strict=True)
            for life in lives[:count]
        ]

    def _row(self, actor: Actor, life: _Life, device: Device) -> Planted:
        key = life.info.key
        script = next((word for word in actor.argv if word.endswith(".py")), actor.name)
        card = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        return Planted(
            subject=Subject(device_uid=device.uid, process=key),
            title=f"GPU {device.index} ({card}): {actor.name}[{key.pid}] of {actor.user}",
            program=f"GPU {device.index}: {script}",
            leak=actor.leak,
            pattern=actor.pattern,
            onset_at_s=self._epoch_s + life.since_s + actor.onset_s if actor.leak else None,
            rate_bytes_per_s=actor.rate_bytes_per_s,
            oom_at_s=None if life.oom_s is None else self._epoch_s + life.oom_s,
        )

    def _move_to(self, elapsed_s: float, *, longest_step: bool) -> None:
        """Run the script up to ``elapsed_s`` on a grid that no reader can shift."""
        done = math.floor(self._elapsed_s / STEP_S)
        due = math.floor(elapsed_s / STEP_S)
        stride = 1
        if longest_step and due - done > MAX_CATCH_UP_STEPS:
            stride = (due - done) // MAX_CATCH_UP_STEPS
        for tick in range(done + 1, due + 1, stride):
            for stage in self._stages:
                stage.step(tick * STEP_S)
        self._elapsed_s = elapsed_s

    def _reading(self, stage: _Stage, uid: str, faults: list[Fault]) -> DeviceReading:
        card, now_s = stage.card, self._elapsed_s
        if _within(card.lost, now_s):
            why = "GPU is lost (simulated)"
            faults.append(Fault(where=f"{self.name}/{uid}", why=why, device_uid=uid))
            return DeviceReading(
                device_uid=uid,
                used_bytes=None,
                free_bytes=None,
                total_bytes=None,
                uses_reason=why,
                state="lost",
            )
        lives = stage.alive()
        used = stage.nobodys(now_s) + sum(life.used for _, life in lives)
        uses: tuple[ProcessUse, ...] | None = tuple(
            ProcessUse(key=life.info.key, used_bytes=life.used, kind=actor.kind)
            for actor, life in lives
        )
        reason = None
        if _within(card.blind, now_s):
            uses, reason = None, "list of processes: unknown error (simulated)"
            faults.append(Fault(where=f"{self.name}/{uid}/processes", why=reason, device_uid=uid))
        # A slow wobble, so that no two readings look copied.
        wobble = 0.85 + 0.3 * unit(self.seed, int(now_s / 7) * 16 + stage.first_pid)
        busy = min(100.0, sum(actor.busy_pct for actor, _ in lives) * wobble)
        return DeviceReading(
            device_uid=uid,
            used_bytes=used,
            free_bytes=card.total_bytes - card.reserved_bytes - used,
            total_bytes=card.total_bytes,
            reserved_bytes=card.reserved_bytes,
            util_pct=float(round(busy)),
            temp_c=float(round(34 + 0.42 * busy)),
            power_w=round(card.max_power_w * (0.14 + 0.0078 * busy), 1),
            uses=uses,
            uses_reason=reason,
        )


def _ends_known(stage: _Stage, born: list[int]) -> bool:
    """Say whether the end of every leak that has begun is known."""
    for actor, lives, count in zip(stage.card.actors, stage.lives, born, strict=True):
        if len(lives) < count or (actor.leak and lives[count - 1].ended_s is None):
            return False
    return True
