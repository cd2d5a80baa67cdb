"""The shape of a picture of memory over time: what `plot --json`, reports and the API answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuwatchd.view.answers.base import Instant, Seconds, Sentence, Shape, fill, of_verb

if TYPE_CHECKING:
    from gpuwatchd.charts.scales import Picture

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
    title: Sentence
    kind: Kind
    verdict: Sentence
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
    notes: tuple[Sentence, ...]


def picture(of: Picture) -> PictureShape:
    """Return one chart."""
    return fill(PictureShape, of)


Plot = of_verb("plot", "Plot", tuple[PictureShape, ...], "Pictures of GPUs, or of processes.")
