"""Draws the pictures of the pages: ``python -m tests.docs.pictures``; ``--check`` only compares.

What they show is what the detectors say: every scene is judged, and the floor, the line, the
pattern and the forecast in its picture are those of that judgement.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpuwatchd.analysis import numerics, screen, verdict
from gpuwatchd.core import units
from tests.docs import made
from tests.docs.scenes import GIB, MINUTE_S, SCENES, Scene
from tests.docs.svg import Chart
from tests.scenarios import documented
from tests.scenarios.bench.page import FIGURES
from tests.scenarios.replay import DEFAULTS, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Finding, FloatArray, Series

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"
POINTS = 500
LEAKS = {"gradual", "step", "cyclic"}


def judged(series: Series) -> Finding | None:
    """Return the judgement at the end of a series; None when the screen settles it."""
    if screen.first_look([series], DEFAULTS)[0] is not None:
        return None
    return verdict.judge(series, DEFAULTS)


def pattern_of(series: Series) -> str:
    """Return the name that a scene is given."""
    certain = screen.first_look([series], DEFAULTS)[0]
    return certain if certain is not None else verdict.judge(series, DEFAULTS).pattern


def _thin(t: FloatArray, x: FloatArray) -> list[tuple[float, float]]:
    every = max(1, t.size // POINTS)
    return list(zip((t[::every] / MINUTE_S).tolist(), (x[::every] / GIB).tolist(), strict=True))


def _ticks(high: float, wanted: int = 6) -> list[tuple[float, str]]:
    step = next(
        s
        for s in (0.25, 0.5, 1, 2, 4, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960)
        if high / s <= wanted
    )
    return [(value, f"{value:g}") for value in np.arange(0.0, high + 1e-9, step).tolist()]


def scene_picture(scene: Scene) -> str:
    """Return the picture of one pattern."""
    series = scene.series()
    t = series.t_s - series.t_s[0]
    now = float(t[-1])
    finding = judged(series)
    eta = finding.eta if finding is not None and scene.pattern in LEAKS else None
    last = now if eta is None else now + 1.3 * eta.mid_s
    limit = scene.total_gib
    chart = Chart(
        title=scene.title, words=scene.words, x=(0.0, last / MINUTE_S), y=(0.0, 1.12 * limit)
    )
    chart.axes(_ticks(last / MINUTE_S), [(v, f"{v:g}") for v in (0.0, limit / 4, limit / 2)])
    chart.text(14, 20, scene.title)
    chart.text(chart.width - 18, chart.height - 8, "minutes", anchor="end", kind="soft")
    chart.text(14, chart.top + 10, "GiB", kind="soft")
    chart.line([(0.0, limit), (last / MINUTE_S, limit)], "limit")
    chart.text(chart.left + 6, chart.py(limit) - 6, f"limit: {limit:g} GiB", kind="red")
    chart.line(_thin(t, series.used_bytes), "memory")
    view = numerics.prepare(series)
    if scene.pattern != "unknown":
        chart.line(_thin(view.t_s + now, view.floor), "floor")
    chart.line([(now / MINUTE_S, 0.0), (now / MINUTE_S, limit)], "now dots")
    chart.text(chart.px(now / MINUTE_S) - 5, chart.height - chart.bottom - 6, "now", anchor="end",
               kind="soft")  # fmt: skip
    _story(chart, scene, series, finding, now)
    _legend(chart, fitted=eta is not None, floor=scene.pattern != "unknown")
    return chart.svg()


def _legend(chart: Chart, *, fitted: bool, floor: bool) -> None:
    rows = [("memory", "memory in use")]
    rows += [("floor", "retained floor: never given back")] if floor else []
    rows += [("fit", "fit and forecast")] if fitted else []
    at, base = chart.left, chart.height - 12.0
    for kind, words in rows:
        chart.stroke((at, base), (at + 22.0, base), kind)
        chart.text(at + 28.0, base + 4.0, words, kind="soft")
        at += 52.0 + 6.3 * len(words)


def _story(chart: Chart, scene: Scene, series: Series, finding: Finding | None, now: float) -> None:
    """Draw the line and the forecast, and say below the title what was concluded."""
    name = pattern_of(series)
    eta = finding.eta if finding is not None and name in LEAKS else None
    if finding is None or eta is None or not finding.rate_bytes_per_s:
        chart.text(chart.width - 18, 20, f"called {name}", anchor="end", kind="soft")
        return
    rate, limit = finding.rate_bytes_per_s, scene.total_gib * GIB
    onset = max(0.0, (finding.onset_at_s or 0.0) - float(series.t_s[0]))
    base = float(numerics.prepare(series).floor[-1])
    chart.line(
        [(onset / MINUTE_S, (base - rate * (now - onset)) / GIB), (now / MINUTE_S, base / GIB)],
        "fit",
    )
    crash = now + eta.mid_s
    # What it needed at its peak it will need again before the end.
    start = float(series.used_bytes[-series.used_bytes.size // 4 :].max())
    chart.line([(now / MINUTE_S, start / GIB), (crash / MINUTE_S, limit / GIB)], "fit dash")
    high = now + (eta.high_s if eta.high_s is not None else 1.25 * eta.mid_s)
    wide = 0.018 * limit / GIB
    chart.band(
        ((now + eta.low_s) / MINUTE_S, min(high / MINUTE_S, chart.x[1])),
        (limit / GIB - wide, limit / GIB + wide),
    )
    chart.dot(crash / MINUTE_S, limit / GIB)
    text = f"called {name}, {units.rate(rate)}, full in about {units.duration(eta.mid_s)}"
    chart.text(chart.width - 18, 20, text, anchor="end", kind="soft")
    chart.text(chart.px(crash / MINUTE_S), chart.py(limit / GIB) - 10, "projected crash",
               anchor="middle")  # fmt: skip


def tiers_picture() -> str:
    """Return one leak from its onset to its end, with the watch and the alert."""
    whole = documented.line(50.0, 8.0, 4.6)
    life = replay(whole)
    total = (whole.total_bytes or 0.0) / GIB
    t = whole.t_s - whole.t_s[0]
    crash = (whole.total_bytes or 0.0) - 12e9
    end = crash / (50e6 / 60.0) / MINUTE_S
    chart = Chart(
        title="Two tiers: seen early, told when it is sure",
        words="A leak of 50 megabytes a minute on a card of 24 gigabytes. The watch opens minutes "
        "after the onset, the alert when the evidence is worth the interruption, and most of the "
        "time until the card is full is still left.",
        x=(0.0, 1.06 * end), y=(0.0, 1.12 * total),
    )  # fmt: skip
    chart.axes(_ticks(end), [(v, f"{v:g}") for v in (0.0, total / 4, total / 2)])
    chart.text(14, 20, "Two tiers: a leak of 50 MB/min on a 24 GiB card")
    chart.text(chart.width - 18, chart.height - 8, "minutes since the onset", anchor="end",
               kind="soft")  # fmt: skip
    chart.text(14, chart.top + 10, "GiB", kind="soft")
    chart.line([(0.0, total), (1.06 * end, total)], "limit")
    seen = t <= min(float(t[-1]), end * MINUTE_S)
    chart.line(_thin(t[seen], whole.used_bytes[seen]), "memory")
    for at, words, kind, level in (
        (life.watch_s, "watch", "blue", 0.28),
        (life.alert_s, "alert", "dot", 0.12),
    ):
        if at is None:
            continue
        held = (12e9 + 50e6 / 60.0 * at) / GIB
        minute = at / MINUTE_S
        chart.line([(minute, 0.0), (minute, held)], "now dots")
        chart.dot(minute, held, kind)
        chart.text(chart.px(minute) + 7, chart.py(level * total), f"{words} after {minute:.0f} min")
    chart.dot(end, total, "red")
    chart.text(chart.px(end), chart.py(total) - 8, f"full after {end:.0f} min", anchor="end")
    return chart.svg()


def calibration_picture(figures: dict[str, Any]) -> str:
    """Return claimed against observed quantiles of the forecasts of each set."""
    chart = Chart(
        title="Forecasts: what they claim and what came",
        words="For each set of items, the share of crashes that came before the low, the middle "
        "and the high of the forecast, against the share that these claim. A forecast that is "
        "right lies on the diagonal.",
        x=(0.0, 1.0), y=(0.0, 1.0), width=400.0, height=380.0, right=24.0, top=56.0,
    )  # fmt: skip
    marks = [(v, f"{v:g}") for v in (0.0, 0.25, 0.5, 0.75, 1.0)]
    chart.axes(marks, marks)
    chart.text(14, 20, "Share of crashes before the forecast's marks")
    chart.text(chart.width - 24, chart.height - 8, "claimed", anchor="end", kind="soft")
    chart.text(14, chart.top - 14, "observed", kind="soft")
    chart.line([(0.0, 0.0), (1.0, 1.0)], "now dots")
    kinds = (("floor", "blue"), ("fit", "dot"), ("memory", "soft"))
    sets = [one for one in figures["sets"].values() if one["summary"]["eta"]["observed"]]
    for row, (one, (line, mark)) in enumerate(zip(sets, kinds, strict=False)):
        eta = one["summary"]["eta"]
        points = list(zip(eta["nominal"], eta["observed"], strict=True))
        chart.line(points, line)
        for x, y in points:
            chart.dot(x, y, mark)
        chart.dot(0.06, 0.94 - 0.07 * row, mark)
        chart.text(chart.px(0.09), chart.py(0.94 - 0.07 * row) + 4, one["title"])
    return chart.svg()


def _log(minutes: float) -> float:
    return float(np.clip(np.log10(max(minutes, 1.0)), 0.0, 3.0))


def latency_picture(figures: dict[str, Any]) -> str:
    """Return when leaks were watched and alerted against how early that could be known."""
    chart = Chart(
        title="How early: watch and alert against the physical limit",
        words="Every leak that was found is two points: minutes from its onset to the watch and to "
        "the alert, against the earliest time at which it could be told at all. On the diagonal "
        "nothing could be faster.",
        x=(0.0, 3.0), y=(0.0, 3.0), width=460.0, height=400.0, right=24.0, top=56.0,
    )  # fmt: skip
    marks = [(float(np.log10(v)), f"{v:g}") for v in (1, 3, 10, 30, 100, 300, 1000)]
    chart.axes(marks, marks)
    chart.text(14, 20, "Minutes from the onset to watch and alert, one family left out")
    chart.text(chart.width - 24, chart.height - 8, "T*, minutes", anchor="end", kind="soft")
    chart.text(14, chart.top - 14, "minutes", kind="soft")
    chart.line([(0.0, 0.0), (3.0, 3.0)], "now dots")
    rows = figures["sets"].get("folds", {}).get("latencies", [])
    for column, kind in ((1, "blue"), (2, "dot")):
        for row in rows:
            if row[column] is not None:
                chart.dot(_log(row[0]), _log(row[column]), kind, 2.5)
    for k, (kind, words) in enumerate((("blue", "watch"), ("dot", "alert"))):
        chart.dot(2.45, 0.35 - 0.18 * k, kind)
        chart.text(chart.px(2.53), chart.py(0.35 - 0.18 * k) + 4, words)
    return chart.svg()


def figures() -> dict[str, Any]:
    """Return the figures that the page shows."""
    if not FIGURES.is_file():
        return {"sets": {}}
    found: dict[str, Any] = msgspec.json.decode(FIGURES.read_bytes())
    return found


PICTURES: dict[str, Callable[[], str]] = {
    **{f"pattern-{scene.pattern}.svg": partial(scene_picture, scene) for scene in SCENES},
    "two-tiers.svg": tiers_picture,
    "latency.svg": lambda: latency_picture(figures()),
    "eta-calibration.svg": lambda: calibration_picture(figures()),
}


if __name__ == "__main__":
    sys.exit(made.main(FOLDER, PICTURES))
