"""What of time and memory a chart shows, and where labels and marks stand: the same everywhere.

Memory is shown from 0, so that a height is a share of what there is. A forecast reaches into the
future as far as it needs, but never takes more room than four times the past.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from gpuwatchd.core import units
from gpuwatchd.core.design import FLAGS, Kind
from gpuwatchd.core.model import outdated_s
from gpuwatchd.core.model.base import Severity, Value

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding


AlertStep = Literal["watch", "alert", "critical", "died", "resolved"]
"""How far an alert got; died: it is over, out of memory; resolved: over otherwise."""
MarkKind = Literal[AlertStep, "event", "restart", "began", "ended", "saved", "asked"]
"""event: of the hardware or the driver; restart: machine or recording began anew, or the clock was
set; began, ended: of a process; saved, asked: checkpoints."""


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
        begin_s = max(self.judged_at_s if self.onset_at_s is None else self.onset_at_s, earliest_s)
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


_LEAST_S: Final = 60.0
_LEAST_AHEAD: Final = 0.15
_MOST_AHEAD: Final = 4.0
"""The future takes at least, and at most, so many times the width of the past."""
_HEADROOM: Final = 1.12
_FAR_SHARE: Final = 0.15
"""Memory that fills less than this of the limit is shown without it."""
_LEAST_BYTES: Final = 64.0 * 1024**2
_DAY_S: Final = 86400.0
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 604800, 1209600, 2419200, 7862400, 15724800, 31449600, 314496000),
)
_FACTORS: Final = (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 80, 100, 128, 160, 200, 512)


class Frame(NamedTuple):
    """What is shown: epoch seconds, and bytes from 0."""

    begin_s: float
    end_s: float
    top_bytes: float


def frame(picture: Picture, window: tuple[float, float] | None = None) -> Frame:
    """Return what a chart shows; ``window`` (epoch seconds) is another part of time."""
    begin_s, end_s = span(picture) if window is None else window
    return Frame(begin_s, max(end_s, begin_s + 1.0), top_bytes(picture))


def span(picture: Picture) -> tuple[float, float]:
    """Return from when until when a chart reaches, epoch seconds: the past, and its forecast."""
    begin_s, end_s = picture.begin_s, max(picture.end_s, picture.begin_s + _LEAST_S)
    forecast = picture.forecast
    if forecast is None or forecast.mid_s is None:
        return begin_s, end_s
    wanted_s = 1.35 * forecast.mid_s
    if forecast.high_s is not None and forecast.high_s < 2.5 * forecast.mid_s:
        wanted_s = 1.06 * forecast.high_s
    past_s = end_s - begin_s
    ahead_s = min(max(wanted_s, _LEAST_AHEAD * past_s), _MOST_AHEAD * past_s)
    return begin_s, max(end_s, forecast.judged_at_s + ahead_s)


def top_bytes(picture: Picture) -> float:
    """Return the upper end of the scale: above the limit, unless memory is far from it."""
    curve = picture.curve
    known = [v for values in (curve.high_bytes, curve.used_bytes) for v in values if v is not None]
    high, limit = max(known, default=None), picture.limit_bytes
    if high is None:
        return _HEADROOM * limit if limit else 1024.0**3
    leads_there = picture.forecast is not None and picture.forecast.mid_s is not None
    if limit is not None and limit > 0 and (high > _FAR_SHARE * limit or leads_there):
        return _HEADROOM * max(high, limit)
    return 1.25 * max(high, _LEAST_BYTES)


def levels(most_bytes: float, count: int = 5) -> list[float]:
    """Return round levels from 0, at most ``count`` steps.

    Examples
    --------
    >>> [level / 1024**3 for level in levels(90 * 1024.0**3)]
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    steps = (factor * 1024.0**power for power in (2, 3, 4, 5) for factor in _FACTORS)
    step = next((step for step in steps if most_bytes / step <= count), most_bytes / count)
    return [n * step for n in range(int(most_bytes / step) + 1)]


def level(value_bytes: float) -> str:
    """Return the label of a level.

    Examples
    --------
    >>> level(8 * 1024**3), level(1.5 * 1024**3), level(0)
    ('8 GiB', '1.5 GiB', '0')
    """
    if not value_bytes:
        return "0"
    number, unit = units.size_parts(value_bytes)
    return f"{number.removesuffix('.00').removesuffix('.0')} {unit}"


def instants(begin_s: float, end_s: float, count: int = 7) -> tuple[list[float], float]:
    """Return instants that are round on the local clock, and the seconds from one to the next.

    At most ``count`` + 1 of them, oldest first, epoch seconds.
    """
    wanted_s = (end_s - begin_s) / max(1, count)
    step_s = float(next((step for step in _STEPS_S if step >= wanted_s), _STEPS_S[-1]))
    try:
        return (_days if step_s >= _DAY_S else _clocks)(begin_s, end_s, step_s), step_s
    except (OverflowError, OSError, ValueError):  # beyond the calendar
        return [], step_s


