"""Alerts in order and in number: the same on every screen and page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert

SHOWN: Final = frozenset({"firing", "watch"})
"""States of what is open and has been told of or is watched."""
_STATES: Final = {"firing": 0, "watch": 1, "pending": 2}
_NAMES: Final = (
    ("firing", "alert", "alerts"),
    ("watch", "watch", "watches"),
    ("pending", "pending", "pending"),
)
_SEVERITIES: Final = {"critical": 0, "warning": 1, "info": 2}


def shown(alerts: Iterable[Alert]) -> list[Alert]:
    """Return what is open, without what nobody is to hear of yet, in order."""
    return ordered(alert for alert in alerts if alert.state in SHOWN)


def ordered(alerts: Iterable[Alert]) -> list[Alert]:
    """Return open ones first: the worst, then the soonest to be full; the past newest first."""
    return sorted(alerts, key=_place)


def _place(alert: Alert) -> tuple[int, int, float, float]:
    if alert.state not in _STATES:
        return len(_STATES), 0, 0.0, -alert.opened_at_s
    eta = alert.finding.eta
    left_s = float("inf") if eta is None or alert.clear_since_s is not None else eta.mid_s
    return _STATES[alert.state], _SEVERITIES[alert.severity], left_s, alert.opened_at_s


def counted(alerts: Iterable[Alert]) -> str:
    """Return how many alerts and watches are open: "1 alert, 2 watches"; "" where none is."""
    states = [alert.state for alert in alerts]
    parts = []
    for state, text, many in _NAMES:
        count = sum(found == state for found in states)
        parts += [f"{count} {text if count == 1 else many}"] if count else []
    return ", ".join(parts)
