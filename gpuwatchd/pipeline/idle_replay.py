"""``backtest --act`` of idle memory: which steps the rule that acts would have taken in a history.

Looked at minute by minute by the daemon's own rules: what idle memory is, the countdown, the
budgets. Assumed is what no record tells: everything had opted in, the rule was old enough, notices
arrived. What only the step itself checks (units, ranks, parts of the system) is not known either.

A process is known to do nothing where its GPU did nothing, where its own share of the GPU is kept
and was 0, or where an alert on idle memory of it was open. All else is unknown, and not judged.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.act.reap import FREED
from gpuwatchd.alerts import ladder
from gpuwatchd.analysis.frameworks import GRAPHICS
from gpuwatchd.analysis.idle import (
    DAEMONS,
    DeviceSnapshot,
    Limits,
    PersistenceCheck,
    ProcessMemory,
    activity,
    activity_context,
)
from gpuwatchd.analysis.idle.signs import FLAT_BYTES
from gpuwatchd.core.codes import ActHold, Ending
from gpuwatchd.core.model import Alert, Finding, ProcessInfo, Subject, Value
from gpuwatchd.core.model.alerts import process_title
from gpuwatchd.pipeline import act_ladder, act_replay, history_log, idle_memory
from gpuwatchd.pipeline import track_evaluation as evaluation
from gpuwatchd.pipeline.condition_alerts import HOLD_S
from gpuwatchd.pipeline.state import rules_of
from gpuwatchd.store import occupancy, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView, Sequence

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import ActStep, Device, ProcessKey
    from gpuwatchd.pipeline.act_replay import Circumstances
    from gpuwatchd.store.reader import Reader

MINUTE_S: Final = 60.0
GONE_MINUTES: Final = 3
"""A process that was not listed in so many minutes in a row has ended."""
BY_STEP_S: Final = 180.0
"""One that was asked to end so short a time before did not end by itself."""
_LONGEST_HOLD_S: Final = 7 * 86_400.0
"""Until when a hold was in force is not kept of one that is over."""

Does = Literal["busy", "still"] | None
Outcome = Literal["ended", "worked", "acted", "unknown", "running"]
_Use = tuple["ProcessKey", int | None, float | None]
"""Who held how much, and its own share of the work."""
_Minute = dict[str, tuple[float | None, list[_Use]]]
"""Device -> how busy it was, and who was there."""


class IdleCase(Value, frozen=True, kw_only=True):
    """One step on idle memory that would have been taken, or what held it back."""

    title: str
    subject: Subject
    held_bytes: int | None
    idle_since_at_s: float
    by_alert: bool
    """It is known to have been idle by an alert of then."""
    step: ActStep | None = None
    at_s: float | None = None
    """When its minute came; None where nothing was counted down to its end."""
    hold: ActHold | None = None
    outcome: Outcome = "running"
    """What the process did then: ended without having worked again; worked again; was ended, by
    gpuwatchd; not known; was idle to the end of the record."""
    until_at_s: float | None = None
    """When it ended, or worked again."""
    word: Literal["normal", "leak"] | None = None
    """The user's, of an alert on it."""

    @property
    def right(self) -> bool | None:
        """Whether nobody missed it: the user's word, else what it did; None: not known."""
        if self.word is not None:
            return self.word == "leak"
        return {"ended": True, "worked": False}.get(self.outcome)

    @property
    def freed_s(self) -> float | None:
        """For how long its memory would have been free until it ended; None where it did not."""
        if self.at_s is None or self.until_at_s is None or self.outcome != "ended":
            return None
        return self.until_at_s - self.at_s


class IdleTally(Value, frozen=True, kw_only=True):
    """What all steps came to."""

    hold: ActHold | None = None
    """Why nothing would be done, whatever is recorded."""
    taken: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    processes: int = 0
    """That held enough memory for long enough to be listed."""
    not_judged: int = 0
    """Of these, those for which it is not known for as long as they would have to be idle whether
    they worked, and that were never listed."""
    cases: tuple[IdleCase, ...] = ()


