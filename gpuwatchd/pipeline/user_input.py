"""What people have said since the last tick: labels, silences, and buttons of pop-ups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuwatchd.pipeline.action_handler import ActionHandler
from gpuwatchd.pipeline.chores import Chore, When
from gpuwatchd.pipeline.run_baselines import RunBaselines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.action_handler import TakeStep
    from gpuwatchd.pipeline.chores import Guard
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.profiles import ProfileStore


class UserInput:
    """Takes it in, and learns of the runs that it is about."""

    def __init__(
        self,
        state: State,
        guard: Guard,
        *,
        shelf: ProfileStore | None,
        booted_at_s: float | None,
        take_step: TakeStep,
    ) -> None:
        self._state = state
        self._guard = guard
        self.run_baselines = None if shelf is None else RunBaselines(state, shelf)
        self.buttons = ActionHandler(state, shelf=shelf, booted_at_s=booted_at_s)
        self._take_step = take_step

    def chores(self) -> Iterator[Chore]:
        """Yield what is done each tick."""
        runs = self.run_baselines
        if runs is not None:
            yield Chore("feedback", When.BEFORE, lambda _: runs.listen())
        yield Chore("silences", When.BEFORE, self._state.silences.refresh)
        yield Chore("buttons", When.BEFORE, partial(self.buttons.step, self._take_step))
        if runs is not None:
            # Now that everybody knows: this may take some milliseconds.
            yield Chore("knowledge", When.LAST, lambda _: runs.step())

    def obey(self, source: str, now_s: float) -> list[Alert]:
        """Do what was said of the subjects of a source; return the alerts that this ended."""
        if self.run_baselines is None:
            return []
        tracks = (track for it in self._state.devices_of(source) for track in it.tracks())
        return self._guard("feedback", partial(self.run_baselines.obey, tracks, now_s)) or []

    def close(self) -> None:
        """Write what was learned of runs."""
        if self.run_baselines is not None:
            self._guard("knowledge", self.run_baselines.close)
