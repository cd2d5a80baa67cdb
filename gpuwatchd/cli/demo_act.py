"""Steps in the demo: the real countdown over simulated processes, and nothing is signalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.act.managers import Manager
from gpuwatchd.alerts import ladder
from gpuwatchd.cli.demo_screen import Event
from gpuwatchd.core.codes import ActResult
from gpuwatchd.pipeline.proposals import rule_names
from gpuwatchd.pipeline.step_runner import OWN, Classified, StepRunner
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.act import reap, steps
    from gpuwatchd.collect.simulate import SimulateSource
    from gpuwatchd.core.config.schema import ActSection
    from gpuwatchd.core.model import Delivery, ProcessInfo
    from gpuwatchd.pipeline.live_pipeline import LivePipeline
    from gpuwatchd.store.profiles import ProfileStore

SCENARIO = "idle"
"""The world in which steps are shown."""
NOTE = 'As with [act] mode = "auto", seven days on. Nothing is signalled.'
_BARE = Manager("bare")


def arm(
    pipeline: LivePipeline, source: SimulateSource, announcer: Announcer, shelf: ProfileStore
) -> None:
    """Let a pipeline take steps on the processes of a world."""
    for name in rule_names(pipeline.state.settings.config).values():
        shelf.write_now(tables.save_meta, name, source.now_s - ladder.NEW_RULE_S)
    pipeline.ladder.rehearse(_SimulatedSteps(shelf, source, announcer))


class Announcer:
    """Stands for a channel: every message arrives at once, and is an event of the demo."""

    def __init__(self, source: SimulateSource) -> None:
        self._source = source
        self._done: list[Delivery] = []
        self.events: list[Event] = []
        """Since the last look."""

    def submit(self, delivery: Delivery) -> bool:
        """Take a message."""
        message, now_s = delivery.message, self._source.now_s
        words = message.subject
        if message.proposal is not None:
            words = f"{words}. {message.body.splitlines()[-1]}"
        self.events.append(Event("message", self._source.elapsed_s, words))
        self._done.append(msgspec.structs.replace(delivery, state="sent", sent_at_s=now_s))
        return True

    def results(self) -> list[Delivery]:
        """Return what has arrived."""
        done, self._done = self._done, []
        return done

    def news(self, world_s: float) -> list[Event]:  # noqa: ARG002 - each knows its own
        """Return what happened since the last call."""
        news, self.events = self.events, []
        return news

    def close(self, timeout_s: float = 0.0) -> list[Delivery]:  # noqa: ARG002 - nothing is open
        """Stop."""
        return []


class _SimulatedSteps(StepRunner):
    """Ends processes of a world, which all opted in; there is nothing that could be signalled."""

    def __init__(self, shelf: ProfileStore, source: SimulateSource, announcer: Announcer) -> None:
        super().__init__(
            shelf,
            wall=lambda: source.now_s,
            mono=lambda: source.elapsed_s,
            booted_at_s=None,
        )
        self.uid = None
        self._source, self._announcer = source, announcer

    def classified(self, info: ProcessInfo) -> Classified:
        return Classified(info.key, _BARE, opted_in=True)

    def manager_of(self, info: ProcessInfo) -> Manager:  # noqa: ARG002 - the same for all
        return _BARE

    def begin(
        self,
        request: steps.Request,
        section: ActSection,
        look: Callable[[], reap.Subject],
        *,
        why: str,
        who: str = OWN,
        answer: Callable[[str, str], None] = lambda *_: None,
    ) -> bool:
        del section, look, answer
        key, step = request.key, request.step
        self.write(key, step, "asked", "", f"{why}: {request.command}", who=who)
        self._source.end(key)
        self.write(key, step, "done", ActResult.ENDED, "ended, simulated", who=who)
        words = f"{step}: {request.command}. Simulated: nothing was signalled."
        self._announcer.events.append(Event("step", self._source.elapsed_s, words))
        return True
