"""Ranks of one job: who has ended, and who waits for nobody or lets the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.analysis.idle import facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.analysis.idle.facts import DeviceSnapshot, ProcessMemory
    from gpuwatchd.core.model import ProcessInfo, ProcessKey

ABSENT_LOOKS: Final = 2
"""A rank that was not listed in so many looks has ended."""


MOST_JOBS: Final = 256
"""Jobs that are remembered although none of their ranks is seen any more."""


Team = tuple[str, int | str | None]
"""``ProcessInfo.team``: a job and whose it is."""


class _RankState:
    """Where a rank was last seen, and for how many looks it has not been."""

    __slots__ = ("absent", "uid")

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.absent = 0


class Rank(NamedTuple):
    """One rank on one device."""

    board: DeviceSnapshot
    held: ProcessMemory
    does: Activity


class Wait(NamedTuple):
    """Why a rank does nothing for its job."""

    words: str
    advice: tuple[str, ...]
    left: bool = False
    """Ranks of its job, or its launcher, have ended."""


class Ranks:
    """Remembers who belonged to which job."""

    def __init__(self) -> None:
        self._known: dict[Team, dict[ProcessKey, _RankState]] = {}
        self._lost: dict[Team, int] = {}

    def __len__(self) -> int:
        """Return how many jobs are remembered."""
        return len(self._known)

    def remember(self, processes: Iterable[ProcessInfo]) -> None:
        """Take up whom an earlier run of the daemon saw."""
        for info in processes:
            if info.team is not None:
                self._known.setdefault(info.team, {})[info.key] = _RankState("")

    def bereaved(self, team: Team) -> None:
        """Take up that ranks of a job have ended, without their number."""
        self._lost.setdefault(team, 0)

    def update(self, boards: Sequence[DeviceSnapshot]) -> dict[tuple[str, ProcessKey], Wait]:
        """Return (device, process) -> why that rank does nothing for its job."""
        jobs: dict[Team, list[Rank]] = {}
        for board in boards:
            around = activity_context(board)
            for held in board.uses or ():
                team = held.info.team
                if team is not None and not (held.exempt or held.info.foreign or ended(held)):
                    rank = Rank(board, held, activity(board, held, around))
                    jobs.setdefault(team, []).append(rank)
        if jobs or self._known:
            self._count(jobs, boards)
        waits = {}
        for team, members in jobs.items():
            for rank in members:
                wait = self._waits(team, rank, members)
                if wait is not None:
                    waits[rank.board.uid, rank.held.info.key] = wait
        return waits

    def _count(self, jobs: dict[Team, list[Rank]], boards: Sequence[DeviceSnapshot]) -> None:
        """Note which ranks have ended; nobody has whose device's list is unknown, or lacks some."""
        blind = {board.uid for board in boards if board.uses is None or not board.complete}
        for team, members in jobs.items():
            states = self._known.setdefault(team, {})
            if any(rank.held.info.key not in states for rank in members):
                # It begins, or has been started again: who was there before is not missed.
                states.clear()
                self._lost.pop(team, None)
            states.update((rank.held.info.key, _RankState(rank.board.uid)) for rank in members)
        for team, states in list(self._known.items()):
            present = {rank.held.info.key for rank in jobs.get(team, ())}
            for key in [key for key in states if key not in present]:
                rank_state = states[key]
                rank_state.absent += rank_state.uid not in blind
                if rank_state.absent >= ABSENT_LOOKS:
                    del states[key]
                    self._lost[team] = self._lost.get(team, 0) + 1
            if not states or (not present and len(self._known) > MOST_JOBS):
                del self._known[team]
                self._lost.pop(team, None)

    def _waits(self, team: Team, rank: Rank, members: Sequence[Rank]) -> Wait | None:
        info, does = rank.held.info, rank.does
        if does not in {"still", "spins"}:
            return None
        name = f"rank {info.rank}" if info.rank is not None else "this one"
        what = "is idle" if does == "still" else "only waits on its GPU"
        group = team[0]
        if team in self._lost:
            count = self._lost[team]
            who = "1 rank" if count == 1 else f"{count or 'other'} ranks"
            verb = "has" if count == 1 else "have"
            words = f"{who} of {group} {verb} ended and {name} {what}"
            return Wait(words, facts.RANK_LEFT, left=True)
        if rank.held.orphan:
            words = f"the launcher of {group} has ended and {name} {what}"
            return Wait(words, facts.RANK_LEFT, left=True)
        others = [other for other in members if other.held.info.key != info.key]
        if does == "still" and others and all(o.does in {"busy", "spins"} for o in others):
            count = len({other.held.info.key for other in others})
            waiting = all(other.does == "spins" for other in others)
            doing = "only waiting" if waiting else "active"
            plural = "rank is" if count == 1 else "ranks are"
            words = f"{count} other {plural} {doing} while {name} of {group} {what}"
            return Wait(words, facts.HUNG_RANK)
        return None


def ended(held: ProcessMemory) -> bool:
    """Say whether a listed process has ended."""
    return held.exists is False or held.state in {"Z", "X"}


# Whether a process uses its GPU, as far as that can be told.

STILL_CPU_PCT: Final = 0.5
"""A process that only keeps its connections alive uses less of a core."""
FULL_PCT: Final = 90.0
SPIN_MEMORY_PCT: Final = 1.0
"""A kernel that only waits for other GPUs keeps a GPU busy and moves no memory."""

Activity = Literal["busy", "still", "spins"] | None


class ActivityContext(NamedTuple):
    """What the processes of one device together tell of each."""

    alone: bool
    """One has the device to itself."""
    cpu_tells: bool
    """Who uses no CPU uses no GPU either: nobody uses that, or another can be who does."""


def activity_context(board: DeviceSnapshot) -> ActivityContext:
    """Return what the processes of a device together tell."""
    uses = board.uses or ()
    count, working = 0, False
    for held in uses:
        if held.cpu_pct is not None and held.cpu_pct >= STILL_CPU_PCT:
            working = True
        if not held.exempt:
            count += 1
    return ActivityContext(count == 1, working or not board.util_pct)


def use(board: DeviceSnapshot, held: ProcessMemory, around: ActivityContext) -> float | None:
    """Return how much of the GPU a process uses, %; None where it cannot be told.

    Its own share; else the device's, where that can only be its own, or nobody's.
    """
    if held.busy_pct is not None:
        return held.busy_pct
    return board.util_pct if around.alone or board.util_pct == 0 else None


def activity(board: DeviceSnapshot, held: ProcessMemory, around: ActivityContext) -> Activity:
    """Say what a process does: busy, still, or only waiting on the GPU; None: it cannot be told.

    Where its use of the GPU is unknown, that of the CPU decides: whatever gives a GPU work needs a
    CPU for it. That holds only as long as the work of the device can be another's.
    """
    util = use(board, held, around)
    if util is None:
        cpu = held.cpu_pct
        return "still" if around.cpu_tells and cpu is not None and cpu < STILL_CPU_PCT else None
    if util <= 0:
        return "still"
    moved = board.memory_util_pct
    spins = util >= FULL_PCT and moved is not None and moved <= SPIN_MEMORY_PCT
    return "spins" if spins and around.alone else "busy"
