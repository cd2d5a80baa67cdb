"""What idle memory is and what frees it; ranks of one job that have ended or wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import msgspec

from gpuwatchd.core.model import HoldingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Ledger, ProcessInfo, ProcessKey, ServerReading


ORDER: Final[tuple[HoldingKind, ...]] = get_args(HoldingKind)
"""What is surest comes first; a process is listed once, as the first of them that it is."""

DAEMONS: Final[frozenset[str]] = frozenset(
    {"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced"}
)
"""The driver's own helpers: what they hold is nobody's leftover."""

STOPPED: Final = {"T": "it is stopped (state T)", "t": "a debugger has stopped it (state t)"}
"""Letters of the kernel for processes that wait for somebody to let them go on."""


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process holds on one device."""

    info: ProcessInfo
    used_bytes: int | None
    kind: str = "C"
    busy_pct: float | None = None
    """Its own share of the compute units' time, 0-100; None where only the device's is known."""
    exists: bool | None = None
    """False: there is no such process; None: it cannot be told from here."""
    state: str | None = None
    """Letter of the kernel: R, S, D, Z, ..."""
    cpu_pct: float | None = None
    """Share of one core that it used since the last look, 0-100 and beyond."""
    parent: str | None = None
    """Who its parent is now: "bash[4600]"."""
    orphan: bool = False
    """Whoever started it has ended since."""
    exempt: bool = False
    """Never listed: the daemon itself, what draws the screen, the driver's helpers."""


class DeviceSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device."""

    uid: str
    total_bytes: int | None = None
    util_pct: float | None = None
    """Highest utilisation seen since the last look."""
    memory_util_pct: float | None = None
    """Share of the time in which its memory was read or written."""
    ledger: Ledger | None = None
    """None also where the device's own figures prove nothing (unified memory, MIG parents)."""
    uses: tuple[ProcessMemory, ...] | None = None
    """None: the list is unknown."""
    complete: bool = True
    """False: the list is known to lack some."""
    contained: bool = False
    """We are inside a container: others may hold memory that is not listed here."""


