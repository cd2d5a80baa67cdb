"""A recorded log through the same judgement and policy as the daemon, at the log's own clock.

No peeking ahead: at every instant the detectors see only what had been recorded by then. Windows
are slices of arrays instead of rings; everything else is shared with the live path.
"""

from __future__ import annotations

import bisect
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
from gpuwatchd.pipeline.device_rings import Activity
from gpuwatchd.pipeline.history_log import HISTORY
from gpuwatchd.pipeline.live_state import worst
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track import DAYS_BACK_S, Headroom, Track, TrackedDevice
from gpuwatchd.pipeline.track_evaluation import Watcher, judge_days
from gpuwatchd.store.ring import thin

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    import numpy.typing as npt

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import (
        Alert,
        Device,
        Finding,
        FloatArray,
        ProcessInfo,
        Subject,
    )
    from gpuwatchd.pipeline.recorded_ledger import RecordedLedger

_RECORDED_BY_US = frozenset({HISTORY, corpus.NAME})
"""These formats say where a window ends, and every process of theirs is one of its own."""
_ENDED_AFTER_INTERVALS = 10
_TELL_EVERY = 64
_MOVED = frozenset({Ending.HOLDER_KNOWN, Ending.HOLDER_UNKNOWN, Ending.OTHER_RANK})
"""How an alert ends that goes on with another subject."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one alert: what the daemon would have raised, and when."""

    at_s: float
    state: str
    """opened, firing, escalated or resolved."""
    alert: Alert
    code: Ending | None = None
    """Of one that is over: why. Of one that fires in the place of another subject's: why that is
    over; both are one alert."""


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
        """How often it would have been told of; not what another's alert stands for."""
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

    def value(self, known: int) -> float | None:
        """Return the newest value when ``known`` points are known."""
        return float(self._values[known - 1]) if known else None

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


class _Replay(msgspec.Struct, kw_only=True, eq=False):
    track: Track
    recorded: Recorded
    source: LogSeries
    begins: int
    """Position of the first instant at which something of it is known."""
    known_at: npt.NDArray[np.int32]
    """How many points are known at that instant and at those after it, until all are."""
    end_s: float
    member: ProcessInfo | None = None
    """Who a process is, with the job that it belongs to."""
    tracked: TrackedDevice | None = None
    """Where processes are listed: says what is judged beside them."""
    ledger: RecordedLedger | None = None
    """Of the device itself and of what nobody owns: what the process list says."""
    attributed_s: FloatArray | None = None
    """Of the device itself: at each instant, when its processes were last known."""
    beside: list[Track] = []
    """Itself, and what nobody owns."""
    noted: Alert | None = None
    """Its alert as it was noted last."""
    ended: bool = False
    final: Finding | None = None
    watches: list[Event] = []
    alerts: list[Event] = []

    def points_known(self, position: int) -> int:
        """Return how many points are known at an instant."""
        passed = position - self.begins
        if passed < 0:
            return 0
        return int(self.known_at[min(passed, self.known_at.size - 1)])

    def close(self) -> None:
        """Have nothing more judged of it: its process has ended."""
        self.ended, self.final = True, self.track.shown()

    def change(self, alert: Alert) -> Alert | None:
        """Keep how its alert stands now; return how it stood before."""
        before, self.noted = self.noted, None if alert.state == "resolved" else alert
        return before

    def done(self, position: int) -> bool:
        """Say whether there is nothing left to do: it has ended, or all of it has been judged."""
        if self.ended or self.track.subject.process is not None:
            return self.ended
        whole = position - self.begins >= self.known_at.size - 1
        return whole and (self.tracked is not None or self.recorded.judged == self.recorded.count)


