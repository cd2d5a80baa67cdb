"""What a chart of memory over time consists of; terminal, Matplotlib and browser draw the same.

A picture says nothing that is not known: time without samples is a gap and never bridged, a point
that stands for many has its lowest and highest value, a forecast has its interval, and one that is
open-ended has no end.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Literal, Self

from gpuwatchd.core.design import Kind
from gpuwatchd.core.model.base import Severity, Value

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding

MarkKind = Literal["alert", "resolved", "event", "restart", "began", "ended", "saved", "asked"]
"""alert, resolved: of an alert; event: of the hardware or the driver; restart: machine or recording
began anew, or the clock was set; began, ended: of a process; saved, asked: checkpoints."""


Form = Literal["png", "svg"]


class Curve(Value, frozen=True, kw_only=True):
    """Memory over time, oldest first. All tuples have the same length (n,)."""

    at_s: tuple[float, ...] = ()
    """Epoch seconds, strictly ascending: a sample, or the middle of a bucket."""
    used_bytes: tuple[float | None, ...] = ()
    """The sample, or the mean of the bucket. None: a gap, one point with None wherever no samples
    are known between its neighbours; never first or last."""
    low_bytes: tuple[float | None, ...] = ()
    """Lowest of each bucket; the same as ``used_bytes`` for single samples."""
    high_bytes: tuple[float | None, ...] = ()
    width_s: float = 0.0
    """Of a bucket; 0 for single samples."""

    def runs(self) -> list[list[int]]:
        """Return the places of the points between gaps, run by run."""
        known = groupby(range(len(self.used_bytes)), lambda n: self.used_bytes[n] is not None)
        return [list(run) for there, run in known if there]


class Forecast(Value, frozen=True, kw_only=True):
    """Where a growth leads, as it was judged; only of what leaks now."""

    judged_at_s: float
    level_bytes: float
    """Where the fit stands at the judgement."""
    rate_bytes_per_s: float
    onset_at_s: float | None
    """From where the fit is drawn."""
    limit_bytes: float | None
    """Where this subject runs out."""
    low_s: float | None
    """Seconds from the judgement to out of memory, 5 %; None: no time is foreseen."""
    mid_s: float | None
    high_s: float | None
    """95 %; None beside a known ``mid_s``: open-ended, it may level off before it gets there."""

    @classmethod
    def of(
        cls, finding: Finding, level_bytes: float, limit_bytes: float | None, *, ahead_s: float = 0
    ) -> Self:
        """Return what a judgement foresees, with its instants ``ahead_s`` later."""
        eta = finding.eta
        return cls(
            judged_at_s=finding.judged_at_s + ahead_s,
            level_bytes=level_bytes,
            rate_bytes_per_s=finding.rate_bytes_per_s or 0.0,
            onset_at_s=None if finding.onset_at_s is None else finding.onset_at_s + ahead_s,
            limit_bytes=limit_bytes,
            low_s=None if eta is None else eta.low_s,
            mid_s=None if eta is None else eta.mid_s,
            high_s=None if eta is None else eta.high_s,
        )

    @property
    def end(self) -> tuple[float, float] | None:
        """When memory is full, epoch seconds, and the limit; None where no time is foreseen."""
        if self.mid_s is None or self.limit_bytes is None:
            return None
        return self.judged_at_s + self.mid_s, self.limit_bytes

    def fit(self, earliest_s: float = float("-inf")) -> list[tuple[float, float]]:
        """Return the fit as (epoch seconds, bytes): its begin, the judgement, and its end."""
        begin_s = max(self.onset_at_s or self.judged_at_s, earliest_s)
        before = self.level_bytes - self.rate_bytes_per_s * (self.judged_at_s - begin_s)
        whole = [(begin_s, before), (self.judged_at_s, self.level_bytes)]
        return whole if self.end is None else [*whole, self.end]


class Mark(Value, frozen=True, kw_only=True):
    """Something that happened."""

    at_s: float
    kind: MarkKind
    text: str
    """Clean, one line, as `history --events` and `alerts` say it."""
    severity: Severity | None = None
    """Of an alert."""


class Gap(Value, frozen=True, kw_only=True):
    """Time of which nothing is known."""

    begin_s: float
    end_s: float
    why: str
    """Such as "the daemon was not running"; "" where it is not known."""


class Picture(Value, frozen=True, kw_only=True):
    """Everything on one chart of one subject: a device, or a process on a device."""

    key: str
    """Stable: ``Subject.id``."""
    title: str
    """Such as "GPU 0  NVIDIA H100" or "python train.py[4711] of alice on GPU 0"."""
    kind: Kind
    verdict: str
    """In words, as ``status`` has it."""
    begin_s: float
    end_s: float
    """Span of the past that was asked for; a forecast may reach beyond its end."""
    now_s: float
    curve: Curve
    floor: Curve | None = None
    """The level that memory always came back to; None where the curve is too short for one."""
    limit_bytes: float | None = None
    """Of the device; of a process, what it could have at most: what it has and what is free."""
    forecast: Forecast | None = None
    marks: tuple[Mark, ...] = ()
    """Oldest first."""
    gaps: tuple[Gap, ...] = ()
    """Oldest first."""
    notes: tuple[str, ...] = ()
    """What has to be known to read it rightly, such as "one point is 12 minutes"."""

    @property
    def empty(self) -> bool:
        """Whether nothing is known of the whole span."""
        return not self.curve.at_s


class Order(Value, frozen=True, kw_only=True):
    """What a file shows."""

    pictures: tuple[Picture, ...]
    form: Form
    dark: bool = False
    width_px: int | None = None
    height_px: int | None = None
    """None: as much as the panels need."""
    dpi: float | None = None
    """Dots of an inch; None: as the form and the size have it."""
    bare: bool = False
    """Without title, verdict and legend: who shows it says all three."""
    window: tuple[float, float] | None = None
    """The span that is shown, epoch seconds; None: all, with the forecast."""
