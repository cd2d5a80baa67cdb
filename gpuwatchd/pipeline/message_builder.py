"""What an alert wears when people are told of it: whom it is about, what it costs, its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.pipeline import action_handler, messages
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.pipeline.subject_facts import subject_facts

if TYPE_CHECKING:
    from gpuwatchd.alerts import Notice
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Device, Message, ProcessInfo
    from gpuwatchd.pipeline.alert_cost import Costing
    from gpuwatchd.pipeline.chart_points import Curve
    from gpuwatchd.pipeline.tracker import Intake


class MessageBuilder:
    """Makes messages of notices.

    Parameters
    ----------
    config
        Says which buttons there are.
    intake
        Knows devices and processes.
    costing
        Knows what it costs.
    booted_at_s
        When the system was booted, as processes' start times were reckoned.
    """

    def __init__(
        self, config: Config, intake: Intake, costing: Costing, *, booted_at_s: float | None = None
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
        """Return an alert that is being told, with what it costs at this moment.

        Parameters
        ----------
        thread
            Of the message that tells of it, where that is another one's.
        counted
            False leaves what it costs as it was.
        """
        own = messages.message_id(alert, "firing", 1)
        first = alert.first_message or (thread if thread and alert.notices == 1 else own)
        cost = self._costing.of(alert, now_s) if counted else alert.cost
        return msgspec.structs.replace(alert, cost=cost, first_message=first)

    def message(self, notice: Notice, curve: Curve | None, now_s: float) -> Message:
        """Return the message of a notice.

        Parameters
        ----------
        curve
            Has the points of the first alert.
        """
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