class _Run(msgspec.Struct, kw_only=True):
    """One process, as far as the replay has come."""

    info: ProcessInfo
    seen_s: float
    uids: set[str] = set()
    """Devices on which it was seen with memory."""
    held_minutes: int = 0
    unknown_minutes: int = 0
    used_bytes: int = 0
    countdown: ladder.Countdown | None = None
    resting_until_s: float = 0.0
    taken: list[ActStep] = []
    is_judged: bool = False
    case: IdleCase | None = None
    """Of the present time of idleness, without a step."""
    step: IdleCase | None = None
    """The step that was taken, while it is not known what came of it."""
    step_bytes: int = 0
    is_doubtful: bool = False
    """Since then it may have worked without a trace."""


def play(
    history: Reader,
    devices: Sequence[Device],
    span: tuple[float, float],
    config: Config,
    owner: str | None,
    *,
    of: frozenset[str],
    passed: Callable[[float], None] = lambda _: None,
) -> IdleTally:
    """Return what would have been done to idle memory of a host's devices.

    Parameters
    ----------
    devices
        All of the host: what is idle on one may work on another.
    owner
        The user whose daemon it is; None is root.
    of
        Devices whose processes are told of.
    """
    if (hold := act_replay.nothing_to_do(config, config.act.idle_steps)) is not None:
        return IdleTally(hold=hold)
    replay = _Replay(history, devices, span[0], config, owner, of=of)
    for at_s, minute in _minutes(history, [device.uid for device in devices], span, passed):
        replay.step(at_s, minute)
    return replay.tally()


def _minutes(
    history: Reader, uids: Sequence[str], span: tuple[float, float], passed: Callable[[float], None]
) -> Iterator[tuple[float, _Minute]]:
    """Yield the minutes that anything is recorded of, each with its end: then it is known."""
    oldest = [at_s for uid in uids if (at_s := history.oldest_s(uid)) is not None]
    since_s = max(span[0], min(oldest, default=span[1])) // MINUTE_S * MINUTE_S
    for first_s, last_s in history_log.spans(since_s, span[1]):
        rows: dict[float, _Minute] = defaultdict(dict)
        for uid in uids:
            device, own = history.ask(occupancy.use, uid, first_s, last_s)
            for at_s, pct in device.items():
                rows[at_s][uid] = pct, []
            for bucket in history.occupancy(uid, first_s, last_s):
                _, uses = rows[bucket.at_s].setdefault(uid, (None, []))
                held = bucket.held_bytes
                # What is below zero, or above 8 TiB, is a damaged row.
                is_sound = held is not None and 0 <= held <= 1 << 43
                key: ProcessKey = bucket.who  # type: ignore[assignment]
                used = int(held) if held is not None and is_sound else None
                uses.append((key, used, own.get((bucket.at_s, key))))
        for at_s in sorted(rows):
            yield at_s + MINUTE_S, rows[at_s]
        passed((last_s - since_s) / (span[1] - since_s))


class _Recorded:
    """What the history tells beside its minutes."""

    def __init__(self, history: Reader, since_s: float) -> None:
        self.beside: Circumstances = act_replay.circumstances(history, since_s)
        self.infos = {info.key: info for info in history.processes(since_s)}
        self.alerts: dict[int, list[Alert]] = defaultdict(list)
        for alert in history.alerts(since_s):
            if alert.kind == "held" and alert.subject.process is not None:
                self.alerts[alert.subject.process.pid].append(alert)
        actions = [it for it in history.actions(since_s, 2.0**40) if not it.dry_run]
        self.ends = [
            it
            for it in actions
            if it.phase == "asked" and (it.verb == "reap" or it.verb.startswith(tables.ACT))
        ]
        done = [it for it in actions if it.phase == "done"]
        self.holds = [it for it in done if it.verb in {"hold", "clear-hold"}]
        self.holds_s = history.holds(float("-inf"))


