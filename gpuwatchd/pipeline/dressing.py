"""What an alert wears when people are told of it: whom it is about, what it costs, its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.model import About
from gpuwatchd.pipeline import messages

if TYPE_CHECKING:
    from gpuwatchd.config import Config
    from gpuwatchd.model import Alert, Device, Message, ProcessInfo
    from gpuwatchd.pipeline.charting import Curve
    from gpuwatchd.pipeline.costing import Costing
    from gpuwatchd.pipeline.intake import Intake
    from gpuwatchd.policy import Notice


def about(device: Device | None, info: ProcessInfo | None, alert: Alert) -> About:
    """Return whom an alert is about, in the words that rules are written in.

    Parameters
    ----------
    device, info
        Its device and its process, as far as they are known.
    """
    gpu = ""
    if device is not None and device.index is not None:
        parent = device.parent_index
        gpu = f"{parent}:{device.index}" if device.parent_uid and parent is not None else ""
        gpu = gpu or str(device.index)
    process = alert.subject.process
    known = About(
        gpu=gpu,
        gpu_name="" if device is None else device.name,
        pid=None if process is None else process.pid,
        framework=alert.finding.framework or "",
    )
    if info is None:
        return known
    return msgspec.structs.replace(
        known,
        user=info.user or "",
        process=info.name,
        framework=info.framework or known.framework,
        command=" ".join(info.argv),
        job=info.group or info.job or "",
        container=info.short_container or "",
        program=info.program or "",
    )


class Dresser:
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
        found = about(self._device(alert), self._info(alert), alert)
        before = alert.about
        if before == found or (before is not None and before.process and not found.process):
            return alert  # Who has ended is not forgotten.
        return msgspec.structs.replace(alert, about=found)

    def priced(self, alert: Alert, now_s: float) -> Alert:
        """Return an alert with what it costs at this moment."""
        return msgspec.structs.replace(alert, cost=self._costing.of(alert, now_s))

    def message(self, notice: Notice, curve: Curve | None, now_s: float) -> Message:
        """Return the message of a notice.

        Parameters
        ----------
        curve
            Has the points of the first alert.
        """
        # Both are needed by a message alone, and bring numpy and the buttons' programs with them.
        from gpuwatchd.pipeline import charting, pressed  # noqa: PLC0415

        alert = notice.alert
        buttons = pressed.buttons_for(
            alert, self.config, self._info(alert), booted_at_s=self._booted_at_s
        )
        return messages.compose(
            alert,
            notice.kind,
            now_s=now_s,
            also=notice.also,
            chart=charting.chart(curve, alert),
            buttons=buttons,
        )

    def _device(self, alert: Alert) -> Device | None:
        seen = self._intake.devices.get(alert.subject.device_uid)
        return None if seen is None else seen.device

    def _info(self, alert: Alert) -> ProcessInfo | None:
        process = alert.subject.process
        return None if process is None else self._intake.infos.get(process)
