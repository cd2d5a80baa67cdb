"""One look: which memory seems to be idle, and by which facts.

Nothing is concluded here yet: a sign counts only after it has been there look after look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from gpuwatchd.analysis.idle import ranks
from gpuwatchd.analysis.idle.ranks import ORDER, STOPPED, Ranks, Sign
from gpuwatchd.core import units
from gpuwatchd.core.model import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpuwatchd.analysis.idle.ranks import (
        ActivityContext,
        DeviceSnapshot,
        Limits,
        ProcessMemory,
        Server,
        Wait,
    )
    from gpuwatchd.core.model import HoldingKind, ProcessInfo, ProcessKey

DRIVER_WAIT_S: Final = 60.0
"""Every disk access waits in state D for a moment."""
BESIDE_S: Final = 600.0
"""Memory above the sum of what is listed must stand still for so long."""
KEEP_ALIVE_S: Final = 300.0
"""Ollama's own, where the server's is not known."""
ORPHAN_EXTRA_S: Final = 120.0
NO_MODEL_S: Final = 300.0
"""Loading a model takes memory before there is a model."""
HUNG_S: Final = 600.0
"""As long as PyTorch's own watchdog waits for a collective operation."""
BASELINE_SHARE: Final = 0.02
BASELINE_BYTES: Final = 2**30
"""The driver alone takes no more than this, or than that share of the device."""
MOST_GB: Final = 2.0**20
"""No cache is as large: what a server says of its own is not believed then."""
_STUCK: Final = frozenset({"D", "Z", "X"})
_MPS: Final = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control"})


def read(
    boards: Sequence[DeviceSnapshot],
    servers: Sequence[Server],
    waits: Mapping[tuple[str, ProcessKey], Wait],
    limits: Limits,
    is_early: Callable[[str, ProcessKey], bool] = lambda _uid, _key: False,
) -> Iterator[Sign]:
    """Yield the signs of one look: at most one per process and device, the surest.

    A device whose list is unknown gives no sign. ``waits`` is (device, process) -> why that rank
    does nothing for its job. ``is_early`` says of a process on a device that it has not been idle
    for long enough to be told of: nobody will read the words, which take most of a look where many
    are idle.
    """
    elsewhere: set[ProcessKey] | None = None
    for board in boards:
        if board.uses is None:
            continue
        ghost = _ghost(board, limits)
        if ghost is not None:
            yield ghost
        around = ranks.activity_context(board)
        for held in board.uses:
            used = held.used_bytes
            if held.exempt or (used is not None and (used < limits.minimum_bytes or used <= 0)):
                continue
            if (
                held.busy_pct
                and held.exists
                and held.state not in _STUCK
                and not (servers or waits)
            ):
                continue  # at work, as most are
            sign = (
                _ended(board, held)
                or (_serving(board, held, servers) if servers else None)
                or _left_runner(board, held)
                or (_hung(board, held, waits) if waits else None)
                or _idle(board, held, servers, limits.idle_after_s, around, is_early=is_early)
            )
            if sign is not None and sign.kind == "idle" and sign.evidence:
                elsewhere = _works_elsewhere(boards) if elsewhere is None else elsewhere
                if held.info.key in elsewhere:
                    sign = structs.replace(
                        sign,
                        evidence=f"{sign.evidence}; it works on another GPU",
                        advice=ranks.ELSEWHERE,
                    )
            if sign is not None:
                yield sign


def _works_elsewhere(boards: Sequence[DeviceSnapshot]) -> set[ProcessKey]:
    """Return the processes that are at work on some device now."""
    keys = set()
    for board in boards:
        around = ranks.activity_context(board)
        for held in board.uses or ():
            if ranks.activity(board, held, around) in {"busy", "spins"}:
                keys.add(held.info.key)
    return keys


def _sign(  # noqa: PLR0913 - the fields of one value
    board: DeviceSnapshot,
    held: ProcessMemory,
    kind: HoldingKind,
    evidence: str,
    hints: tuple[str, ...],
    *,
    needs_s: float = 0.0,
    flat: bool = False,
    begun_s: float | None = None,
) -> Sign:
    return Sign(
        kind=kind,
        device_uid=board.uid,
        process=held.info,
        held_bytes=held.used_bytes,
        needs_s=needs_s,
        flat=flat,
        begun_s=begun_s,
        evidence=evidence,
        advice=hints,
    )


