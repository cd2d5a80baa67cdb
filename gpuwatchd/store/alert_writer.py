"""What the history knows of alerts and of who was told: the part of its writer for the post.

Kept apart from the samples: these rows are written at once and power-cut-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from gpuwatchd.store import integrity, records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Alert, Decision, Delivery
    from gpuwatchd.store.alert_buffer import Ledger
    from gpuwatchd.store.write_problems import WriteProblems

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

    _ledger: Ledger
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
        for decision in decisions:
            self._ledger.add_decision(decision)

    def update_delivery(self, delivery: Delivery) -> None:
        """Write what became of a delivery. Never raises."""
        self.apply((), (delivery,))

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
