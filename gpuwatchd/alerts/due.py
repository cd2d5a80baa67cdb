"""One notice that is due: its routes, its urgency, and which others leave with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.alerts.alert_history import passes
from gpuwatchd.alerts.policy_types import RANK, Effective, Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert, NoticeKind, Severity

Signature = tuple[tuple[str, str, float | None], ...]


class Due(NamedTuple):
    """A notice that is due, or leaves with one that is."""

    alert: Alert
    notice: NoticeKind
    severity: Severity
    effective: Effective
    routes: tuple[Route, ...]
    joins: bool = False
    """It is not due: it leaves with others, or not yet."""

    @property
    def signature(self) -> Signature:
        """By which channels it leaves, and when."""
        return tuple((r.channel, r.kind, r.until_at_s) for r in self.routes if r.kind != "hold")

    @property
    def group(self) -> str:
        """What its alert shares its notices with."""
        return self.alert.group or group_of(self.alert)

    @property
    def urgent(self) -> bool:
        """Whether it is news, and critical."""
        return self.severity == "critical" and self.notice in {"firing", "escalated"}

    @property
    def order(self) -> tuple[bool, int, float, str]:
        """Sort key: news first, of that the worst, then the oldest."""
        old = self.notice == "repeat"
        return old, -RANK[self.severity], self.alert.firing_at_s or 0.0, self.alert.key

    @property
    def together(self) -> tuple[str, bool, Signature]:
        """What leaves as one message: of one group, open or over, by the same channels."""
        return self.group, self.notice == "resolved", self.signature


def group_of(alert: Alert) -> str:
    """Return what an alert shares its notices with: its job, else its device.

    Ranks of one job grow for one reason; strangers on one device take from the same memory, and
    whoever looks at one of them looks at the other.
    """
    job = "" if alert.about is None else alert.about.job
    return f"job:{job}" if job else f"gpu:{alert.subject.device_uid}"


def notice_due(alert: Alert, now_s: float) -> NoticeKind | None:
    """Return which notice this alert owes now, None when none."""
    due = alert.next_notice_at_s is not None and now_s >= alert.next_notice_at_s
    if alert.state == "resolved":
        return "resolved" if due else None
    if alert.state != "firing":
        return None
    if alert.notices == 0:
        return "firing" if due else None
    if passes(alert):
        return "escalated"
    return "repeat" if due else None


def grouped_by_message(due: Iterable[Due]) -> list[list[Due]]:
    """Return the messages, the most urgent first."""
    groups: dict[tuple[str, bool, Signature], list[Due]] = {}
    for due_notice in due:
        groups.setdefault(due_notice.together, []).append(due_notice)
    batches = [sorted(batch, key=lambda notice: notice.order) for batch in groups.values()]
    return sorted(batches, key=lambda batch: (not batch[0].urgent, batch[0].order))