class _Headrooms:
    """What is free on each device at an instant, from its own series or from its processes."""

    def __init__(self, replays: list[_Replay], instants: FloatArray) -> None:
        self._devices: dict[str, FloatArray] = {}
        self._processes: dict[str, list[_Replay]] = {}
        for replay in replays:
            subject, total = replay.track.subject, replay.track.room.total_bytes
            if subject.process is not None:
                self._processes.setdefault(subject.device_uid, []).append(replay)
            elif total is not None and not subject.unattributed:
                at = replay.source.t_s.searchsorted(instants, side="right") - 1
                used = np.where(at >= 0, replay.source.used_bytes[np.maximum(at, 0)], 0.0)
                self._devices[subject.device_uid] = np.maximum(total - used, 0.0)

    def free(self, uid: str, position: int) -> float | None:
        """Return bytes, None when the device's total is unknown."""
        device = self._devices.get(uid)
        if device is not None:
            return float(device[position])
        processes = self._processes.get(uid, [])
        total = next((p.track.room.total_bytes for p in processes), None)
        if total is None:
            return None
        held = sum(
            p.recorded.value(p.points_known(position)) or 0.0 for p in processes if not p.ended
        )
        return max(0.0, total - held)


def analyze(
    log: LogFile,
    config: Config,
    *,
    only: Container[str] | None = None,
    watcher: Watcher | None = None,
    passed: Callable[[float], None] | None = None,
) -> list[SubjectResult]:
    """Return what the daemon would have said, live, of each subject of a log.

    With ``only`` the others are not judged: they are there for the room that they leave.
    """
    watcher = watcher or Watcher(State(config))
    chosen = [series for series in log.series if series.t_s.size]
    if not chosen:
        return []
    ledgers = recorded_ledger.ledgers(chosen)
    rests = [one.rest for one in ledgers.values() if one.rest is not None]
    window_s = config.detection.analysis_window_hours * 3600.0
    # A device is judged without what its processes brought as they came.
    views = [ledgers[k].alone if k in ledgers else series for k, series in enumerate(chosen)]
    recorded = [
        Recorded(
            s.t_s,
            s.used_bytes,
            # What tears the history apart is a boot or a step of the clock: no level goes on.
            s.breaks if log.format in _RECORDED_BY_US else _unbridged(s),
            numerics.look_back_s(s.t_s, window_s),
        )
        for s in (*views, *rests)
    ]
    # There is something new to judge at the ends of ten-second cells that hold data.
    cells = [np.unique(np.ceil(window.t_s / FAST_S)) for window in recorded]
    instants = np.unique(np.concatenate(cells)) * FAST_S
    rooms = {series.subject.device_uid: Headroom() for series in chosen}
    for series in chosen:
        if series.activity:
            rooms[series.subject.device_uid].activity = Activity(series.activity)
    known = [ledgers.get(k) for k in range(len(chosen))]
    known += [ledger for ledger in ledgers.values() if ledger.rest is not None]
    tracked = {
        chosen[k].device.uid: TrackedDevice(device=chosen[k].device, reading=None, room=Headroom())
        for k in ledgers
    }
    replays = [
        _replay(
            series,
            window,
            instants,
            beside=rooms[series.subject.device_uid],
            ledger=ledger,
            tracked=tracked.get(series.subject.device_uid),
            member=series.process if log.format in _RECORDED_BY_US else _member(series.process),
        )
        for series, window, ledger in zip((*chosen, *rests), recorded, known, strict=True)
    ]
    for replay in replays:
        if replay.attributed_s is not None and replay.tracked is not None:
            replay.tracked.room = replay.track.room
            replay.beside.extend(one.track for one in replays if one.ledger is replay.ledger)
    judged = _judged(replays)
    if only is not None:
        judged = [replay for replay in judged if replay.track.subject.id in only]
    _play(watcher, judged, _Headrooms(replays, instants), instants, passed)
    finals: dict[str, list[Finding | None]] = {}
    for replay in replays:
        if replay.attributed_s is None:
            finals.setdefault(replay.track.subject.device_uid, []).append(_final(replay))
    results = [_result(r, finals.get(r.track.subject.device_uid, [])) for r in replays]
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


