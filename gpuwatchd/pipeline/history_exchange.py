"""What of a tick goes into the history, and what of the history goes into the first tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.analysis.attribution import Baseline
from gpuwatchd.core.model import Subject
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.pipeline.clock import STEP_S, moved_alert, resumed
from gpuwatchd.pipeline.condition_alerts import KINDS
from gpuwatchd.pipeline.device_rings import SPAN_S, RecentActivity
from gpuwatchd.store.profiles import IdleLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Alert, AllocatorReading, Device, ProcessKey, Sample
    from gpuwatchd.notify.outbox.outbox import Outbox
    from gpuwatchd.pipeline.alert_notifier import AlertNotifier
    from gpuwatchd.pipeline.condition_alerts import ConditionAlerts
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.writer import History

_HOUR_S = 3600.0
_PAUSE_S = 1800.0
"""Evidence survives a pause up to this long: whether it is of the growth that is seen afterwards
tells the first judgement, by when that growth began."""
_COUNTED_S = 60.0
"""A pause up to this long counts as time for which the evidence lasted, a longer one does not."""
_SINCE = ("held_since_s", "alert_since_s", "clear_since_s", "milder_since_s")
_EVIDENCE = (
    *("confirmations", "held_since_s", "alert_confirmations", "alert_since_s"),
    *("evidence", "clears", "clear_since_s", "milder_since_s", "finding"),
)
"""What changes of an open alert at every judgement, and is not written for that alone."""


def _amount(held_bytes: int | None) -> int | None:
    """Return an amount that can be one: the file may hold anything."""
    return held_bytes if held_bytes is not None and 0 <= held_bytes < 2**63 else None


class Last(NamedTuple):
    """What an earlier daemon of this boot saw last, on the clock of now."""

    state: LiveState
    taken_at_s: float
    stepped_s: float
    """By how much the clock was set since."""
    pause_s: float
    """How long ago that is."""

    @classmethod
    def of(cls, state: LiveState | None, boot_id: str, now_s: float, ahead_s: float) -> Last | None:
        """Return what a live state tells; None where it is of another boot, or of none."""
        if state is None or not boot_id or state.boot_id != boot_id or state.clock_ahead_s is None:
            return None
        step_s = ahead_s - state.clock_ahead_s
        step_s = step_s if abs(step_s) > STEP_S else 0.0
        taken_at_s = state.taken_at_s + step_s
        if not now_s - ahead_s + STEP_S >= now_s - taken_at_s >= -STEP_S:
            return None  # older than this boot, or not yet: no point may lie there
        return cls(state, taken_at_s, step_s, now_s - taken_at_s)

    @property
    def fresh(self) -> bool:
        """Whether evidence of then still counts."""
        return -STEP_S <= self.pause_s <= _PAUSE_S

    def newest(self) -> Iterator[tuple[Subject, int | None]]:
        """Yield what each subject on a device held; what was not known at that instant is None."""
        # What a daemon leaves behind that stops in order is dated at its end, and written before.
        for item in () if self.state.stopped else self.state.devices:
            uid, reading = item.device.uid, item.reading
            if reading is None:
                continue
            yield Subject(device_uid=uid), _amount(reading.used_bytes)
            yield Subject(device_uid=uid, unattributed=True), _amount(item.unattributed_bytes)
            for process in item.processes or () if item.processes_age_s is None else ():
                key = process.info.key
                yield Subject(device_uid=uid, process=key), _amount(process.used_bytes)
                on_host = Subject(device_uid=uid, process=key, host=True)
                yield on_host, _amount(process.host_bytes)

    def attributed(self) -> Iterator[str]:
        """Yield the devices of which it was known who holds all of their memory."""
        for item in self.state.devices:
            ledger = item.ledger
            if item.processes_age_s is None and ledger is not None and ledger.state == "whole":
                yield item.device.uid

    def _paused(self, alert: Alert) -> Alert:
        """Return an alert whose evidence has lasted as long as it had before a long pause."""
        times = {
            name: at_s + self.pause_s
            for name in _SINCE
            if self.pause_s > _COUNTED_S and (at_s := getattr(alert, name)) is not None
        }
        return msgspec.structs.replace(alert, **times) if times else alert

    def pending(self) -> Iterator[Alert]:
        """Yield the alerts that had not opened, on the clock of now."""
        for alert in self.state.pending if self.fresh else ():
            yield moved_alert(self._paused(alert), self.stepped_s)

    def brought(self, alert: Alert) -> Alert:
        """Return an open alert of the history with the evidence of the last tick."""
        same = (alert.key, alert.opened_at_s, alert.state)
        for one in self.state.alerts if self.fresh else ():
            if (one.key, one.opened_at_s, one.state) == same:
                evidence = {name: getattr(self._paused(one), name) for name in _EVIDENCE}
                return msgspec.structs.replace(alert, **evidence)
        return alert


class HistoryLink:
    """Between the tick and the history."""

    def __init__(self, history: History, state: State) -> None:
        self.history = history
        self._state = state

    def resume(
        self,
        outbox: Outbox,
        conditions: ConditionAlerts,
        alert_notifier: AlertNotifier,
        now_s: float,
        last: Last | None = None,
    ) -> None:
        """Take up what the history knows: points, alerts, baselines, unsent messages."""
        state, span_s = self._state, self._state.settings.span_s
        step_s = 0.0 if last is None else last.stepped_s
        past = self.history.recent_series(now_s - span_s, stepped_s=step_s)
        state.restored.refill(past, span_s)
        for uid, points in self.history.recent_activity(now_s - SPAN_S, stepped_s=step_s):
            state.restored.activity[uid] = RecentActivity(points)
        if last is not None:
            if step_s:
                # Rows of before and of now are on two clocks; the next start must not mix them.
                self.history.segment("clock-step", wall_step_s=step_s)
            state.restored.extend(last.taken_at_s, last.newest())
            state.restored.attributed_at_s.update(dict.fromkeys(last.attributed(), last.taken_at_s))
            state.restored.pending.update({one.subject.id: one for one in last.pending()})
        for alert in self.history.open_alerts():
            known = alert if last is None else moved_alert(last.brought(alert), step_s)
            known = resumed(known, state.settings.rules, now_s)
            if alert.kind in KINDS:
                conditions.adopt(known, now_s)
            else:
                state.restored.adopt(known)
        for uid, level in self.history.shelf.idle_levels().items():
            state.idle_levels[uid] = Baseline(least_bytes=level.least_bytes, boot_id=level.boot_id)
        rules = state.settings.rules
        since_s = now_s - max(_HOUR_S, rules.cooldown_s, rules.group_interval_s)
        alert_notifier.resume(
            [resumed(over, rules, now_s) for over in self.history.over_since(since_s)],
            [notice.at_s for notice in self.history.recent_notices(now_s - _HOUR_S)],
            now_s,
        )
        alert_notifier.deaths.note(self.history.over_since(now_s - SAID_FOR_S))
        outbox.resume(now_s)

    def allocators(
        self, now_s: float, last: Last | None
    ) -> Iterator[tuple[tuple[str, ProcessKey], list[AllocatorReading]]]:
        """Yield what allocators said lately, by device and process."""
        step_s = 0.0 if last is None else last.stepped_s
        yield from self.history.recent_allocators(
            now_s - self._state.settings.span_s, stepped_s=step_s
        )

    def record(
        self,
        sample: Sample,
        devices: tuple[Device, ...],
        step_s: float | None,
        inside: Sequence[AllocatorReading] = (),
    ) -> None:
        """Keep one sample, as far as it is understood, and what was learned from it.

        ``inside``: what is new of the allocators of its processes.
        """
        if step_s is not None:
            self.history.segment("clock-step", wall_step_s=step_s)
        state = self._state
        sampled = {reading.device_uid for reading in sample.readings}
        readings = []
        unattributed: dict[str, int] = {}
        for device in devices:
            tracked_device = state.devices.get(device.uid)
            if (
                tracked_device is None
                or tracked_device.reading is None
                or device.uid not in sampled
            ):
                continue
            readings.append(tracked_device.reading)
            ledger = tracked_device.ledger
            if ledger is not None and ledger.state in {"whole", "overlap"}:
                rest = ledger.unattributed_bytes
                if rest is not None:
                    unattributed[device.uid] = rest
        resolved = msgspec.structs.replace(sample, readings=tuple(readings))
        self.history.record(resolved, devices, state.infos, unattributed)
        if inside:
            self.history.record_allocator(inside)
        while state.idle_levels.changed:
            uid, baseline = state.idle_levels.changed.popitem()
            if baseline.least_bytes is not None:
                level = IdleLevel(baseline.least_bytes, baseline.boot_id)
                self.history.shelf.learn(uid, level, sample.taken_at_s)
