"""A recorded log through :meth:`.tick.Pipeline.tick`, at the log's own clock.

The tick, :class:`.State`, :class:`.Evaluator` and policy are the daemon's. A log is its own source
(:meth:`_Log.read` goes to the next instant at which there is something new to judge) and its own
intake. It has no chores, conditions, history and live state, and its notices are noted
(:meth:`_Log.note`). What differs beside that:

- Windows are slices of arrays instead of rings: a log is known at once, and only moves on. No
  detector sees what had not been recorded by then.
- What is free, and the record of days, is worked out for those alone who are judged now.
- All who are due are judged at once: nobody waits for the end of an instant.
- Who caused an alert is not looked for: the processes of a log are results beside the device.
- A process goes once the last of it was judged; live, once two lists do not name it.
- A fault ends the analysis, and its caller says so: see :class:`.recorded_runs.LogEvaluator`.
"""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from gpuwatchd.alerts import FAST_S
from gpuwatchd.analysis import numerics, verdict
from gpuwatchd.analysis.declared import Declared, of_shown_argv
from gpuwatchd.collect.logs.formats import corpus
from gpuwatchd.core.codes import Ending, Reason
from gpuwatchd.core.model.alerts import UNOWNED, device_title, process_title
from gpuwatchd.pipeline import recorded_ledger, track_evaluation
from gpuwatchd.pipeline.clock import Clocks
from gpuwatchd.pipeline.device_rings import Activity
from gpuwatchd.pipeline.history_log import HISTORY
from gpuwatchd.pipeline.live_state import worst
from gpuwatchd.pipeline.recorded_runs import LogEvaluator
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.tick import Pipeline, SourceTick, Stages
from gpuwatchd.pipeline.track import DAYS_BACK_S, Headroom, Track, TrackedDevice
from gpuwatchd.pipeline.track_evaluation import judge_days
from gpuwatchd.store.ring import thin

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import (
        Alert,
        Decision,
        Device,
        Finding,
        FloatArray,
        ProcessInfo,
        ProcessKey,
        Subject,
    )
    from gpuwatchd.pipeline.recorded_ledger import RecordedLedger
    from gpuwatchd.pipeline.track_evaluation import Evaluator

_RECORDED_BY_US = frozenset({HISTORY, corpus.NAME})
"""These formats say where a window ends, and every process of theirs is one of its own."""
_ENDED_AFTER_INTERVALS = 10
_TELL_EVERY = 64
_SOURCE = "log"
_MOVED = frozenset({Ending.HOLDER_KNOWN, Ending.HOLDER_UNKNOWN, Ending.OTHER_RANK})
"""How an alert ends that goes on with another subject."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one alert: what the daemon would have raised, and when."""

    at_s: float
    state: str
    """opened, firing, escalated or resolved."""
    alert: Alert
    code: Ending | None = None
    """Why it is over, or why that of another subject is which it replaces: both are one alert."""


class SubjectResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the replay says of one subject."""

    subject: Subject
    device: Device
    process: ProcessInfo | None
    samples: int
    started_at_s: float
    ended_at_s: float
    finding: Finding | None
    """The judgement at its end, with the tier that had been opened by then."""
    watches: tuple[Event, ...]
    alerts: tuple[Event, ...]

    @property
    def code(self) -> Reason | None:
        """``Reason.RANK`` of one for which the alert of an alike process stands; else None."""
        rank = self.finding is not None and self.finding.code is Reason.RANK
        return Reason.RANK if rank else None

    @property
    def alert_count(self) -> int:
        """How often notices of it would have begun; not what another's alert stands for."""
        return sum(event.state == "firing" and event.code is None for event in self.alerts)


