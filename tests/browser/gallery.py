"""Pictures of every kind that a page may have to draw."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.view.report.document import Document, Section
from gpuwatchd.view.report.html import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model.base import Severity

GIB = 1024.0**3
NOW_S = 1_795_341_600.0
"""Sunday 22 November 2026, 10:00 in UTC."""
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u2028 & \"'<!-- אבג "
    + "x" * 300
)


def _noise(n: int) -> float:
    return math.sin(n * 12.9898) * math.cos(n * 4.1414)


def curve(
    begin_s: float, end_s: float, points: int, level: Callable[[float], float], spread: float = 0.0,
    without: tuple[tuple[float, float], ...] = (),
) -> Curve:  # fmt: skip
    """Return a curve of a function of the share 0-1 of the span, in GiB."""
    step_s = (end_s - begin_s) / points
    at: list[float] = []
    used: list[float | None] = []
    for n in range(points):
        at_s = begin_s + (n + 0.5) * step_s
        if any(low <= at_s <= high for low, high in without):
            if used and used[-1] is not None:
                at.append(at_s)
                used.append(None)
            continue
        at.append(at_s)
        used.append((level((n + 0.5) / points) + 0.05 * _noise(n)) * GIB)
    wide = spread * GIB
    return Curve(
        at_s=tuple(at),
        used_bytes=tuple(used),
        low_bytes=tuple(None if v is None else v - wide for v in used),
        high_bytes=tuple(None if v is None else v + 1.6 * wide for v in used),
        width_s=step_s if spread else 0.0,
    )


def _alert(at_s: float, text: str, severity: Severity) -> Mark:
    return Mark(at_s=at_s, kind="alert", text=text, severity=severity)


def _grown(start: float) -> Callable[[float], float]:
    return lambda share: start + max(0.0, share - 0.4) * 14.4


def leak() -> Picture:
    """A process that will run out of memory in under an hour."""
    begin_s = NOW_S - 2 * 3600
    grows = _grown(8.0)
    return Picture(
        key="gpu0/4711", title="python train.py[4711] of alice on GPU 0", kind="critical",
        verdict="gradual leak, confirmed, full in 47 min (39 to 62 min)",
        begin_s=begin_s, end_s=NOW_S, now_s=NOW_S,
        curve=curve(begin_s, NOW_S, 360, lambda s: grows(s) + 0.5 * abs(math.sin(s * 90))),
        floor=curve(begin_s, NOW_S, 60, grows),
        limit_bytes=23.6 * GIB,
        forecast=Forecast(
            judged_at_s=NOW_S - 20, level_bytes=16.6 * GIB, rate_bytes_per_s=0.002 * GIB,
            onset_at_s=NOW_S - 1.2 * 3600, limit_bytes=23.6 * GIB,
            low_s=2340.0, mid_s=2820.0, high_s=3720.0,
        ),
        marks=(
            Mark(at_s=begin_s + 300, kind="began", text="python train.py[4711] began"),
            _alert(NOW_S - 3000, "gradual leak of 12.4 MB/min", "warning"),
            Mark(at_s=NOW_S - 1800, kind="saved", text="checkpoint of step 4000 saved"),
            _alert(NOW_S - 600, "full in under an hour", "critical"),
        ),
        notes=("the limit is what it has and what is free",),
    )  # fmt: skip


def month() -> Picture:
    """Thirty days of a busy GPU, of which a few hours are missing."""
    begin_s = NOW_S - 30 * 86400
    away = (begin_s + 11.2 * 86400, begin_s + 13.1 * 86400)
    days = (3, 3.2, 3.3, 10)
    short = (begin_s + 21.0 * 86400, begin_s + 21.2 * 86400)
    return Picture(
        key="gpu0", title="GPU 0  NVIDIA H100 80GB HBM3", kind="calm", verdict="stable",
        begin_s=begin_s, end_s=NOW_S, now_s=NOW_S,
        curve=curve(
            begin_s, NOW_S, 400,
            lambda s: 34 + 22 * math.sin(s * 60) * math.sin(s * 7) + 8 * _noise(int(s * 400)),
            spread=3.0, without=(away, short),
        ),
        limit_bytes=79.6 * GIB,
        marks=(
            *(_alert(begin_s + day * 86400, f"cyclic leak, day {day}", "info") for day in days),
            Mark(at_s=away[1], kind="restart", text="the machine started"),
            Mark(at_s=begin_s + 24 * 86400, kind="event", text="XID 79: fell off the bus"),
            Mark(at_s=begin_s + 25 * 86400, kind="resolved", text="cyclic leak has ended"),
        ),
        gaps=(
            Gap(begin_s=away[0], end_s=away[1], why="the daemon was not running"),
            Gap(begin_s=short[0], end_s=short[1], why=""),
        ),
        notes=("one point is 1 h 48 min",),
    )  # fmt: skip


def open_ended() -> Picture:
    """A growth that may level off before it gets there."""
    begin_s = NOW_S - 6 * 3600
    return Picture(
        key="gpu1/99", title="ollama serve[99] of bob on GPU 1", kind="leak",
        verdict="gradual leak, likely",
        begin_s=begin_s, end_s=NOW_S, now_s=NOW_S,
        curve=curve(begin_s, NOW_S, 300, lambda s: 3 + 6 * math.sqrt(s), spread=0.15),
        limit_bytes=15.9 * GIB,
        forecast=Forecast(
            judged_at_s=NOW_S, level_bytes=9.0 * GIB, rate_bytes_per_s=0.00014 * GIB,
            onset_at_s=begin_s + 3600, limit_bytes=15.9 * GIB,
            low_s=5 * 3600.0, mid_s=14 * 3600.0, high_s=None,
        ),
    )  # fmt: skip


def gaps() -> Picture:
    """More gaps than curve, and a lone sample between two."""
    begin_s = NOW_S - 86400
    holes = (
        (begin_s, begin_s + 20000),
        (begin_s + 30000, begin_s + 50000),
        (begin_s + 50300, begin_s + 70000),
    )
    return Picture(
        key="gpu2", title="GPU 2  NVIDIA L4", kind="watch", verdict="watch: rises slowly",
        begin_s=begin_s, end_s=NOW_S, now_s=NOW_S,
        curve=curve(begin_s, NOW_S, 288, lambda s: 1.2 + s, without=holes), limit_bytes=22.5 * GIB,
        gaps=tuple(Gap(begin_s=low, end_s=high, why="the GPU was lost") for low, high in holes),
    )  # fmt: skip


def one_sample() -> Picture:
    """What there is a moment after the start."""
    once = Curve(
        at_s=(NOW_S - 5,), used_bytes=(2.5 * GIB,), low_bytes=(2.5 * GIB,), high_bytes=(2.5 * GIB,)
    )
    return Picture(
        key="gpu3", title="GPU 3  NVIDIA L4", kind="unknown", verdict="collecting: 1 sample",
        begin_s=NOW_S - 600, end_s=NOW_S, now_s=NOW_S, curve=once, limit_bytes=22.5 * GIB,
    )  # fmt: skip


def empty() -> Picture:
    """A device of which nothing is known, not even its size."""
    return Picture(
        key="gpu4", title="GPU 4  NVIDIA GB10", kind="trouble", verdict="lost",
        begin_s=NOW_S - 3600, end_s=NOW_S, now_s=NOW_S, curve=Curve(),
    )  # fmt: skip


def hostile() -> Picture:
    """Foreign text wherever it can be."""
    begin_s = NOW_S - 3600
    return Picture(
        key="gpu5/6", title=HOSTILE, kind="held", verdict=HOSTILE,
        begin_s=begin_s, end_s=NOW_S, now_s=NOW_S,
        curve=curve(begin_s, NOW_S, 60, lambda _: 5.0), limit_bytes=8 * GIB,
        marks=(Mark(at_s=NOW_S - 1800, kind="event", text=HOSTILE),),
        gaps=(Gap(begin_s=NOW_S - 900, end_s=NOW_S - 300, why=HOSTILE),), notes=(HOSTILE,),
    )  # fmt: skip


def everything() -> list[Picture]:
    """Return all of them."""
    return [leak(), month(), open_ended(), gaps(), one_sample(), empty(), hostile()]


def html(*pictures: Picture) -> str:
    """Return a page of these pictures."""
    section = Section(key="all", title="All", blocks=pictures)
    return render(Document(title="Pictures", about="", sections=(section,)))