def _ended(board: DeviceSnapshot, held: ProcessMemory) -> Sign | None:
    """Return the sign of a process that is gone, defunct, or waits in the kernel."""
    pid = held.info.key.pid
    if held.info.foreign:
        return None
    if held.exists is False:
        words = f"the driver still lists pid {pid}, which no longer exists"
        return _sign(board, held, "gone", words, ranks.GONE)
    if held.state not in _STUCK:
        return None
    if held.state != "D":
        parent = f" {held.parent}" if held.parent else ""
        words = f"pid {pid} has ended and its parent{parent} has not collected it"
        return _sign(board, held, "defunct", words, ranks.defunct(held))
    if held.cpu_pct is not None and held.cpu_pct < ranks.STILL_CPU_PCT:
        words = f"pid {pid} waited in the kernel (state D) in every sample and used no CPU"
        return _sign(board, held, "driver-wait", words, ranks.DRIVER_WAIT, needs_s=DRIVER_WAIT_S)
    return None


def _ghost(board: DeviceSnapshot, limits: Limits) -> Sign | None:
    """Return the sign of memory that no listed process owns, beyond what the driver takes."""
    ledger, uses = board.ledger, board.uses or ()
    if ledger is None or ledger.state != "whole" or ledger.unattributed_bytes is None:
        return None
    if any("M" in held.kind or held.info.name in _MPS for held in uses):
        return None  # what clients of the MPS server hold may be hidden behind it
    unowned = ledger.unattributed_bytes
    most = max(BASELINE_BYTES, BASELINE_SHARE * (board.total_bytes or 0))
    usual = most if ledger.baseline_bytes is None else min(most, max(0, ledger.baseline_bytes))
    if unowned <= usual + limits.minimum_bytes:
        return None
    if board.contained and board.util_pct != 0:
        return None  # others, whom nobody lists in here, may be at work
    if board.util_pct and all(held.exempt for held in uses):
        return None  # somebody is at work who is not listed: the list lacks some
    words = f"{units.size(unowned)} is used that no listed process owns, where the driver"
    words += f" may take {units.size(usual)}; "
    plural = "process is" if len(uses) == 1 else "processes are"
    words += f"{len(uses)} {plural} listed" if uses else "no process is listed"
    words += f", with {units.size(ledger.owned_bytes)}" if uses else ""
    hints: tuple[str, ...] = ranks.GHOST_BESIDE if uses else ranks.GHOST
    needs_s = BESIDE_S if uses else 0.0
    if board.contained:
        hints, needs_s = (ranks.ON_THE_HOST,), limits.idle_after_s
    return Sign(
        kind="ghost",
        device_uid=board.uid,
        held_bytes=unowned,
        needs_s=needs_s,
        flat=bool(uses) or board.contained,
        evidence=words,
        advice=hints,
    )


def _servers_of(held: ProcessMemory, servers: Iterable[Server]) -> list[Server]:
    key, pids = held.info.key, {held.info.key.pid, held.info.parent_pid}
    return [
        server
        for server in servers
        if key in server.members or (server.reading.pid is not None and server.reading.pid in pids)
    ]


def _serving(board: DeviceSnapshot, held: ProcessMemory, servers: Sequence[Server]) -> Sign | None:
    """Return the sign of a server that has nothing loaded, or whose cache does not come back."""
    if held.info.foreign:
        return None
    runner = held.info.framework == "Ollama"
    mine = _servers_of(held, servers)
    if runner and not mine:
        ollama = [s for s in servers if s.reading.kind == "Ollama"]
        mine = [s for s in ollama if s.reading.pid is None and not s.members]
    for server in mine:
        reading = server.reading
        if not reading.ok:
            continue
        where = f"{reading.kind} ({reading.url})"
        words = f"{units.size(held.used_bytes)} is held while {where} has no model loaded"
        if reading.models == () and runner:
            wait_s = reading.facts.get("keep_alive_s", KEEP_ALIVE_S) + ORPHAN_EXTRA_S
            hints = ranks.ORPHANED_RUNNER
            return _sign(board, held, "orphaned-runner", words, hints, needs_s=wait_s)
        if reading.models == ():
            return _sign(board, held, "no-model", words, ranks.NO_MODEL, needs_s=NO_MODEL_S)
        if server.kv_left is not None:
            words = (
                f"{units.percent(server.kv_left)} of the KV cache of {where} stays taken, and no"
                f" request has been worked on for {units.duration(server.kv_idle_s)}"
            )
            begun_s = None if server.kv_idle_s is None else reading.at_s - server.kv_idle_s
            sign = _sign(board, held, "leaked-kv", words, ranks.LEAKED_KV, begun_s=begun_s)
            return structs.replace(sign, held_bytes=_leaked_bytes(server))
    return None


