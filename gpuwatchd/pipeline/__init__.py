"""Where everything meets: read, remember, judge, decide, tell; and the one broad ``except``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.pipeline.tick import Pipeline, Tick

__all__ = ["Pipeline", "Tick"]


def __getattr__(name: str) -> object:
    """Load the pipeline when it is asked for: who only borrows its words starts sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpuwatchd.pipeline import tick  # noqa: PLC0415

    return getattr(tick, name)