class Server(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a serving engine says."""

    reading: ServerReading
    members: frozenset[ProcessKey] = frozenset()
    """Processes on a GPU that are known to belong to it."""
    kv_left: float | None = None
    """Share of its KV cache, 0-1, that stays taken although no request is worked on."""
    kv_idle_s: float | None = None
    """For how long that has been so."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What counts."""

    minimum_bytes: float = 512 * 2**20
    idle_after_s: float = 7200.0
    looks: int = 3
    """Good looks in a row before anything is listed."""
    gap_s: float = 600.0
    """After a longer time without a look nothing is known of the time before."""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One look's reason to think that memory is idle."""

    kind: HoldingKind
    device_uid: str
    process: ProcessInfo | None = None
    held_bytes: int | None = None
    needs_s: float = 0.0
    """It must have been so for this long."""
    flat: bool = False
    """What is held must stay the same meanwhile."""
    begun_s: float | None = None
    """Since when it has been so, where that is known better than by looking."""
    evidence: str = ""
    left: bool = False
    """Of a rank: others of its job, or its launcher, have ended."""
    advice: tuple[str, ...] = ()
    command: str = ""
    """What is to be typed at the end of the first line of advice."""


# What would free memory that is held: advice with its limits, never a promise.

ON_THE_HOST: Final = "this is a container: look on its host, where the pids are valid"
_RESET: Final = "else only a GPU reset, with nothing running on it, or a reboot frees it"
GONE: Final = (
    "no signal can help: there is no process to get one",
    "a thread or child of it may live on in another pid namespace: see who holds /dev/nvidia*",
    _RESET,
)
DRIVER_WAIT: Final = (
    "no signal helps while it waits in the kernel, SIGKILL included",
    "the kernel's log may say why (NVRM, Xid); a hanging network file system has the same effect",
    "if it is the driver, only a GPU reset with nothing else running on it, or a reboot helps",
)
GHOST: Final = (
    "after a crash in a container another pid namespace may hold it: see who holds /dev/nvidia*",
    _RESET,
)
GHOST_BESIDE: Final = (
    "it may be managed or shared memory of a listed process: see whether it falls as that ends",
    *GHOST,
)
ORPHANED_RUNNER: Final = (
    "restart Ollama (systemctl restart ollama): its runners end with it",
    "it is a known fault of some versions: see whether a newer one is out",
)
LEFT_RUNNER: Final = (
    "end it (SIGTERM first): a new Ollama server starts its own runners, not this one",
)
NO_MODEL: Final = ("restart the server, or end it: it has no model loaded",)
LEAKED_KV: Final = (
    "restart the server: cache blocks that it has lost come back with it",
    "requests that were cut off or timed out are the usual cause: see its log",
)
DUMP: Final = "py-spy dump --pid PID"
HUNG_RANK: Final = (
    f"see where it stands: {DUMP}",
    "ending it (SIGTERM first) frees its memory; the job has to start from its last checkpoint",
)
ELSEWHERE: Final = (
    "see whether it needs this GPU: CUDA_VISIBLE_DEVICES at its start limits it to the others",
)
RANK_LEFT: Final = (
    "its siblings will not come back: unless it is still saving something, end it (SIGTERM first)",
)
_STOPPED: Final = {
    "T": "it was stopped (Ctrl-Z, SIGSTOP): resume it with fg or SIGCONT, or end it",
    "t": "a debugger stopped it: resume it there, or end it",
}


def defunct(held: ProcessMemory) -> tuple[str, ...]:
    """Return what would let a process go that has ended already."""
    parent = f"its parent {held.parent}" if held.parent else "its parent"
    return (
        f"{parent} must collect it; if that ends, init collects it",
        "if one of its threads still waits in the driver, only a GPU reset or a reboot helps",
    )


def idle(held: ProcessMemory) -> tuple[str, ...]:
    """Return what would free the memory of a process that does nothing."""
    info = held.info
    if any("ipykernel" in word or "jupyter" in word for word in (info.name, *info.argv[:4])):
        return ("restart the notebook's kernel (or shut it down): results in memory are lost",)
    texts = []
    if held.state in _STOPPED:
        texts.append(_STOPPED[held.state])
    if held.orphan:
        texts.append("its parent process ended: it runs until you stop it")
    if info.framework == "Ollama":
        texts.append("ollama stop MODEL unloads it; a shorter OLLAMA_KEEP_ALIVE does so by itself")
    elif info.framework in {"vLLM", "SGLang", "Triton Server", "llama.cpp"}:
        texts.append("a server that waits for requests: stop it while it gets none")
    if info.unit and info.unit.endswith(".service"):
        texts.append(f"systemctl stop {info.unit} ends it")
    elif info.job:
        texts.append(f"it belongs to {info.job}: cancel that where it was submitted")
    elif info.container:
        texts.append(f"it runs in {info.container}: stop it if it is not needed")
    elif not texts:
        texts.append(f"ask {info.user or 'its owner'}; ending it (SIGTERM first) frees the memory")
    return tuple(texts)


ABSENT_LOOKS: Final = 2
"""A rank that was not listed in so many looks has ended."""


MOST_JOBS: Final = 256
"""Jobs that are remembered although none of their ranks is seen any more."""


Team = tuple[str, int | str | None]
"""``ProcessInfo.team``: a job and whose it is."""


class _RankState(msgspec.Struct):
    """Where a rank was last seen, and for how many looks it has not been."""

    uid: str
    absent: int = 0


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
            return Wait(words, RANK_LEFT, left=True)
        if rank.held.orphan:
            words = f"the launcher of {group} has ended and {name} {what}"
            return Wait(words, RANK_LEFT, left=True)
        others = [other for other in members if other.held.info.key != info.key]
        if does == "still" and others and all(o.does in {"busy", "spins"} for o in others):
            count = len({other.held.info.key for other in others})
            waiting = all(other.does == "spins" for other in others)
            doing = "only waiting" if waiting else "active"
            plural = "rank is" if count == 1 else "ranks are"
            words = f"{count} other {plural} {doing} while {name} of {group} {what}"
            return Wait(words, HUNG_RANK)
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
