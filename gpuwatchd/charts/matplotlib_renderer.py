"""Pictures as a file, drawn with Matplotlib in a process of its own, then gone.

``python -m gpuwatchd.charts.matplotlib_renderer`` reads an
:class:`~gpuwatchd.charts.chart_model.Order` as JSON on standard input and writes a PNG or an SVG
on standard output, within bounds of memory and time.
Matplotlib takes 73 MiB and most of a second: the daemon never imports it. The same order gives the
same bytes: no date, no random name.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd import __version__
from gpuwatchd.charts import chart_model
from gpuwatchd.charts.chart_model import Order, Picture
from gpuwatchd.charts.drawing_process import FOLDER
from gpuwatchd.charts.text_description import sentence
from gpuwatchd.core import text, units
from gpuwatchd.core.design import (
    BAND_OPACITY,
    FIT_DASH,
    FLOOR_DASH,
    LEGEND,
    LOOKS,
    NIGHT,
    PAPER,
    colours,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.charts.chart_model import Curve, Forecast

MOST_ORDER_BYTES: Final = 32 * 1024**2
MOST_PANELS: Final = 32
MOST_ROWS: Final = 8
"""Of the list of marks below a panel."""
WIDTH_IN: Final = 9.0
_DPI: Final = {"png": 160.0, "svg": 96.0}
"""Without a size; one inch of an SVG is 96 pixels of a page."""
_LEAST_DPI: Final = 90.0
_AXES_IN: Final = 2.3
"""Height of what is between the scales."""
_LEAST_AXES_IN: Final = 0.8
_HEAD_IN, _BARE_IN, _FOOT_IN, _SCALE_IN, _ROW_IN = 0.62, 0.1, 0.64, 0.3, 0.2
_SECOND_ROW_IN: Final = 0.19
"""Of the legend, where one is too narrow."""
_LEFT_IN, _RIGHT_IN = 0.82, 0.3
_NAME: Final = "gpuwatchd"
_MOST_MEMORY_BYTES: Final = 1024**3
_MOST_CPU_S: Final = 20
Row = tuple[str, str, str]
"""Below a panel: a mark, the part or kind whose colour it has, and words."""


def draw(order: Order) -> bytes:
    """Return the file. Imports Matplotlib."""
    with _own_fonts_only():
        import matplotlib as mpl  # noqa: PLC0415 - of the child alone
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

    settings: Any = {
        "text.parse_math": False, "svg.hashsalt": _NAME, "svg.fonttype": "none",
        "font.family": "DejaVu Sans", "font.size": 9.5, "hatch.linewidth": 0.6,
    }  # fmt: skip
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.simplefilter("ignore")  # a name may be in letters that no font here has
        return _rendered(order, Figure, FigureCanvasAgg)


def _rendered(order: Order, figure_of: Any, canvas_of: Any) -> bytes:
    ground = NIGHT if order.dark else PAPER
    rows = [_rows(picture, order) for picture in order.pictures]
    width_in, height_in, dpi = size_in(order)
    heights = [_panel_in(own, width_in, order) for own in rows]
    if height_in is None:
        height_in = sum(heights)
    elif height_in < sum(heights):  # there is no room for the lists
        rows = [[] for _ in rows]
        heights = [_panel_in(own, width_in, order) for own in rows]
    figure = figure_of(figsize=(width_in, height_in), dpi=dpi, facecolor=ground)
    canvas_of(figure)
    spare_in = (height_in - sum(heights)) / len(heights)
    top_in = height_in
    for picture, own, own_in in zip(order.pictures, rows, heights, strict=True):
        _Panel(figure, order, picture, top_in=top_in, own_in=own_in + spare_in).draw(own)
        top_in -= own_in + spare_in
    out = io.BytesIO()
    figure.savefig(out, format=order.form, dpi=dpi, facecolor=ground, metadata=_metadata(order))
    return out.getvalue() if order.form == "png" else _named(out.getvalue(), order)


def title(order: Order) -> str:
    """Return the title of the file."""
    named = [text.clean(picture.title) for picture in order.pictures]
    others = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return f"{named[0]}{others}: memory over time"


def description(order: Order) -> str:
    """Return what the file shows, in words."""
    return "\n".join(sentence(picture) for picture in order.pictures)


def _metadata(order: Order) -> dict[str, str | None]:
    if order.form == "svg":
        return {"Date": None, "Creator": _NAME, "Title": title(order)}
    return {
        "Title": title(order),
        "Description": description(order),
        "Software": f"{_NAME} {__version__}",
    }


def _named(svg: bytes, order: Order) -> bytes:
    """Return an SVG with the title and the description that screen readers read."""
    whole = svg.decode("utf-8")
    begin = whole.index("<svg ")
    end = whole.index(">", begin)
    value = (
        f'\n <title id="title">{text.for_html(title(order))}</title>'
        f'\n <desc id="desc">{text.for_html(description(order))}</desc>'
    )
    head = f'{whole[:end]} role="img" aria-labelledby="title desc">'
    return f"{head}{value}{whole[end + 1 :]}".encode()


def size_in(order: Order) -> tuple[float, float | None, float]:
    """Return width and height in inches, and the dots of an inch; a height of None is free."""
    dpi = order.dpi or _DPI[order.form]
    if order.width_px is None or order.height_px is None:
        return WIDTH_IN, None, dpi
    if order.form == "png" and order.dpi is None:
        dpi = max(_LEAST_DPI, order.width_px / WIDTH_IN)
    return order.width_px / dpi, order.height_px / dpi, dpi


def fits(order: Order) -> bool:
    """Return whether every panel has room for its axes."""
    width_in, height_in, _ = size_in(order)
    least_in = len(order.pictures) * (
        _head_in(order) + _LEAST_AXES_IN + _foot_in(width_in, bare=order.bare)
    )
    return height_in is None or height_in >= least_in


def _head_in(order: Order) -> float:
    return _BARE_IN if order.bare else _HEAD_IN


def _foot_in(width_in: float, *, bare: bool) -> float:
    """Return what the scale of time and the legend take."""
    if bare:
        return _SCALE_IN
    narrow = width_in - _LEFT_IN - _RIGHT_IN <= _LEGEND_IN
    return _FOOT_IN + (_SECOND_ROW_IN if narrow else 0.0)


def _panel_in(rows: list[Row], width_in: float, order: Order) -> float:
    return _head_in(order) + _AXES_IN + _foot_in(width_in, bare=order.bare) + _ROW_IN * len(rows)


def _letters(width_in: float) -> int:
    """Return how many letters of the list of marks stand beside each other."""
    return int((width_in - 0.4) * 10.5) - 12


def _rows(picture: Picture, order: Order) -> list[Row]:
    """Return the list of marks, then what has to be known."""
    width_in = size_in(order)[0]
    groups = chart_model.groups(picture, _PLACES, chart_model.frame(picture, order.window))
    pairs, left_out = chart_model.numbered(groups, MOST_ROWS)
    rows = []
    for number, mark in pairs:
        shape, part = chart_model.sign((mark,), ascii_only=False)
        value = f"{units.moment(mark.at_s, now_s=picture.now_s)}  {text.clean(mark.text)}"
        # Why a job died is worth as many rows as it takes.
        lines = textwrap.wrap(value, _letters(width_in)) if mark.kind == "died" else [value]
        rows.append((f"{shape}{number}", part, lines[0]))
        rows += [("", part, f"    {line}") for line in lines[1:]]
    if left_out:
        rows.append(("", "faint", f"and {left_out} more"))
    return rows + [("", "faint", text.clean(note)) for note in picture.notes]


@contextlib.contextmanager
def _own_fonts_only() -> Iterator[None]:
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


def _bound() -> None:
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
    try:
        _bound()
        order = msgspec.json.decode(sys.stdin.buffer.read(MOST_ORDER_BYTES), type=Order)
        sys.stdout.buffer.write(draw(order))
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
            shutil.rmtree(folder, ignore_errors=True)


# One subject within the axes of Matplotlib: in the child that draws files, and nowhere else.

_PLACES: Final = 70
"""Marks nearer to each other than a part of so many stand together."""
_SLICES: Final = 40
"""Of a shade that fades."""
_SMALL_PT: Final = 8.5
_DAY_IN: Final = 0.3
"""So near to the left the label of a tick would meet the day below the axis's end."""
_LEGEND_IN: Final = 7.6
"""All parts in one row take that."""


