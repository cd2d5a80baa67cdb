"""What a tick does beside samples and alerts, and how its parts are run: no fault ends a tick."""

from __future__ import annotations

import enum
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

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
    from gpuwatchd.core.model import Alert, ProcessInfo, ProcessKey, ProcessUse
    from gpuwatchd.pipeline.action_handler import TakeStep
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.state import Settings, State
    from gpuwatchd.store.profiles import ProfileStore

T = TypeVar("T")
_LOG_AGAIN_S = 60.0
PACE_S: Final = 30.0

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
    due: Callable[[], bool] | None = None
    """Says by a comparison or two whether there is anything to do; None: in each tick."""
    paced: bool = False
    """Done every :data:`PACE_S`, all such chores in the same tick: the others stay short."""
    budget_s: float = 0.25
    """What takes longer is logged: the next sample waits for it."""


class Guard:
    """Runs parts; what they raise is logged once a minute and remembered while it lasts."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._chores: dict[When, list[Chore]] = {when: [] for when in When}
        self._failed: dict[str, tuple[str, float]] = {}
        self._slow: dict[str, float] = {}
        self._paced_s, self._is_paced = -math.inf, False
        self.problems: list[str] = []
        """What fails now, one sentence each."""

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
        if when is When.BEFORE:
            mono_s = self._mono()
            self._is_paced = mono_s >= self._paced_s
            if self._is_paced:
                self._paced_s = mono_s + PACE_S
        for chore in self._chores[when]:
            due = chore.due is None or chore.due()
            if due and (self._is_paced or not chore.paced):
                self(chore.name, partial(chore.run, now_s), budget_s=chore.budget_s)

    def each(self, parts: Iterable[tuple[str, Callable[[], object]]]) -> None:
        """Run parts one after the other; one that fails costs no other."""
        for where, work in parts:
            self(where, work)

    def _note_failure(self, where: str, error: Exception) -> None:
        why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
        at_s = self._mono()
        if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
            exc_info = None if isinstance(error, GpuwatchdError) else error
            log.error("failed part=%s error=%r", where, str(error), exc_info=exc_info)
            self._failed[where] = (why, at_s)
            self.problems = [why for why, _ in self._failed.values()]

    def _note_success(self, where: str, taken_s: float, budget_s: float) -> None:
        """Take note of a part that went well: it fails no more, and may have been slow."""
        if self._failed.pop(where, None):
            self.problems = [why for why, _ in self._failed.values()]
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
        self._shelf = shelf
        self.run_baselines = None if shelf is None else RunBaselines(state, shelf)
        self.buttons = ActionHandler(state, shelf=shelf, booted_at_s=booted_at_s)
        self._take_step = take_step

    def chores(self) -> Iterator[Chore]:
        """Yield what is done with what people do, and with runs."""
        runs, shelf, silences = self.run_baselines, self._shelf, self._state.silences
        if runs is not None and shelf is not None:
            yield Chore("other programs", When.BEFORE, lambda _: shelf.changed_elsewhere())
            yield Chore(
                "feedback",
                When.BEFORE,
                lambda _: runs.read_labels(),
                due=lambda: runs.outside != shelf.outside,
            )
        yield Chore(
            "silences",
            When.BEFORE,
            silences.refresh,
            due=lambda: bool(silences.active or (shelf and shelf.outside != silences.outside)),
        )
        press = partial(self.buttons.step, self._take_step)
        yield Chore("buttons", When.BEFORE, press, due=lambda: self.buttons.busy)
        if runs is not None:
            # Now that everybody knows: this may take some milliseconds.
            yield Chore("run baselines", When.LAST, lambda _: runs.step(), due=self._has_runs)
            yield Chore("growing runs", When.LAST, lambda _: runs.scan(), paced=True)

    def _has_runs(self) -> bool:
        """Say whether a run is to be looked up, or to be learned from."""
        runs, tracks = self.run_baselines, self._state.tracks
        return runs is not None and bool(
            runs.unapplied
            or runs.requested
            or runs.served != tracks.created
            or tracks.renamed
            or tracks.ended
        )

    def apply_labels(self, source: str, now_s: float) -> list[Alert]:
        """Apply labels to the subjects of a source; return the alerts that this ended."""
        runs, created = self.run_baselines, self._state.tracks.created
        if runs is None or not (runs.unapplied or runs.served != created):
            return []
        return self._guard("feedback", partial(runs.apply_labels, source, now_s)) or []

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
        *,
        host: Host | None,
        shelf: ProfileStore | None,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._guard = guard
        self._shelf = shelf
        self._clocks = clocks
        self._settings: Settings | None = None
        """Those of the last look at servers."""
        self._present: tuple[int, list[list[ProcessKey]], tuple[ProcessInfo, ...]] = (-1, [], ())
        self._here: dict[str, tuple[tuple[ProcessUse, ...] | None, list[ProcessKey]]] = {}
        """UUID -> the last process list, and whom it names."""
        self.serving = Serving(state, host)
        self.declared = DeclaredSizes(state, host)
        self.limits = MemoryLimits(state, host, clocks.mono)
        self.idle_memory = IdleMemory(state, host)
        self.checkpoints = CheckpointSearch(state, shelf)

    def chores(self) -> Iterator[Chore]:
        """Yield what keeps it up to date."""
        checkpoints, wall = self.checkpoints, self._clocks.wall
        yield Chore("process context", When.CONDITIONS, self._refresh)
        yield Chore("idle memory", When.CONDITIONS, self.idle_memory.update)
        # Costs and steps depend on these two; they go by people's clock.
        yield Chore(
            "checkpoints",
            When.CONDITIONS,
            lambda _: checkpoints.step(wall()),
            due=self._may_find_checkpoints,
        )
        yield Chore(
            "power",
            When.CONDITIONS,
            lambda _: self._state.prices.measure(wall()),
            due=lambda: self._state.settings.config.cost.electricity_per_kwh is not None,
        )

    def _may_find_checkpoints(self) -> bool:
        """Say whether one may have been reported, or files are to be looked for."""
        shelf, search = self._shelf, self.checkpoints
        reported = shelf is not None and shelf.outside != search.outside
        return reported or search.busy or bool(self._state.settings.config.checkpoints.paths)

    def _refresh(self, _: float) -> None:
        """Read servers, declared sizes and limits, where a process is new or they are due."""
        before, present = self._present[2], self._who_is_present()
        settings, tracks = self._state.settings, self._state.tracks
        if self.serving.active or present is not before or settings is not self._settings:
            self._settings = settings
            self._guard("endpoints", lambda: self.serving.step(present))
        news = (present, self._state.engines.readings, tracks.created)
        changed, told = bool(self.declared.waiting) or news != self.declared.news, False
        if changed:
            told = bool(self._guard("declared sizes", lambda: self.declared.step(news)))
        if changed or self._clocks.mono() >= self.limits.due_s:
            self._guard("memory limits", lambda: self.limits.step(told=told))

    def _who_is_present(self) -> tuple[ProcessInfo, ...]:
        """Return who is on a device now, the same tuple until there is anybody else.

        ``State.infos`` remembers those that have left, too.
        """
        infos, before = self._state.infos, self._here
        self._here = {}
        for uid, device in self._state.devices.items():
            if device.reading is None:
                continue
            uses, here = device.reading.uses, before.get(uid)
            if here is None or here[0] is not uses:
                keys = [use.key for use in uses or ()]
                here = (uses, here[1] if here is not None and here[1] == keys else keys)
            self._here[uid] = here
        lists = [keys for _, keys in self._here.values()]
        if (infos.changes, lists) != self._present[:2]:
            who = tuple([infos[key] for keys in lists for key in keys if key in infos])
            self._present = (infos.changes, lists, who)
        return self._present[2]

    def problems(self) -> list[str]:
        """Return what is wrong now, one sentence each."""
        faults = [f"{path} {why}" for path, why in self.limits.faults.items()]
        stuck = [self.checkpoints.problem] if self.checkpoints.busy else []
        return [*self.serving.problems, *filter(None, stuck), *faults]

    def close(self) -> None:
        """Ask and read nothing any more."""
        self._guard("endpoints", self.serving.close)
        self._guard("declared sizes", self.declared.close)
