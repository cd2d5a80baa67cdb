"""Taking a step of ``[act]``: asked of its manager in a thread, written down before and after."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from gpuwatchd.act import steps
from gpuwatchd.act.checkpoint import Checkpoint as Asking
from gpuwatchd.alerts import ladder
from gpuwatchd.core import text
from gpuwatchd.core.codes import ActHold, ActResult
from gpuwatchd.core.errors import ActionError
from gpuwatchd.store import tables
from gpuwatchd.store.tables import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuwatchd.act import reap
    from gpuwatchd.core.config.schema import ActSection
    from gpuwatchd.core.model import ActStep, ProcessInfo, ProcessKey
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.tables import Phase

_T = TypeVar("_T")
log = logging.getLogger("gpuwatchd")

OWN: Final = "gpuwatchd"
"""Who takes a step that nobody has asked for."""
GRACE_S: Final = 30.0
LOOK_S: Final = 0.25
"""Whoever composes a message waits so long at most for the files of a process."""
MOST_LOOKS: Final = 4
"""So many hang at a time; of other processes is then nothing known."""
_KEPT_LOOKS: Final = 256
_AT_ONCE: Final = 2
"""Programs of a manager, or a runner, that run at a time."""


class Classified(NamedTuple):
    """Who manages a process, and whether it opted in: found out once, in a thread."""

    key: ProcessKey
    manager: steps.Manager
    opted_in: bool


class _Taken(NamedTuple):
    """What became of a step."""

    request: steps.Request
    who: str
    phase: Phase
    code: str
    result: str


class _FileRead:
    """What the files of a process say, once they have been read."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        """Until when it is waited for, on the machine's own clock."""
        self.ended = threading.Event()
        self.answer: Any = None

    def fill(self, work: Callable[[], object]) -> None:
        try:
            self.answer = work()
        except Exception:
            # A thread of its own: without an answer, nothing is done.
            log.exception("failed part=act")
        finally:
            self.ended.set()


