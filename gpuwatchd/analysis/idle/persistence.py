"""Look after look: a sign counts once it was there for so many looks in a row, and for so long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.idle import signs
from gpuwatchd.analysis.idle.facts import ORDER
from gpuwatchd.analysis.idle.ranks import Ranks
from gpuwatchd.core.model import Holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.analysis.idle.facts import DeviceSnapshot, Limits, Server, Sign
    from gpuwatchd.core.model import HoldingKind, ProcessInfo, ProcessKey

FLAT_BYTES: Final = 16 * 2**20
"""Memory that changes by more than this is being worked with."""
_Name = tuple[str, str, int | None, float | None]


class _Run:
    """How long one sign has been there."""

    __slots__ = ("level_bytes", "looks", "seen_s", "since_s")

    def __init__(self, since_s: float, level_bytes: int | None) -> None:
        self.since_s = since_s
        self.seen_s = since_s
        self.level_bytes = level_bytes
        self.looks = 0


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

        Parameters
        ----------
        boards, servers
            What is known now.
        now_s
            Instant of the look, epoch seconds; when the clock is set back, what lasted has lasted.
        limits
            What counts.
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

        for sign in signs.read(boards, servers, self._ranks.update(boards), limits, is_early):
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

        Parameters
        ----------
        holdings
            What it listed.
        processes
            Whom it saw on the devices.
        at_s
            When it saw that, epoch seconds.
        """
        self._ranks.remember(processes)
        for holding in holdings:
            if holding.since_s is None or holding.since_s > at_s:
                continue
            run = _Run(holding.since_s, holding.held_bytes)
            run.seen_s = at_s
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
            run = _Run(now_s, sign.held_bytes)
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
        for sign in signs.read(boards, (), {}, limits)
        if sign.kind in PROVEN and not (sign.kind == "ghost" and sign.needs_s)
    ]
    return tuple(sorted(holdings, key=lambda holding: _rank(holding)[:2]))
