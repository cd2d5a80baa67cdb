"""How large a report may get: a page stays below 2 MB whatever happened, and opens at once."""

from __future__ import annotations

from typing import Final

CARDS: Final = 120
"""Findings that are told in full, --all or not: the rest are rows of a table."""
CHARTS: Final = 16
"""Of them those with a chart."""
GPU_CHARTS: Final = 16
ROWS: Final = 500
"""Of one table."""
FEW: Final = 10
"""Of a table by user, job or program, without --all."""
