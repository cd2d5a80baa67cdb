"""An alert at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.ctl.badges import Badge
from gpuwatchd.design import LOOKS

if TYPE_CHECKING:
    from gpuwatchd.design import Kind
    from gpuwatchd.model import Alert


def badge(alert: Alert) -> Badge:
    """Return the badge of an alert; its words are those of the list of alerts."""
    words = f"{alert.state} {alert.severity}"
    if alert.state == "resolved":
        return Badge("unknown", "over", words)
    if alert.kind == "held":
        return Badge("held", LOOKS["held"].word, words)
    kind: Kind = "trouble" if alert.kind == "gpu" else "leak"
    if alert.severity == "critical":
        return Badge("critical" if kind == "leak" else kind, "CRITICAL", words)
    if alert.state != "firing":
        return Badge("watch", "watch", words)
    return Badge(kind, "LEAK" if kind == "leak" else LOOKS[kind].word, words)
