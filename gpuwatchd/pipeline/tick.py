"""One tick: read each source, update its tracks, judge what is due, send notices, show it.

The same :meth:`Pipeline.tick` runs the daemon and the demo (:class:`.live_pipeline.LivePipeline`)
and a recorded log (:func:`.replay.analyze`); they differ in the stages that they hand to it.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.model import Alert, Decision, Finding, Sample  # noqa: TC001 - fields
from gpuwatchd.store.live import LiveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Device, Fault
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track

T = TypeVar("T")
Problem = tuple[str, ProblemCode]


class When(enum.Enum):
    """At which place of a tick a chore is done."""

    BEFORE = enum.auto()
    """Before anything is sampled: what users have entered meanwhile."""
    CONDITIONS = enum.auto()
    """After the judgements: what condition alerts are about."""
    AFTER = enum.auto()
    """After all alerts: what is sent and written."""
    LAST = enum.auto()
    """After the live state is written: what may take some milliseconds."""


class Isolation(Protocol):
    """Runs the parts of a tick, and decides what becomes of a fault."""

    def __call__(self, where: str, work: Callable[[], T], /) -> T | None:
        """Run one part and return what it returns; None when it fails."""

    def do(self, when: When, now_s: float, /) -> None:
        """Do the chores of one place of the tick."""


class SourceTick(NamedTuple):
    """What one source gave in a tick."""

    label: str
    """The source's name, numbered where two have the same; elsewhere called ``source``."""
    now_s: float
    """On the clock of its samples: seconds that the detectors count in."""
    sample: Sample | None = None
    """None where it gave nothing, and for a log: its intake has all that is recorded."""
    devices: tuple[Device, ...] = ()
    step_s: float | None = None
    """By how much its wall clock was stepped since its last sample."""
    absent: Fault | None = None
    """Why it gave nothing: nothing of it is judged then."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick saw and did."""

    samples: tuple[Sample, ...]
    changes: tuple[Alert, ...]
    """Alerts whose state changed in this tick."""
    decisions: tuple[Decision, ...]
    findings: dict[str, Finding]
    """Subject id -> its newest judgement, before hysteresis; empty where nothing is shown."""
    state: LiveState
    """:data:`NOT_SHOWN` where nothing is shown."""

    @property
    def sample(self) -> Sample | None:
        """The first source's sample."""
        return self.samples[0] if self.samples else None

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """All alerts that are open now (watch and firing)."""
        return self.state.alerts


NOT_SHOWN = LiveState(pid=0, version="", started_at_s=0.0, taken_at_s=0.0, interval_s=0.0)


class InputStages(NamedTuple):
    """What a tick begins with."""

    read: Callable[[], Iterable[SourceTick]]
    """Reads each source."""
    take: Callable[[SourceTick], list[Alert]]
    """Updates the tracks of a source; returns the alerts that ended: their subject has gone."""
    due: Callable[[str, float], list[Track]]
    """Chooses whom to judge of a source, at an instant of its clock."""
    judge: Callable[[list[Track], float], list[Alert]]
    """Judges them; returns the alerts whose state changed."""


class OutputStages(NamedTuple):
    """What a tick does with it; a stage that is None is left out."""

    notify: Callable[[str, list[Alert], float], list[Decision]] | None = None
    """Sends notices of a source's alerts, of which some have changed."""
    conditions: Callable[[float], tuple[list[Alert], list[Decision]]] | None = None
    """Does for conditions what is done for judgements, and takes steps of ``[act]``."""
    show: Callable[[float, Sequence[Problem]], LiveState] | None = None
    """Makes the live state and writes it."""


class Pipeline:
    """Stages that share one :class:`State`; :meth:`tick` is their order."""

    def __init__(
        self,
        state: State,
        inputs: InputStages,
        outputs: OutputStages,
        guard: Isolation,
        clocks: Clocks,
    ) -> None:
        self.state, self.guard = state, guard
        self._inputs, self._outputs, self._clocks = inputs, outputs, clocks

    def tick(self, problems: Sequence[Problem] = ()) -> Tick:
        """Do every stage once. Raises only what the guard lets through.

        ``problems`` are the caller's, shown beside those of the stages.
        """
        (read, take, due, judge), guard, wall = self._inputs, self.guard, self._clocks.wall
        notify, conditions, show = self._outputs
        samples: list[Sample] = []
        changes: list[Alert] = []
        decisions: list[Decision] = []
        # Conditions and the live state go by the clock of the first source that answers.
        shown_s: float | None = None
        guard.do(When.BEFORE, wall())
        for source in read():
            label, now_s = source.label, source.now_s
            if source.sample is not None:
                samples.append(source.sample)
                shown_s = now_s if shown_s is None else shown_s
            changed = take(source)
            if source.absent is None:
                judged = guard("windows", partial(due, label, now_s))
                if judged:
                    changed += guard("detectors", partial(judge, judged, now_s)) or []
            if notify is not None:
                decisions += notify(label, changed, now_s)
            changes += changed
        shown_s = wall() if shown_s is None else shown_s
        guard.do(When.CONDITIONS, shown_s)
        if conditions is not None:
            changed, decided = conditions(shown_s)
            changes += changed
            decisions += decided
        guard.do(When.AFTER, wall())
        live_state = NOT_SHOWN if show is None else show(shown_s, problems)
        guard.do(When.LAST, wall())
        return Tick(
            samples=tuple(samples), changes=tuple(changes), decisions=tuple(decisions),
            findings={} if show is None else self.state.tracks.findings(), state=live_state,
        )  # fmt: skip
