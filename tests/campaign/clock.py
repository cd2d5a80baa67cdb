"""Steps of the wall clock and suspends at random moments, with alerts open.

A device with one leak and one process that stays as it is; the leak is warned of once, whatever the
clock does, and judged by the time that really passed. The daemon is killed now and then.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import ProcessInfo, ProcessKey, Sample
from gpuwatchd.store.reader import Reader
from tests.campaign import Figures, require
from tests.campaign.store import Life
from tests.making import GIB, MIB, sample
from tests.pipeline.restarts import BASE, INTERVAL_S, QUANTUM

if TYPE_CHECKING:
    from gpuwatchd.store import live

YEAR_S = 365 * 86_400.0
STEPS_S = (1.0, 2.5, 60.0, 600.0, 3600.0, 86_400.0, 30 * 86_400.0, YEAR_S)
GAPS_S = (20.0, 300.0, 3600.0, 8 * 3600.0, 3 * 86_400.0)
LEAKS_S, LASTS_S = 1500.0, 2400.0
RATE = 200 * MIB / INTERVAL_S
WRONGS = (
    "unwarned",
    "repeated",
    "false_alarms",
    "ended",
    "resolved_early",
    "odd_times",
    "not_over",
)


class Stepped(Life):
    """A machine whose wall clock is set, and that is suspended."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.chance = chance
        self.figures: Counter[str] = Counter()
        self.flat = ProcessInfo(
            key=ProcessKey(pid=99, started_at_s=5.0), name="python", argv=("python", "serve.py")
        )
        super().__init__(directory)
        self.curve = lambda age_s: BASE + RATE * max(0.0, min(age_s, LEAKS_S))
        self.device = msgspec.structs.replace(self.device, memory_total_bytes=80 * GIB)
        self.moments = sorted(chance.uniform(60.0, LEAKS_S) for _ in range(chance.randint(1, 4)))
        self.looks = 0

    def _look(self) -> Sample:
        held = int(self.curve(self.looks * INTERVAL_S)) // QUANTUM * QUANTUM
        uses = [(self.flat, 3 * GIB), *([(self.info, held)] if self.leaks else [])]
        one = sample(self.time.mono_s, uses, device=self.device, wall_s=self.time.now_s)
        return msgspec.structs.replace(one, boot_id=self.boot_id)

    @property
    def leaks(self) -> bool:
        """Whether the leak is still there."""
        return self.looks * INTERVAL_S < LEAKS_S

    def disturb(self) -> None:
        """Set the clock, suspend the machine, or kill the daemon."""
        what = self.chance.choice(("back", "forward", "suspend", "kill"))
        self.figures[what] += 1
        if what == "suspend":
            # CLOCK_MONOTONIC stands still meanwhile; the wall clock goes on.
            self.time.now_s += self.chance.choice(GAPS_S)
        elif what == "kill":
            down_s = self.chance.choice((5.0, 60.0, 300.0))
            self.restart(down_s)
            self.looks += round(down_s / INTERVAL_S)  # the leak goes on meanwhile
        else:
            step_s = self.chance.choice(STEPS_S)
            self.time.now_s += step_s if what == "forward" else -step_s

    def play(self) -> None:
        """Live from before the leak until after its end."""
        while self.looks * INTERVAL_S < LASTS_S:
            while self.moments and self.looks * INTERVAL_S >= self.moments[0]:
                del self.moments[0]
                self.disturb()
            taken = len(self.post.taken)
            tick = self.pipeline.tick()
            self.figures["looks"] += 1
            self.figures["ended"] += bool(self.pipeline.guard.problems)
            for one in self.post.taken[taken:]:
                self.notices[one.message.notice, one.alert_key] += 1
                self.figures["resolved_early"] += one.message.notice == "resolved" and self.leaks
            self._times(tick.state)
            self.looks += 1
            self.time.pass_s(INTERVAL_S)

    def _times(self, state: live.LiveState) -> None:
        """Count what is told to be in the future, or a forecast that is none."""
        now_s = self.time.now_s + 3.0  # a step of less is not followed
        for alert in state.alerts:
            times = (alert.opened_at_s, alert.firing_at_s, alert.last_notice_at_s)
            self.figures["odd_times"] += any(at_s is not None and at_s > now_s for at_s in times)
            rate = alert.finding.rate_bytes_per_s
            self.figures["odd_times"] += rate is not None and not 0.2 * RATE < rate < 5.0 * RATE


def stepped(count: int, seed: int) -> Figures:
    """Let so many machines live through steps of the clock, suspends and kills."""
    figures: Counter[str] = Counter(lives=count, **dict.fromkeys(WRONGS, 0))
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            machine = Stepped(Path(folder, "life"), random.Random(seed * 1000 + number))
            machine.play()
            machine.pipeline.close()
            own = f"leak:{machine.device.uid}/{machine.info.key.pid}"
            fired = Counter[bool]()
            for (notice, key), times in machine.notices.items():
                fired[key.startswith(own)] += times if notice == "firing" else 0
            kills = machine.figures["kill"]
            figures["unwarned"] += not fired[True]
            figures["repeated"] += fired[True] > 1 + kills
            figures["false_alarms"] += fired[False]
            with Reader.open(machine.directory / "state") as reader:
                figures["not_over"] += bool(reader.alerts(open_only=True))
            figures.update(machine.figures)
            if any(machine.figures[name] for name in WRONGS) or fired[False] or not fired[True]:
                figures["of_life"] = number
    return require(dict(figures), **dict.fromkeys(WRONGS, 0))
