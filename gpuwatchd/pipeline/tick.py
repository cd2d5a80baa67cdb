"""One tick: read each source, update its tracks, judge what is due, send notices, show it.

The same :meth:`Pipeline.tick` runs the daemon and the demo (:class:`.live_pipeline.LivePipeline`)
and a recorded log (:func:`.replay.analyze`); they differ in the stages that they hand to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.model import Alert, Decision, Finding, Sample
from gpuwatchd.store.live import LiveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Device, Fault
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track

Problem = tuple[str, ProblemCode]


class SourceTick(NamedTuple):
    """What one source gave in a tick."""

    label: str
    """The source's name, numbered where two have the same; elsewhere called ``source``."""
    now_s: float
    """On the clock of its samples: seconds that the detectors count in."""
    sample: Sample | None = None
    """None where it gave nothing, and for a log: its intake has all that is recorded."""
    devices: Callable[[], Iterable[Device]] = tuple
    """Reads which devices it has now."""
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
    def alerts(self) -> tuple[Alert, ...]:
        """All alerts that are open now (watch and firing)."""
        return self.state.alerts


NOT_SHOWN = LiveState(pid=0, version="", started_at_s=0.0, taken_at_s=0.0, interval_s=0.0)


class Stages(NamedTuple):
    """What a tick consists of; its order is that of :meth:`Pipeline.tick`. None: left out.

    Instants are epoch seconds: for ``begin``, ``send`` and ``finish`` of the wall clock, for
    ``conditions`` and ``show`` of the first source that answers, else of the source's clock.
    """

    read: Callable[[], Iterable[SourceTick]]
    """Reads each source."""
    take: Callable[[SourceTick], list[Alert]]
    """Updates the tracks of a source; returns the alerts that ended: their subject has gone."""
    due: Callable[[str, float], list[Track]]
    """Chooses whom to judge of a source, at an instant of its clock."""
    judge: Callable[[list[Track], float], list[Alert]]
    """Judges them; returns the alerts whose state changed."""
    notify: Callable[[str, list[Alert], float], list[Decision]]
    """Sends notices of a source's alerts, of which some have changed."""
    begin: Callable[[float], None] | None = None
    """Before anything is read: takes in what users have entered meanwhile."""
    conditions: Callable[[float], tuple[list[Alert], list[Decision]]] | None = None
    """After all sources: does the same for conditions, and takes steps of ``[act]``."""
    send: Callable[[float], None] | None = None
    """Hands messages on and writes the history; before ``show``, which tells how that went."""
    show: Callable[[float, Sequence[Problem]], LiveState] | None = None
    """Makes the live state and writes it."""
    finish: Callable[[float], None] | None = None
    """Does what may take some milliseconds, now that everybody knows."""


class Pipeline:
    """Stages that share one :class:`State`; :meth:`tick` is their order."""

    def __init__(self, state: State, stages: Stages, clocks: Clocks) -> None:
        self.state, self._stages, self._clocks = state, stages, clocks

    def tick(self, problems: Sequence[Problem] = ()) -> Tick:
        """Do every stage once; ``problems`` are the caller's, shown beside those of the stages."""
        stages, wall = self._stages, self._clocks.wall
        samples: list[Sample] = []
        changes: list[Alert] = []
        decisions: list[Decision] = []
        shown_s: float | None = None
        if stages.begin is not None:
            stages.begin(wall())
        for source in stages.read():
            label, now_s = source.label, source.now_s
            if source.sample is not None:
                samples.append(source.sample)
                shown_s = now_s if shown_s is None else shown_s
            changed = stages.take(source)
            due = stages.due(label, now_s) if source.absent is None else []
            if due:
                changed += stages.judge(due, now_s)
            decisions += stages.notify(label, changed, now_s)
            changes += changed
        shown_s = wall() if shown_s is None else shown_s
        if stages.conditions is not None:
            changed, decided = stages.conditions(shown_s)
            changes += changed
            decisions += decided
        if stages.send is not None:
            stages.send(wall())
        state, findings = NOT_SHOWN, dict[str, Finding]()
        if stages.show is not None:
            state, findings = stages.show(shown_s, problems), self.state.tracks.findings()
        if stages.finish is not None:
            stages.finish(wall())
        return Tick(
            samples=tuple(samples), changes=tuple(changes), decisions=tuple(decisions),
            findings=findings, state=state,
        )  # fmt: skip
