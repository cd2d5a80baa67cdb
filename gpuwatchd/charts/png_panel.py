"""One subject within the axes of Matplotlib: in the child that draws files, and nowhere else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.charts import mark_groups, scales
from gpuwatchd.core import units
from gpuwatchd.core.design import BAND_OPACITY, FIT_DASH, FLOOR_DASH, LEGEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.charts.drawing import Curve, Forecast, Picture
    from gpuwatchd.charts.scales import Frame

PLACES: Final = 70
"""Marks nearer to each other than a part of so many stand together."""
_SLICES: Final = 40
"""Of a shade that fades."""
_SMALL_PT: Final = 8.5
_DAY_IN: Final = 0.3
"""So near to the left the label of a tick would meet the day below the axis's end."""
LEGEND_IN: Final = 7.6
"""All parts in one row take that."""


class Panel:
    """What is drawn of one picture.

    Parameters
    ----------
    axes
        Of Matplotlib.
    picture, shown
        What to draw, and what of it.
    paint
        A part of the design, or a kind -> its colour.
    """

    def __init__(
        self, axes: Any, picture: Picture, frame: Frame, paint: Callable[[str], str]
    ) -> None:
        self._axes, self._picture, self._shown, self._paint = axes, picture, frame, paint
        self._keys: dict[str, Any] = {}

    def draw(self) -> None:
        """Draw all of it."""
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

    def legend(self, figure: Any, place: tuple[float, float], width_in: float) -> None:
        """Write below the axes what the parts are; place: top left, shares of the figure."""
        order = [part for part in LEGEND if part in self._keys]
        if order:
            figure.legend(
                [self._keys[part] for part in order], [LEGEND[part] for part in order],
                loc="upper left", bbox_to_anchor=place, frameon=False,
                ncols=len(order) if width_in > LEGEND_IN else -(-len(order) // 2),
                fontsize=_SMALL_PT, labelcolor=self._paint("faint"), borderpad=0,
                borderaxespad=0, handlelength=2.2, columnspacing=1.4,
            )  # fmt: skip

    # ---- scales

    def _scales(self) -> None:
        axes, frame, paint = self._axes, self._shown, self._paint
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(paint("now"))
        axes.tick_params(colors=paint("faint"), labelsize=_SMALL_PT + 0.5, color=paint("now"))
        axes.grid(axis="y", color=paint("grid"), linewidth=0.7)
        axes.set_axisbelow(True)
        levels = scales.levels(frame.top_bytes)
        axes.set_yticks(levels, [scales.level(level) for level in levels])
        width_in = axes.get_position().width * axes.figure.get_size_inches()[0]
        places, step_s = scales.instants(frame.begin_s, frame.end_s, max(2, int(width_in)))
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

    # ---- the past

    def _line(self, curve: Curve, part: str, width: float, dash: tuple[int, int] | None) -> Any:
        used = [math.nan if value is None else value for value in curve.used_bytes]
        return self._axes.plot(
            curve.at_s, used, color=self._paint(part), linewidth=width, zorder=4,
            linestyle="-" if dash is None else (0, dash), solid_joinstyle="round",
        )[0]  # fmt: skip

    def _points(self, curve: Curve) -> None:
        """Show samples between two gaps, which make no line."""
        used = (None, *curve.used_bytes, None)
        alone = [
            (at_s, used[n + 1])
            for n, at_s in enumerate(curve.at_s)
            if used[n + 1] is not None and used[n] is None and used[n + 2] is None
        ]
        if alone:
            xs, ys = zip(*alone, strict=True)
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

    # ---- the future

    def _now(self) -> None:
        now_s, frame = self._picture.now_s, self._shown
        if not frame.begin_s <= now_s < frame.end_s:
            return
        self._keys["now"] = self._axes.axvline(
            now_s, color=self._paint("now"), linewidth=1.0, linestyle=(0, (1, 2)), zorder=2
        )

    def _future(self, forecast: Forecast) -> None:
        axes, frame = self._axes, self._shown
        begun_s = max(forecast.onset_at_s or forecast.judged_at_s, self._picture.begin_s)
        before = forecast.level_bytes - forecast.rate_bytes_per_s * (forecast.judged_at_s - begun_s)
        xs, ys = [begun_s, forecast.judged_at_s], [before, forecast.level_bytes]
        if forecast.limit_bytes is not None and forecast.mid_s is not None:
            xs.append(forecast.judged_at_s + forecast.mid_s)
            ys.append(forecast.limit_bytes)
            self._cone(forecast, forecast.limit_bytes)
        self._keys["fit"] = axes.plot(
            xs, ys, color=self._paint("fit"), linewidth=1.2, linestyle=(0, FIT_DASH), zorder=5
        )[0]
        if (
            forecast.limit_bytes is not None
            and forecast.mid_s is not None
            and xs[-1] <= frame.end_s
        ):
            axes.plot(
                [xs[-1]], [forecast.limit_bytes], marker="X", markersize=9, zorder=6, clip_on=False,
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
                [left, left, right, right], [level, tops[0], tops[1], level],
                alpha=BAND_OPACITY * (1.0 - n / _SLICES), **look,
            )[0]  # fmt: skip
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
                    for w in mark_groups.limit_texts(forecast, picture.now_s)
                    if self._share(w) < room
                ),
                "",
            )
            self._write(frame.end_s, above, words, "ink", ha="right", weight="bold")

    def _marks(self) -> None:
        frame, limit = self._shown, self._picture.limit_bytes
        top = min(limit or frame.top_bytes, 0.92 * frame.top_bytes)  # above it there are words
        for group in mark_groups.groups(self._picture, PLACES, frame):
            shape, part = mark_groups.sign(group.marks, ascii_only=False)
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
