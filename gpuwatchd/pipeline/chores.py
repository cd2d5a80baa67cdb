"""What a tick does beside samples and alerts, and how its parts are run: no fault ends a tick."""

from __future__ import annotations

import enum
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.pipeline.action_handler import ActionHandler
from gpuwatchd.pipeline.alert_cost import CheckpointSearch
from gpuwatchd.pipeline.engine_readings import DeclaredSizes, Serving
from gpuwatchd.pipeline.idle_memory import IdleMemory
from gpuwatchd.pipeline.memory_limits import MemoryLimits
from gpuwatchd.pipeline.run_baselines import RunBaselines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.action_handler import TakeStep
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.process_names import ProcessNames
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.profiles import ProfileStore

T = TypeVar("T")
_LOG_AGAIN_S = 60.0

log = logging.getLogger("gpuwatchd")


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


class Chore(NamedTuple):
    """What a tick does beside samples and alerts, on its own thread.

    What may block gets a thread of its own, and a chore that looks after it.
    """

    name: str
    when: When
    run: Callable[[float], object]
    """Gets epoch seconds: of the wall clock, for ``CONDITIONS`` of the first sample."""
    budget_s: float = 0.25
    """What takes longer is logged: the next sample waits for it."""


class Guard:
    """Runs parts; what they raise is logged once a minute and remembered while it lasts."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._chores: dict[When, list[Chore]] = {when: [] for when in When}
        self._failed: dict[str, tuple[str, float]] = {}
        self._slow: dict[str, float] = {}

    @property
    def problems(self) -> list[str]:
        """What fails now, one sentence each."""
        return [why for why, _ in self._failed.values()]

    def __call__(
        self, where: str, work: Callable[[], T], *, budget_s: float = math.inf
    ) -> T | None:
        """Run one part and return what it returns; None when it fails.

        One that takes longer than its budget is logged, once a minute at most.
        """
        begun_s = time.perf_counter()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever a part raises is its own fault
            self._note_failure(where, error)
            return None
        taken_s = time.perf_counter() - begun_s
        if taken_s > budget_s or self._failed:
            self._note_success(where, taken_s, budget_s)
        return result

    def add(self, chores: Iterable[Chore]) -> None:
        """Have chores done from now on, after those that are there."""
        for chore in chores:
            self._chores[chore.when].append(chore)

    def do(self, when: When, now_s: float) -> None:
        """Do the chores of one place of the tick, in order; one that fails costs no other."""
        for chore in self._chores[when]:
            begun_s = time.perf_counter()
            try:
                chore.run(now_s)
            except Exception as error:  # noqa: BLE001 - as of every part
                self._note_failure(chore.name, error)
                continue
            taken_s = time.perf_counter() - begun_s
            if taken_s > chore.budget_s or self._failed:
                self._note_success(chore.name, taken_s, chore.budget_s)

    def _note_failure(self, where: str, error: Exception) -> None:
        why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
        at_s = self._mono()
        if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
            exc_info = None if isinstance(error, GpuwatchdError) else error
            log.error("failed part=%s error=%r", where, str(error), exc_info=exc_info)
            self._failed[where] = (why, at_s)

    def _note_success(self, where: str, taken_s: float, budget_s: float) -> None:
        """Take note of a part that went well: it fails no more, and may have been slow."""
        self._failed.pop(where, None)
        at_s = self._mono()
        if taken_s > budget_s and self._slow.get(where, -_LOG_AGAIN_S) <= at_s - _LOG_AGAIN_S:
            self._slow[where] = at_s
            log.warning("slow part=%s took_s=%.2f budget_s=%g", where, taken_s, budget_s)


class UserInput:
    """Takes in labels, silences and pressed buttons, and keeps the baselines of runs."""

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
            yield Chore("feedback", When.BEFORE, lambda _: runs.read_labels())
        yield Chore("silences", When.BEFORE, self._state.silences.refresh)
        yield Chore("buttons", When.BEFORE, partial(self.buttons.step, self._take_step))
        if runs is not None:
            # Now that everybody knows: this may take some milliseconds.
            yield Chore("run baselines", When.LAST, lambda _: runs.step())

    def apply_labels(self, source: str, now_s: float) -> list[Alert]:
        """Apply labels to the subjects of a source; return the alerts that this ended."""
        if self.run_baselines is None:
            return []
        apply_labels = partial(self.run_baselines.apply_labels, source, now_s)
        return self._guard("feedback", apply_labels) or []

    def close(self) -> None:
        """Write what was learned of runs."""
        if self.run_baselines is not None:
            self._guard("run baselines", self.run_baselines.close)


class ProcessContext:
    """Reads what no curve tells: serving engines, sizes, limits, idle memory, checkpoints."""

    def __init__(
        self,
        state: State,
        guard: Guard,
        process_names: ProcessNames,
        *,
        host: Host | None,
        shelf: ProfileStore | None,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._guard = guard
        self._process_names = process_names
        self._clocks = clocks
        self.serving = Serving(state, host)
        self.declared = DeclaredSizes(state, host)
        self.limits = MemoryLimits(state, host, clocks.mono)
        self.idle_memory = IdleMemory(state, host)
        self.checkpoints = CheckpointSearch(state, shelf)

    def chores(self) -> Iterator[Chore]:
        """Yield what is done each tick."""
        yield Chore("process context", When.CONDITIONS, self._refresh)
        yield Chore("idle memory", When.CONDITIONS, self.idle_memory.update)
        yield Chore("power", When.CONDITIONS, self._update_costs)

    def _update_costs(self, _: float) -> None:
        """Take in checkpoints and power, on which costs and steps depend; by people's clock."""
        now_s = self._clocks.wall()
        self._guard("checkpoints", partial(self.checkpoints.step, now_s))
        self._state.prices.measure(now_s)

    def _refresh(self, _: float) -> None:
        """Read servers, declared sizes and limits, where a process is new or they are due."""
        present = self._process_names.present(self._state.devices.values())
        self._guard("endpoints", lambda: self.serving.step(present))
        news = (present, self._state.engines.readings, self._state.tracks.created)
        changed, told = bool(self.declared.waiting) or news != self.declared.news, False
        if changed:
            told = bool(self._guard("declared sizes", lambda: self.declared.step(news)))
        if changed or self._clocks.mono() >= self.limits.due_s:
            self._guard("memory limits", lambda: self.limits.step(told=told))

    def problems(self) -> list[str]:
        """Return what is wrong now, one sentence each."""
        faults = [f"{path} {why}" for path, why in self.limits.faults.items()]
        stuck = [self.checkpoints.problem] if self.checkpoints.problem else []
        return [*self.serving.problems, *stuck, *faults]

    def close(self) -> None:
        """Ask and read nothing any more."""
        self._guard("endpoints", self.serving.close)
        self._guard("declared sizes", self.declared.close)