class _Panel:
    """A strip of the figure for one subject: from its top (inches), so high (inches)."""

    def __init__(
        self, figure: Any, order: Order, picture: Picture, *, top_in: float, own_in: float
    ) -> None:
        self._figure, self._order, self._picture = figure, order, picture
        self._shown = chart_model.frame(picture, order.window)
        self._top_in, self._own_in = top_in, own_in
        self._width_in, self._height_in = figure.get_size_inches()
        self._paint = colours(dark=order.dark).__getitem__
        self._keys: dict[str, Any] = {}

    def draw(self, rows: list[Row]) -> None:
        """Draw title, verdict, axes, legend and the list of marks."""
        bare, letters = self._order.bare, int((self._width_in - 0.4) * 10.5)
        if not bare:
            look, top_in = LOOKS[self._picture.kind], self._top_in
            title_ = text.cut(text.clean(self._picture.title), int(letters * 0.85))
            self._beside(0.2, top_in - 0.27, title_, "ink", weight="bold", fontsize=11)
            verdict = text.cut(f"{look.mark} {text.clean(self._picture.verdict)}", letters)
            self._beside(0.2, top_in - 0.48, verdict, self._picture.kind)
        head_in = _head_in(self._order)
        foot_in = _foot_in(self._width_in, bare=bare) + _ROW_IN * len(rows)
        axes_in = self._own_in - head_in - foot_in
        bottom_in = self._top_in - head_in - axes_in
        within_in = self._width_in - _LEFT_IN - _RIGHT_IN
        self._axes = self._figure.add_axes(
            (*self._at(_LEFT_IN, bottom_in), within_in / self._width_in, axes_in / self._height_in)
        )
        self._draw_within()
        if not bare:
            self._legend(self._at(_LEFT_IN, bottom_in - 0.33), within_in)
        for at, (shape, part, value) in enumerate(rows):
            y_in = bottom_in - foot_in + 0.14 + _ROW_IN * (len(rows) - 1 - at)
            self._beside(_LEFT_IN, y_in, shape, part, fontsize=8.5)
            told_ = text.cut(value, _letters(self._width_in))
            self._beside(_LEFT_IN + (0.32 if shape else 0), y_in, told_, "faint", fontsize=8.5)

    def _at(self, x_in: float, y_in: float) -> tuple[float, float]:
        return x_in / self._width_in, y_in / self._height_in

    def _beside(self, x_in: float, y_in: float, words: str, part: str, **more: Any) -> None:
        self._figure.text(*self._at(x_in, y_in), words, color=self._paint(part), **more)

    def _draw_within(self) -> None:
        axes, picture, frame = self._axes, self._picture, self._shown
        axes.set_facecolor("none")
        axes.set_xlim(frame.begin_s, frame.end_s)
        axes.set_ylim(0.0, frame.top_bytes)
        axes.set_autoscale_on(False)
        self._scales()
        self._gaps()
        self._range(picture.curve)
        if picture.forecast is not None:
            self._now()
            self._future(picture.forecast)
        if picture.floor is not None:
            self._keys["floor"] = self._line(picture.floor, "floor", 1.4, FLOOR_DASH)
        if not picture.empty:
            self._keys["curve"] = self._line(picture.curve, "curve", 1.7, None)
            self._points(picture.curve)
        self._limit()
        self._marks()

    def _legend(self, place: tuple[float, float], width_in: float) -> None:
        """Write below the axes what the parts are; place: top left, shares of the figure."""
        order = [part for part in LEGEND if part in self._keys]
        if order:
            self._figure.legend(
                [self._keys[part] for part in order], [LEGEND[part] for part in order],
                loc="upper left", bbox_to_anchor=place, frameon=False,
                ncols=len(order) if width_in > _LEGEND_IN else -(-len(order) // 2),
                fontsize=_SMALL_PT, labelcolor=self._paint("faint"), borderpad=0,
                borderaxespad=0, handlelength=2.2, columnspacing=1.4,
            )  # fmt: skip

    def _scales(self) -> None:
        axes, frame, paint = self._axes, self._shown, self._paint
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(paint("now"))
        axes.tick_params(colors=paint("faint"), labelsize=_SMALL_PT + 0.5, color=paint("now"))
        axes.grid(axis="y", color=paint("grid"), linewidth=0.7)
        axes.set_axisbelow(True)
        levels = chart_model.levels(frame.top_bytes)
        axes.set_yticks(levels, [chart_model.level(level) for level in levels])
        width_in = axes.get_position().width * axes.figure.get_size_inches()[0]
        places, step_s = chart_model.instants(frame.begin_s, frame.end_s, max(2, int(width_in)))
        today, day = (units.clock(at_s)[:10] for at_s in (self._picture.now_s, frame.begin_s))
        # The last one leaves its room to the time zone, the first one to the day.
        per_in = (frame.end_s - frame.begin_s) / width_in
        first_s = frame.begin_s + (_DAY_IN * per_in if today != day else 0.0)
        last_s = frame.end_s - 0.6 * per_in
        axes.set_xticks(
            places,
            [units.tick(at, step_s=step_s) if first_s <= at < last_s else "" for at in places],
        )
        axes.annotate(
            units.zone(frame.end_s), (1.0, 0.0), (0, -5), xycoords="axes fraction",
            textcoords="offset points", ha="right", va="top", fontsize=_SMALL_PT,
            color=paint("faint"),
        )  # fmt: skip
        if today != day:
            axes.annotate(
                day, (0.0, 0.0), (-6, -5), xycoords="axes fraction", textcoords="offset points",
                ha="right", va="top", fontsize=_SMALL_PT - 0.5, color=paint("faint"),
            )  # fmt: skip

    def _share(self, words: str) -> float:
        """Return about how much of the width a text takes, 0-1."""
        width_in = self._axes.get_position().width * self._axes.figure.get_size_inches()[0]
        return float(0.085 * len(words) / width_in)

    def _line(self, curve: Curve, part: str, width: float, dash: tuple[int, int] | None) -> Any:
        used = [math.nan if value is None else value for value in curve.used_bytes]
        return self._axes.plot(
            curve.at_s, used, color=self._paint(part), linewidth=width, zorder=4,
            linestyle="-" if dash is None else (0, dash), solid_joinstyle="round",
        )[0]  # fmt: skip

    def _points(self, curve: Curve) -> None:
        """Show samples between two gaps, which make no line."""
        alone = [run[0] for run in curve.runs() if len(run) == 1]
        if alone:
            xs, ys = [curve.at_s[n] for n in alone], [curve.used_bytes[n] for n in alone]
            self._axes.plot(xs, ys, "o", color=self._paint("curve"), markersize=3.5, zorder=4)

    def _range(self, curve: Curve) -> None:
        low = [math.nan if value is None else value for value in curve.low_bytes]
        high = [math.nan if value is None else value for value in curve.high_bytes]
        if any(a < b for a, b in zip(low, high, strict=True)):
            self._keys["range"] = self._axes.fill_between(
                curve.at_s, low, high, step="mid", facecolor=self._paint("range"), alpha=0.75,
                edgecolor="none", linewidth=0, zorder=2,
            )  # fmt: skip

    def _gaps(self) -> None:
        frame = self._shown
        for gap in self._picture.gaps:
            begin_s, end_s = max(gap.begin_s, frame.begin_s), min(gap.end_s, frame.end_s)
            if end_s <= begin_s:
                continue
            self._keys["gap"] = self._axes.axvspan(
                begin_s, end_s, facecolor="none", edgecolor=self._paint("gap"), hatch="////",
                linewidth=0, zorder=1,
            )  # fmt: skip
            words = gap.why or LEGEND["gap"]
            if self._share(words) < (end_s - begin_s) / (frame.end_s - frame.begin_s):
                self._write(
                    (begin_s + end_s) / 2, 0.06 * frame.top_bytes, words, "faint", ha="center"
                )
        if self._picture.empty:
            middle_s = (frame.begin_s + frame.end_s) / 2
            self._write(middle_s, 0.45 * frame.top_bytes, LEGEND["gap"], "faint", ha="center")

    def _write(self, at_s: float, at_bytes: float, words: str, part: str, **more: Any) -> None:
        self._axes.text(
            at_s, at_bytes, words, color=self._paint(part), fontsize=_SMALL_PT, zorder=7,
            clip_on=False, **more,
        )  # fmt: skip

    def _now(self) -> None:
        now_s, frame = self._picture.now_s, self._shown
        if not frame.begin_s <= now_s < frame.end_s:
            return
        self._keys["now"] = self._axes.axvline(
            now_s, color=self._paint("now"), linewidth=1.0, linestyle=(0, (1, 2)), zorder=2
        )

    def _future(self, forecast: Forecast) -> None:
        axes, frame = self._axes, self._shown
        end = forecast.end
        if end is not None:
            self._cone(forecast, end[1])
        xs, ys = zip(*forecast.fit(self._picture.begin_s), strict=True)
        self._keys["fit"] = axes.plot(
            xs, ys, color=self._paint("fit"), linewidth=1.2, linestyle=(0, FIT_DASH), zorder=5
        )[0]
        if end is not None and end[0] <= frame.end_s:
            axes.plot(
                *end, marker="X", markersize=9, zorder=6, clip_on=False,
                color=self._paint("limit"), markeredgecolor=self._paint("surface"),
            )  # fmt: skip

    def _cone(self, forecast: Forecast, limit: float) -> None:
        start_s, level = forecast.judged_at_s, forecast.level_bytes
        low_s = start_s + (forecast.low_s if forecast.low_s is not None else forecast.mid_s or 0.0)
        look = {"facecolor": self._paint("band"), "edgecolor": "none", "linewidth": 0, "zorder": 2}
        if forecast.high_s is not None:
            high_s = start_s + forecast.high_s
            self._keys["band"] = self._axes.fill(
                [start_s, low_s, high_s], [level, limit, limit], alpha=BAND_OPACITY, **look
            )[0]
            self._axes.plot(
                [low_s, high_s], [limit, limit], color=self._paint("band"), linewidth=5.0,
                solid_capstyle="butt", zorder=5,
            )  # fmt: skip
            return
        # It may level off: the shade fades out and has no last side.
        end_s = max(self._shown.end_s, start_s + 1.0)
        for n in range(_SLICES):
            left, right = (start_s + (end_s - start_s) * k / _SLICES for k in (n, n + 1))
            tops = [_between(at, (start_s, level), (low_s, limit)) for at in (left, right)]
            shade = self._axes.fill(
                [left, left, right, right],
                [level, tops[0], tops[1], level],
                alpha=BAND_OPACITY * (1.0 - n / _SLICES),
                **look,
            )[0]
            self._keys.setdefault("band", shade)

    def _limit(self) -> None:
        picture, frame = self._picture, self._shown
        limit = picture.limit_bytes
        if limit is None or limit > frame.top_bytes:
            return
        self._axes.axhline(limit, color=self._paint("limit"), linewidth=1.8, zorder=4)
        above = limit + 0.03 * frame.top_bytes
        label = f"{LEGEND['limit']} {units.size(limit)}"
        span_s = frame.end_s - frame.begin_s
        self._write(frame.begin_s + 0.006 * span_s, above, label, "limit", weight="bold")
        forecast = picture.forecast
        if forecast is not None and forecast.mid_s is not None:
            room = 0.97 - self._share(label)
            words = next(
                (
                    w
                    for w in chart_model.limit_texts(forecast, picture.now_s)
                    if self._share(w) < room
                ),
                "",
            )
            self._write(frame.end_s, above, words, "ink", ha="right", weight="bold")

    def _marks(self) -> None:
        frame, limit = self._shown, self._picture.limit_bytes
        top = min(limit or frame.top_bytes, 0.92 * frame.top_bytes)  # above it there are words
        for group in chart_model.groups(self._picture, _PLACES, frame):
            shape, part = chart_model.sign(group.marks, ascii_only=False)
            at_s = group.marks[0].at_s
            self._axes.plot(
                [at_s, at_s], [0.0, top], color=self._paint(part), linewidth=0.8, alpha=0.55,
                zorder=1,
            )  # fmt: skip
            self._write(
                at_s, 0.012 * frame.top_bytes, f"{shape}{group.number}", part, ha="left",
                va="bottom",
            )  # fmt: skip


def _between(at_s: float, pair: tuple[float, float], other: tuple[float, float]) -> float:
    share = (at_s - pair[0]) / max(other[0] - pair[0], 1e-9)
    return pair[1] + (other[1] - pair[1]) * min(1.0, max(0.0, share))


if __name__ == "__main__":
    sys.exit(main())
