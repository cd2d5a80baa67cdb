"""What a tick does beside samples and alerts, and how its parts are run: no fault ends a tick."""

from __future__ import annotations

import enum
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
_LOG_AGAIN_S = 60.0

log = logging.getLogger("gpuwatchd")


class When(enum.Enum):
    """At which place of a tick a chore is done."""

    BEFORE = enum.auto()
    """Before anything is sampled: what people have said meanwhile."""
    BESIDE = enum.auto()
    """After the judgements: what no curve tells, for the alerts on it."""
    AFTER = enum.auto()
    """When all alerts stand: what is sent and written."""
    LAST = enum.auto()
    """When everybody knows."""


class Chore(NamedTuple):
    """What a tick does beside samples and alerts, on its own thread.

    What may block gets a thread of its own, and a chore that looks after it.
    """

    name: str
    when: When
    run: Callable[[float], object]
    """Gets the time: of people, beside the judgements that of the first sample; epoch seconds."""
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
    def whys(self) -> list[str]:
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
        except Exception as error:
            why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
            at_s = self._mono()
            if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
                known = isinstance(error, GpuwatchdError)
                log.log(
                    logging.ERROR, "failed part=%s error=%r", where, str(error), exc_info=not known
                )
                self._failed[where] = (why, at_s)
            return None
        taken_s = time.perf_counter() - begun_s
        if taken_s > budget_s and self._slow.get(where, -_LOG_AGAIN_S) <= begun_s - _LOG_AGAIN_S:
            self._slow[where] = begun_s
            log.warning("slow part=%s took_s=%.2f budget_s=%g", where, taken_s, budget_s)
        if self._failed:
            self._failed.pop(where, None)
        return result

    def add(self, chores: Iterable[Chore]) -> None:
        """Have chores done from now on, after those that are there."""
        for chore in chores:
            self._chores[chore.when].append(chore)

    def do(self, when: When, now_s: float) -> None:
        """Do the chores of one place of the tick, in order; one that fails costs no other."""
        for chore in self._chores[when]:
            self(chore.name, partial(chore.run, now_s), budget_s=chore.budget_s)