def _begin(watcher: Watcher, replay: _Replay) -> None:
    """Have a subject watched from now on."""
    track, tracked = replay.track, replay.tracked
    watcher.state.tracks[track.subject.id] = track
    if replay.member is not None:
        watcher.state.tracks.ranks.place(track, replay.member)
    if tracked is not None and track.subject.process is not None:
        tracked.processes[track.subject.process] = track
    elif tracked is not None and replay.attributed_s is not None:
        tracked.others[:] = replay.beside


def _play(
    watcher: Watcher,
    replays: list[_Replay],
    rooms: _Headrooms,
    instants: FloatArray,
    passed: Callable[[float], None] | None,
) -> None:
    """Go through the instants; at each, only those that live then are looked at."""
    waiting = sorted(range(len(replays)), key=lambda k: replays[k].begins, reverse=True)
    present: list[int] = []
    for position, instant in enumerate(instants.tolist()):
        while waiting and replays[waiting[-1]].begins <= position:
            _begin(watcher, replays[waiting[-1]])
            bisect.insort(present, waiting.pop())
        _step(watcher, [replays[k] for k in present], rooms, position, instant)
        if position % _TELL_EVERY == 0:
            present = [k for k in present if not replays[k].done(position)]
            if passed is not None:
                passed(position / instants.size)


def _replay(
    series: LogSeries,
    recorded: Recorded,
    instants: FloatArray,
    *,
    beside: Headroom,
    ledger: RecordedLedger | None,
    tracked: TrackedDevice | None,
    member: ProcessInfo | None,
) -> _Replay:
    device, process = series.device, series.process
    total = series.total_bytes or device.memory_total_bytes
    if process is None and series.limit_bytes is not None:
        # What the driver keeps for itself is no room: used + free, where the log tells both.
        total = series.limit_bytes
    if process is not None:
        title = process_title(device, process)
    else:
        title = device_title(device, UNOWNED if series.subject.unattributed else None)
    track = Track(
        subject=series.subject,
        device=device,
        window=recorded,
        room=replace(beside, total_bytes=None if total is None else float(total)),
        title=title,
        framework=process.framework if process is not None else None,
        sizes=Declared(() if process is None else of_shown_argv(process.argv)),
    )
    interval_s = float(np.median(np.diff(series.t_s))) if series.t_s.size > 1 else 0.0
    begins = int(instants.searchsorted(recorded.t_s[0]))
    ends = int(instants.searchsorted(recorded.t_s[-1])) + 1
    whole = ledger is not None and not series.subject.unattributed
    return _Replay(
        track=track,
        recorded=recorded,
        source=series,
        member=member,
        tracked=tracked,
        ledger=ledger,
        attributed_s=ledger.attributed_s(instants) if ledger is not None and whole else None,
        begins=begins,
        known_at=recorded.t_s.searchsorted(instants[begins:ends], side="right").astype(np.int32),
        end_s=float(series.t_s[-1]) + _ENDED_AFTER_INTERVALS * max(interval_s, 1.0),
    )


def _judged(replays: list[_Replay]) -> list[_Replay]:
    """Leave out parents of MIG instances, and devices that are sums of judged processes."""
    parents = {replay.track.device.parent_uid for replay in replays}
    listed = {r.track.subject.device_uid for r in replays if r.source.process is not None}
    out = []
    for replay in replays:
        uid = replay.track.subject.device_uid
        summed = replay.source.lower_bound and uid in listed
        if replay.source.process is None and (uid in parents or summed):
            continue
        out.append(replay)
    return out


