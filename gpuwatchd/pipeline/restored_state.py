"""What an earlier run of the daemon left: points of series, and alerts that are still open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline.clock import moved_alert
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from gpuwatchd.alerts import Rules
    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.pipeline.device_rings import RecentActivity

Past = tuple[Subject, Sequence[tuple[float, float]]]
PREVIOUS_RUN = "an earlier run"
"""``source`` for the notifier, of alerts whose subject has not appeared since the start."""
UNCLAIMED_S = 600.0
"""For so long they wait for it in silence: until then they may no longer be true."""


class UnclaimedAlert:
    """The alert of a subject that has not appeared: an ``AlertHolder`` over ``alerts[key]``."""

    def __init__(self, alerts: dict[str, Alert], key: str) -> None:
        self._alerts = alerts
        self._key = key

    @property
    def alert(self) -> Alert | None:
        """The alert as it stands."""
        return self._alerts.get(self._key)

    @alert.setter
    def alert(self, alert: Alert | None) -> None:
        if alert is not None:
            self._alerts[self._key] = alert


class RestoredState:
    """Handed out part by part, as the subjects appear that it belongs to."""

    def __init__(self) -> None:
        self.alerts: dict[str, Alert] = {}
        """Open alerts whose subject has not appeared yet, by subject id."""
        self.pending: dict[str, Alert] = {}
        """The same of alerts that were not open yet; they wait for the first minute only."""
        self._rings: dict[str, dict[Subject, Ring]] = {}
        self.attributed_at_s: dict[str, float] = {}
        """When it was last known who holds all of a device's memory, by UUID."""
        self.activity: dict[str, RecentActivity] = {}
        """What devices did lately, by UUID."""
        self.missing: dict[str, set[ProcessKey]] = {}
        """Whom the last list of a device did not name, until the next one."""

    def adopt(self, alert: Alert) -> None:
        """Remember an open alert of an earlier run, for the track that will appear."""
        self.alerts[alert.subject.id] = alert

    def refill(self, past: Iterable[Past], span_s: float) -> None:
        """Remember points, for the tracks that will appear."""
        for subject, points in past:
            # Packed at once: as tuples the points of a busy machine would take 30 MiB.
            ring = self._rings.setdefault(subject.device_uid, {})[subject] = Ring(span_s)
            for t_s, value in points:
                ring.add(t_s, value)

    def extend(self, t_s: float, newest: Iterable[tuple[Subject, int | None]]) -> None:
        """Add what the live state knew later than the history did, to series of the latter."""
        for subject, held in newest:
            ring = self._rings.get(subject.device_uid, {}).get(subject)
            if ring is not None and held is not None:
                ring.add(t_s, held)

    def move(self, by_s: float) -> list[Alert]:
        """Move all of it in time: the wall clock was stepped; return the open alerts."""
        self.pending = {key: moved_alert(alert, by_s) for key, alert in self.pending.items()}
        for rings in self._rings.values():
            for ring in rings.values():
                ring.shift(by_s)
        for activity in self.activity.values():
            activity.move(by_s)
        self.alerts = {key: moved_alert(alert, by_s) for key, alert in self.alerts.items()}
        return list(self.alerts.values())

    def ring(self, subject: Subject) -> Ring | None:
        """Hand out the points of a subject."""
        return self._rings.get(subject.device_uid, {}).pop(subject, None)

    def parts(self, uid: str) -> dict[ProcessKey, Ring]:
        """Return the points of a device's processes that have not been handed out."""
        rings = self._rings.get(uid, {})
        return {one.process: ring for one, ring in rings.items() if one.process and not one.host}

    def alert(self, subject: Subject) -> Alert | None:
        """Hand out the alert of a subject."""
        pending = self.pending.pop(subject.id, None) if self.pending else None
        return self.alerts.pop(subject.id, pending) if self.alerts else pending

    def unclaimed(self, now_s: float) -> list[UnclaimedAlert]:
        """Return the alerts whose subject has not appeared for ten minutes."""
        return [
            UnclaimedAlert(self.alerts, key)
            for key, alert in self.alerts.items()
            if now_s - alert.finding.judged_at_s >= UNCLAIMED_S
        ]

    def left(self, uid: str, present: Container[ProcessKey]) -> set[ProcessKey]:
        """Return the processes of a device that two lists in a row did not name.

        They ended while nobody watched; one list without them may be a slip of the driver.
        """
        subjects = [*self._rings.get(uid, ()), *(alert.subject for alert in self.alerts.values())]
        missing = {
            one.process
            for one in subjects
            if one.device_uid == uid and one.process is not None and one.process not in present
        }
        left = missing & self.missing.get(uid, set())
        self.missing[uid] = missing - left
        return left

    def gone(self, uid: str, left: Container[ProcessKey]) -> Iterator[tuple[Subject, Ring]]:
        """Hand out the points of a device's processes that have left."""
        rings = self._rings.get(uid, {})
        for subject in [one for one in rings if one.process in left]:
            ring = rings.pop(subject)
            if not subject.host:
                yield subject, ring

    def orphaned(
        self, uid: str, left: Container[ProcessKey], rules: Rules, now_s: float
    ) -> list[Alert]:
        """End the alerts of a device's processes that have left."""
        gone = [
            alert
            for alert in self.alerts.values()
            if alert.subject.device_uid == uid and alert.subject.process in left
        ]
        return self._disown(gone, Ending.ENDED_UNOBSERVED, rules, now_s)

    def expired(self, devices: Container[str], rules: Rules, now_s: float) -> list[Alert]:
        """End the alerts of devices that do not come back."""
        lost = [a for a in self.alerts.values() if a.subject.device_uid not in devices]
        return self._disown(lost, Ending.NOT_SEEN, rules, now_s)

    def _disown(
        self, orphans: Iterable[Alert], why: Ending, rules: Rules, now_s: float
    ) -> list[Alert]:
        changed: list[Alert] = []
        for alert in orphans:
            del self.alerts[alert.subject.id]
            outcome = alerts.ended(alert, why, rules, now_s=now_s)
            if outcome.alert is not None:
                changed.append(outcome.alert)
        return changed
