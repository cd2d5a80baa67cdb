"""Whose memory it is: who grew, what nobody owns, which processes are one job.

Nothing here imports numpy before somebody has grown: the daemon draws ledgers long before.
"""

from __future__ import annotations

from gpuwatchd.analysis.attribution.ledger import Baseline, above_baseline, draw
from gpuwatchd.analysis.attribution.share import LEAST_SHARE, UNATTRIBUTED, growth, share

__all__ = [
    "LEAST_SHARE",
    "UNATTRIBUTED",
    "Baseline",
    "above_baseline",
    "draw",
    "growth",
    "share",
]