class Recorded:
    """The part of a recorded series that is known at an instant."""

    def __init__(
        self, t_s: FloatArray, values: FloatArray, breaks: tuple[int, ...], span_s: float
    ) -> None:
        edges = [0, *(b for b in breaks if 0 < b < t_s.size), int(t_s.size)]
        parts = [thin(t_s[a:b], values[a:b]) for a, b in itertools.pairwise(edges)]
        self.t_s = np.concatenate([part[0] for part in parts])
        self._values = np.concatenate([part[1] for part in parts])
        self._starts = np.cumsum([0, *(part[0].size for part in parts)])[:-1]
        self._span_s = span_s
        self._moves = np.cumsum(np.diff(self._values, prepend=self._values[:1]) != 0)
        self._hours = verdict.hours_of(self.t_s, self._values)
        self.count = 0
        """How many points are known by now."""
        self.judged = 0
        """How many were known at the last judgement."""

    @property
    def moves(self) -> int:
        """How often the value has changed by now."""
        return int(self._moves[self.count - 1]) if self.count else 0

    @property
    def last(self) -> tuple[float, float] | None:
        """The newest known point."""
        if self.count == 0:
            return None
        return float(self.t_s[self.count - 1]), float(self._values[self.count - 1])

    def hours(self) -> FloatArray:
        """Return what was held in each of the last hours that are known to their end."""
        newest_s = float(self.t_s[self.count - 1])
        span_s = (newest_s - DAYS_BACK_S, newest_s + 1e-6)
        first, last = self._hours[:, 0].searchsorted(span_s).tolist()
        return self._hours[first:last]

    def window(self) -> tuple[FloatArray, FloatArray]:
        """Return times and values of the present segment, as far back as the look-back goes."""
        end = self.count
        start = int(self._starts[np.searchsorted(self._starts, end - 1, side="right") - 1])
        oldest = int(np.searchsorted(self.t_s[:end], self.t_s[end - 1] - self._span_s))
        start = max(start, oldest)
        return self.t_s[start:end], self._values[start:end]


class _LogTrack(msgspec.Struct, kw_only=True, eq=False):
    """One subject of a log, and what has been raised of it."""

    track: Track
    recorded: Recorded
    """The window of the track."""
    series: LogSeries
    begins: int
    """Position of the first instant at which something of it is known."""
    known: memoryview
    """How many points are known at that instant and at those after it, until all are."""
    end_s: float
    """When a process has gone."""
    judged: bool
    """Else it is there for the memory alone that it leaves free."""
    member: ProcessInfo | None = None
    """Who a process is, with the job that it belongs to."""
    ledger: RecordedLedger | None = None
    """Of the device itself and of what nobody owns: what the process list says."""
    noted: Alert | None = None
    """Its alert as it was noted last."""
    ended: bool = False
    final: Finding | None = None
    watches: list[Event] = []
    alerts: list[Event] = []

    @property
    def uid(self) -> str:
        """UUID of its device."""
        return self.track.subject.device_uid

    @property
    def process(self) -> ProcessKey | None:
        """Which process it is."""
        return self.track.subject.process

    @property
    def whole(self) -> bool:
        """Whether it is a device itself."""
        return self.process is None and not self.track.subject.unattributed

    def close(self) -> None:
        """Have nothing more judged of it: its process has ended."""
        self.ended, self.final = True, self.track.shown()

    def change(self, alert: Alert) -> Alert | None:
        """Keep how its alert stands now; return how it stood before."""
        before, self.noted = self.noted, None if alert.state == "resolved" else alert
        return before


