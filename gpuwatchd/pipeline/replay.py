"""A recorded log through the same judgement and policy as the daemon, at the log's own clock.

No peeking ahead: at every instant the detectors see only what had been recorded by then. Windows
are slices of arrays instead of rings; everything else is shared with the live path.
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.alerts import FAST_S
from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.declared import Declared, of_shown_argv
from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import ProcessInfo, Subject
from gpuwatchd.pipeline.live_state import worst
from gpuwatchd.pipeline.track import Headroom, Track, of_device, of_process
from gpuwatchd.pipeline.track_evaluation import Watcher
from gpuwatchd.store.curves import RAW_SPAN_S
from gpuwatchd.store.ring import thin

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    import numpy.typing as npt

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Device, Finding, FloatArray, ProcessKey
    from gpuwatchd.store.reader import DeviceRow, ProcessRow, Reader

# The history of one device as a log: samples where they are still kept, else one-minute and then
# one-hour buckets; of a bucket the lowest and the highest value, in the order that its last value
# suggests, so that neither what was kept nor the peak is lost. Memory is that of one device's
# points, whatever the span.

HOLD_S = 75.0
"""A process that does not change is written once a minute; its value holds for so long."""
_HOUR_S = 3600.0
"""The widest bucket."""
_TEARS = frozenset({"boot", "clock-step"})
Points = tuple["FloatArray", "FloatArray"]


def load(
    history: Reader,
    device: Device,
    since_s: float,
    until_s: float,
    *,
    passed: Callable[[float], None] | None = None,
) -> LogFile:
    """Return what is recorded of a device and of its processes; no series when nothing is."""
    oldest_s = history.oldest_s(device.uid)
    # A span of a thousand years is as long as what is recorded, and takes no longer.
    since_s = until_s if oldest_s is None else max(since_s, oldest_s - _HOUR_S)
    whole: list[Points] = []
    parts: dict[ProcessKey, list[Points]] = {}
    for first_s, last_s in spans(since_s, until_s):
        ticks, used = _device_points(history.device_rows(device.uid, first_s, last_s))
        whole.append((ticks, used))
        for key, points in _by_process(history.process_rows(device.uid, first_s, last_s)):
            parts.setdefault(key, []).append(_held(points, ticks))
        if passed is not None:
            passed((last_s - since_s) / (until_s - since_s))
    tears = _tears(history, since_s)
    log = LogFile(path=device.uid, format="history", devices=[device])
    infos = {info.key: info for info in history.processes(since_s)}
    log.series = [*_series(device, None, whole, tears)]
    for key, chunks in parts.items():
        info = infos.get(key) or ProcessInfo(key=key, name="?")
        log.series += _series(device, info, chunks, tears)
        log.processes.append(info)
    return log


def spans(since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield spans, oldest first, short enough to be read as finely as they are kept."""
    begin_s = since_s
    while begin_s < until_s:
        end_s = min(begin_s + RAW_SPAN_S, until_s)
        yield begin_s, end_s
        begin_s = end_s


def _columns(rows: Sequence[DeviceRow | ProcessRow], *names: str) -> list[FloatArray]:
    return [np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in names]


def _device_points(rows: Sequence[DeviceRow]) -> Points:
    known = [row for row in rows if row.used_last_bytes is not None]
    amounts = ("used_min_bytes", "used_max_bytes", "used_last_bytes")
    return _spread(*_columns(known, "at_s", "width_s", *amounts))


def _by_process(rows: Sequence[ProcessRow]) -> Iterator[tuple[ProcessKey, Points]]:
    groups: dict[ProcessKey, list[ProcessRow]] = {}
    for row in rows:
        if row.used_last_bytes is not None:
            groups.setdefault(row.process, []).append(row)
    for key, own in groups.items():
        names = ("at_s", "width_s", "used_max_bytes", "used_last_bytes")
        at_s, width_s, most, last = _columns(own, *names)
        # The lowest value of a process's minute is not kept.
        yield key, _spread(at_s, width_s, last, most, last)


