"""Whose memory it is: who grew, what nobody owns, which processes are one job.

Nothing here imports numpy before somebody has grown: the daemon draws ledgers long before.
"""

from __future__ import annotations

from gpuwatchd.analysis.attribution.ledger import (
    EXPLAINED_SHARE,
    JOIN_S,
    UNATTRIBUTED,
    Baseline,
    above_baseline,
    build_ledger,
    explain,
    share,
)
