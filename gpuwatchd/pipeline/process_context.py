"""What no curve tells of processes: sizes, limits, their servers, idle memory, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.pipeline.alert_cost import CheckpointSearch
from gpuwatchd.pipeline.chores import Chore, When
from gpuwatchd.pipeline.declared_sizes import DeclaredSizes
from gpuwatchd.pipeline.engine_readings import Serving
from gpuwatchd.pipeline.idle_memory import IdleMemory
from gpuwatchd.pipeline.memory_limits import MemoryLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.pipeline.chores import Guard
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.profiles import ProfileStore


class ProcessContext:
    """Keeps it up to date, where somebody is new or its time has come."""

    def __init__(
        self,
        state: State,
        guard: Guard,
        *,
        host: Host | None,
        shelf: ProfileStore | None,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._guard = guard
        self._clocks = clocks
        self.serving = Serving(state, host)
        self.declared = DeclaredSizes(state, host)
        self.limits = MemoryLimits(state, host, clocks.mono)
        self.idle_memory = IdleMemory(state, host)
        self.checkpoints = CheckpointSearch(state, shelf)

    def chores(self) -> Iterator[Chore]:
        """Yield what is done each tick; :meth:`step` comes before."""
        wall = self._clocks.wall
        yield Chore("holdings", When.BESIDE, self.idle_memory.update)
        yield Chore("checkpoints", When.BESIDE, lambda _: self.checkpoints.step(wall()))
        yield Chore("power", When.BESIDE, lambda _: self._state.prices.measure(wall()))

    def step(self, present: tuple[ProcessInfo, ...]) -> None:
        """Bring up to date what is known of those on a GPU now."""
        self._guard("endpoints", lambda: self.serving.step(present))
        news = (present, self._state.engines.readings, self._state.tracks.created)
        told = bool(self.declared.waiting) or news != self.declared.news
        if told:
            self._guard("declared sizes", lambda: self.declared.step(news))
        if told or self._clocks.mono() >= self.limits.due_s:
            self._guard("memory limits", lambda: self.limits.step(told=told))

    def problems(self) -> list[str]:
        """Return what is wrong now, one sentence each."""
        faults = [f"{path} {why}" for path, why in self.limits.faults.items()]
        return [*self.serving.problems, *self.checkpoints.problems, *faults]

    def close(self) -> None:
        """Ask and read nothing any more."""
        self._guard("endpoints", self.serving.close)
        self._guard("declared sizes", self.declared.close)