class _Log:
    """A log, instant by instant: what a tick reads and takes in, and what is noted of it."""

    def __init__(self, evaluator: Evaluator, every: list[_LogTrack], instants: FloatArray) -> None:
        self._position = 0
        """Of the instant among all."""
        self._begun: dict[str, _LogTrack] = {}
        """By subject id."""
        state = evaluator.state
        self._evaluator, self._every, self._instants = evaluator, every, instants
        self._moments = enumerate(instants.tolist())
        self._places = {one.track: place for place, one in enumerate(every)}
        self._begins: dict[int, list[_LogTrack]] = {}
        self._stops: dict[int, list[_LogTrack]] = {}
        """Position of an instant -> those that begin, or of which all is known."""
        self._moving: list[_LogTrack] = []
        self._leaving: list[_LogTrack] = []
        """Processes of which all is known, until they are gone."""
        self._listed: list[tuple[TrackedDevice, memoryview]] = []
        """Devices with a process list, and when it was last known at each instant."""
        self._free: dict[str, FloatArray] = {}
        """Bytes at each instant, where a device has a series of its own."""
        for place, one in enumerate(every):
            self._begins.setdefault(one.begins, []).append(one)
            self._stops.setdefault(one.begins + len(one.known) - 1, []).append(one)
            track, total = one.track, one.track.headroom.total_bytes
            if one.whole and total is not None:
                at = one.series.t_s.searchsorted(instants, side="right") - 1
                used = np.where(at >= 0, one.series.used_bytes[np.maximum(at, 0)], 0.0)
                self._free[one.uid] = np.maximum(total - used, 0.0)
            if not one.judged or track.subject.unattributed:
                continue
            device = TrackedDevice(
                device=track.device, reading=None, headroom=track.headroom, source=_SOURCE
            )
            if one.whole and one.ledger is None:
                # By a name of its own: runs of it may overlap, and none takes over from another.
                state.devices[f"{one.uid} {place}"] = device
                device.own_tracks.append(track)
            elif one.whole or one.uid not in state.devices:
                state.devices[one.uid] = device

    def read(self) -> tuple[SourceTick]:
        """Go to the next instant."""
        self._position, now_s = next(self._moments)
        return (SourceTick(_SOURCE, now_s),)

    def take(self, source: SourceTick) -> list[Alert]:
        """Take in what is known by now; return the alerts that ended: their subject has gone."""
        position, now_s = self._position, source.now_s
        beginning = self._begins.get(position, [])
        self._moving += beginning
        self._begun.update({one.track.subject.id: one for one in beginning if one.judged})
        for one in reversed(beginning):
            if one.judged:
                self._begin(one)
        for one in self._moving:
            one.recorded.count = one.known[position - one.begins]
        for one in self._stops.get(position, ()):
            self._moving.remove(one)
            if one.judged and one.process is not None:
                self._leaving.append(one)
        changed: list[Alert] = []
        for device, attributed_s in self._listed:
            device.headroom.attributed_at_s = attributed_s[position]
            changed += track_evaluation.drop_whole(self._evaluator.state, device, now_s)
        for one in [*self._leaving]:
            if now_s > one.end_s and one.recorded.judged == one.recorded.count:
                changed += self._end(one, now_s)
        return changed

    def due(self, label: str, now_s: float) -> list[Track]:
        """Return those who are due and of whom something new is known, ready to be judged."""
        due = self._evaluator.due_of(label, now_s)
        if not due:
            return []
        # In the order of the log: ranks that are judged in one instant look at each other.
        ready = [self._every[place] for place in sorted([self._places[track] for track in due])]
        ready = [one for one in ready if one.recorded.judged != one.recorded.count]
        free = {uid: self._free_bytes(uid) for uid in {one.uid for one in ready}}
        for one in ready:
            one.recorded.judged = one.recorded.count
            if one.process is not None or one.ledger is not None:
                one.track.headroom.free_bytes = free[one.uid]
            if one.track.wants_days(now_s):
                judge_days(one.track, self._evaluator.state.settings, one.recorded.hours(), now_s)
        return [one.track for one in ready]

    def note(self, _label: str, changes: list[Alert], now_s: float) -> list[Decision]:
        """Note the changes of one instant, each with its subject; nobody is notified."""
        moved: Ending | None = None
        for alert in changes:
            replay = self._begun.get(alert.subject.id)
            if replay is None:
                continue
            old = replay.change(alert)
            code = None
            if alert.state == "resolved":
                code = alert.ended_code
                # Whoever takes its place comes next.
                if code in _MOVED and old is not None and old.state == "firing":
                    moved = code
            elif alert.state == "firing" and alert.firing_at_s != now_s and old is None:
                code = Ending.OTHER_RANK
            elif alert.state == "firing" and alert.firing_at_s == now_s:
                code, moved = moved, None
            _note(replay, old, alert, Event(at_s=now_s, state=alert.state, alert=alert, code=code))
        return []

    def _begin(self, one: _LogTrack) -> None:
        """Have a subject watched from now on."""
        track, state = one.track, self._evaluator.state
        state.tracks[track.subject.id] = track
        if one.member is not None:
            state.tracks.ranks.place(track, one.member)
        if one.process is not None:
            state.devices[one.uid].processes[one.process] = track
        elif one.whole and one.ledger is not None:
            device, listed_s = state.devices[one.uid], one.ledger.attributed_s(self._instants)
            self._listed.append((device, listed_s.data))
            # Before those of an earlier run, which may not be over where the clock jumped back.
            own = [own.track for own in self._every if own.judged and own.ledger is one.ledger]
            device.own_tracks[:0] = own

    def _end(self, one: _LogTrack, now_s: float) -> list[Alert]:
        one.close()
        self._leaving.remove(one)
        if one.process is not None:
            self._evaluator.state.devices[one.uid].processes.pop(one.process, None)
        ended = self._evaluator.state.retire([one.track], Ending.PROCESS_ENDED, now_s)
        return self._evaluator.state.tracks.take_passed_on() + ended

    def _free_bytes(self, uid: str) -> float | None:
        """Return what is free on a device; None when its total is unknown."""
        if uid in self._free:
            return float(self._free[uid][self._position])
        processes = [one for one in self._every if one.uid == uid and one.process is not None]
        total = next((one.track.headroom.total_bytes for one in processes), None)
        points = [one.recorded.last for one in processes if not one.ended]
        held = sum([point[1] for point in points if point is not None])
        return None if total is None else max(0.0, total - held)


