"""Replays a run process by process, as the daemon judges where the driver tells what each holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.collect.logs.log_types import LogSeries
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import ProcessInfo, Series, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline import recorded_ledger, track_evaluation
from gpuwatchd.pipeline.replay import Recorded
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track import Headroom, Track, TrackedDevice
from gpuwatchd.pipeline.track_evaluation import Evaluator
from tests.scenarios.replay import DEFAULTS, device_of, instants_of

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.pipeline.recorded_ledger import RecordedLedger
    from tests.scenarios.views import LabelledSeries
    from tests.scenarios.world import Truth

REST = "nobody"
"""Name of the memory that no listed process owns."""
DEVICE = "device"
"""Name of the device itself, judged beside its processes."""


@dataclass(kw_only=True)
class Course:
    """What was raised about one subject of a run; seconds since the first sample of the run."""

    name: str
    truth: Truth
    """On the clock of the run, but for the times of the process's own truth."""
    onset_s: float
    watch_s: float | None = None
    alert_s: float | None = None
    alerts: list[float] = field(default_factory=list)
    """When each of its alerts began to fire."""
    pattern: str | None = None
    """Its name when the first alert fired, or (without one) when it was watched."""


@dataclass(kw_only=True)
class _Player:
    track: Track
    recorded: Recorded
    known: list[int]
    end_s: float
    course: Course
    over: bool = False


def replay_processes(item: LabelledSeries) -> list[Course]:
    """Return what is raised about each process of a run, what no process owns, and the device.

    The limit of each is what it holds and what is free on the device at that instant.
    """
    whole = item.series
    room = Headroom(total_bytes=whole.total_bytes, attributed_at_s=float("inf"))
    tracked = TrackedDevice(
        device=device_of(whole), reading=None, headroom=room, judged_by_process=True
    )
    evaluator = Evaluator(State(Config(detection=DEFAULTS)))
    instants = instants_of(whole.t_s)
    start = float(whole.t_s[0])
    joint = Course(name=DEVICE, truth=item.truth, onset_s=item.truth.onset_s or 0.0)
    pairs = [*subjects(item), (_joint(item), joint)]
    players = [_player(item, one, course, room, instants) for one, course in pairs]
    beside = [player.track for player in players if player.track.subject.process is None]
    tracked.own_tracks = beside[::-1]
    held = np.searchsorted(whole.t_s, instants, side="right") - 1
    free = np.maximum((whole.total_bytes or 0.0) - whole.used_bytes[held], 0.0)
    for position, now in enumerate(instants.tolist()):
        room.free_bytes = float(free[position])
        present = [one for one in players if _is_there(evaluator, tracked, one, position, now)]
        judged = {*tracked.processes.values(), *track_evaluation.further_tracks(tracked)}
        chosen = evaluator.due([p.track for p in present if p.track in judged], now)
        due = [player for player in present if player.track in chosen]
        _judge(evaluator, tracked, due, now, start)
    return [player.course for player in players]


def subjects(item: LabelledSeries) -> list[tuple[Series, Course]]:
    """Return each process of a run, and what no process owns where that changes."""
    start = float(item.series.t_s[0])
    found = []
    for name, view in item.processes.items():
        offset = float(view.series.t_s[0]) - start
        onset = offset + (view.truth.onset_s or 0.0)
        found.append((view.series, Course(name=name, truth=view.truth, onset_s=onset)))
    rest = _rest(item)
    if rest is not None:
        owned = any(course.truth.leak for _, course in found)
        truth = item.truth if not owned else _harmless(item)
        onset = item.truth.onset_s or 0.0
        found.append((rest, Course(name=REST, truth=truth, onset_s=onset)))
    return found


def _harmless(item: LabelledSeries) -> Truth:
    return replace(item.truth, leak=False, onset_s=None, rate_bytes_per_s=None, oom_s=None)


