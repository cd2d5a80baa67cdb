"""Which alert makes another one no news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core.codes import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert, ProcessKey


class InhibitingAlerts:
    """Open alerts that may make others no news.

    Looking at each of hundreds for each of hundreds would take a tick longer than its interval.
    """

    def __init__(self, alerts: Iterable[Alert]) -> None:
        self.lost: list[Alert] = []
        """Those on GPUs and drivers."""
        self._near: dict[ProcessKey | str, list[Alert]] = {}
        for alert in alerts:
            if alert.state != "firing":
                continue
            if alert.kind == "gpu":
                self.lost.append(alert)
            elif alert.subject.process is not None and alert.held_code is not Hold.NO_DATA:
                self._near.setdefault(alert.subject.process, []).append(alert)
                self._near.setdefault(alert.subject.device_uid, []).append(alert)

    def near(self, alert: Alert) -> list[Alert]:
        """Return those among which is any that makes an alert no news."""
        subject = alert.subject
        same = subject.device_uid if subject.process is None else subject.process
        return [*self.lost, *self._near.get(same, ())]


def inhibitor(alert: Alert, others: Iterable[Alert]) -> Alert | None:
    """Return the open alert that makes this one no news; None without any.

    A GPU that is lost or hangs, its card, or a driver that is down says all that can be said of its
    memory; on one that should be reset jobs go on, and leak. A process that is about to run out of
    memory is told of once, by its worst alert. A device as a whole only echoes what one of its
    processes does.
    """
    return next((other for other in others if other.key != alert.key and _over(other, alert)), None)


def _over(one: Alert, alert: Alert) -> bool:
    """Say whether ``one`` makes ``alert`` no news; never both of each other."""
    if one.state != "firing" or alert.kind == "gpu":
        return False
    mine, its = alert.subject, one.subject
    same = mine.device_uid == its.device_uid
    if one.kind == "gpu":
        card = alert.about.card_uid if alert.about is not None else ""
        here = one.severity == "critical" and its.device_uid in {mine.device_uid, card}
        return not mine.host and (here or not its.device_uid)
    if one.kind != "leak" or its.process is None or one.inhibited_by:
        return False
    if mine.process is not None:
        worse = one.severity == "critical" and RANK[alert.severity] < RANK[one.severity]
        return mine.process == its.process and worse
    echo = same and not its.host and not mine.unattributed and alert.kind == "leak"
    return echo and RANK[alert.severity] <= RANK[one.severity]