def _left_runner(board: DeviceSnapshot, held: ProcessMemory) -> Sign | None:
    """Return the sign of an Ollama runner whose server has ended: nobody can ask it any more."""
    if held.info.framework != "Ollama" or not held.orphan or held.info.foreign:
        return None
    words = f"{units.size(held.used_bytes)} is held by a runner whose Ollama server has ended"
    hints = ranks.LEFT_RUNNER
    return _sign(board, held, "orphaned-runner", words, hints, needs_s=ORPHAN_EXTRA_S)


def _leaked_bytes(server: Server) -> int | None:
    """Return how much of a KV cache stays taken, where one process has it and says its size."""
    size = server.reading.facts.get("kv_cache_memory_usage_gb")
    if size is None or server.kv_left is None or len(server.members) > 1:
        return None
    if not 0.0 <= size < MOST_GB:
        return None
    return round(server.kv_left * size * 2**30)


def _hung(
    board: DeviceSnapshot, held: ProcessMemory, waits: Mapping[tuple[str, ProcessKey], Wait]
) -> Sign | None:
    """Return the sign of a rank that does nothing for its job."""
    wait = waits.get((board.uid, held.info.key))
    if wait is None:
        return None
    sign = _sign(board, held, "hung-rank", wait.words, wait.advice, needs_s=HUNG_S, flat=True)
    return structs.replace(sign, left=wait.left, command="" if wait.left else ranks.DUMP)


def _idle(
    board: DeviceSnapshot,
    held: ProcessMemory,
    servers: Sequence[Server],
    after_s: float,
    around: ActivityContext,
    *,
    is_early: Callable[[str, ProcessKey], bool],
) -> Sign | None:
    """Return the sign of a process that holds memory and does nothing with it."""
    if held.used_bytes is None or held.kind == "G":
        return None
    if ranks.activity(board, held, around) != "still":
        return None
    asked = [s.reading for s in _servers_of(held, servers) if s.reading.ok] if servers else ()
    if any((r.running or 0) > 0 or (r.waiting or 0) > 0 for r in asked):
        return None
    if is_early(board.uid, held.info.key):
        return _sign(board, held, "idle", "", (), needs_s=after_s, flat=True)
    amount = units.size(held.used_bytes)
    if ranks.use(board, held, around) is None:
        words = f"{amount} unchanged, and next to no CPU used (its use of the GPU is unknown)"
    else:
        words = f"{amount} unchanged, and the GPU did no work for it in any sample"
    if held.state in STOPPED:
        words += f"; {STOPPED[held.state]}"
    if held.orphan:
        words += "; whoever started it has ended"
    hints = (ranks.ON_THE_HOST,) if held.info.foreign else ranks.idle(held)
    return _sign(board, held, "idle", words, hints, needs_s=after_s, flat=True)


# Look after look: a sign counts once it was there for so many looks in a row, and for so long.


FLAT_BYTES: Final = 16 * 2**20
"""Memory that changes by more than this is being worked with."""
_Name = tuple[str, str, int | None, float | None]


class _Run(msgspec.Struct):
    """How long one sign has been there."""

    since_s: float
    level_bytes: int | None
    seen_s: float
    looks: int = 0


