"""Alerts that were over, badly, before anybody could be told: said for a day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core.codes import OUT_OF_MEMORY
from gpuwatchd.store.live import UndeliveredAlert

if TYPE_CHECKING:
    from gpuwatchd.pipeline.channel_health import Reach
    from gpuwatchd.store.writer import History

SAID_FOR_S: Final = 86400.0


class UndeliveredAlerts:
    """What nobody was told of in time: where memory probably ran out, or it was critical.

    What came back by itself is no longer of interest. The history knows it over restarts; it is
    asked only when something has changed.

    Parameters
    ----------
    history
        None keeps nothing: then nothing is known.
    reach
        Counts what has changed.
    """

    def __init__(self, history: History | None, reach: Reach) -> None:
        self._history = history
        self._reach = reach
        self._found: tuple[UndeliveredAlert, ...] = ()
        self._asked_at: int | None = None

    def lost(self, now_s: float) -> tuple[UndeliveredAlert, ...]:
        """Return those of the last day, oldest first; the same object until something changes."""
        changes = self._reach.changes
        if self._asked_at != changes and self._history is not None:
            alerts = self._history.undelivered_since(now_s - SAID_FOR_S)
            if alerts is not None:
                self._asked_at = changes
                self._found = tuple(
                    UndeliveredAlert(
                        key=alert.key, code=alert.code, title=alert.title, severity=alert.severity,
                        ended=alert.ended, ended_at_s=alert.resolved_at_s,
                    )
                    for alert in alerts
                    if alert.resolved_at_s is not None
                    and (alert.ended_code in OUT_OF_MEMORY or alert.severity == "critical")
                )  # fmt: skip
        if any(now_s - alert.ended_at_s >= SAID_FOR_S for alert in self._found):
            self._found = tuple(
                alert for alert in self._found if now_s - alert.ended_at_s < SAID_FOR_S
            )
        return self._found
