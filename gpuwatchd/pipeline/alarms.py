"""Alerts that no curve is judged for: a GPU that is lost, memory that is held without work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.config import Config
    from gpuwatchd.model import Alert
    from gpuwatchd.pipeline.holdings import Holdings
    from gpuwatchd.pipeline.intake import Intake

SOURCE = "alarms"
"""Under what the herald announces them."""


class Alarm:
    """One subject that such an alert is about."""

    def __init__(self, alert: Alert | None = None) -> None:
        self.alert = alert
        self.heard_at_s: float | None = None
        """When something was last known of it."""


class Alarms:
    """Opens, keeps and ends them.

    Parameters
    ----------
    config
        Says which kinds are told.
    intake
        Has the state of each device.
    holdings
        Has what is held without work.
    """

    def __init__(self, config: Config, intake: Intake, holdings: Holdings) -> None:
        self.config = config
        self._intake = intake
        self._holdings = holdings
        self.alarms: dict[str, Alarm] = {}
        """Alert key -> its alarm."""

    def step(self, now_s: float) -> list[Alert]:  # noqa: ARG002
        """Take in what is so now; return the alerts whose state changed."""
        return []
