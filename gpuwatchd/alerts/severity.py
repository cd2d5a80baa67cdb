"""How urgent an alert is: by the time that is left and how sure that is, and never to and fro."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.alerts.policy_types import HOUR_S, RANK

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding, Severity

SURE = 0.9
"""From this confidence on the short end of the time that is left counts, too."""
MILDER_HOLD_S = 600.0
"""What is less urgent again is shown as such after this time without a break."""
_CRITICAL_S, _SOONEST_S = HOUR_S, HOUR_S / 2
_RELIEF = 2.0
"""Something critical is so until the time that is left is this much longer than it took."""


def grade(finding: Finding, before: Severity | None = None) -> Severity:
    """Return how severe an alert on a finding is.

    Critical: full within an hour, or perhaps within half an hour where that is sure. Without a
    time that is left nothing is critical, however much has grown.

    Parameters
    ----------
    before
        What it was until now: a time around a bound must not turn it to and fro.
    """
    if finding.tier != "alert":
        return "info" if finding.severity == "info" else "warning"
    if finding.eta is not None:
        ease = _RELIEF if before == "critical" else 1.0
        soon = finding.eta.mid_s < ease * _CRITICAL_S
        sure = before == "critical" or finding.confidence >= SURE
        if soon or (sure and finding.eta.low_s < ease * _SOONEST_S):
            return "critical"
    slight = finding.severity == "info" and (before is None or RANK[before] == 0)
    return "info" if slight else "warning"
