"""The history, read-only: what was seen last, and series to judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.ctl.look import View


def latest(*, max_age_s: float) -> View | None:  # noqa: ARG001
    """Return the newest recorded readings, or None when there are none that young."""
    return None
