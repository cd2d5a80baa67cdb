"""Which hours of whom are counted already: none of a device costs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert, ProcessKey

    Who = tuple[str, ProcessKey | None]
    """UUID of a device, and who on it; None: whoever."""


def told_of(alert: Alert) -> list[Who]:
    """Return each device and process that an alert is about; of a job, those of its ranks."""
    subjects = alert.cost.members if alert.cost is not None else ()
    return list(
        dict.fromkeys(
            (subject.device_uid, subject.process) for subject in subjects or (alert.subject,)
        )
    )


class Counted:
    """Remembers what was counted, from when until when."""

    def __init__(self) -> None:
        self._leaks: set[Who] = set()
        self._spans: dict[Who, list[tuple[float, float]]] = {}

    def note(self, whose: Iterable[Who], begun_s: float, until_s: float) -> None:
        """Remember that these were counted between two instants, epoch seconds."""
        for who in whose:
            self._spans.setdefault(who, []).append((begun_s, until_s))

    def fresh(self, alert: Alert, begun_s: float, until_s: float) -> list[Who]:
        """Return whom a leak is about and who is not counted yet; each process comes once.

        A leak on a device as a whole counts where nothing else on it does in that time.
        """
        pairs = [
            who
            for who in told_of(alert)
            if who not in self._leaks
            and not (who[1] is None and self._is_counted(who[0], begun_s, until_s))
        ]
        self._leaks.update(who for who in pairs if who[1] is not None)
        return pairs

    def left(self, who: Who, begun_s: float, until_s: float) -> tuple[float, float] | None:
        """Return what of a time is not counted yet of who holds memory; None for nothing."""
        spans = {*self._spans.get(who, ()), *self._spans.get((who[0], None), ())}
        for from_s, to_s in sorted(spans):
            if to_s <= begun_s or from_s >= until_s:
                continue
            if from_s <= begun_s:
                begun_s = to_s
            else:
                until_s = from_s
        return (begun_s, until_s) if begun_s < until_s else None

    def _is_counted(self, uid: str, begun_s: float, until_s: float) -> bool:
        return any(
            from_s < until_s and to_s > begun_s
            for who, spans in self._spans.items()
            for from_s, to_s in spans
            if who[0] == uid
        )
