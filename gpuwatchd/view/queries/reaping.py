"""Ending one process that ``zombies`` lists: who it is now, the steps, and what came of them.

The verb waits for the end itself; the live screen and the API begin it in a thread and ask for it.
"""

from __future__ import annotations

import atexit
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from gpuwatchd.act import reap
from gpuwatchd.act.target import SAME_S
from gpuwatchd.collect.host import BootAnchor, Host, process_identity
from gpuwatchd.core import units
from gpuwatchd.core.codes import ReapResult
from gpuwatchd.core.errors import (
    FAILED,
    FINDINGS,
    INTERRUPTED,
    OK,
    ActionError,
    GpuwatchdError,
    TargetChanged,
    TargetGone,
)
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.view.answers.base import Answered, answer_of, fill
from gpuwatchd.view.answers.current import Reap, Reaping
from gpuwatchd.view.queries import current_state, direct_holdings, state_location, user_filter
from gpuwatchd.view.queries.alert_changes import BadRequest
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator

    from gpuwatchd.act.target import Target
    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.view.queries.current_view import View

GRACE_S: Final = 30.0
LONGEST_GRACE_S: Final = 3600.0
MOST_AT_ONCE: Final = 4
"""Processes that one program ends in threads of its own."""
_MOST_KEPT: Final = 16
_CODES: Final = {
    ReapResult.ENDED: OK,
    ReapResult.UNDER_WAY: OK,
    ReapResult.RUNS: FAILED,
    ReapResult.WAITS: FAILED,
    ReapResult.INTERRUPTED: INTERRUPTED,
}
BACK_S: Final = 60.0
"""So long the memory is waited for."""
_AGAIN_S: Final = 0.5
_LEAST_BYTES: Final = 64 * 2**20
"""Less is what a driver may take or give at any time."""


class Candidate(NamedTuple):
    """A process that may be ended, held by the kernel."""

    target: Target
    signals: tuple[signal.Signals, ...]
    view: View
    """With its holdings alone."""
    grace_s: float
    may_kill: Callable[[str], bool] | None
    """Asked with its name where nothing else has ended it; None: it is not killed."""

    @property
    def names(self) -> list[str]:
        """Return the signals in order, each only where those before have not ended it."""
        return [number.name for number in self.signals] + ["SIGKILL"] * (self.may_kill is not None)

    @property
    def plan(self) -> str:
        """Return what would be sent, in a line."""
        return f"{', then '.join(self.names)}; {units.duration(self.grace_s)} for each"

    @property
    def evidence(self) -> str:
        """Return how it is known, in a line."""
        return "; ".join(dict.fromkeys(f"{it.kind}: {it.evidence}" for it in self.view.holdings))