def analyze(
    log: LogFile,
    config: Config,
    *,
    only: Container[str] | None = None,
    evaluator: Evaluator | None = None,
    passed: Callable[[float], None] | None = None,
) -> list[SubjectResult]:
    """Return what the daemon would have said, live, of each subject of a log.

    With ``only`` (ids) the others are not judged: they are there for the memory that they leave
    free. ``passed`` gets, now and then, the share (0 to 1) that is done.
    """
    evaluator = evaluator or LogEvaluator(State(config))
    chosen = [series for series in log.series if series.t_s.size]
    if not chosen:
        return []
    ledgers = recorded_ledger.ledgers(chosen)
    parts = [(series, ledgers.get(place)) for place, series in enumerate(chosen)]
    parts += [(ledger.rest, ledger) for ledger in ledgers.values() if ledger.rest is not None]
    window_s = config.detection.analysis_window_hours * 3600.0
    recorded_by_us = log.format in _RECORDED_BY_US
    # A device is judged without what its processes brought as they came.
    views = [ledgers[k].alone if k in ledgers else series for k, (series, _) in enumerate(parts)]
    recorded = [
        Recorded(
            s.t_s,
            s.used_bytes,
            # What tears the history apart is a boot or a step of the clock: no level goes on.
            s.breaks if recorded_by_us else _unbridged(s),
            numerics.look_back_s(s.t_s, window_s),
        )
        for s in views
    ]
    # There is something new to judge at the ends of ten-second cells that hold data.
    cells = [np.unique(np.ceil(window.t_s / FAST_S)) for window in recorded]
    instants = np.unique(np.concatenate(cells)) * FAST_S
    headrooms = {series.subject.device_uid: Headroom() for series in chosen}
    for series in chosen:
        if series.activity:
            headrooms[series.subject.device_uid].activity = Activity(series.activity)
    unjudged = _unjudged([series for series, _ in parts])
    every = [
        _log_track(
            series,
            window,
            instants,
            beside=headrooms[series.subject.device_uid],
            ledger=ledger,
            judged=series not in unjudged and (only is None or series.subject.id in only),
            member=series.process if recorded_by_us else _member(series.process),
        )
        for (series, ledger), window in zip(parts, recorded, strict=True)
    ]
    played = _Log(evaluator, every, instants)
    stages = Stages(played.read, played.take, played.due, evaluator.judge, played.note)
    pipeline = Pipeline(evaluator.state, stages, Clocks())
    for position in range(instants.size):
        pipeline.tick()
        if passed is not None and position % _TELL_EVERY == 0:
            passed(position / instants.size)
    finals: dict[str, list[Finding | None]] = {}
    for one in every:
        if not one.whole or one.ledger is None:
            finals.setdefault(one.uid, []).append(_final(one))
    devices = evaluator.state.devices
    results = [_result(one, devices.get(one.uid), finals.get(one.uid, [])) for one in every]
    # What nobody owns is a subject only where there is something to say of it.
    return results[: len(chosen)] + [r for r in results[len(chosen) :] if r.watches or r.alerts]


def _unbridged(series: LogSeries) -> tuple[int, ...]:
    """Return the breaks of a log over which its level does not go on."""
    t_s, used = series.t_s, series.used_bytes
    return tuple(at for at in series.breaks if not numerics.goes_on(t_s, used, at))


def _member(process: ProcessInfo | None) -> ProcessInfo | None:
    """Return a process with those of its name as its job: a log does not tell of jobs."""
    if process is None:
        return None
    name = process.name if " " in process.name else PurePosixPath(process.name).name
    if process.group is not None or name in {"", "?"}:
        return process
    return replace(process, group=name)


