"""Replays a run process by process, as the daemon judges where the driver tells what each holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Series, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.replay import Recorded
from gpuwatchd.pipeline.track import Headroom, Track
from gpuwatchd.pipeline.track_evaluation import Watcher
from tests.scenarios.replay import DEFAULTS, device_of, instants_of

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.world import Truth
    from tests.scenarios.worlds import Item

REST = "nobody"
"""Name of the memory that no listed process owns."""


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


def replay_processes(item: Item) -> list[Course]:
    """Return what is raised about each process of a run, and about what no process owns.

    The limit of each is what it holds and what is free on the device at that instant.
    """
    whole = item.series
    room = Headroom(total_bytes=whole.total_bytes, growing={})
    watcher = Watcher(Config(detection=DEFAULTS))
    instants = instants_of(whole.t_s)
    start = float(whole.t_s[0])
    players = [_player(item, one, course, room, instants) for one, course in subjects(item)]
    held = np.searchsorted(whole.t_s, instants, side="right") - 1
    free = np.maximum((whole.total_bytes or 0.0) - whole.used_bytes[held], 0.0)
    for position, now in enumerate(instants.tolist()):
        room.free_bytes = float(free[position])
        for player in players:
            _look(watcher, player, position, now, start)
    return [player.course for player in players]


def subjects(item: Item) -> list[tuple[Series, Course]]:
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


def _harmless(item: Item) -> Truth:
    return replace(item.truth, leak=False, onset_s=None, rate_bytes_per_s=None, oom_s=None)


def _rest(item: Item) -> Series | None:
    """Return what no listed process owns, at every sample of the device; None when it is little."""
    whole = item.series
    rest = whole.used_bytes.copy()
    for view in item.processes.values():
        at = np.searchsorted(whole.t_s, view.series.t_s)
        rest[at] -= view.series.used_bytes
    rest = np.maximum(rest, 0.0)
    if float(np.ptp(rest)) < 64.0 * 2**20:
        return None
    return Series(
        subject=Subject(device_uid=whole.subject.device_uid, unattributed=True),
        t_s=whole.t_s, used_bytes=rest, limit_bytes=whole.limit_bytes,
        total_bytes=whole.total_bytes,
    )  # fmt: skip


def _player(
    item: Item, series: Series, course: Course, room: Headroom, instants: FloatArray
) -> _Player:
    span_s = DEFAULTS.analysis_window_hours * 3600.0
    recorded = Recorded(series.t_s, series.used_bytes, (), span_s)
    view = item.processes.get(course.name)
    gone = view is not None and view.end_s is not None
    return _Player(
        track=Track(
            subject=series.subject, device=device_of(item.series), window=recorded, room=room,
            title=Title.of(course.name), framework=series.framework,
        ),
        recorded=recorded,
        known=np.searchsorted(recorded.t_s, instants, side="right").tolist(),
        end_s=float(series.t_s[-1]) if gone else float("inf"),
        course=course,
    )  # fmt: skip


def _look(watcher: Watcher, player: _Player, position: int, now: float, start: float) -> None:
    known = player.known[position]
    if known == 0 or player.over:
        return
    player.recorded.count = known
    track, course = player.track, player.course
    if now > player.end_s:
        player.over = True
        watcher.end(track, Ending.PROCESS_ENDED, now)
        return
    if not watcher.due(track, now):
        return
    before = track.alert.state if track.alert is not None else None
    watcher.judge([track], now)
    alert, finding = track.alert, track.finding
    if alert is None or finding is None:
        return
    if alert.state in {"watch", "firing"} and course.watch_s is None:
        course.watch_s, course.pattern = now - start, finding.pattern
    if alert.state == "firing" and before != "firing":
        course.alerts.append(now - start)
        if course.alert_s is None:
            course.alert_s, course.pattern = now - start, finding.pattern
