"""A picture of a growth, its fit and where it leads: drawn in a process of its own, then gone.

``python -m gpuwatchd.charts.mail_chart`` reads an :class:`Order` as JSON on standard input and
writes a PNG on standard output. Matplotlib takes 73 MiB and most of a second: the daemon never
imports it.

Every part has a line style or a label of its own beside its colour.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.design import BAND_OPACITY, PAPER, PARTS
from gpuwatchd.core.model import Chart
from gpuwatchd.core.model.base import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

CURVE, LIMIT, BAND, INK = (PARTS[part].light for part in ("curve", "limit", "band", "ink"))
GRID, SOFT, FAINT = (PARTS[part].light for part in ("grid", "faint", "now"))

WIDTH_PX, HEIGHT_PX = 640, 380
"""As shown; it is drawn with twice as many, for screens that have them."""
_DPI = 100
_FONT_PT = 13.0
_SHARPNESS = 2
_LONGEST_WHEN = 32
"""Characters beside the label of the limit."""
_MOST_AHEAD = 8.0
_LEAST_AHEAD = 0.15
"""The future takes at most, and at least, so many times the width of the past."""
FOLDER = "gpuwatchd-chart-"
"""Begins the name of the directory that Matplotlib may write to."""
_MOST_ORDER_BYTES = 64 * 1024
_MOST_MEMORY_BYTES = 1024**3
_MOST_CPU_S = 20
_STEPS_S = (
    *(10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 604800, 2592000),
)
_TICKS = 5


class Order(Value, frozen=True, kw_only=True):
    """What to draw."""

    chart: Chart
    now_s: float
    """Epoch seconds at which the mail leaves."""


def end_s(chart: Chart) -> float:
    """Return the right end of the picture, epoch seconds.

    The middle of the time that is left is in it unless the past would shrink to nothing, and all
    of the interval where it ends not much later.
    """
    last_s = chart.at_s[-1]
    if chart.mid_s is None:
        return last_s
    judged_s = last_s if chart.judged_at_s is None else chart.judged_at_s
    high_s = chart.high_s
    wanted_s = 1.35 * chart.mid_s
    if high_s is not None and high_s < 2.5 * chart.mid_s:
        wanted_s = 1.06 * high_s
    past_s = max(last_s - chart.at_s[0], 60.0)
    return judged_s + min(max(wanted_s, _LEAST_AHEAD * past_s), _MOST_AHEAD * past_s)


def bottom_bytes(chart: Chart) -> float:
    """Return the lower end of the scale: below the curve there is room for two labels."""
    low = min(chart.used_bytes)
    top = max(*chart.used_bytes, chart.limit_bytes or 0.0)
    return max(0.0, low - max(0.16 * (top - low), 0.02 * top))


def ticks(begin_s: float, stop_s: float) -> list[float]:
    """Return at most five instants on round local times."""
    step_s = next((s for s in _STEPS_S if (stop_s - begin_s) / s <= _TICKS), _STEPS_S[-1])
    offset_s = _utc_offset_s(begin_s)
    first_s = -(-(begin_s + offset_s) // step_s) * step_s - offset_s
    # A label reaches some 3 % of the width to the right of its tick.
    count = int((stop_s - 0.01 * (stop_s - begin_s) - first_s) // step_s) + 1
    return [first_s + k * step_s for k in range(max(0, count))]


def _tick_labels(places: list[float], now_s: float) -> list[str]:
    """Return clock times, with the day where it is another one than that of the label before."""
    return [
        units.moment(at_s, now_s=before_s)
        for before_s, at_s in zip([now_s, *places], places, strict=False)
    ]


def _utc_offset_s(at_s: float) -> float:
    from datetime import datetime  # noqa: PLC0415 - of the child alone

    offset = datetime.fromtimestamp(at_s).astimezone().utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def draw(order: Order) -> bytes:
    """Return the picture as PNG. Imports Matplotlib."""
    import io  # noqa: PLC0415 - of the child alone

    with own_fonts_only():
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH_PX / _DPI, HEIGHT_PX / _DPI), dpi=_DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.085, 0.175, 0.872, 0.75))
    _Picture(axes, order).draw()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI * _SHARPNESS, facecolor=PAPER)
    return out.getvalue()


class _Picture:
    """Everything within the axes."""

    def __init__(self, axes: Any, order: Order) -> None:
        self._axes = axes
        self._chart = chart = order.chart
        self._now_s = order.now_s
        self._begin_s, self._end_s = chart.at_s[0], end_s(chart)
        top = max(*chart.used_bytes, chart.limit_bytes or 0.0)
        self._unit, self._word = (1024.0**3, "GiB") if top >= 2 * 1024**3 else (1024.0**2, "MiB")
        self._bottom = bottom_bytes(chart)
        top = max(top, self._bottom + 1024.0**2)
        # Above the limit there is room for its label and for that of the end.
        self._top = top + (0.17 if chart.limit_bytes else 0.06) * (top - self._bottom)
        self._judged_s = chart.at_s[-1] if chart.judged_at_s is None else chart.judged_at_s

    def draw(self) -> None:
        axes, chart = self._axes, self._chart
        axes.set_facecolor(PAPER)
        axes.set_xlim(self._begin_s, self._end_s)
        axes.set_ylim(self._bottom / self._unit, self._top / self._unit)
        self._scales()
        self._future()
        axes.plot(chart.at_s, self._levels(chart.used_bytes), color=CURVE, linewidth=3.0, zorder=4)
        self._fit()
        self._marks()
        self._limit()

    def _levels(self, values: tuple[float, ...]) -> list[float]:
        return [value / self._unit for value in values]

    def _scales(self) -> None:
        axes, chart = self._axes, self._chart
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=INK, labelsize=_FONT_PT, color=FAINT, length=4)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.locator_params(axis="y", nbins=5)
        limit = chart.limit_bytes
        axes.set_yticks(
            [at for at in axes.get_yticks() if limit is None or at <= limit / self._unit]
        )
        axes.set_ylim(self._bottom / self._unit, self._top / self._unit)
        places = ticks(self._begin_s, self._end_s)
        axes.set_xticks(places, _tick_labels(places, self._judged_s))
        axes.text(
            -0.012, 1.02, self._word, transform=axes.transAxes, ha="right", va="bottom",
            fontsize=_FONT_PT, color=INK,
        )  # fmt: skip
        axes.text(
            1.0, -0.15, f"time in {units.zone(self._judged_s)}", transform=axes.transAxes,
            ha="right", va="top", fontsize=_FONT_PT - 1.5, color=SOFT,
        )  # fmt: skip

    def _future(self) -> None:
        chart, axes = self._chart, self._axes
        if chart.mid_s is None or chart.limit_bytes is None or chart.level_bytes is None:
            return
        start, limit = chart.level_bytes / self._unit, chart.limit_bytes / self._unit
        low_s = self._judged_s + (chart.mid_s if chart.low_s is None else chart.low_s)
        if chart.high_s is None:  # it may level off before it gets there
            far = [(self._end_s, limit), (self._end_s, start)]
        else:
            far = [(self._judged_s + chart.high_s, limit)]
        xs, ys = zip((self._judged_s, start), (low_s, limit), *far, strict=True)
        axes.fill(xs, ys, facecolor=BAND, alpha=BAND_OPACITY, edgecolor="none", zorder=2)
        axes.plot(
            [self._judged_s, self._judged_s + chart.mid_s], [start, limit],
            color=INK, linewidth=1.8, linestyle=(0, (5, 3)), zorder=3,
        )  # fmt: skip

    def _fit(self) -> None:
        chart = self._chart
        if chart.level_bytes is None or chart.rate_bytes_per_s is None:
            return
        begun_s = max(self._begin_s, chart.onset_at_s or self._begin_s)
        before = chart.level_bytes - chart.rate_bytes_per_s * (self._judged_s - begun_s)
        self._axes.plot(
            [begun_s, self._judged_s], [before / self._unit, chart.level_bytes / self._unit],
            color=INK, linewidth=1.3, linestyle=(0, (5, 4)), zorder=5,
        )  # fmt: skip

    def _limit(self) -> None:
        chart, axes = self._chart, self._axes
        if chart.limit_bytes is None:
            return
        limit = chart.limit_bytes / self._unit
        axes.axhline(limit, color=LIMIT, linewidth=2.6, zorder=4)
        above = {"va": "bottom", "fontsize": _FONT_PT, "zorder": 7}
        pad = 0.03 * (self._top - self._bottom) / self._unit
        axes.text(
            self._begin_s + 0.008 * (self._end_s - self._begin_s), limit + pad,
            f"limit {units.size(chart.limit_bytes)}", color=LIMIT, weight="bold", **above,
        )  # fmt: skip
        if chart.mid_s is None or chart.level_bytes is None:
            return
        full_s = self._judged_s + chart.mid_s
        axes.text(
            self._end_s, limit + pad, f"full {self._when()}", color=INK, weight="bold",
            ha="right", **above,
        )  # fmt: skip
        if full_s <= self._end_s:
            axes.plot(
                [full_s], [limit], marker="X", markersize=12, color=LIMIT, zorder=6,
                markeredgecolor=PAPER, markeredgewidth=1.4, clip_on=False,
            )  # fmt: skip

    def _when(self) -> str:
        chart = self._chart
        if chart.mid_s is None:
            return ""
        full_s = self._judged_s + chart.mid_s
        mid = units.moment(full_s, now_s=self._judged_s)
        if chart.low_s is None:
            return mid
        low = units.moment(self._judged_s + chart.low_s, now_s=full_s)
        high = "open"
        if chart.high_s is not None:
            high = units.moment(self._judged_s + chart.high_s, now_s=full_s)
        whole = f"{mid} ({low} – {high})"
        return whole if len(whole) <= _LONGEST_WHEN else mid

    def _marks(self) -> None:
        chart, axes = self._chart, self._axes
        width_s = self._end_s - self._begin_s
        # Some 100 of the 566 pixels between the ends of the axis: what a label takes.
        label_s = 0.2 * width_s
        foot = (self._bottom + 0.025 * (self._top - self._bottom)) / self._unit
        common = {"fontsize": _FONT_PT, "color": INK, "va": "bottom", "zorder": 7}
        late = self._now_s - self._judged_s > 600.0
        up_to = self._top if chart.limit_bytes is None else chart.limit_bytes
        axes.plot(
            [self._judged_s] * 2, [self._bottom / self._unit, up_to / self._unit],
            color=FAINT, linewidth=1.4, linestyle=(0, (1, 2)), zorder=1,
        )  # fmt: skip
        word = "judged" if late else "now"
        clock = units.moment(self._judged_s, now_s=self._now_s)
        right = self._judged_s + label_s < self._end_s
        axes.text(
            self._judged_s + (0.008 if right else -0.008) * width_s, foot, f"{word} {clock}",
            ha="left" if right else "right", **common,
        )  # fmt: skip
        onset_s = chart.onset_at_s
        if onset_s is None or not self._begin_s <= onset_s <= self._judged_s:
            return
        near = min(range(len(chart.at_s)), key=lambda k: abs(chart.at_s[k] - onset_s))
        level = chart.used_bytes[near]
        if chart.level_bytes is not None and chart.rate_bytes_per_s is not None:
            level = chart.level_bytes - chart.rate_bytes_per_s * (self._judged_s - onset_s)
        axes.plot(
            [onset_s], [level / self._unit], marker="o", markersize=9, color=PAPER,
            markeredgecolor=INK, markeredgewidth=1.8, zorder=6,
        )  # fmt: skip
        ends_s = self._judged_s if right else self._judged_s - label_s
        left = onset_s - label_s > self._begin_s
        if left or onset_s + 1.05 * label_s < ends_s:
            axes.text(
                onset_s + (-0.005 if left else 0.0) * width_s, foot,
                f"since {units.moment(onset_s, now_s=self._judged_s)}",
                ha="right" if left else "left", **common,
            )  # fmt: skip


@contextlib.contextmanager
def own_fonts_only() -> Iterator[None]:
    """Let Matplotlib find the fonts that it comes with, and no others, while it is imported.

    On its first import it looks at every font of the system, which can take many seconds; and
    every import is the first here, since nothing of it is kept.
    """
    import matplotlib as mpl  # noqa: PLC0415 - of the child alone

    own, walk, path = mpl.get_data_path(), os.walk, os.environ.get("PATH")

    def walk_own(top: Any, *args: Any, **options: Any) -> Any:
        return walk(top, *args, **options) if str(top).startswith(own) else iter(())

    os.walk = walk_own
    os.environ["PATH"] = ""  # and so neither fc-list nor system_profiler
    try:
        yield
    finally:
        os.walk = walk
        if path is not None:
            os.environ["PATH"] = path


def bound() -> None:
    """Bound this process: what goes wrong with a picture is no harm to the machine."""
    import resource  # noqa: PLC0415 - of the child alone

    limits = (
        (resource.RLIMIT_AS, _MOST_MEMORY_BYTES),
        (resource.RLIMIT_CPU, _MOST_CPU_S),
        (resource.RLIMIT_CORE, 0),
    )
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # macOS knows no limit of the address space.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (wanted, wanted))


def main() -> int:
    """Draw what standard input says; return 0, or 1 with the reason on standard error."""
    return answer(Order, draw, most_bytes=_MOST_ORDER_BYTES)


def answer(kind: type[T], draw_it: Callable[[T], bytes], *, most_bytes: int) -> int:
    """Read an order, draw it within bounds, write the picture and leave nothing; as :func:`main`.

    Parameters
    ----------
    kind
        Of the order.
    draw_it
        What draws; it imports Matplotlib.
    most_bytes
        Of an order.
    """
    try:
        bound()
        order = msgspec.json.decode(sys.stdin.buffer.read(most_bytes), type=kind)
        sys.stdout.buffer.write(draw_it(order))
        sys.stdout.buffer.flush()
    except Exception as error:  # noqa: BLE001 (whatever it is, the mail goes without a picture)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    else:
        return 0
    finally:
        # Who started us does the same; but he may be gone by now.
        folder = os.environ.get("MPLCONFIGDIR", "")
        if os.path.basename(folder).startswith(FOLDER):  # noqa: PTH119 - one word of a path
            import shutil  # noqa: PLC0415 - of the child alone

            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