class ReapOutcome(NamedTuple):
    """What came of it; without ``result`` nothing was done."""

    text: str
    result: ReapResult | None = None
    sent: tuple[str, ...] = ()
    still_held_bytes: int | None = None
    warnings: tuple[tuple[str, str], ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the exit code of the verb."""
        if self.result is None:
            return OK
        return FINDINGS if self.still_held_bytes else _CODES[self.result]


@contextmanager
def candidate(
    query: Query,
    pid: int,
    *,
    grace_s: float = GRACE_S,
    may_kill: Callable[[str], bool] | None = None,
    asked: bool = False,
) -> Iterator[Candidate]:
    """Hold a process and yield it with what it holds and what would be sent.

    Parameters
    ----------
    asked
        It is to be ended, not only shown: a refusal, here or in the block, is written down.

    Raises
    ------
    NotAllowed
        It is not to be ended by us: ``page`` says why.
    TargetGone, TargetChanged
        It has ended, or the pid is not that of the listed process.
    """
    key = ProcessKey(pid=pid, started_at_s=None)
    try:
        view, subject, booted_at_s = _read(query, pid)
        holders = [holding.process for holding in view.holdings if holding.process is not None]

        def subject_now() -> reap.Subject:
            nonlocal view
            view, subject, _ = _read(query, pid)
            return subject

        listed = (holders[0] if holders else subject.info).key
        with ExitStack() as held:
            with state_location.RIGHTS:  # without root's, files that decide would read as empty
                holding = reap.hold(listed, subject_now, booted_at_s=booted_at_s)
                target, signals = held.enter_context(holding)
            key = target.key
            yield Candidate(target, signals, view, grace_s, may_kill)
    except ActionError as error:
        if asked:
            page = error.page.partition("#")[2]
            user_filter.write_action("reap", key, "refused", error.message, code=page)
        raise


def end(candidate: Candidate, sent: list[str]) -> ReapOutcome:
    """End it, wait for its memory, and write both down; Ctrl-C ends the waiting alone.

    Parameters
    ----------
    sent
        Takes the names of the signals as they are sent.

    Raises
    ------
    NotAllowed, TargetGone, TargetChanged
        Before the first one was sent.
    """
    target, held, may_kill = candidate.target, None, candidate.may_kill
    kinds = ",".join(sorted({holding.kind for holding in candidate.view.holdings}))
    request = f"{target.name}, {candidate.plan}; {candidate.evidence}"
    doubts = user_filter.write_action("reap", target.key, "asked", request, code=kinds)
    result = ReapResult.INTERRUPTED
    with suppress(KeyboardInterrupt):
        result = reap.end(
            target,
            candidate.signals,
            candidate.grace_s,
            lambda: may_kill is not None and may_kill(target.name),
            sent,
        )
        if result is ReapResult.ENDED:
            held = still_held_bytes(candidate, time.time())
    words = _words(target, result, sent, held)
    code = f"{ReapResult.STILL_HELD if held else result}"
    doubts += user_filter.write_action("reap", target.key, "done", words, code=code)
    return ReapOutcome(words, result, tuple(sent), held, tuple(doubts))


def _words(
    target: Target, result: ReapResult, sent: list[str], held_bytes: int | None = None
) -> str:
    after = f"after {', '.join(sent) or 'nothing was sent'}"
    if result is ReapResult.ENDED:
        memory = "its memory is back"
        if held_bytes is None:
            memory = "whether its memory is back is not known"
        elif held_bytes:
            memory = f"{units.size(held_bytes)} still held by nobody: zombies"
        return f"{target.name} ended {after}, {memory}"
    if result is ReapResult.RUNS:
        return f"{target.name} still runs {after}; --kill ends it without letting it save"
    if result is ReapResult.WAITS:
        channel = reap.wait_channel(target) or "?"
        return f"{target.name} waits in the kernel, in {channel}, {after}: no signal helps"
    if result is ReapResult.UNDER_WAY:
        return f"{target.name} is waited for, {after}"
    return f"{target.name} was not waited for {after}"


def answered(candidate: Candidate, outcome: ReapOutcome) -> Answered:
    """Return the answer of the verb."""
    data = fill(
        Reaping,
        outcome,
        process=candidate.target.key,
        holdings=candidate.view.holdings,
        signals=candidate.names,
    )
    answer = answer_of(Reap, data, view=candidate.view, warnings=outcome.warnings)
    return Answered(answer, outcome.exit_code)


# Ending in a thread: it takes as long as the process and its driver do.


class Run(NamedTuple):
    """A process that this program ends, or has ended, or was refused to end after all."""

    process: ProcessKey
    """As it was shown to who wants it ended."""
    candidate: Future[Candidate]
    outcome: Future[ReapOutcome]
    sent: list[str]

    @property
    def under_way(self) -> bool:
        """Whether nothing has come of it yet."""
        return not self.outcome.done()

    def outcome_now(self) -> ReapOutcome:
        """Return what came of it; raise what refused it once it had begun."""
        if not self.under_way:
            return self.outcome.result()
        words = _words(self.candidate.result().target, ReapResult.UNDER_WAY, self.sent)
        return ReapOutcome(words, ReapResult.UNDER_WAY, tuple(self.sent))


_RUNS: Final[dict[int, Run]] = {}
"""By pid, those that have begun last at the end."""
_RUNS_LOCK: Final = threading.Lock()


def latest(pid: int) -> Run | None:
    """Return what this program has begun last to do to a pid."""
    run = _RUNS.get(pid)
    return run if run is not None and run.candidate.done() else None


def begin(query: Query, process: ProcessKey, *, grace_s: float = GRACE_S) -> Run:
    """Begin to end a process in a thread of its own; return once it is held and may be ended.

    Parameters
    ----------
    process
        As it was shown to who wants it ended.

    Raises
    ------
    ActionError
        Too many are under way, or this one is; else as ``candidate``.
    """
    run = Run(process, Future(), Future(), [])
    with _RUNS_LOCK:
        busy = [pid for pid, other in _RUNS.items() if other.under_way]
        if process.pid in busy or len(busy) >= MOST_AT_ONCE:
            numbers = ", ".join(map(str, busy))
            raise ActionError(f"still waited for: pid {numbers}", hint="ask again when that ended")
        _RUNS.pop(process.pid, None)
        _RUNS[process.pid] = run
        over = [pid for pid, other in _RUNS.items() if not other.under_way]
        for pid in over[: max(0, len(_RUNS) - _MOST_KEPT)]:
            del _RUNS[pid]
    threading.Thread(target=_run, args=(run, query, grace_s), name="reap", daemon=True).start()
    run.candidate.result()
    return run


def _run(run: Run, query: Query, grace_s: float) -> None:
    pid = run.process.pid
    try:
        with candidate(query, pid, grace_s=grace_s, asked=True) as found:
            require_same(run.process, found.target)
            run.candidate.set_result(found)
            run.outcome.set_result(end(found, run.sent))
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it
        begun = run.candidate.done()
        if not begun:
            with _RUNS_LOCK:
                del _RUNS[pid]
        run.outcome.set_exception(error)
        if not begun:
            run.candidate.set_exception(error)


@atexit.register
def leave() -> None:
    """Write down, at the end of the program, that nobody waits any more."""
    for run in [*_RUNS.values()]:
        if run.under_way and run.candidate.done():
            target, result = run.candidate.result().target, ReapResult.INTERRUPTED
            words = _words(target, result, run.sent)
            user_filter.write_action("reap", target.key, "done", words, code=f"{result}")


def require_same(shown: ProcessKey, target: Target) -> None:
    """Raise TargetChanged unless it is the process that was shown."""
    shown_s, started_s = shown.started_at_s, target.key.started_at_s
    if shown_s is None or started_s is None or not abs(shown_s - started_s) <= SAME_S:
        raise TargetChanged(f"{target.name} is not the process that was shown")


def lookup(query: Query, pid: str, *, anew: bool = False) -> Answered:
    """Return what would be sent to a process, or what has come of ending it by this program.

    Parameters
    ----------
    anew
        What would be sent, also where something has come of it already.
    """
    number = int(pid) if units.is_number(pid) else 0
    if number < 1:
        raise BadRequest("a pid is a number, 1 or more")
    run = latest(number)
    if run is not None and (run.under_way or not anew):
        return answered(run.candidate.result(), run.outcome_now())
    with candidate(query, number) as found:
        return answered(found, ReapOutcome(f"would send {found.plan}"))


def request(query: Query, *, pid: int, started_at: str, grace: str) -> Answered:
    """Begin to end a process of the user's own that has idle memory; :func:`lookup` says the rest.

    Parameters
    ----------
    started_at
        When the process was started that was shown; with the pid it says which one is meant.
    grace
        How long each signal is given, up to 1h.
    """
    try:
        grace_s = units.parse_duration(grace)
    except ValueError as error:
        raise BadRequest(f"grace: {error}") from None
    if not 0 < grace_s <= LONGEST_GRACE_S:
        raise BadRequest("grace: more than nothing, and at most 1h")
    try:
        began_s = units.parse_instant(started_at, now_s=time.time())
    except ValueError as error:
        raise BadRequest(f"started_at: {error}") from None
    run = begin(query, ProcessKey(pid=pid, started_at_s=began_s), grace_s=grace_s)
    return answered(run.candidate.result(), run.outcome_now())


def _read(query: Query, pid: int) -> tuple[View, reap.Subject, float | None]:
    """Return what is listed of a process, who it is, and when the system was booted."""
    # On every GPU: what is idle on one may be at work on another.
    view = direct_holdings.idle_view(Query(config=query.config))
    local = {item.device.uid for item in view.devices if not item.device.recorded}
    mine = [it for it in view.holdings if it.process is not None and it.process.key.pid == pid]
    view = structs.replace(view, holdings=tuple(it for it in mine if it.device_uid in local))
    kinds = frozenset(holding.kind for holding in view.holdings)
    reap.require_freed(f"pid {pid}", kinds)
    boot = BootAnchor(state_location.state_dir() / current_state.BOOT, writes=False)
    with closing(Host(anchor=boot)) as host:
        info = host.processes([pid]).get(pid)
    if info is None:
        raise TargetGone(f"pid {pid}: there is no such process")
    state, _ = current_state.read_state()
    if state is not None and state.boot_id and host.boot_id and state.boot_id != host.boot_id:
        raise TargetChanged(f"pid {pid} was listed before the system was booted")
    after = units.duration(float(query.load_config().config.zombies.idle_after))
    needs = f"needed: no work for {after}, memory unchanged, as `zombies` then lists it"
    if not view.daemon.running:  # what it saw last may be at work by now
        kinds = frozenset()
        needs = "needed: a daemon that has been watching, gpuwatchctl service install"
    elif any(code == "daemon-late" for code, _ in view.warnings):
        kinds, needs = frozenset(), "needed: a sample of now, the daemon's last one is old"
    busy_on, launcher = _busy_on(view, query, pid), process_identity.launcher_of(info)
    return view, reap.Subject(info, kinds, busy_on, launcher, needs), host.booted_at_s


def _busy_on(view: View, query: Query, pid: int) -> str:
    """Return a device on which a process works, or has memory that is not listed as idle."""
    least = query.load_config().config.zombies.minimum_mib * 2**20
    idle = {holding.device_uid: holding.kind for holding in view.holdings}
    for item in view.devices if idle else ():
        for use in item.processes or ():
            kind = idle.get(item.device.uid)
            more = kind is None and (use.used_bytes is None or use.used_bytes >= least)
            if use.info.key.pid == pid and (more or (use.sm_pct and kind in {None, "idle"})):
                return item.device.label
    return ""


def still_held_bytes(candidate: Candidate, ended_at_s: float) -> int | None:
    """Wait until the memory of a process that has ended is back; return what of it is not.

    None where that cannot be known: nobody has read the devices since.
    """
    end_s, found = time.monotonic() + BACK_S, None
    while True:
        with suppress(GpuwatchdError):  # the daemon has stopped, and nothing else reads a GPU
            view = direct_holdings.idle_view(Query())
            found = _held_bytes(candidate, view) if view.taken_at_s >= ended_at_s else found
        if found == 0:
            return 0
        if time.monotonic() >= end_s:
            return found
        time.sleep(_AGAIN_S)


def _held_bytes(candidate: Candidate, view: View) -> int | None:
    """Return what the driver lists of a process that has ended, or that nobody owns since then."""
    before = {item.device.uid: item for item in candidate.view.devices}
    now = {item.device.uid: item for item in view.devices}
    total = 0
    for holding in candidate.view.holdings:
        uid = holding.device_uid
        if uid not in now or not current_state.list_is_known(now[uid]):
            return None
        listed = _listed_bytes(now[uid], candidate.target.key.pid)
        unowned = (before[uid].unattributed_bytes, now[uid].unattributed_bytes)
        beside = 0 if None in unowned else max(0, (unowned[1] or 0) - (unowned[0] or 0))
        held = _listed_bytes(before[uid], candidate.target.key.pid)
        total += min(listed + beside, max(held, listed))
    return total if total >= _LEAST_BYTES else 0


def _listed_bytes(item: LiveDevice, pid: int) -> int:
    return sum(use.used_bytes or 0 for use in item.processes or () if use.info.key.pid == pid)
