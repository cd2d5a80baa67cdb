"""Alerts and deliveries as they stand, in memory, and what of them is not yet written.

Rows get their number here, so that a delivery can be referred to before the disk has it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.store import records, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from gpuwatchd.core.model import Alert, Decision, Delivery

_WAITING_LIMIT = 2000


class AlertBuffer:
    """Open alerts, pending deliveries, and the rows that wait to be written."""

    def __init__(self) -> None:
        self.open_alerts: dict[str, Alert] = {}
        self.pending: dict[int, Delivery] = {}
        self._next_row = 1
        self.segments: deque[dict[str, Any]] = deque(maxlen=_WAITING_LIMIT)
        self.events: deque[dict[str, Any]] = deque(maxlen=_WAITING_LIMIT)
        self.decisions: deque[Decision] = deque(maxlen=_WAITING_LIMIT)
        self._alerts: dict[tuple[str, float], Alert] = {}
        self._deliveries: dict[int, Delivery] = {}

    @property
    def waiting(self) -> bool:
        """Whether anything is not yet written."""
        return bool(
            self.segments or self.events or self._alerts or self._deliveries or self.decisions
        )

    @property
    def telling(self) -> bool:
        """Whether an alert or a delivery is not yet written."""
        return bool(self._alerts or self._deliveries)

    def left(self) -> tuple[tuple[int, str, str], ...]:
        """Return (how many, what, the newest of them) of what is not yet written."""
        event = self.events[-1]["detail"] if self.events else ""
        alert = next(reversed(self._alerts.values()), None)
        return (
            (len(self.events), "event", event),
            (len(self._alerts), "alert", "" if alert is None else alert.title or alert.key),
            (len(self._deliveries), "message", ""),
        )

    def load(self, connection: sqlite3.Connection) -> int:
        """Take over what the file holds; what is known here is newer. Return strange rows."""
        alerts, strange = records.load_alerts(connection, "resolved_ts_ms IS NULL")
        # What waits to be written may be over already.
        alerts = [one for one in alerts if (one.key, one.opened_at_s) not in self._alerts]
        self.open_alerts = {alert.key: alert for alert in alerts} | self.open_alerts
        deliveries, more = records.load_deliveries(connection, "state = 'pending'")
        found = {d.row: d for d in deliveries if d.row is not None}
        self.pending = {k: v for k, v in found.items() if k not in self._deliveries} | self.pending
        (last,) = connection.execute("SELECT ifnull(max(id), 0) FROM delivery").fetchone()
        self._next_row = max(self._next_row, last + 1)
        return strange + more

    def number_from(self, row: int) -> None:
        """Give new deliveries rows from ``row`` on."""
        self._next_row = max(self._next_row, row)

    def add_alert(self, alert: Alert) -> None:
        """Note how an alert stands now."""
        if alert.resolved_at_s is None:
            self.open_alerts[alert.key] = alert
        else:
            self.open_alerts.pop(alert.key, None)
        self._alerts[alert.key, alert.opened_at_s] = alert
        _bound(self._alerts)

    def add_delivery(self, delivery: Delivery) -> Delivery:
        """Note how a delivery stands now and return it with its row."""
        row = delivery.row
        if row is None:
            row, self._next_row = self._next_row, self._next_row + 1
            delivery = msgspec.structs.replace(delivery, row=row)
        if delivery.state == "pending":
            self.pending[row] = delivery
        else:
            self.pending.pop(row, None)
        self._deliveries[row] = delivery
        _bound(self._deliveries)
        return delivery

    def write_all_again(self) -> None:
        """Have everything that stands written once more: into a new file."""
        for alert in self.open_alerts.values():
            self._alerts.setdefault((alert.key, alert.opened_at_s), alert)
        for row, delivery in self.pending.items():
            self._deliveries.setdefault(row, delivery)

    def write(
        self, connection: sqlite3.Connection, subject: Callable[[Alert], None]
    ) -> tuple[dict[int, int], int]:
        """Write what waits, inside the caller's transaction; then call :meth:`written`.

        Parameters
        ----------
        subject
            Writes the device and process of an alert before the alert itself.

        Returns
        -------
        tuple
            Deliveries that got another row than they were promised, and how many rows were
            refused because a value did not fit.
        """
        moved: dict[int, int] = {}

        def save_alert(alert: Alert) -> None:
            subject(alert)
            records.save_alert(connection, alert)

        def save_delivery(delivery: tuple[int, Delivery]) -> None:
            row = records.save_delivery(connection, delivery[1], delivery[0])
            if row != delivery[0]:
                moved[delivery[0]] = row

        refused = records.refused(partial(records.insert, connection, "segment"), self.segments)
        refused += records.refused(partial(records.insert, connection, "event"), self.events)
        refused += records.refused(save_alert, self._alerts.values())
        refused += tables.save_decisions(connection, self.decisions)
        refused += records.refused(save_delivery, self._deliveries.items())
        return moved, refused

    def written(self, moved: dict[int, int]) -> None:
        """Forget what waited, after the commit."""
        self.drop()
        for row, saved in moved.items():
            # What is not pending under the row that it was promised has come to its end.
            delivery = self.pending.pop(row, None)
            self.pending.pop(saved, None)
            if delivery is not None:
                self.pending[saved] = msgspec.structs.replace(delivery, row=saved)

    def drop(self) -> None:
        """Forget what waited; alerts and deliveries that stand are kept."""
        self.segments.clear()
        self.events.clear()
        self._alerts.clear()
        self._deliveries.clear()
        self.decisions.clear()


def _bound(waiting: dict[Any, Any]) -> None:
    if len(waiting) > _WAITING_LIMIT:
        del waiting[next(iter(waiting))]
