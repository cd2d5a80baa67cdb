"""The shape of a picture of memory over time: what `plot --json`, reports and the API answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuwatchd.core import units
from gpuwatchd.view.answers.base import Instant, Seconds, Shape, fill, of_verb

if TYPE_CHECKING:
    from gpuwatchd.charts.chart_model import Curve, Picture

Kind = Literal["critical", "leak", "watch", "calm", "unknown", "trouble", "held"]


class CurveShape(Shape):
    """Memory over time, oldest first; every array has the same length."""

    at_s: tuple[float, ...]
    """Epoch seconds, ascending: a sample, or the middle of a point."""
    used_bytes: tuple[float | None, ...]
    """The sample, or the mean. Null: nothing is known between its neighbours."""
    low_bytes: tuple[float | None, ...]
    """Lowest within each point."""
    high_bytes: tuple[float | None, ...]
    width_s: Seconds
    """Of a point; 0 where each is one sample."""


class ForecastShape(Shape):
    """Where a growth leads, as it was judged."""

    judged_at: Instant | None
    level_bytes: float
    """Where the fit stands then."""
    rate_bytes_per_s: float
    onset_at: Instant | None
    limit_bytes: float | None
    low_s: Seconds | None
    """Seconds from the judgement to out of memory, 5 %; null: no time is foreseen."""
    mid_s: Seconds | None
    high_s: Seconds | None
    """95 %; null beside a known mid_s: open-ended."""


class MarkShape(Shape):
    """Something that happened."""

    at: Instant | None
    kind: Literal["alert", "resolved", "event", "restart", "began", "ended", "saved", "asked"]
    text: str
    severity: Literal["info", "warning", "critical"] | None
    """Of an alert."""


class GapShape(Shape):
    """Time of which nothing is known."""

    begin_at: Instant | None
    end_at: Instant | None
    why: str
    """May be empty."""


class PictureShape(Shape):
    """One chart of a GPU, or of a process on a GPU."""

    key: str
    """Stable: the UUID of the GPU, and the process."""
    title: str
    kind: Kind
    verdict: str
    begin_at: Instant | None
    end_at: Instant | None
    now_at: Instant | None
    curve: CurveShape
    floor: CurveShape | None
    """The level that memory always came back to; null where it did not."""
    limit_bytes: float | None
    """Of a process: what it has and what is free."""
    forecast: ForecastShape | None
    """Only of what leaks now."""
    marks: tuple[MarkShape, ...]
    gaps: tuple[GapShape, ...]
    notes: tuple[str, ...]


def picture(of: Picture) -> PictureShape:
    """Return one chart."""
    return PictureShape(
        key=of.key,
        title=of.title,
        kind=of.kind,
        verdict=of.verdict,
        begin_at=units.instant(of.begin_s),
        end_at=units.instant(of.end_s),
        now_at=units.instant(of.now_s),
        curve=_curve(of.curve),
        floor=None if of.floor is None else _curve(of.floor),
        limit_bytes=of.limit_bytes,
        forecast=None if of.forecast is None else fill(ForecastShape, of.forecast),
        marks=tuple(fill(MarkShape, mark) for mark in of.marks),
        gaps=tuple(
            GapShape(
                begin_at=units.instant(gap.begin_s), end_at=units.instant(gap.end_s), why=gap.why
            )
            for gap in of.gaps
        ),
        notes=of.notes,
    )


def _curve(of: Curve) -> CurveShape:
    return CurveShape(
        at_s=of.at_s,
        used_bytes=of.used_bytes,
        low_bytes=of.low_bytes,
        high_bytes=of.high_bytes,
        width_s=of.width_s,
    )


Plot = of_verb("plot", "Plot", tuple[PictureShape, ...], "Pictures of GPUs, or of processes.")