def _spread(
    at_s: FloatArray, width_s: FloatArray, low: FloatArray, high: FloatArray, last: FloatArray
) -> Points:
    """Return one point per sample, and per bucket its lowest and highest in their likely order."""
    wide = (width_s > 0.0) & (high > low)
    rising = high - last <= last - low
    first = np.where(wide, np.where(rising, low, high), last)
    second = np.where(rising, high, low)[wide]
    t = np.concatenate((at_s + np.where(wide, 0.25, 0.5) * width_s, (at_s + 0.75 * width_s)[wide]))
    order = np.argsort(t, kind="stable")
    return t[order], np.concatenate((first, second))[order]


def _held(points: Points, ticks: FloatArray) -> Points:
    """Return the points of a process at its device's ticks too, as far as its value holds."""
    t, x = points
    before = t.searchsorted(ticks, side="right") - 1
    known = (before >= 0) & (ticks <= t[-1])
    ticks, before = ticks[known], before[known]
    age = ticks - t[before]
    fresh = (age > 0.0) & (age <= HOLD_S)
    t, x = np.concatenate((t, ticks[fresh])), np.concatenate((x, x[before[fresh]]))
    order = np.argsort(t, kind="stable")
    return t[order], x[order]


def _tears(history: Reader, since_s: float) -> FloatArray:
    """Return the instants over which no window may reach: boots and steps of the clock."""
    tears = []
    boot = None
    for segment in history.segments(since_s):
        if segment.reason in _TEARS or (boot is not None and segment.boot_id != boot):
            tears.append(segment.at_s)
        boot = segment.boot_id
    return np.array(sorted(tears), dtype=np.float64)


def _series(
    device: Device, info: ProcessInfo | None, chunks: list[Points], tears: FloatArray
) -> list[LogSeries]:
    t = np.concatenate([points[0] for points in chunks]) if chunks else np.empty(0)
    x = np.concatenate([points[1] for points in chunks]) if chunks else np.empty(0)
    # Buckets at the seam of two chunks, and a clock that was set back, come twice: the first stays.
    ahead = np.ones(t.size, dtype=bool)
    ahead[1:] = t[1:] > np.maximum.accumulate(t)[:-1]
    t, x = t[ahead], x[ahead]
    if not t.size:
        return []
    total = device.memory_total_bytes
    return [
        LogSeries(
            subject=Subject(device_uid=device.uid, process=None if info is None else info.key),
            device=device,
            process=info,
            t_s=t,
            used_bytes=x,
            limit_bytes=None,
            total_bytes=None if total is None else float(total),
            breaks=tuple(int(k) for k in np.unique(t.searchsorted(tears)) if 0 < k < t.size),
        )
    ]


_ENDED_AFTER_INTERVALS = 10
_TELL_EVERY = 64
_COVERED_SHARE = 0.5
"""Where listed processes hold at least this share of a device, they are judged instead of it."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one alert: what the daemon would have raised, and when."""

    at_s: float
    state: str
    """opened, firing, escalated or resolved."""
    alert: Alert


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
        self.known = 0
        """How many points are known by now."""
        self.judged = 0
        """How many were known at the last judgement."""

    @property
    def count(self) -> int:
        """Points known by now."""
        return self.known

    @property
    def moves(self) -> int:
        """How often the value has changed by now."""
        return int(self._moves[self.known - 1]) if self.known else 0

    @property
    def last(self) -> tuple[float, float] | None:
        """The newest known point."""
        if self.known == 0:
            return None
        return float(self.t_s[self.known - 1]), float(self._values[self.known - 1])

    def value(self, known: int) -> float | None:
        """Return the newest value when ``known`` points are known."""
        return float(self._values[known - 1]) if known else None

    def window(self) -> tuple[FloatArray, FloatArray]:
        """Return times and values of the present segment, as far back as the look-back goes."""
        end = self.known
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

    def done(self, position: int) -> bool:
        """Say whether there is nothing left to do: it has ended, or all of it has been judged."""
        if self.ended or self.track.subject.process is not None:
            return self.ended
        whole = position - self.begins >= self.known_at.size - 1
        return whole and self.recorded.judged == self.recorded.known