def _rest(item: LabelledSeries) -> Series | None:
    """Return what no listed process owns, with what a crowd brought; None when it is little."""
    whole, ledger = item.series, _ledger(item)
    rest = whole if ledger is None else ledger.rest
    if rest is None or float(np.ptp(rest.used_bytes)) < 64.0 * 2**20:
        return None
    subject = Subject(device_uid=whole.subject.device_uid, unattributed=True)
    return msgspec.structs.replace(whole, subject=subject, t_s=rest.t_s, used_bytes=rest.used_bytes)


def _joint(item: LabelledSeries) -> Series:
    """Return the device without what its processes brought as they came."""
    whole, ledger = item.series, _ledger(item)
    used = whole.used_bytes if ledger is None else ledger.alone.used_bytes
    return msgspec.structs.replace(whole, used_bytes=used)


def _ledger(item: LabelledSeries) -> RecordedLedger | None:
    """Return what the list of the processes says of the device; None without any."""
    logs = [log_series(item.series, None)]
    for name, view in item.processes.items():
        key = view.series.subject.process
        assert key is not None
        # Lives of one program are told apart by what follows.
        logs.append(log_series(view.series, ProcessInfo(key=key, name=re.split("[ #]", name)[0])))
    return recorded_ledger.ledgers(logs).get(0)


def log_series(series: Series, process: ProcessInfo | None) -> LogSeries:
    """Return a series as a log has it."""
    return LogSeries(
        subject=series.subject, device=device_of(series), process=process, t_s=series.t_s,
        used_bytes=series.used_bytes, limit_bytes=None,
    )  # fmt: skip


def _player(
    item: LabelledSeries, series: Series, course: Course, room: Headroom, instants: FloatArray
) -> _Player:
    span_s = DEFAULTS.analysis_window_hours * 3600.0
    recorded = Recorded(series.t_s, series.used_bytes, (), span_s)
    view = item.processes.get(course.name)
    gone = view is not None and view.end_s is not None
    return _Player(
        track=Track(
            subject=series.subject, device=device_of(item.series), title=Title.of(course.name),
            window=recorded, evidence=recorded, headroom=room, framework=series.framework,
        ),
        recorded=recorded,
        known=np.searchsorted(recorded.t_s, instants, side="right").tolist(),
        end_s=float(series.t_s[-1]) if gone else float("inf"),
        course=course,
    )  # fmt: skip


def _is_there(
    evaluator: Evaluator, tracked: TrackedDevice, player: _Player, position: int, now: float
) -> bool:
    """Move the window of a subject to the instant; begin or end it; say whether it is there."""
    known, track = player.known[position], player.track
    process = track.subject.process
    if known == 0 or player.over:
        return False
    player.recorded.count = known
    player.over = now > player.end_s
    if player.over:
        evaluator.state.retire([track], Ending.PROCESS_ENDED, now)
    else:
        evaluator.state.tracks[track.subject.id] = track
    if process is not None and player.over:
        tracked.processes.pop(process, None)
    elif process is not None:
        tracked.processes[process] = track
    return not player.over


def _judge(
    evaluator: Evaluator, tracked: TrackedDevice, due: list[_Player], now: float, start: float
) -> None:
    """Judge subjects; an alert in the place of one on the device is not counted once more."""
    before = [_state(player.track) for player in due]
    told = _state(tracked.own_tracks[0]) == "firing"
    evaluator.state.devices = {tracked.device.uid: tracked}
    changes = evaluator.judge([player.track for player in due], now)
    taken = told and any(alert.ended_code is Ending.HOLDER_KNOWN for alert in changes)
    for player, was in zip(due, before, strict=True):
        course, finding, state = player.course, player.track.finding, _state(player.track)
        if finding is None:
            continue
        if state in {"watch", "firing"} and course.watch_s is None:
            course.watch_s, course.pattern = now - start, finding.pattern
        if state == "firing" and was != "firing" and not taken:
            course.alerts.append(now - start)
            if course.alert_s is None:
                course.alert_s, course.pattern = now - start, finding.pattern


def _state(track: Track) -> str | None:
    return None if track.alert is None else track.alert.state
