"""Alerts that are over: what people know of them, and what they are still to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Hold
from gpuwatchd.pipeline.clock import moved_alert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert


class ResolvedAlerts:
    """Remembers by key; times are on the clock of the source that an alert is of."""

    def __init__(self) -> None:
        self.owing: dict[str, Alert] = {}
        """Alert key -> the alert whose end is still to be told."""
        self.pasts: dict[str, policy.AlertHistory] = {}
        self._sources: dict[str, str] = {}
        """Alert key -> its source, once that is known."""

    def recall(self, alerts: Iterable[Alert], now_s: float) -> None:
        """Take over what an earlier run left."""
        found = list(alerts)
        self.pasts.update(policy.recalled(found, now_s))
        self.owing.update(
            {alert.key: alert for alert in found if alert.next_notice_at_s is not None}
        )

    def add(self, source: str, alert: Alert, rules: policy.Rules, now_s: float) -> None:
        """Take in an alert that is over, or of which that was told."""
        key = alert.key
        self._sources[key] = source
        self.pasts[key] = policy.remembered(self.pasts.get(key), alert, now_s)
        if alert.next_notice_at_s is not None:
            self.owing[key] = alert
        elif key in self.owing and self.owing[key].opened_at_s == alert.opened_at_s:
            del self.owing[key]
        for old in [
            k for k, history in self.pasts.items() if not policy.matters(history, rules, now_s)
        ]:
            del self.pasts[old]
            self._sources.pop(old, None)

    def reopened(
        self, source: str, alert: Alert, rules: policy.Rules, now_s: float
    ) -> tuple[Alert, Alert | None]:
        """Return an alert that has just fired as people see it, and the one that is not over."""
        past = self.pasts.get(alert.key)
        self._sources[alert.key] = source
        alert = policy.reopened(alert, past, rules, now_s)
        owed = self.owing.pop(alert.key, None)
        if owed is None or past is None:
            return alert, owed
        owed = msgspec.structs.replace(owed, next_notice_at_s=None, **wording.held(Hold.REOPENED))
        self.pasts[alert.key] = policy.remembered(past, owed, now_s)
        return alert, owed

    def owed(self, source: str) -> list[Alert]:
        """Return what a source's alerts still owe; what nobody has claimed is everybody's."""
        return [alert for key, alert in self.owing.items() if self._is_of(key, source)]

    def lately(self) -> tuple[Alert, ...]:
        """Return alerts that are over and still matter."""
        return tuple(past.last for past in self.pasts.values())

    def move(self, source: str, by_s: float) -> list[Alert]:
        """Move a source's alerts in time; return those that still owe something."""
        keys = [key for key in {*self.owing, *self.pasts} if self._is_of(key, source)]
        moved: list[Alert] = []
        for key in keys:
            self._sources[key] = source
            if key in self.owing:
                self.owing[key] = _moved(self.owing[key], by_s)
                moved.append(self.owing[key])
            past = self.pasts.get(key)
            if past is not None:
                ends_s = tuple(end + by_s for end in past.ends_s)
                self.pasts[key] = policy.AlertHistory(last=_moved(past.last, by_s), ends_s=ends_s)
        return moved

    def _is_of(self, key: str, source: str) -> bool:
        return self._sources.get(key, source) == source


def _moved(over: Alert, by_s: float) -> Alert:
    """Move an alert in time that is over; its row is known by when it opened."""
    return msgspec.structs.replace(moved_alert(over, by_s), opened_at_s=over.opened_at_s)