def _step(
    watcher: Watcher, replays: list[_Replay], rooms: _Headrooms, position: int, instant: float
) -> None:
    changes: list[Alert] = []
    devices = watcher.state.devices
    devices.clear()
    beside: set[str] = set()
    for replay in replays:
        tracked = replay.tracked
        if replay.attributed_s is not None and tracked is not None:
            devices[replay.track.subject.device_uid] = tracked
            tracked.room.attributed_at_s = float(replay.attributed_s[position])
            changes += track_evaluation.drop_whole(watcher.state, tracked, instant)
            beside.update(t.subject.id for t in track_evaluation.beside(tracked, instant))
    due, ended = _due(watcher, replays, position, instant, beside)
    changes += ended
    for replay in due:
        if replay.track.subject.process is not None or replay.tracked is not None:
            replay.track.room.free_bytes = rooms.free(replay.track.subject.device_uid, position)
        if replay.track.wants_days(instant):
            judge_days(replay.track, watcher.state.settings, replay.recorded.hours(), instant)
    if due:
        changes += watcher.judge([r.track for r in due], instant)
    if changes:
        _note_all({r.track.subject.id: r for r in replays}, changes, instant)


def _due(
    watcher: Watcher, replays: list[_Replay], position: int, instant: float, beside: set[str]
) -> tuple[list[_Replay], list[Alert]]:
    """Move every window to the instant; end processes that have gone.

    Returns those to judge, and the alerts that ended. ``beside`` are the subjects that are judged
    now of devices and of what nobody owns, where processes are listed.
    """
    due: list[_Replay] = []
    ended: list[Alert] = []
    for replay in replays:
        known = replay.points_known(position)
        recorded, subject = replay.recorded, replay.track.subject
        if known == 0 or replay.ended:
            continue
        recorded.count = known
        if known == recorded.judged:
            if subject.process is not None and instant > replay.end_s:
                ended += _end(watcher, replay, instant)
            continue
        if subject.process is None and replay.tracked is not None and subject.id not in beside:
            continue
        if watcher.due(replay.track, instant):
            recorded.judged = known
            due.append(replay)
    return due, ended


def _note_all(replays: dict[str, _Replay], changes: list[Alert], instant: float) -> None:
    """Note the changes of one instant, each with its subject."""
    moved: Ending | None = None
    for alert in changes:
        replay = replays.get(alert.subject.id)
        if replay is None:
            continue
        old = replay.change(alert)
        code = None
        if alert.state == "resolved":
            code = alert.ended_code
            # Whoever takes its place comes next.
            moved = code if code in _MOVED and old is not None and old.state == "firing" else moved
        elif alert.state == "firing" and alert.firing_at_s != instant and old is None:
            code = Ending.OTHER_RANK
        elif alert.state == "firing" and alert.firing_at_s == instant:
            code, moved = moved, None
        _note(replay, old, alert, Event(at_s=instant, state=alert.state, alert=alert, code=code))


def _note(replay: _Replay, old: Alert | None, new: Alert, event: Event) -> None:
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


def _with_moves(replay: _Replay, finding: Finding) -> Finding:
    """Return a judgement that says that processes came or went within the window of a device."""
    if replay.ledger is None or not replay.recorded.count:
        return finding
    t_s, _ = replay.recorded.window()
    facts = replay.ledger.facts(float(t_s[0]), float(t_s[-1]))
    return replace(finding, facts=(*(finding.facts or ()), *facts)) if facts else finding


def _end(watcher: Watcher, replay: _Replay, instant: float) -> list[Alert]:
    replay.close()
    if replay.tracked is not None and replay.track.subject.process is not None:
        replay.tracked.processes.pop(replay.track.subject.process, None)
    ended = watcher.state.retire([replay.track], Ending.PROCESS_ENDED, instant)
    return watcher.state.tracks.take_passed_on() + ended


def _final(replay: _Replay) -> Finding | None:
    if replay.ended:
        return replay.final
    finding = replay.track.shown()
    return None if finding is None else _with_moves(replay, finding)


def _result(replay: _Replay, parts: list[Finding | None]) -> SubjectResult:
    """Return what is said of a subject; ``parts`` are the verdicts on all of its device."""
    series, tracked = replay.source, replay.tracked
    finding = _final(replay)
    end_s = float(series.t_s[-1])
    told = replay.noted is not None and replay.noted.state == "firing"
    owned = tracked is not None and track_evaluation.is_owned(tracked, end_s) and not told
    if series.process is None and not series.subject.unattributed and (owned or finding is None):
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