class _Headrooms:
    """What is free on each device at an instant, from its own series or from its processes."""

    def __init__(self, replays: list[_Replay]) -> None:
        self._devices: dict[str, _Replay] = {}
        self._processes: dict[str, list[_Replay]] = {}
        for replay in replays:
            uid = replay.track.subject.device_uid
            if replay.track.subject.process is None:
                self._devices[uid] = replay
            else:
                self._processes.setdefault(uid, []).append(replay)

    def free(self, uid: str, position: int) -> float | None:
        """Return bytes, None when the device's total is unknown."""
        device = self._devices.get(uid)
        if device is not None and device.track.room.total_bytes is not None:
            used = device.recorded.value(device.points_known(position))
            return max(0.0, device.track.room.total_bytes - (used or 0.0))
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
    watcher = watcher or Watcher(config)
    chosen = [series for series in log.series if series.t_s.size]
    if not chosen:
        return []
    window_s = config.detection.analysis_window_hours * 3600.0
    recorded = [
        Recorded(s.t_s, s.used_bytes, s.breaks, numerics.look_back_s(s.t_s, window_s))
        for s in chosen
    ]
    # There is something new to judge at the ends of ten-second cells that hold data.
    cells = [np.unique(np.ceil(window.t_s / FAST_S)) for window in recorded]
    instants = np.unique(np.concatenate(cells)) * FAST_S
    growing: dict[str, dict[str, float]] = {series.subject.device_uid: {} for series in chosen}
    replays = [
        _replay(watcher, series, window, instants, growing[series.subject.device_uid])
        for series, window in zip(chosen, recorded, strict=True)
    ]
    judged = _judged(replays)
    if only is not None:
        judged = [replay for replay in judged if replay.track.subject.id in only]
    _play(watcher, judged, _Headrooms(replays), instants, passed)
    finals: dict[str, list[Finding | None]] = {}
    for replay in replays:
        finals.setdefault(replay.track.subject.device_uid, []).append(_final(replay))
    return [_result(replay, finals[replay.track.subject.device_uid]) for replay in replays]


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
            bisect.insort(present, waiting.pop())
        _step(watcher, [replays[k] for k in present], rooms, position, instant)
        if position % _TELL_EVERY == 0:
            present = [k for k in present if not replays[k].done(position)]
            if passed is not None:
                passed(position / instants.size)


def _replay(
    watcher: Watcher,
    series: LogSeries,
    recorded: Recorded,
    instants: FloatArray,
    growing: dict[str, float],
) -> _Replay:
    device, process = series.device, series.process
    total = series.total_bytes or device.memory_total_bytes
    if process is None and series.limit_bytes is not None:
        # What the driver keeps for itself is no room: used + free, where the log tells both.
        total = series.limit_bytes
    title = of_process(device, process) if process is not None else of_device(device)
    track = Track(
        subject=series.subject,
        device=device,
        window=recorded,
        room=Headroom(total_bytes=None if total is None else float(total), growing=growing),
        title=title,
        framework=process.framework if process is not None else None,
        sizes=Declared(() if process is None else of_shown_argv(process.argv)),
    )
    watcher.tracks[series.subject.id] = track
    interval_s = float(np.median(np.diff(series.t_s))) if series.t_s.size > 1 else 0.0
    begins = int(instants.searchsorted(recorded.t_s[0]))
    ends = int(instants.searchsorted(recorded.t_s[-1])) + 1
    return _Replay(
        track=track,
        recorded=recorded,
        source=series,
        begins=begins,
        known_at=recorded.t_s.searchsorted(instants[begins:ends], side="right").astype(np.int32),
        end_s=float(series.t_s[-1]) + _ENDED_AFTER_INTERVALS * max(interval_s, 1.0),
    )


