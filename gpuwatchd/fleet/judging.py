"""The judgement of many GPUs, by the functions that the daemon of one machine judges with.

Two screens find the few that deserve the detectors. What is open is judged each round; the rest of
what the screens drop once an hour in turn, so that a miss of theirs costs an hour and no leak.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gpuwatchd import alerts
from gpuwatchd.analysis import screen, verdict
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Alert, Finding, Series, Subject
from gpuwatchd.fleet.rings import NO_DATA_S

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Pattern, Severity
    from gpuwatchd.fleet.config import ConfirmSection
    from gpuwatchd.fleet.rings import Gpu, Rings

log = logging.getLogger("gpuwatchd.fleet")

_BLOCK: Final = 4096
"""Rows that are screened at a time."""
_TURN: Final = 60
"""Rounds in which each row is judged once, whatever the screens say."""
_LEAST_SCREENED: Final = 30
"""Values that the screens need; no window is shorter."""
_YOUNG_S: Final = screen.RISING_WINDOWS_S[0]
_REPLAY_S: Final = 2400.0
"""Twice the longest time over which evidence is averaged: of what was missed so much is judged
later, at each step; and..."""
_LESS_REPLAYED_S: Final = 1200.0
"""a judgement a minute of this where that would be too many."""
_SCREENED_S: Final = 300.0
"""Of that, the time between two looks by the screens."""
_MOST_REPLAYED: Final = 20_000
"""Judgements of what was missed, of one round: half a minute of one core."""


class Judge:
    """The judgements and alerts of one worker, by the row of a GPU."""

    def __init__(self, detection: DetectionSection, policy: ConfirmSection) -> None:
        self._settings = detection
        self._rules = alerts.Rules(
            channels=(),
            confirm=policy.confirm,
            alert_confidence=detection.confidence_threshold,
            clear_after=policy.clear_after,
            recovered=False,
        )
        self.findings: dict[int, Finding] = {}
        """Those that are more than nothing, and of what is open."""
        self.alerts: dict[int, Alert] = {}
        self.resolved: list[Alert] = []
        """Alerts that the last round has ended."""
        self.judged = 0
        """Judgements of the last round."""
        self.failed: set[int] = set()
        self.calm_since: dict[int, int] = {}
        """Row -> the slot from which it is calm, where it has not always been."""
        self._begun: dict[int, float] = {}
        self._rounds = 0
        self._replayed, self._few = 0, True
        self._judged_to: dict[int, int] = {}
        """Row -> the last step that it was judged at."""

    def restore(
        self, rings: Rings, row: int, severity: Severity, pattern: Pattern, since_s: float
    ) -> None:
        """Take up an alert that fired before a restart, unless the GPU's fires already."""
        alert = self.alerts.get(row)
        if alert is not None and alert.state == "firing":
            return
        alert = restored(rings.gpus[row], severity, pattern, since_s, self._rules.alert_confidence)
        self.findings[row], self.alerts[row] = alert.finding, alert
        self._begun[row] = float(rings.since[row])

    def round(self, rings: Rings) -> None:
        """Judge what is due at the last step of the rings."""
        self.resolved, self.judged, self._replayed = [], 0, 0
        for row in rings.forgotten:
            self._end(row, Ending.NOT_SEEN, float(rings.end * rings.step_s))
            self.failed.discard(row)
            self.calm_since.pop(row, None)
            self._judged_to.pop(row, None)
        self._end_jobs(rings)
        turn, self._rounds = self._rounds, self._rounds + 1
        # In the first round everything is new: the screens alone say what is looked at, and what
        # they would have said, as what they have passed once is judged until it is calm.
        in_turn = set(range(turn % _TURN, len(rings.gpus), _TURN)) if turn else set[int]()
        due = in_turn | self.alerts.keys() | set(candidates(rings, self._settings))
        apart = math.ceil(_SCREENED_S / rings.step_s)
        for back in range(apart, round(_REPLAY_S / rings.step_s) + 1, apart) if not turn else ():
            due |= set(candidates(rings, self._settings, back))
        self._few = len(due) * _REPLAY_S / rings.step_s <= _MOST_REPLAYED
        for row in sorted(due):
            if rings.last[row] == rings.end:
                self._judge(rings, row)

    def _judge(self, rings: Rings, row: int) -> None:
        try:
            findings = self._findings(rings, row)
        except Exception:
            # One GPU that cannot be judged costs no other.
            if row not in self.failed:
                log.exception("failed part=detectors gpu=%s", rings.gpus[row].id)
            self.failed.add(row)
            return
        self.judged += 1
        self._judged_to[row] = rings.end
        self.failed.discard(row)
        alert = self.alerts.get(row)
        for finding in findings:
            alert = alerts.evaluate(
                finding,
                None if alert is None or alert.state == "resolved" else alert,
                self._rules,
                now_s=finding.judged_at_s,
                title=rings.gpus[row].title,
            ).alert
        before = self.findings.pop(row, None)
        self.alerts.pop(row, None)
        if alert is not None and alert.state == "resolved":
            self.resolved.append(alert)
        elif alert is not None:
            self.alerts[row] = alert
            self._begun.setdefault(row, float(rings.since[row]))
        if findings[-1].tier != "none" or row in self.alerts:
            self.findings[row] = findings[-1]
        elif before is not None:
            self.calm_since[row] = rings.end

    def _findings(self, rings: Rings, row: int) -> list[Finding]:
        """Return the judgement of now, after those of the steps that were missed.

        After a start or a pause an alert fires in the first round if it would have without, and a
        watch is as old as the replay finds it. Only what may open is worth that, alerts before
        watches; what fires is not resolved by a pause.
        """
        series, alert = series_of(rings, row), self.alerts.get(row)
        out = [verdict.judge(series, self._settings)]
        fires = alert is not None and alert.state == "firing"
        most = {"alert": _MOST_REPLAYED, "watch": _MOST_REPLAYED // 2}.get(out[0].tier, 0)
        if fires or self._replayed >= most:
            return out
        apart = 1 if self._few else max(1, round(alerts.SLOW_S / rings.step_s))
        replay_s = _REPLAY_S if self._few else _LESS_REPLAYED_S
        steps = max(math.ceil(replay_s / rings.step_s), self._rules.confirm * apart)
        first = max(self._judged_to.get(row, 0) + 1, rings.end - steps)
        for slot in range(rings.end - apart, first - 1, -apart):
            count = int(series.t_s.searchsorted(slot * rings.step_s, side="right"))
            if not count or series.t_s[count - 1] != slot * rings.step_s:
                continue
            earlier = msgspec.structs.replace(
                series, t_s=series.t_s[:count], used_bytes=series.used_bytes[:count]
            )
            out.append(verdict.judge(earlier, self._settings))
            self._replayed += 1
        return out[::-1]

    def _end_jobs(self, rings: Rings) -> None:
        """Resolve what belongs to a job that has gone."""
        for row in [row for row in self.alerts if rings.since[row] != self._begun[row]]:
            self._end(row, Ending.MEMORY_RELEASED, float(rings.since[row] * rings.step_s))
            self.calm_since[row] = rings.end
        for row in [row for row in self._begun if row not in self.alerts]:
            del self._begun[row]

    def _end(self, row: int, why: Ending, now_s: float) -> None:
        """Drop what is known of a row, and resolve its alert."""
        self.findings.pop(row, None)
        self._begun.pop(row, None)
        before = self.alerts.pop(row, None)
        if before is not None:
            after = alerts.ended(before, why, self._rules, now_s=now_s).alert
            self.resolved += [] if after is None else [after]


def restored(
    gpu: Gpu, severity: Severity, pattern: Pattern, since_s: float, confidence: float
) -> Alert:
    """Return an alert of before a restart, as far as it is known: it was confirmed then."""
    subject = Subject(device_uid=gpu.id)
    finding = Finding(
        id=subject.id, subject=subject, judged_at_s=since_s, pattern=pattern, tier="alert",
        severity=severity, confidence=confidence, rate_bytes_per_s=None, eta=None,
    )  # fmt: skip
    return Alert(
        key=f"leak:{subject.id}",
        kind="leak",
        subject=subject,
        state="firing",
        severity=severity,
        finding=finding,
        opened_at_s=since_s,
        changed_at_s=since_s,
        firing_at_s=since_s,
        title=gpu.title,
    )


def series_of(rings: Rings, row: int) -> Series:
    """Return the present job of a GPU as a series that can be judged."""
    t_s, used = rings.series(row)
    total, limit = float(rings.total_bytes[row]), float(rings.limit_bytes[row])
    return Series(
        subject=Subject(device_uid=rings.gpus[row].id),
        t_s=t_s,
        used_bytes=used,
        limit_bytes=None if np.isnan(limit) else limit,
        total_bytes=None if np.isnan(total) else total,
    )


def silent(rings: Rings) -> npt.NDArray[np.bool_]:
    """Say of which GPUs nothing has been known for :data:`NO_DATA_S`."""
    late = (rings.end - rings.last) * rings.step_s >= NO_DATA_S
    out: npt.NDArray[np.bool_] = late & (rings.began >= 0)
    return out


def candidates(rings: Rings, settings: DetectionSection, back: int = 0) -> list[int]:
    """Return the rows that both screens leave to the detectors, or have left so many steps ago."""
    out: list[int] = []
    scale = np.where(np.isnan(rings.total_bytes), np.inf, rings.total_bytes)
    for first in range(0, len(rings.gpus), _BLOCK):
        t_s, values = rings.window(slice(first, first + _BLOCK))
        t_s, values = t_s[: t_s.size - back], values[:, : t_s.size - back]
        if t_s.size < _LEAST_SCREENED:
            return []
        age = _filled(values)
        rows = np.flatnonzero(age > 1)
        if not rows.size:
            continue
        used, largest = values[rows], scale[first + rows]
        chosen = np.flatnonzero(screen.look_at_array(used, t_s, largest, settings) == screen.JUDGE)
        young = age[rows[chosen]] * rings.step_s <= _YOUNG_S
        rises = screen.rising(used[chosen], t_s, largest[chosen], settings)
        out += (first + rows[chosen[young | rises]]).tolist()
    return out


def _filled(values: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Fill gaps with the value before, the time before a job with its first; return its age (k,).

    For the screens alone: both make a series rise less, never more. The age is in steps, 0 where
    there is no value at all.
    """
    missing = np.isnan(values)
    first = np.argmin(missing, axis=1)
    age = np.where(missing.all(axis=1), 0, values.shape[1] - first)
    rows = np.flatnonzero(missing.any(axis=1))
    if rows.size:
        place = np.where(missing[rows], 0, np.arange(values.shape[1]))
        np.maximum.accumulate(place, axis=1, out=place)
        place = np.maximum(place, first[rows, None])
        values[rows] = np.take_along_axis(values[rows], place, axis=1)
    return age
