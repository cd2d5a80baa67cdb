"""Where everything meets: read, remember, judge, decide, tell; and the one broad ``except``."""

from gpuwatchd.pipeline.tick import Pipeline, Tick

__all__ = ["Pipeline", "Tick"]