class PersistenceCheck:
    """Remembers the signs of earlier looks.

    It needs good looks in a row: a device that could not be read, or whose list is unknown, starts
    the count anew. Since when something has been so is kept over a gap of ``Limits.gap_s``, if it
    is the same afterwards.
    """

    def __init__(self) -> None:
        self._runs: dict[_Name, _Run] = {}
        self._ranks = Ranks()
        self._last_s: float | None = None

    def update(
        self,
        boards: Sequence[DeviceSnapshot],
        servers: Sequence[Server],
        now_s: float,
        limits: Limits,
    ) -> tuple[Holding, ...]:
        """Take over one look and return idle memory, the surest first.

        ``now_s`` is epoch seconds; when the clock is set back, what lasted has lasted.
        """
        if self._last_s is not None and now_s < self._last_s:
            for run in self._runs.values():
                run.since_s += now_s - self._last_s
                run.seen_s += now_s - self._last_s
        self._last_s = now_s
        unread = {board.uid for board in boards if board.uses is None}
        here = {board.uid for board in boards}
        holdings: list[Holding] = []
        now: dict[_Name, _Run] = {}

        def is_early(uid: str, key: ProcessKey) -> bool:
            run = self._runs.get(("idle", uid, key.pid, key.started_at_s))
            return (
                run is None
                or run.looks + 1 < limits.looks
                or now_s - run.since_s < limits.idle_after_s
            )

        for sign in read(boards, servers, self._ranks.update(boards), limits, is_early):
            name = _name_of(sign.kind, sign.device_uid, sign.process)
            run = now[name] = self._run(name, sign, now_s, limits)
            if run.looks >= limits.looks and now_s - _begun(run, sign) >= sign.needs_s:
                holdings.append(_holding(sign, _begun(run, sign)))
        for name, run in self._runs.items():
            blind = name[1] in unread or name[1] not in here
            if name not in now and blind and now_s - run.seen_s <= limits.gap_s:
                run.looks = 0
                now[name] = run
        self._runs = now
        return tuple(sorted(holdings, key=_rank))

    def resume(
        self, holdings: Iterable[Holding], processes: Iterable[ProcessInfo], at_s: float
    ) -> None:
        """Take up what an earlier run of the daemon listed.

        ``processes`` are those that it saw on the devices at ``at_s``, epoch seconds.
        """
        self._ranks.remember(processes)
        for holding in holdings:
            if holding.since_s is None or holding.since_s > at_s:
                continue
            run = _Run(holding.since_s, holding.held_bytes, at_s)
            self._runs[_name_of(holding.kind, holding.device_uid, holding.process)] = run
            team = holding.process.team if holding.process is not None else None
            if holding.kind == "hung-rank" and team is not None and holding.left:
                self._ranks.bereaved(team)

    def _run(self, name: _Name, sign: Sign, now_s: float, limits: Limits) -> _Run:
        run = self._runs.get(name)
        if run is not None:
            moved = sign.flat and _moved(run.level_bytes, sign.held_bytes)
            if moved or now_s - run.seen_s > limits.gap_s:
                run = None
        if run is None:
            run = _Run(now_s, sign.held_bytes, now_s)
        run.looks += 1
        run.seen_s = now_s
        return run


def _name_of(kind: HoldingKind, uid: str, process: ProcessInfo | None) -> _Name:
    if process is None:
        return kind, uid, None, None
    # Who had a pid that is gone may be known at one time and not at another.
    return kind, uid, process.key.pid, None if kind == "gone" else process.key.started_at_s


def _moved(before: int | None, after: int | None) -> bool:
    return before is None or after is None or abs(after - before) > FLAT_BYTES


def _begun(run: _Run, sign: Sign) -> float:
    return run.since_s if sign.begun_s is None else sign.begun_s


def _holding(sign: Sign, since_s: float | None) -> Holding:
    return Holding(
        kind=sign.kind,
        device_uid=sign.device_uid,
        process=sign.process,
        held_bytes=sign.held_bytes,
        since_s=since_s,
        evidence=sign.evidence,
        left=sign.left,
        advice=sign.advice,
        command=sign.command,
    )


def _rank(holding: Holding) -> tuple[int, int, str]:
    return ORDER.index(holding.kind), -(holding.held_bytes or 0), holding.id


# What a single look can prove, where no daemon has looked before.

PROVEN: Final = frozenset({"gone", "defunct", "driver-wait", "ghost"})
"""Kinds that show at once; all others are a matter of time."""


def snapshot(boards: Sequence[DeviceSnapshot], limits: Limits) -> tuple[Holding, ...]:
    """Return what seems to be idle at one look, the surest first.

    Since when is unknown, and what has just ended may still be about to let go. Memory beside that
    of listed processes, or seen from within a container, is a matter of time as well.
    """
    holdings = [
        _holding(sign, None)
        for sign in read(boards, (), {}, limits)
        if sign.kind in PROVEN and not (sign.kind == "ghost" and sign.needs_s)
    ]
    return tuple(sorted(holdings, key=lambda holding: _rank(holding)[:2]))
