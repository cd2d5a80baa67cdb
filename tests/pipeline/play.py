"""Scripted sources and a dispatcher that keeps everything: the stage of the pipeline's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.core.model import Availability, Delivery, Device, ProcessInfo, ProcessKey, Sample
from tests.making import CARD, GIB, LEAKER, MIB, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.pipeline.live_pipeline import LivePipeline
    from gpuwatchd.pipeline.tick import Tick

EAGER = Config(detection=DetectionSection(confidence_threshold=0.65))
"""Alerts sooner than by default: what is tested here is what becomes of an alert."""
QUIET = ProcessInfo(key=ProcessKey(pid=99, started_at_s=5.0), name="Xorg", user="root")


class Script:
    """A source that plays what a function of the tick number says."""

    def __init__(
        self,
        play: Callable[[int], Sample],
        name: str = "script",
        devices: tuple[Device, ...] = (CARD,),
    ) -> None:
        self.name = name
        self.play = play
        self.count = 0
        self.closed = 0
        self.known = devices

    def probe(self) -> Availability:
        return Availability(ok=True, reason="scripted")

    def devices(self) -> tuple[Device, ...]:
        return self.known

    def read(self) -> Sample:
        self.count += 1
        return self.play(self.count - 1)

    def close(self) -> None:
        self.closed += 1


class Postbox:
    """A dispatcher that keeps what it gets and reports what it is told to."""

    def __init__(self, outcome: str = "sent") -> None:
        self.taken: list[Delivery] = []
        self.outcome = outcome
        self._done: list[Delivery] = []

    @property
    def told(self) -> list[str]:
        """What was told, in order, as "notice: whom"."""
        return [f"{d.message.notice}: {d.message.facts['Who']}" for d in self.taken]

    def submit(self, delivery: Delivery) -> bool:
        self.taken.append(delivery)
        self._done.append(
            msgspec.structs.replace(
                delivery, state=self.outcome, attempts=delivery.attempts + 1,
                error=None if self.outcome == "sent" else "refused", next_try_at_s=0.0,
            )
        )  # fmt: skip
        return True

    def results(self) -> list[Delivery]:
        done, self._done = self._done, []
        return done

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        return []


class LatePost(Postbox):
    """One that draws what becomes of a delivery, and how many seconds later that is known."""

    def __init__(self, fate: Callable[[], tuple[str, float]], mono: Callable[[], float]) -> None:
        super().__init__()
        self.arrived: list[tuple[float, Delivery]] = []
        """What was reported as sent, and when."""
        self._fate, self._mono = fate, mono
        self._under_way: list[tuple[float, Delivery]] = []

    def submit(self, delivery: Delivery) -> bool:
        self.outcome, after_s = self._fate()
        super().submit(delivery)
        self._under_way.append((self._mono() + after_s, self._done.pop()))
        return True

    def results(self) -> list[Delivery]:
        mono_s = self._mono()
        done = [delivery for at_s, delivery in self._under_way if at_s <= mono_s]
        self._under_way = [one for one in self._under_way if one[0] > mono_s]
        self.arrived += [(mono_s, one) for one in done if one.state == "sent"]
        return done


def leaking(tick: int, *, from_tick: int = 60, mib_per_tick: int = 200) -> Sample:
    grown = max(0, tick - from_tick) * mib_per_tick * MIB
    return sample(1000.0 + 5.0 * tick, [(LEAKER, 20 * GIB + grown), (QUIET, 100 * MIB)])


def leaking_until(end: int) -> Callable[[int], Sample]:
    """Return a leak whose process has ended from a tick on."""
    return lambda tick: (
        leaking(tick) if tick < end else sample(1000.0 + 5.0 * tick, [(QUIET, 100 * MIB)])
    )


def run(pipeline: LivePipeline, ticks: int) -> list[Tick]:
    return [pipeline.tick() for _ in range(ticks)]


def states(ticks: list[Tick]) -> list[str]:
    return [change.state for tick in ticks for change in tick.changes]