class _Replay:
    """A host, minute by minute."""

    def __init__(
        self, history: Reader, devices: Sequence[Device], since_s: float, config: Config,
        owner: str | None, *, of: frozenset[str],
    ) -> None:  # fmt: skip
        self._config, self._owner, self._of = config, owner, of
        self._rules = rules_of(config)
        self._devices = {device.uid: device for device in devices}
        self._recorded = _Recorded(history, since_s)
        section = config.zombies
        self._limits = Limits(
            minimum_bytes=section.minimum_mib * 2**20,
            idle_after_s=float(section.idle_after),
            gap_s=max(idle_memory.GAP_S, 3.0 * float(config.daemon.interval)),
        )
        self._check = PersistenceCheck()
        self._runs: dict[ProcessKey, _Run] = {}
        self._here: KeysView[ProcessKey] = self._runs.keys()
        """Who was seen in the last minute."""
        self._gaps_s: list[float] = []
        """After which minutes nobody looked for a while."""
        self._cases: list[IdleCase] = []
        self._steps: list[tuple[float, ProcessKey]] = []
        self._last_s = 0.0

    def step(self, now_s: float, minute: _Minute) -> None:
        """Take in one minute, at its end."""
        is_gap = now_s - self._last_s > act_ladder.GAP_S + MINUTE_S
        if is_gap:
            self._gaps_s.append(self._last_s)
        is_cut = is_gap or self._recorded.beside.is_cut(self._last_s, now_s)
        boards = [self._board(uid, *row) for uid, row in minute.items()]
        listed: dict[ProcessKey, dict[str, float]] = defaultdict(dict)
        for holding in self._check.update(boards, (), now_s, self._limits):
            since_s = holding.since_s
            if holding.process is not None and holding.kind in FREED and since_s is not None:
                listed[holding.process.key][holding.device_uid] = since_s
        seen = self._seen(boards)
        for key in self._here - seen.keys():
            self._close(self._runs[key], now_s)
        for key in seen.keys() - self._runs.keys():
            self._runs[key] = _Run(info=self._info(key), seen_s=now_s)
        self._here = seen.keys()
        for key, (known, used) in seen.items():
            run = self._runs[key]
            alert = self._alert(key, now_s) if known is None else None
            on = listed.get(key, {})
            if alert is not None:
                on = dict.fromkeys(used, alert.opened_at_s)
            does = known if alert is None else "still"
            run.uids.update(used)
            self._note(run, now_s, does, sum(used.values()))
            # What it holds on another device may be in use there.
            is_listed = does == "still" and bool(on) and on.keys() >= used.keys()
            if is_cut:
                self._pause(run, now_s)
            if is_listed and now_s - min(on.values()) >= HOLD_S:
                uid = min(on, key=lambda it: it not in self._of)  # of several one that is told of
                self._move(run, now_s, min(on.values()), uid, by_alert=alert is not None)
            else:
                self._close(run, now_s)
        self._last_s = now_s

    def tally(self) -> IdleTally:
        """Return what all on the devices that are told of came to."""
        runs = [run for run in self._runs.values() if run.uids & self._of]
        for run in self._runs.values():
            self._close(run, self._last_s)
            self._settle(run, self._ending_of(run), run.seen_s)
        least = self._limits.idle_after_s / MINUTE_S
        long = [run for run in runs if run.held_minutes >= least]
        cases = [it for it in self._cases if it.subject.device_uid in self._of]
        cases.sort(key=lambda it: it.at_s or it.idle_since_at_s)
        taken = [it for it in cases if it.hold is None and it.at_s is not None]
        return IdleTally(
            taken=len(taken),
            right=sum(it.right is True for it in taken),
            wrong=sum(it.right is False for it in taken),
            unknown=sum(it.right is None for it in taken),
            processes=len(long),
            not_judged=sum(not it.is_judged and it.unknown_minutes >= least for it in long),
            cases=tuple(cases),
        )

    # What one minute tells.

    def _board(self, uid: str, util_pct: float | None, uses: list[_Use]) -> DeviceSnapshot:
        held = []
        for key, used, own_pct in uses:
            info = self._info(key)
            exempt = info.framework in GRAPHICS or info.name in DAEMONS
            held.append(
                ProcessMemory(
                    info=info, used_bytes=used, busy_pct=own_pct, exists=True, exempt=exempt
                )
            )
        return DeviceSnapshot(uid=uid, util_pct=util_pct, uses=tuple(held))

    def _info(self, key: ProcessKey) -> ProcessInfo:
        return self._recorded.infos.setdefault(key, ProcessInfo(key=key, name="?"))

    def _seen(
        self, boards: Sequence[DeviceSnapshot]
    ) -> dict[ProcessKey, tuple[Does, dict[str, int]]]:
        """Return who was seen: what it did, and on which devices it held how much."""
        seen: dict[ProcessKey, tuple[Does, dict[str, int]]] = {}
        for board in boards:
            around = activity_context(board)
            for held in board.uses or ():
                does: Does = "still"
                if (found := activity(board, held, around)) != "still":
                    does = "busy" if found is not None else None
                before, used = seen.get(held.info.key, ("still", {}))
                if held.used_bytes:
                    used[board.uid] = held.used_bytes
                worst = next(it for it in ("busy", None, "still") if it in {does, before})
                seen[held.info.key] = worst, used
        return seen

    def _alert(self, key: ProcessKey, now_s: float) -> Alert | None:
        """Return the alert on idle memory that was open on a process."""
        return next((it for it in self._alerts_on(key) if _is_open(it, now_s)), None)

    def _alerts_on(self, key: ProcessKey) -> list[Alert]:
        found = self._recorded.alerts.get(key.pid, ())
        return [it for it in found if it.subject.process and _same(it.subject.process, key)]

    def _note(self, run: _Run, now_s: float, does: Does, used_bytes: int) -> None:
        """Take in what a process did, and whether a step on it was right."""
        run.is_doubtful |= now_s - run.seen_s > act_ladder.GAP_S + MINUTE_S
        run.seen_s, run.used_bytes = now_s, used_bytes
        if used_bytes >= self._limits.minimum_bytes:
            run.held_minutes += 1
            run.unknown_minutes += does is None
        if run.step is None or run.step.at_s is None or now_s <= run.step.at_s:
            return
        told = any(
            it.ended_code is Ending.AT_WORK and run.step.at_s < (it.resolved_at_s or 0.0) <= now_s
            for it in self._alerts_on(run.info.key)
        )
        if told or does == "busy" or used_bytes - run.step_bytes > FLAT_BYTES:
            self._settle(run, "worked", now_s)
        run.is_doubtful |= does is None

    # The countdown of one process.

    def _move(self, run: _Run, now_s: float, since_s: float, uid: str, *, by_alert: bool) -> None:
        """Move on with what is listed as idle memory."""
        run.is_judged = True
        if run.step is not None or act_replay.is_last(run.taken):
            return
        key, act = run.info.key, self._config.act
        subject = Subject(device_uid=uid, process=key)
        title = str(process_title(self._devices[uid], run.info))
        case = run.case or IdleCase(
            title=title, subject=subject,
            held_bytes=run.used_bytes,
            idle_since_at_s=since_s, by_alert=by_alert, outcome="unknown",
        )  # fmt: skip
        step = ladder.next_step(act.idle_steps, len(run.taken))
        hold = self._hold(subject, run, now_s, step)
        run.case = msgspec.structs.replace(case, step=step, hold=hold or ActHold.NOTICES)
        if hold is not None or step is None:
            self._pause(run, now_s)
            return
        if now_s < run.resting_until_s:
            return
        if run.countdown is None:
            run.countdown = ladder.Countdown(
                step=step, wanted=act.notices, gap_s=float(act.notice_gap)
            )
        move = run.countdown.move(now_s)
        if move == "notify":
            act_replay.notify(run.countdown, now_s)
        elif move == "act":
            self._take(run, run.case, step, now_s)

    def _take(self, run: _Run, case: IdleCase, step: ActStep, now_s: float) -> None:
        run.countdown, run.case = None, None
        run.taken.append(step)
        self._steps.append((now_s, run.info.key))
        words = [
            label.word
            for label in self._recorded.beside.labels
            if act_replay.is_same(label.subject, case.subject) and label.given_at_s > now_s
        ]
        run.step = msgspec.structs.replace(
            case, at_s=now_s, hold=None, word=words[-1] if words else None
        )
        run.step_bytes, run.is_doubtful = run.used_bytes, False
        if not act_replay.is_last(run.taken):
            # It would have gone on, and a later step may be for it.
            self._settle(run, "unknown", None)

    def _hold(
        self, subject: Subject, run: _Run, now_s: float, step: ActStep | None
    ) -> ActHold | None:
        info, act = run.info, self._config.act
        alert = _alert_for(subject, info, self._devices[subject.device_uid], now_s)
        together = [
            other
            for other in map(self._runs.__getitem__, self._here)
            if other is not run and info.job is not None and other.info.job == info.job
        ]
        target = ladder.Target(
            mode=policy.rules_for(alert, self._rules).act or "auto",
            opted_in=True,
            rule_age_s=ladder.NEW_RULE_S,
            is_machine=self._owner is None,
            is_own=info.user in {None, self._owner},
            has_runner=bool(act.runner),
            is_managed=info.container is not None,
            is_one=all(other.case is not None for other in together),
        )
        moment = self._recorded.beside.moment(
            alert, now_s, sample_age_s=0.0, interval_s=MINUTE_S,
            is_held=self._is_held(info.key, now_s),
        )  # fmt: skip
        every = [run.info.key, *(other.info.key for other in together)]
        mine = [at_s for at_s, key in self._steps if key in every]
        # Nobody is told of a step for which another one's countdown leaves no budget.
        soon = [now_s for key in self._here if self._runs[key].countdown and key not in every]
        host = [*soon, *(at_s for at_s, _ in self._steps)]
        return (
            ladder.target_hold(target)
            or (ActHold.NO_STEP if step is None else None)
            or ladder.moment_hold(moment)
            or ladder.budget_hold(mine, host, now_s)
        )

    def _is_held(self, key: ProcessKey, now_s: float) -> bool:
        """Say whether a hold was in force."""
        rows = [
            it
            for it in self._recorded.holds
            if it.at_s <= now_s and it.process and _same(it.process, key)
        ]
        if not rows or rows[-1].verb == "clear-hold":
            return False
        until_s = (
            tables.held_until_s(self._recorded.holds_s, key) or rows[-1].at_s + _LONGEST_HOLD_S
        )
        return now_s < until_s

    def _pause(self, run: _Run, now_s: float) -> None:
        if run.countdown is not None:
            run.countdown = None
            run.resting_until_s = now_s + float(self._config.act.notice_gap)

    # The end of a time of idleness, and of a process.

    def _close(self, run: _Run, now_s: float) -> None:
        self._pause(run, now_s)
        if run.case is not None:
            self._cases.append(run.case)
            run.case = None

    def _ending_of(self, run: _Run) -> Outcome:
        """Return what became of a process that is not known to have worked again."""
        key, seen_s = run.info.key, run.seen_s
        if self._last_s - seen_s < GONE_MINUTES * MINUTE_S:
            return "running"
        acted = any(
            it.process and _same(it.process, key) and abs(it.at_s - seen_s) < BY_STEP_S
            for it in self._recorded.ends
        )
        if acted:
            return "acted"
        # Whoever does not look does not know what was done meanwhile.
        ends_s = seen_s + GONE_MINUTES * MINUTE_S
        is_unwatched = any(seen_s <= at_s < ends_s for at_s in self._gaps_s)
        return "unknown" if run.is_doubtful or is_unwatched else "ended"

    def _settle(self, run: _Run, outcome: Outcome, at_s: float | None) -> None:
        if run.step is not None:
            self._cases.append(msgspec.structs.replace(run.step, outcome=outcome, until_at_s=at_s))
            run.step = None


def _same(one: ProcessKey, other: ProcessKey) -> bool:
    return tables.same_process(one, other)


def _is_open(alert: Alert, now_s: float) -> bool:
    began_s = alert.firing_at_s or alert.opened_at_s
    return began_s <= now_s and (alert.resolved_at_s is None or now_s <= alert.resolved_at_s)


def _alert_for(subject: Subject, info: ProcessInfo, device: Device, now_s: float) -> Alert:
    """Return the alert that there would have been, for the rules of people."""
    finding = Finding(
        id="", subject=subject, judged_at_s=now_s, pattern="unknown", tier="alert",
        severity="warning", confidence=1.0, rate_bytes_per_s=None, eta=None,
    )  # fmt: skip
    return Alert(
        key=f"held:{subject.id}", kind="held", subject=subject, state="firing",
        severity="warning", finding=finding, opened_at_s=now_s, changed_at_s=now_s,
        about=evaluation.subject_facts(device, info, finding.subject, finding.framework),
    )  # fmt: skip
