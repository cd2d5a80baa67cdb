"""Which alert makes another one no news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.policy.rules import RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.model import Alert


def inhibitor(alert: Alert, others: Iterable[Alert]) -> Alert | None:
    """Return the open alert that makes this one no news; None without any.

    A GPU that is lost or hangs, its card, or a driver that is down says all that can be said of its
    memory; on one that should be reset jobs go on, and leak. A process that is about to run out of
    memory is told of once, by its worst alert. A device as a whole only echoes what one of its
    processes does.
    """
    return next((one for one in others if one.key != alert.key and _over(one, alert)), None)


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