class StepRunner:
    """Finds out who manages a process, and takes steps.

    Parameters
    ----------
    shelf
        Where steps are written down; None takes none.
    """

    def __init__(
        self,
        shelf: ProfileStore | None,
        *,
        wall: Callable[[], float],
        mono: Callable[[], float],
        booted_at_s: float | None,
    ) -> None:
        self.shelf = shelf
        self.wall, self.mono = wall, mono
        self.uid: int | None = os.getuid()
        self.busy: set[ProcessKey] = set()
        """Processes of which a step is being taken."""
        self._booted_at_s = booted_at_s
        self._take = steps.take
        self._results: queue.SimpleQueue[Classified | _Taken] = queue.SimpleQueue()
        self._running: list[threading.Thread] = []
        self._classified: dict[ProcessKey, Classified | None] = {}
        """None while it is being found out."""
        self._looks: dict[tuple[str, ProcessKey], _FileRead] = {}

    def collect(self, alive: Collection[ProcessKey]) -> None:
        """Take in what has ended, and forget processes that hold nothing any more."""
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, Classified):
                self._classified[result.key] = result
                continue
            request = result.request
            self.busy.discard(request.key)
            self.write(
                request.key, request.step, result.phase, result.code, result.result, who=result.who
            )
        self._running = [thread for thread in self._running if thread.is_alive()]
        if len(self._classified) > len(alive):
            self._classified = {k: one for k, one in self._classified.items() if k in alive}

    def classified(self, info: ProcessInfo) -> Classified | None:
        """Return who manages a process; None until that is known."""
        if info.key not in self._classified:

            def work() -> None:
                manager = steps.manager_of(info)
                self._results.put(Classified(info.key, manager, steps.opted_in(info, manager)))

            if self._start(work):
                self._classified[info.key] = None
        return self._classified.get(info.key)

    def manager_of(self, info: ProcessInfo) -> steps.Manager | None:
        """Return who manages a process; None where its files are not read within :data:`LOOK_S`."""
        known = self._classified.get(info.key)
        if known is not None:
            return known.manager
        return self._look("manager", info.key, lambda: steps.manager_of(info))

    def can_save(self, info: ProcessInfo, section: ActSection) -> bool:
        """Say whether a process can be asked to save; False where that is not read in time."""
        ask, what = self._asking(section), f"save {section.checkpoint} {section.signal}"
        return bool(self._look(what, info.key, lambda: ask.offered(info.key)))

    def _look(self, what: str, key: ProcessKey, work: Callable[[], _T]) -> _T | None:
        """Read files of a process in a thread, once: a driver that hangs may keep it for ever."""
        look = self._looks.get((what, key))
        if look is None:
            if sum(not it.ended.is_set() for it in self._looks.values()) >= MOST_LOOKS:
                return None
            look = self._looks[what, key] = _FileRead(time.monotonic() + LOOK_S)
            threading.Thread(target=look.fill, args=(work,), name="act-look", daemon=True).start()
            for old in [*self._looks][:-_KEPT_LOOKS]:
                del self._looks[old]
        look.ended.wait(max(0.0, look.until_s - time.monotonic()))
        answer: _T | None = look.answer
        return answer

    def _asking(self, section: ActSection) -> Asking:
        return Asking(
            section.checkpoint, section.signal, section.argv, booted_at_s=self._booted_at_s
        )

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
        """Write a step down, then take it; False: it cannot be written down, and is not taken."""
        key, kind = request.key, ",".join(sorted(request.kinds)) or "leak"
        asked = self.write(
            key, request.step, "asked", kind, f"{why}: {request.command}", who=who,
            target=request.manager.target,
        )  # fmt: skip
        if not asked:
            answer("Not done", "It could not be written down before.")
            return False

        ask = self._asking(section)

        def work() -> None:
            phase: Phase = "done"
            try:
                outcome = self._take(
                    request, runner=section.runner, checkpoint=ask, grace_s=GRACE_S,
                    booted_at_s=self._booted_at_s, look=look,
                )  # fmt: skip
                code, result = str(outcome.result), outcome.text
            except ActionError as error:
                phase, code = "refused", error.page.partition("#")[2] or ActHold.OTHER
                result = error.message
            except Exception as error:
                # In a thread of its own: nobody else would hear of it.
                log.exception("failed part=act pid=%d", key.pid)
                code, result = ActResult.FAILED, repr(error)
            self._results.put(_Taken(request, who, phase, code, result))
            answer("Done" if phase == "done" else "Not done", result)

        self.busy.add(key)
        if not self._start(work):
            self.busy.discard(key)
            result = "too much is being done already"
            self.write(key, request.step, "refused", ActHold.OTHER, result, who=who)
            answer("Not done", "Too much is being done already.")
        return True

    def write(  # noqa: PLR0913 - the fields of one row
        self,
        key: ProcessKey,
        step: ActStep,
        phase: Phase,
        code: str,
        result: str,
        *,
        who: str = OWN,
        dry_run: bool = False,
        target: str = "",
    ) -> bool:
        """Write a row; return whether it is kept. ``target``: a step on this job or unit begins."""
        level = logging.DEBUG if dry_run else logging.INFO
        log.log(level, "step=%s phase=%s pid=%d code=%s", step, phase, key.pid, code)
        row = Action(
            at_s=self.wall(), verb=f"{tables.ACT}{step}", process=key, phase=phase,
            dry_run=dry_run, result=text.clean(result), who=who, code=code,
        )  # fmt: skip
        shelf = self.shelf
        if shelf is None:
            return False
        return shelf.write_now(tables.write_step, row, target, ladder.TARGET_S) is not None

    def _start(self, work: Callable[[], None]) -> bool:
        """Do something in a thread of its own; False when too much is being done already."""
        if len(self._running) >= _AT_ONCE:
            return False

        def guarded() -> None:
            try:
                work()
            except Exception:
                # Who manages a process is then not known, so nothing is done to it.
                log.exception("failed part=act")

        thread = threading.Thread(target=guarded, name="act", daemon=True)
        thread.start()
        self._running.append(thread)
        return True
