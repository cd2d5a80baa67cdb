"""Replays a series at its own clock through the very evaluator that the daemon judges with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpuwatchd.alerts import FAST_S
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.core.model import Device, Series, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.replay import Recorded
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track import Headroom, Track
from gpuwatchd.pipeline.track_evaluation import Evaluator

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Alert, Finding, Pattern, Profile, Tier

    Beside = Callable[[Series, Alert | None], Series]

DEFAULTS = DetectionSection()


@dataclass(kw_only=True)
class Life:
    """What would have been raised, and when; times in seconds since the first sample."""

    watch_s: float | None = None
    alert_s: float | None = None
    watches: int = 0
    alerts: int = 0
    watch: Finding | None = None
    alert: Finding | None = None
    last: Finding | None = None
    """The last judgement that the detectors made."""
    pattern: Pattern = "unknown"
    """What the last evaluation, or the screen before it, said."""
    evaluations: int = 0
    spent_s: list[float] = field(default_factory=list)
    """What each evaluation took."""
    etas: list[tuple[float, float, float, float | None]] = field(default_factory=list)
    """(at, low, mid, high) of every evaluation while the alert fires."""
    patterns: list[tuple[float, Pattern, Tier]] = field(default_factory=list)
    """(at, pattern, tier) of every evaluation by the detectors."""


class KnownTrack(Track, kw_only=True, eq=False):
    """A track whose limit and history are those of a series that was made up beforehand."""

    whole: Series
    runs: Callable[[float], tuple[Profile, ...]] | None = None
    """What is known of other runs at an instant; None when that is the history of ``whole``."""
    beside: Beside | None = None
    """What else is known, given what is known and the alert that is open."""

    def series(self, *, raw: bool = False) -> Series:
        """Return what is known by now."""
        known = super().series(raw=raw)
        whole, now = self.whole, float(known.t_s[-1]) if known.t_s.size else 0.0
        known = msgspec.structs.replace(known, limit_bytes=whole.limit_bytes)
        if self.beside is not None:
            known = self.beside(known, self.alert)
        past = whole.history if self.runs is None else self.runs(now)
        if not past or not known.t_s.size:
            return known
        age_s = now - float(whole.t_s[0]) + (whole.age_s or 0.0)
        return msgspec.structs.replace(known, history=past, age_s=age_s)


def series_at(whole: Series, end: int) -> Series:
    """Return what was known after ``end`` samples. ``limit_bytes`` stays."""
    return msgspec.structs.replace(whole, t_s=whole.t_s[:end], used_bytes=whole.used_bytes[:end])


def make(
    t_s: npt.NDArray[np.floating[Any]],
    used: npt.NDArray[np.floating[Any]],
    total: float,
    framework: str | None = None,
) -> Series:
    """Return a series on a card of ``total`` bytes that nobody else uses."""
    return Series(
        subject=Subject(device_uid="GPU-test"),
        t_s=np.asarray(t_s, dtype=np.float64),
        used_bytes=np.asarray(used, dtype=np.float64),
        limit_bytes=total,
        total_bytes=total,
        framework=framework,
    )


def device_of(whole: Series) -> Device:
    """Return the device that a made-up series was read from."""
    total = whole.total_bytes
    return Device(
        uid=whole.subject.device_uid, vendor="test", index=0, name="test",
        memory_total_bytes=None if total is None else int(total),
    )  # fmt: skip


def track_of(whole: Series, recorded: Recorded) -> KnownTrack:
    """Return the track of a series that nobody has looked at yet."""
    return KnownTrack(
        subject=whole.subject,
        device=device_of(whole),
        window=recorded,
        evidence=recorded,
        headroom=Headroom(total_bytes=whole.total_bytes, util_pct=whole.util_pct, growing={}),
        title=Title.of("test"),
        framework=whole.framework,
        whole=whole,
    )


def instants_of(t_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return when there is something new to judge, as the pipeline has it: every ten seconds."""
    return np.unique(np.ceil(t_s / FAST_S)) * FAST_S


def replay(
    whole: Series,
    settings: DetectionSection | None = None,
    *,
    evaluator: Evaluator | None = None,
    until_s: float | None = None,
    stop_at_alert: bool = False,
    history: Callable[[float], tuple[Profile, ...]] | None = None,
    beside: Beside | None = None,
) -> Life:
    """Return the life of the subject's alert under default policy.

    ``whole`` is the series from its first to its last sample, and its ``age_s`` that of the first;
    nothing is judged before its time, nor ``until_s`` seconds after it, nor after the first alert
    (``stop_at_alert``). ``settings`` are by default those of the daemon, unless a
    ``evaluator`` brings its own. ``history`` is what is
    known of other runs at an instant, where that changes (siblings, yesterday); otherwise that of
    ``whole``. ``beside`` adds to a series what is known beside its curve.
    """
    settings = settings or DEFAULTS
    recorded = Recorded(whole.t_s, whole.used_bytes, (), settings.analysis_window_hours * 3600.0)
    evaluator = evaluator or Evaluator(State(Config(detection=settings)))
    track = track_of(whole, recorded)
    track.runs, track.beside = history, beside
    life = Life()
    start = float(whole.t_s[0])
    instants = instants_of(recorded.t_s)
    if until_s is not None:
        instants = instants[instants <= start + until_s]
    known = np.searchsorted(recorded.t_s, instants, side="right").tolist()
    for now, count in zip(instants.tolist(), known, strict=True):
        recorded.count = count
        if not evaluator.due([track], now):
            continue
        before, judged = track.alert, track.judged_s
        # The clock of the processor would be the better one, but asking it is slow in a container.
        began = time.perf_counter()
        changed = evaluator.judge([track], now)
        life.spent_s.append(time.perf_counter() - began)
        if track.judged_s > judged:
            _note(life, track, before, changed, now - start)
        if stop_at_alert and life.alerts:
            break
    return life


def _note(life: Life, track: Track, before: Alert | None, changed: list[Alert], at: float) -> None:
    life.evaluations += 1
    finding = track.finding
    if finding is None:
        return
    life.pattern = finding.pattern
    if finding.signals or finding.confidence > 0.0:
        life.last = finding
    life.patterns.append((at, finding.pattern, finding.tier))
    alert = track.alert
    if alert is None:
        return
    was = before.state if before is not None else None
    if changed and alert.state == "watch" and was != "watch":
        _watched(life, finding, at)
    if alert.state != "firing":
        return
    if was != "firing":
        _watched(life, finding, at, again=False)
        life.alerts += 1
        if life.alert_s is None:
            life.alert_s, life.alert = at, finding
    if finding.eta is not None and finding.tier != "none":
        life.etas.append((at, finding.eta.low_s, finding.eta.mid_s, finding.eta.high_s))


def _watched(life: Life, finding: Finding, at: float, *, again: bool = True) -> None:
    life.watches += again
    if life.watch_s is None:
        life.watch_s, life.watch = at, finding
