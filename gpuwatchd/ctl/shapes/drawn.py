"""``plot``: what is drawn, as numbers. Reports and the live page answer the same pictures."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.ctl.shapes.base import Answer, Instant, Seconds, Shape
from gpuwatchd.design import Kind
from gpuwatchd.model import Severity
from gpuwatchd.pictures.chart import MarkKind


class CurveShape(Shape):
    """Memory over time: columns of the same length, oldest first."""

    at_s: tuple[float, ...]
    """Epoch seconds of each point: a sample, or the middle of a bucket."""
    used_bytes: tuple[float | None, ...]
    """The sample or the mean of the bucket; null is a gap."""
    low_bytes: tuple[float | None, ...]
    high_bytes: tuple[float | None, ...]
    """Lowest and highest of each bucket."""
    width_s: Seconds
    """Of a bucket; 0 for single samples."""


class ForecastShape(Shape):
    """Where a growth leads, as it was judged."""

    judged_at: Instant
    level_bytes: float
    """Where the fit stands then."""
    rate_bytes_per_s: float
    onset_at: Instant | None
    """From where the fit is drawn."""
    limit_bytes: float | None
    low_s: float | None
    """Seconds from the judgement until memory is full, 5 %; null where no time is foreseen."""
    mid_s: float | None
    high_s: float | None
    """95 %; null beside a known middle: open-ended."""


class MarkShape(Shape):
    """Something that happened."""

    at: Instant
    kind: MarkKind
    text: str
    severity: Severity | None
    """Of an alert."""


class GapShape(Shape):
    """Time of which nothing is known."""

    begin_at: Instant
    end_at: Instant
    why: str
    """May be empty."""


class PictureShape(Shape):
    """Everything on the chart of one GPU, or of one process on a GPU."""

    key: str
    """Stable name of what it is about."""
    title: str
    kind: Kind
    verdict: str
    """In words."""
    begin_at: Instant
    end_at: Instant
    now_at: Instant
    curve: CurveShape
    floor: CurveShape | None
    """The level that memory always came back to."""
    limit_bytes: float | None
    forecast: ForecastShape | None
    """Only of what leaks now."""
    marks: tuple[MarkShape, ...]
    gaps: tuple[GapShape, ...]
    notes: tuple[str, ...]
    """What has to be known to read it rightly."""


class Plot(Answer):
    """The charts that were asked for."""

    verb: Literal["plot"]
    data: tuple[PictureShape, ...]