def _log_track(
    series: LogSeries,
    recorded: Recorded,
    instants: FloatArray,
    *,
    beside: Headroom,
    ledger: RecordedLedger | None,
    judged: bool,
    member: ProcessInfo | None,
) -> _LogTrack:
    device, process = series.device, series.process
    total = series.total_bytes or device.memory_total_bytes
    if process is None and series.limit_bytes is not None:
        # What the driver keeps for itself is no headroom: used + free, where the log tells both.
        total = series.limit_bytes
    if process is not None:
        title = process_title(device, process)
    else:
        title = device_title(device, UNOWNED if series.subject.unattributed else None)
    track = Track(
        subject=series.subject,
        device=device,
        window=recorded,
        evidence=recorded,
        headroom=replace(beside, total_bytes=None if total is None else float(total)),
        title=title,
        framework=process.framework if process is not None else None,
        sizes=Declared(() if process is None else of_shown_argv(process.argv)),
    )
    interval_s = float(np.median(np.diff(series.t_s))) if series.t_s.size > 1 else 0.0
    begins = int(instants.searchsorted(recorded.t_s[0]))
    ends = int(instants.searchsorted(recorded.t_s[-1])) + 1
    known = recorded.t_s.searchsorted(instants[begins:ends], side="right")
    return _LogTrack(
        track=track,
        recorded=recorded,
        series=series,
        judged=judged,
        member=member,
        ledger=ledger,
        begins=begins,
        known=known.astype(np.int32).data,
        end_s=float(series.t_s[-1]) + _ENDED_AFTER_INTERVALS * max(interval_s, 1.0),
    )


def _unjudged(every: list[LogSeries]) -> list[LogSeries]:
    """Return parents of MIG instances, and devices that are sums of judged processes."""
    parents = {series.device.parent_uid for series in every}
    listed = {series.device.uid for series in every if series.process is not None}
    return [
        series
        for series in every
        if series.process is None
        and (series.device.uid in parents or (series.lower_bound and series.device.uid in listed))
    ]


def _note(replay: _LogTrack, old: Alert | None, new: Alert, event: Event) -> None:
    event = replace(event, alert=replace(new, finding=_with_moves(replay, new.finding)))
    opened = replace(event, state="opened", code=None)
    if new.state == "watch":
        replay.watches.append(opened)
    elif new.state == "firing":
        escalated = old is not None and old.state == "firing"
        if not escalated and (old is None or old.watch_at_s is None):
            replay.watches.append(opened)
        replay.alerts.append(replace(event, state="escalated" if escalated else "firing"))
    elif new.state == "resolved":
        replay.watches.append(event)
        if new.firing_at_s is not None:
            replay.alerts.append(event)


def _with_moves(replay: _LogTrack, finding: Finding) -> Finding:
    """Return a judgement that says that processes came or went within the window of a device."""
    if replay.ledger is None or not replay.recorded.count:
        return finding
    t_s, _ = replay.recorded.window()
    facts = replay.ledger.facts(float(t_s[0]), float(t_s[-1]))
    return replace(finding, facts=(*(finding.facts or ()), *facts)) if facts else finding


def _final(replay: _LogTrack) -> Finding | None:
    if replay.ended:
        return replay.final
    finding = replay.track.shown()
    return None if finding is None else _with_moves(replay, finding)


def _result(
    replay: _LogTrack, device: TrackedDevice | None, parts: list[Finding | None]
) -> SubjectResult:
    """Return what is said of a subject; ``parts`` are the verdicts on all of its device."""
    series, finding = replay.series, _final(replay)
    end_s = float(series.t_s[-1])
    firing = replay.noted is not None and replay.noted.state == "firing"
    owned = device is not None and device.headroom.owners_known(end_s) and not firing
    if replay.whole and (owned or finding is None):
        # A device that is judged through its processes is shown with the worst of them, as live.
        finding = worst(parts)
    return SubjectResult(
        subject=series.subject,
        device=series.device,
        process=series.process,
        samples=int(series.t_s.size),
        started_at_s=float(series.t_s[0]),
        ended_at_s=end_s,
        finding=finding,
        watches=tuple(replay.watches),
        alerts=tuple(replay.alerts),
    )
