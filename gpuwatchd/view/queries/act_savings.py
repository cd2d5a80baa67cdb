"""What steps on processes saved: the rows of the history around each one that was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import cost
from gpuwatchd.analysis.cost import totals
from gpuwatchd.core.codes import ActResult, ReapResult
from gpuwatchd.store import curves, occupancy, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.analysis.cost import Act, UsageProvider
    from gpuwatchd.core.model import Alert, Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import Action, Checkpoint

_STEPS: Final = {
    "reap": "reap",
    "act-end": "end",
    "act-restart": "restart",
    "act-requeue": "requeue",
}
"""Verb -> the step. What only asks to save frees nothing."""
_DONE: Final = frozenset(
    {ReapResult.ENDED, ActResult.ENDED, ActResult.RESTARTED, ActResult.REQUEUED}
)
LEAK: Final = "leak"
"""What a step is taken for that is not idle memory."""
_LONGEST_S: Final = 3 * 3600.0
"""From what is asked for to what came of it: three signals of an hour each."""
_RECENT_S: Final = 600.0
"""What was seen of a process so long before an act is how it was then."""


class ActContext(NamedTuple):
    """What is known beside the rows of what was done."""

    history: Reader
    ask: UsageProvider
    devices: dict[str, Device]
    infos: dict[ProcessKey, ProcessInfo]
    checkpoints: Sequence[Checkpoint]
    of_idle: Sequence[tuple[Alert, Sequence[tuple[str, ProcessKey | None]]]]
    """Alerts on idle memory, and whom each is about."""
    wanted: Callable[[str], bool]
    """Whether a device counts, by its UUID."""


class _Step(NamedTuple):
    """A step that was done: when it was asked for, and when it was over."""

    asked: Action
    done: Action


def acts_of(context: ActContext, since_s: float, until_s: float) -> list[Act]:
    """Return what was ended, restarted or requeued in a period, oldest first."""
    rows = context.history.actions(since_s - _LONGEST_S, until_s)
    steps = [step for step in _done(rows) if since_s <= step.asked.at_s <= until_s]
    taken: set[ProcessKey] = set()
    counted = [_Counted(context, step, until_s).act(taken) for step in reversed(steps)]
    # Of a device that is not asked for nothing is shown.
    return [act for act in reversed(counted) if act is not None]


def _done(rows: Sequence[Action]) -> Iterator[_Step]:
    """Yield each step that was done; a process is ended once."""
    asked: dict[tuple[str, ProcessKey | None], Action] = {}
    ended: set[ProcessKey | None] = set()
    for row in rows:
        at = (row.verb, row.process)
        if row.verb not in _STEPS or row.dry_run:
            continue
        if row.phase == "asked":
            asked[at] = row
        elif row.phase == "done" and row.code in _DONE:
            first = asked.pop(at, row) if row.process is not None else row
            if row.process is None or row.process not in ended:
                yield _Step(first if first.at_s <= row.at_s else row, row)
            ended.add(row.process)


class _Counted:
    """One step with the process that it was taken on."""

    def __init__(self, context: ActContext, step: _Step, until_s: float) -> None:
        self._context = context
        self._step = step
        self._until_s = until_s
        self._at_s = step.asked.at_s
        self._since: dict[tuple[str, ProcessKey], float | None] = {}

    def act(self, taken: set[ProcessKey]) -> Act | None:
        """Return what it was worth; None where none of its devices counts.

        ``taken`` are runs that later acts were followed by: each follows one.
        """
        context, key = self._context, self._step.done.process
        info = None if key is None else context.infos.get(key)
        parts = [] if key is None else self._parts(key)
        every = [] if key is None else self._devices(key)
        uids = [uid for uid in every if context.wanted(uid)]
        if not uids and (every or not context.wanted("")):
            return None
        freed = totals.freed(parts, self._at_s, self._until_s)
        group = [] if key is None else self._ended_with(key, info)
        saved_at_s = tables.last_saved_s(context.checkpoints, group, self._at_s)
        losses = [self._lost(one, saved_at_s) for one in group]
        step = _STEPS[self._step.done.verb]
        went_on = None
        if step in totals.AGAIN:
            went_on, run = self._went_on(info, saved_at_s, {*group, *taken})
            taken |= {run} if run is not None else set()
        title = "a process" if key is None else f"pid {key.pid}"
        return cost.Act(
            at_s=self._at_s,
            step=step,
            who=self._step.done.who,
            kind=self._step.asked.code if self._step.asked.phase == "asked" else "",
            process=key,
            title=title if info is None else info.attribution,
            user="" if info is None else info.user or "",
            job="" if info is None else info.place or "",
            device_uids=tuple(uids),
            freed_bytes=freed.held_bytes,
            freed_gpu_hours=freed.gpu_hours,
            freed_usd=freed.usd,
            lost_gpu_hours=cost.total(it.gpu_hours for it in losses) if losses else None,
            lost_usd=cost.total(it.usd for it in losses) if losses else None,
            went_on=went_on,
        )

    def _devices(self, key: ProcessKey) -> tuple[str, ...]:
        return self._context.history.ask(tables.name_and_devices, key)[1]

    def _parts(self, key: ProcessKey) -> list[totals.Held]:
        context, at_s = self._context, self._at_s
        parts = []
        for uid, held in context.history.ask(occupancy.levels, key, at_s, _RECENT_S).items():
            if context.wanted(uid):
                device, since_s = context.devices.get(uid), self._idle_since(uid, key)
                total = None if device is None else device.memory_total_bytes
                idle_s = None if since_s is None else max(0.0, at_s - since_s)
                price = context.ask.price(uid, at_s - (idle_s or 0.0), at_s)
                parts.append(totals.Held(uid, held, total, idle_s, price))
        return parts

    def _idle_since(self, uid: str, key: ProcessKey) -> float | None:
        """Return since when a process was idle on a device; None where nobody knows."""
        if (uid, key) not in self._since:
            self._since[uid, key] = self._read_idle_since(uid, key)
        return self._since[uid, key]

    def _read_idle_since(self, uid: str, key: ProcessKey) -> float | None:
        at_s = self._at_s
        if self._step.asked.code == LEAK:
            return at_s
        begun_s = max(key.started_at_s or 0.0, at_s - curves.MINUTE_SPAN_S)
        for alert, whose in self._context.of_idle:
            since_s = alert.finding.onset_at_s
            since_s = alert.opened_at_s if since_s is None else since_s
            over_s = at_s if alert.resolved_at_s is None else alert.resolved_at_s
            if since_s <= at_s <= over_s + _RECENT_S and (uid, key) in whose:
                return max(since_s, key.started_at_s or since_s)
        rows = self._context.history.device_rows(uid, begun_s, at_s, 60.0)
        since_s = totals.idle_since(((row.at_s, row.width_s, row.util_pct) for row in rows), at_s)
        return None if since_s is None else max(since_s, begun_s)

    def _ended_with(self, key: ProcessKey, info: ProcessInfo | None) -> list[ProcessKey]:
        """Return the processes that a step has ended: where a manager did it, those of the job."""
        group, done = [key], self._step.done
        if info is None or info.job is None or done.verb == "reap":
            return group
        for other, of in self._context.infos.items():
            if other != key and (of.job, of.user) == (info.job, info.user):
                span = self._context.history.ask(curves.lived, other)
                if (
                    span is not None
                    and span[0] <= self._at_s
                    and self._at_s - _RECENT_S <= span[1] <= done.at_s + _RECENT_S
                ):
                    group.append(other)
        return group

    def _lost(self, key: ProcessKey, saved_at_s: float | None) -> totals.Lost:
        uids = [uid for uid in self._devices(key) if self._context.wanted(uid)]
        idle = [self._idle_since(uid, key) for uid in uids]
        known = [at_s for at_s in idle if at_s is not None]
        started_at_s = key.started_at_s
        return totals.lost(
            [(uid, key) for uid in uids],
            self._context.ask,
            # A start after the act is of a damaged row.
            started_at_s=None if (started_at_s or 0.0) > self._at_s else started_at_s,
            saved_at_s=saved_at_s,
            until_s=max(known) if known and len(known) == len(idle) else self._at_s,
        )

    def _went_on(
        self, info: ProcessInfo | None, saved_at_s: float | None, others: set[ProcessKey]
    ) -> tuple[bool | None, ProcessKey | None]:
        history = self._context.history
        runs = []
        for key, of in self._context.infos.items() if info is not None else ():
            begun_s = key.started_at_s or 0.0
            soon = 0.0 <= begun_s - self._at_s <= totals.NEXT_S
            if soon and key not in others and _same(info, of):
                span = history.ask(curves.lived, key)
                if span is not None:
                    runs.append(totals.Run(key, begun_s, span[1]))
        seen_until_s = history.ask(
            lambda it: it.execute("SELECT max(last_ts_ms) / 1000.0 FROM gpu").fetchone()[0]
        )
        return totals.went_on(self._at_s, saved_at_s, runs, seen_until_s=seen_until_s or 0.0)


def _same(info: ProcessInfo | None, other: ProcessInfo) -> bool:
    """Say whether two processes are runs of the same job, outside of jobs of the same program."""
    if info is None or info.user != other.user:
        return False
    if info.job is not None:
        return info.job == other.job
    return info.program is not None and info.program == other.program and other.job is None
