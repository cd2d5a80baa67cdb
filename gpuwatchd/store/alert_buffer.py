"""Alerts and deliveries as they stand, in memory, and what of them is not yet written.

Rows get their number here, so that a delivery can be referred to before the disk has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from gpuwatchd.store import integrity, records, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Alert, Decision, Delivery
    from gpuwatchd.store.write_problems import WriteProblems

# What the history knows of alerts and of who was told: the part of its writer for the post.
# Kept apart from the samples: these rows are written at once and power-cut-safe.

_T = TypeVar("_T")
_OF_OPEN = """alert IN (SELECT id FROM alert WHERE resolved_ts_ms IS NULL)
  OR id IN (SELECT t.delivery FROM told t JOIN alert a ON a.key = t.alert_key
    WHERE a.resolved_ts_ms IS NULL AND delivery.created_ts_ms >= a.opened_ts_ms)"""

_ABOUT_IT = """(d.alert = alert.id OR (d.created_ts_ms >= alert.opened_ts_ms
      AND d.id IN (SELECT t.delivery FROM told t WHERE t.alert_key = alert.key)))"""
_UNHEARD = f"""resolved_ts_ms >= ?
  AND EXISTS (SELECT 1 FROM delivery d WHERE d.attempts > 0 AND {_ABOUT_IT})
  AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.state = 'sent' AND {_ABOUT_IT})"""  # noqa: S608


class Notice(NamedTuple):
    """One message that was made, by however many channels it was to leave."""

    at_s: float
    """When, epoch seconds."""
    alert_key: str
    notice: str
    message_id: str


class AlertWriter(ABC):
    """Alerts and deliveries: how they stand, and what of them is on record."""

    _ledger: AlertBuffer
    _health: WriteProblems
    _connection: sqlite3.Connection | None

    @abstractmethod
    def _own(self) -> None:
        """Refuse a thread that is not the history's own."""

    @abstractmethod
    def _commit(self) -> dict[int, int]:
        """Write what waits; return deliveries that got another row."""

    def apply(self, alerts: Sequence[Alert], deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Write how alerts and deliveries stand now, power-cut-safe; return the latter with rows.

        Never raises: what the disk refuses is kept in memory, for the next try; until then
        :meth:`open_alerts` and :meth:`pending_deliveries` see it there.
        """
        self._own()
        for alert in alerts:
            self._ledger.add_alert(alert)
        noted = [self._ledger.add_delivery(delivery) for delivery in deliveries]
        moved = self._commit() if alerts or deliveries else {}
        return [
            msgspec.structs.replace(delivery, row=moved.get(delivery.row or 0, delivery.row))
            for delivery in noted
        ]

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Note what was decided; written with the alerts of the next :meth:`apply`.

        In the same transaction, then; without one at the end of the tick. Never raises.
        """
        self._own()
        self._ledger.decisions.extend(decisions)

    def open_alerts(self) -> list[Alert]:
        """Return the alerts that are not resolved, oldest first."""
        self._own()
        return sorted(self._ledger.open_alerts.values(), key=lambda alert: alert.opened_at_s)

    def opened_at_s(self, alert_key: str) -> float | None:
        """Return since when an alert is open; None when it is not."""
        alert = self._ledger.open_alerts.get(alert_key)
        return None if alert is None else alert.opened_at_s

    def pending_deliveries(self) -> list[Delivery]:
        """Return the deliveries that are not done, oldest first."""
        self._own()
        return [self._ledger.pending[row] for row in sorted(self._ledger.pending)]

    def told_of_open(self) -> list[Delivery]:
        """Return every delivery about alerts that are open now, oldest first.

        Messages of an earlier opening of the same key are left out. Nothing where the file cannot
        be read: then nobody knows who was told.
        """
        if not self._ledger.open_alerts:
            return []
        return self._ask(lambda it: records.load_deliveries(it, _OF_OPEN)[0]) or []

    def recent_notices(self, since_s: float) -> list[Notice]:
        """Return the messages that were made since then (epoch seconds), oldest first.

        However many channels a message has, it is one; fallbacks and dry runs count with it.
        """
        query = (
            "SELECT min(created_ts_ms), alert_key, notice, message_id FROM delivery"
            " WHERE created_ts_ms >= ? GROUP BY message_id ORDER BY 1, message_id"
        )
        values = (round(since_s * 1000),)
        notices = self._ask(
            lambda it: [Notice(row[0] / 1000, *row[1:]) for row in it.execute(query, values)]
        )
        return notices or []

    def over_since(self, since_s: float) -> list[Alert]:
        """Return the alerts that ended since then, and those of which that is still to be told."""
        where = "resolved_ts_ms >= ? OR (resolved_ts_ms IS NOT NULL AND next_notice_ts_ms >= 0)"
        values = (round(since_s * 1000),)
        return self._ask(lambda it: records.load_alerts(it, where, values)[0]) or []

    def undelivered_since(self, since_s: float) -> list[Alert] | None:
        """Return the alerts that ended since then, were tried to be told, and reached nobody.

        None while that cannot be known: not everything is written, or the file cannot be read.
        """
        if self._ledger.telling:
            return None
        values = (round(since_s * 1000),)
        return self._ask(lambda it: records.load_alerts(it, _UNHEARD, values)[0])

    def last_delivered(self) -> dict[str, float]:
        """Return channel -> when it last delivered, epoch seconds."""
        query = (
            "SELECT channel, max(sent_ts_ms) FROM delivery WHERE state = 'sent'"
            " AND sent_ts_ms IS NOT NULL AND dry_run = 0 GROUP BY channel"
        )
        found = self._ask(lambda it: {name: at_ms / 1000 for name, at_ms in it.execute(query)})
        return found or {}

    def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Return what a question finds; None where the file cannot be read."""
        self._own()
        if self._connection is None:
            return None
        try:
            return question(self._connection)
        except integrity.SUSPECT as error:
            self._health.failed(error)
            return None


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
