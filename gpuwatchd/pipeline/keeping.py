"""What of a tick goes into the history, and what of the history goes into the first tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.blame import Baseline
from gpuwatchd.pipeline.alarms import KINDS
from gpuwatchd.pipeline.clock import resumed
from gpuwatchd.store.norms import Norm

if TYPE_CHECKING:
    from gpuwatchd.model import Device, Sample
    from gpuwatchd.pipeline.alarms import Alarms
    from gpuwatchd.pipeline.herald import Herald
    from gpuwatchd.pipeline.intake import Intake
    from gpuwatchd.pipeline.post import Post
    from gpuwatchd.store.writer import History

_HOUR_S = 3600.0


class Keeping:
    """Between the tick and the history.

    Parameters
    ----------
    history
        Where everything is kept.
    intake
        Who holds what.
    """

    def __init__(self, history: History, intake: Intake) -> None:
        self._history = history
        self._intake = intake

    def resume(self, post: Post, alarms: Alarms, herald: Herald, now_s: float) -> None:
        """Take up what the history knows: points, alerts, baselines, unsent messages."""
        intake = self._intake
        span_s = intake.watcher.config.detection.analysis_window_hours * 3600.0
        intake.refill(self._history.recent_series(now_s - span_s))
        for alert in self._history.open_alerts():
            known = resumed(alert, intake.watcher.rules, now_s)
            if alert.kind in KINDS:
                alarms.adopt(known, now_s)
            else:
                intake.adopt(known)
        for uid, norm in self._history.shelf.norms().items():
            intake.baselines[uid] = Baseline(least_bytes=norm.least_bytes, boot_id=norm.boot_id)
        rules = intake.watcher.rules
        since_s = now_s - max(_HOUR_S, rules.cooldown_s, rules.group_interval_s)
        herald.resume(
            [resumed(over, rules, now_s) for over in self._history.over_since(since_s)],
            [notice.at_s for notice in self._history.recent_notices(now_s - _HOUR_S)],
            now_s,
        )
        post.resume(now_s)

    def record(self, sample: Sample, devices: tuple[Device, ...], step_s: float | None) -> None:
        """Keep one sample, as far as it is understood, and what was learned from it."""
        if step_s is not None:
            self._history.segment("clock-step", wall_step_s=step_s)
        intake = self._intake
        sampled = {reading.device_uid for reading in sample.readings}
        readings = []
        unattributed: dict[str, int] = {}
        for device in devices:
            seen = intake.devices.get(device.uid)
            if seen is None or seen.reading is None or device.uid not in sampled:
                continue
            readings.append(seen.reading)
            ledger = seen.ledger
            if ledger is not None and ledger.state in {"whole", "overlap"}:
                rest = ledger.unattributed_bytes
                if rest is not None:
                    unattributed[device.uid] = rest
        resolved = msgspec.structs.replace(sample, readings=tuple(readings))
        self._history.record(resolved, devices, intake.infos, unattributed)
        while intake.learned:
            uid, found = intake.learned.popitem()
            if found.least_bytes is not None:
                norm = Norm(found.least_bytes, found.boot_id)
                self._history.shelf.learn(uid, norm, sample.taken_at_s)