def _clocks(begin_s: float, end_s: float, step_s: float) -> list[float]:
    found: list[float] = []
    ahead_s = _ahead_s(begin_s)
    place = -int(-(begin_s + ahead_s) // step_s)
    while True:
        # Summer time may begin or end on the way.
        guess_s = place * step_s - ahead_s
        at_s = place * step_s - _ahead_s(guess_s)
        if at_s > end_s:
            return found
        if at_s >= begin_s and (not found or at_s > found[-1]):
            found.append(at_s)
        place += 1


def _days(begin_s: float, end_s: float, step_s: float) -> list[float]:
    days = round(step_s / _DAY_S)
    day = datetime.fromtimestamp(begin_s).astimezone().date()
    day += timedelta(days=(1 - day.toordinal()) % days)  # of weeks: a Monday
    found: list[float] = []
    while True:
        at_s = datetime(day.year, day.month, day.day).astimezone().timestamp()
        if at_s > end_s:
            return found
        if at_s >= begin_s:
            found.append(at_s)
        day += timedelta(days=days)


def _ahead_s(at_s: float) -> float:
    offset = datetime.fromtimestamp(at_s).astimezone().utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


# How far the local time of this machine is from UTC, over a span: for readers elsewhere.
# A report is written with the times of the machine that it is about; what draws its charts in a
# browser far away uses the same.

_STEP_S = 6 * 3600.0
_MOST_STEPS = 2000


def zone_rows(begin_s: float, end_s: float) -> list[tuple[float, float, str]]:
    """Return from when (epoch seconds) local time is how far ahead of UTC (seconds), and its name.

    Oldest first, one row at least; the first begins at ``begin_s`` and holds before it too.
    """
    found = [(begin_s, ahead_s(begin_s), units.zone(begin_s))]
    step_s = max(_STEP_S, (end_s - begin_s) / _MOST_STEPS)
    at_s = begin_s
    while at_s < end_s:
        next_s = min(at_s + step_s, end_s)
        if ahead_s(next_s) != found[-1][1]:
            changed_s = _change_s(at_s, next_s)
            found.append((changed_s, ahead_s(changed_s), units.zone(changed_s)))
        at_s = next_s
    return found


def _change_s(low_s: float, high_s: float) -> float:
    """Return the first whole second after ``low_s`` that is as far ahead as ``high_s``."""
    wanted_s = ahead_s(high_s)
    low, high = int(low_s), -int(-high_s // 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ahead_s(middle) == wanted_s else (middle, high)
    return float(high)


def ahead_s(at_s: float) -> float:
    """Return how far local time is ahead of UTC at an instant, seconds."""
    try:
        return _ahead_s(at_s)
    except (OverflowError, OSError, ValueError):
        return 0.0


# Words and marks on a chart: what stands together, and how it looks.

_SAME_S = 60.0
KINDS: Final[tuple[MarkKind, ...]] = (
    *("died", "critical", "alert", "watch", "event", "restart", "resolved"),
    *("asked", "saved", "began", "ended"),
)
"""What matters most first."""


class Group(NamedTuple):
    """Marks that stand at one place."""

    number: int
    column: int
    marks: tuple[Mark, ...]


def sign(marks: tuple[Mark, ...], *, ascii_only: bool) -> tuple[str, str]:
    """Return the character and the part of the one that matters most."""
    flag = FLAGS[min(marks, key=_weight).kind]
    return (flag.ascii_mark if ascii_only else flag.mark), flag.colour


def _weight(mark: Mark) -> int:
    """Return what matters most first."""
    return KINDS.index(mark.kind)


def numbered(found: list[Group], most: int) -> tuple[list[tuple[int, Mark]], int]:
    """Return the marks of a list by time, with their numbers, and how many are left out.

    Where ``most`` rows do not suffice, one is for the count; what matters least is left out.
    """
    every = [(group.number, mark) for group in found for mark in group.marks]
    if len(every) <= most:
        return every, 0
    by_weight = sorted(range(len(every)), key=lambda n: _weight(every[n][1]))
    kept = sorted(by_weight[: max(0, most - 1)])
    return [every[n] for n in kept], len(every) - len(kept)


def groups(picture: Picture, width: int, frame: Frame, *, numbered: bool = True) -> list[Group]:
    """Return the marks that are seen, those together for which there is one place."""
    per_s = width / (frame.end_s - frame.begin_s)
    found: list[Group] = []
    for mark in picture.marks:
        before = found[-1] if found else None
        # The same may be said within the same minute, of another subject, say.
        told = before is not None and any(
            (one.kind, one.text) == (mark.kind, mark.text) and mark.at_s - one.at_s < _SAME_S
            for one in before.marks
        )
        if told or not frame.begin_s <= mark.at_s <= frame.end_s:
            continue
        column = min(width - 1, int((mark.at_s - frame.begin_s) * per_s))
        taken = 1 + len(str(before.number)) if before is not None and numbered else 1
        if before is not None and column < before.column + taken:
            found[-1] = before._replace(marks=(*before.marks, mark))
        else:
            found.append(Group(len(found) + 1, column, (mark,)))
    return found


def limit_texts(forecast: Forecast, now_s: float) -> list[str]:
    """Return when it is full, the longest form first."""
    passed_s = outdated_s(forecast.judged_at_s, forecast.mid_s, now_s)
    mid_s = max(0.0, (forecast.mid_s or 0.0) - passed_s)
    short = f"full in {units.duration(mid_s)}"
    if forecast.low_s is None:
        return [short]
    high_s = None if forecast.high_s is None else max(0.0, forecast.high_s - passed_s)
    return [f"full in {units.band(max(0.0, forecast.low_s - passed_s), mid_s, high_s)}", short]
