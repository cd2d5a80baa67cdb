"""What an alert wears when people are told of it: whom it is about, what it costs, its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model.findings import with_blame
from gpuwatchd.pipeline import action_handler, messages
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.pipeline.track_evaluation import subject_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.alerts import Notice
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Device, Message, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.alert_cost import Costing
    from gpuwatchd.pipeline.chart_points import Curve
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.pipeline.tracker import SampleIntake

# Whose growth explains the device's: asked when an alert opens, not at every look.


def with_attribution(
    alert: Alert,
    device: TrackedDevice,
    infos: Mapping[ProcessKey, ProcessInfo],
    tracks: Mapping[str, Track],
) -> Alert:
    """Return the alert with the shares of those who grew since its onset; its track has it, too."""
    from gpuwatchd.analysis import attribution  # noqa: PLC0415 - its numbers need numpy

    finding = alert.finding
    if alert.state not in {"watch", "firing"} or not device.others or finding.onset_at_s is None:
        return alert
    track = tracks.get(alert.subject.id)
    if alert.subject.host or (track is not None and track.leads):
        return alert
    kind, ledger = device.device.memory_kind, device.ledger
    fresh = device.uses is not None and device.uses_s == device.taken_s
    shares = attribution.share(
        None if kind == "coherent" else device.others[0].series(),
        # What was last known of a list that cannot be read now says nothing of the growth since.
        {key: track.series() for key, track in device.processes.items()} if fresh else {},
        since_s=finding.onset_at_s,
        names={
            key: info.attribution
            for key in device.processes
            if (info := infos.get(key)) is not None
        },
        complete=fresh and kind == "dedicated" and ledger is not None and ledger.state == "whole",
    )
    told = msgspec.structs.replace(alert, finding=with_blame(finding, shares))
    if track is not None and track.alert is not None and track.alert.key == alert.key:
        track.alert = told
    return told


class MessageBuilder:
    """Makes messages of notices."""

    def __init__(
        self,
        config: Config,
        intake: SampleIntake,
        costing: Costing,
        *,
        booted_at_s: float | None = None,
    ) -> None:
        self.config = config
        self._intake = intake
        self._costing = costing
        self._booted_at_s = booted_at_s

    def introduced(self, alert: Alert) -> Alert:
        """Return an alert with what is known now of whom it is about."""
        found = subject_facts(self._device(alert), self._info(alert), alert.finding)
        before = alert.about
        if before == found or (before is not None and before.process and not found.process):
            return alert  # Who has ended is not forgotten.
        return msgspec.structs.replace(alert, about=found)

    def priced(
        self, alert: Alert, now_s: float, thread: str = "", *, counted: bool = True
    ) -> Alert:
        """Return an alert that is being told, with what it costs at this moment."""
        own = messages.message_id(alert, "firing", 1)
        first = alert.first_message or (thread if thread and alert.notices == 1 else own)
        cost = self._costing.of(alert, now_s) if counted else alert.cost
        return msgspec.structs.replace(alert, cost=cost, first_message=first)

    def message(self, notice: Notice, curve: Curve | None, now_s: float) -> Message:
        """Return the message of a notice."""
        alert = notice.alert
        buttons = action_handler.buttons_for(
            alert, self.config, self._info(alert), booted_at_s=self._booted_at_s
        )
        chart = None
        if curve is not None:
            from gpuwatchd.pipeline import chart_points  # noqa: PLC0415 - numpy comes with it

            chart = chart_points.chart(curve, alert)
        message = messages.compose(
            alert,
            notice.kind,
            now_s=now_s,
            also=notice.also,
            chart=chart,
            buttons=buttons,
        )
        lead = sentences.critical_lead(alert, notice.kind)
        return msgspec.structs.replace(message, lead=lead)

    def _device(self, alert: Alert) -> Device | None:
        device = self._intake.devices.get(alert.subject.device_uid)
        return None if device is None else device.device

    def _info(self, alert: Alert) -> ProcessInfo | None:
        process = alert.subject.process
        return None if process is None else self._intake.infos.get(process)