def _judged(replays: list[_Replay]) -> list[_Replay]:
    """Leave out parents of MIG instances, and devices whose processes are judged themselves."""
    parents = {replay.track.device.parent_uid for replay in replays}
    owned: dict[str, float] = {}
    for replay in replays:
        if replay.track.subject.process is not None:
            uid = replay.track.subject.device_uid
            owned[uid] = owned.get(uid, 0.0) + float(np.max(replay.source.used_bytes))
    out = []
    for replay in replays:
        uid = replay.track.subject.device_uid
        peak = float(np.max(replay.source.used_bytes))
        whole = replay.track.subject.process is None
        if whole and (uid in parents or owned.get(uid, 0.0) > _COVERED_SHARE * peak):
            continue
        out.append(replay)
    return out


def _step(
    watcher: Watcher, replays: list[_Replay], rooms: _Headrooms, position: int, instant: float
) -> None:
    due = _due(watcher, replays, position, instant)
    for replay in due:
        if replay.track.subject.process is not None:
            replay.track.room.free_bytes = rooms.free(replay.track.subject.device_uid, position)
    if not due:
        return
    before = {id(r): r.track.alert for r in due}
    changed = {a.key: a for a in watcher.judge([r.track for r in due], instant)}
    for replay in due:
        old = before[id(replay)]
        new = replay.track.alert or (changed.get(old.key) if old is not None else None)
        if new is not None and new.key in changed:
            _note(replay, old, changed[new.key], instant)


def _due(watcher: Watcher, replays: list[_Replay], position: int, instant: float) -> list[_Replay]:
    """Move every window to the instant; return those to judge; end processes that have gone."""
    due = []
    for replay in replays:
        known = replay.points_known(position)
        recorded = replay.recorded
        if known == 0 or replay.ended:
            continue
        recorded.known = known
        if known == recorded.judged:
            if replay.track.subject.process is not None and instant > replay.end_s:
                _end(watcher, replay, instant)
            continue
        if watcher.due(replay.track, instant):
            recorded.judged = known
            due.append(replay)
    return due


def _note(replay: _Replay, old: Alert | None, new: Alert, instant: float) -> None:
    if new.state == "watch":
        replay.watches.append(Event(at_s=instant, state="opened", alert=new))
    elif new.state == "firing":
        escalated = old is not None and old.state == "firing"
        if not escalated and (old is None or old.watch_at_s is None):
            replay.watches.append(Event(at_s=instant, state="opened", alert=new))
        replay.alerts.append(
            Event(at_s=instant, state="escalated" if escalated else "firing", alert=new)
        )
    elif new.state == "resolved":
        replay.watches.append(Event(at_s=instant, state="resolved", alert=new))
        if new.firing_at_s is not None:
            replay.alerts.append(Event(at_s=instant, state="resolved", alert=new))


def _end(watcher: Watcher, replay: _Replay, instant: float) -> None:
    replay.ended = True
    replay.final = replay.track.shown()
    old = replay.track.alert
    alert = watcher.end(replay.track, Ending.PROCESS_ENDED, instant)
    if alert is not None:
        _note(replay, old, alert, instant)


def _final(replay: _Replay) -> Finding | None:
    return replay.final if replay.ended else replay.track.shown()


def _result(replay: _Replay, of_device: list[Finding | None]) -> SubjectResult:
    series = replay.source
    finding = _final(replay)
    if finding is None and replay.track.subject.process is None:
        # A device that was judged through its processes is shown with the worst of them, as live.
        finding = worst(of_device)
    return SubjectResult(
        subject=series.subject,
        device=series.device,
        process=series.process,
        samples=int(series.t_s.size),
        started_at_s=float(series.t_s[0]),
        ended_at_s=float(series.t_s[-1]),
        finding=finding,
        watches=tuple(replay.watches),
        alerts=tuple(replay.alerts),
    )
