"""Draws a picture as SVG of our own: what is seen where no script runs, and on paper."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

from gpuwatchd.charts.chart_model import frame, instants, level, levels, sign
from gpuwatchd.charts.text_description import NOTHING, sentence
from gpuwatchd.core import text, units
from gpuwatchd.core.design import BAND_OPACITY, FIT_DASH, FLOOR_DASH, LEGEND, colours

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuwatchd.charts.chart_model import Frame, Mark, Picture

HEIGHT: Final = 300
"""In pixels; the width is that of the place: text keeps its size, what is drawn is stretched."""
_WIDE, _TOP, _HIGH = 1000, 24, 236
_APART = 35.0
"""Marks closer than this, of :data:`_WIDE`, become one with their number."""
_DAY_S = 86400.0
_CHAR = 6.6
"""Width of a letter, about, in pixels."""
_FAR = 9.0
"""Lines are drawn so many widths beyond the frame, and cut there."""
_COLOURS: Final = colours(dark=False)
_SLIM, _BROAD = 320.0, 760.0
"""Widths of a place in pixels: on a phone, and elsewhere."""


def draw(picture: Picture) -> Markup:
    """Return the picture as an ``svg`` element with its sentence as alternative text."""
    drawing = _Drawing(picture)
    inner = element(
        "svg",
        {"role": "presentation", "x": 0, "y": _TOP, "width": "100%", "height": _HIGH,
         "viewBox": f"0 0 {_WIDE} {_HIGH}", "preserveAspectRatio": "none"},
        drawing.grid(), drawing.gaps(), drawing.cone(), drawing.curve(), drawing.lines(),
    )  # fmt: skip
    return element(
        "svg",
        {"width": "100%", "height": HEIGHT, "role": "img", "aria-label": sentence(picture),
         "class": "drawn"},
        inner, drawing.scales(), drawing.mark_elements(), drawing.words(),
    )  # fmt: skip


def _fade(name: str, left: float) -> Markup:
    colour = _COLOURS["band"]
    return element(
        "linearGradient",
        {"id": name, "gradientUnits": "userSpaceOnUse", "x1": left, "x2": _WIDE, "y1": 0, "y2": 0},
        element("stop", {"offset": 0, "stop-color": colour}),
        element("stop", {"offset": 1, "stop-opacity": 0, "stop-color": colour}),
    )


def _line(part: str, points: str, width: float = 2, dash: Sequence[int] = ()) -> Markup:
    return element(
        "path",
        {"class": f"s-{part}", "d": points, "fill": "none", "stroke": _COLOURS[part],
         "stroke-width": width, "stroke-dasharray": " ".join(map(str, dash)) or None,
         "stroke-linecap": "round" if not dash else None, "vector-effect": "non-scaling-stroke"},
    )  # fmt: skip


def _text(
    text: str, x: float, y: float, part: str = "faint", anchor: str = "start",
    *, right: float = 0, slim: bool = True,
) -> Markup:  # fmt: skip
    """Return text at a share of the width and a height in pixels, moved ``right`` by pixels.

    Without ``slim`` it has no room on a phone.
    """
    return element(
        "text",
        {"class": f"f-{part}" + ("" if slim else " roomy"), "x": f"{round(x / _WIDE * 100, 2)}%",
         "y": round(y, 1), "dx": right or None, "fill": _COLOURS[part], "text-anchor": anchor,
         "font-size": 12, "font-family": "system-ui, sans-serif"},
        text,
    )  # fmt: skip


def _side(x: float) -> str:
    """Return how text below a place is aligned, so that it stays within the drawing."""
    return "start" if x < 0.04 * _WIDE else "end" if x > 0.96 * _WIDE else "middle"


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._shown: Frame = frame(picture)

    def _x(self, at_s: float) -> float:
        share = (at_s - self._shown.begin_s) / (self._shown.end_s - self._shown.begin_s)
        return round(min(max(share, -_FAR), _FAR) * _WIDE, 1)

    def _y(self, value_bytes: float) -> float:
        return round(_HIGH - value_bytes / self._shown.top_bytes * _HIGH, 1)

    def _toward(self, near: tuple[float, float], far: tuple[float, float]) -> tuple[float, float]:
        """Return where a line from one (instant, bytes) to another ends: cut where it is far out.

        It keeps its slope: only to bring its end nearer would draw a slow growth as a fast one.
        """
        width_s = self._shown.end_s - self._shown.begin_s
        first_s, last_s = (self._shown.begin_s + edge * width_s for edge in (-_FAR, _FAR))
        at_s = min(max(far[0], first_s), last_s)
        value = far[1]
        if at_s != far[0] and far[0] != near[0]:
            value = near[1] + (far[1] - near[1]) * (at_s - near[0]) / (far[0] - near[0])
        return self._x(at_s), self._y(value)

    def grid(self) -> Iterator[Markup]:
        """Draw a line at each round level."""
        for value in levels(self._shown.top_bytes):
            yield _line("grid", f"M0 {self._y(value)}H{_WIDE}", 1)

    def scales(self) -> Iterator[Markup]:
        """Write levels on their lines, and times below."""
        for value in levels(self._shown.top_bytes)[1:]:
            yield _text(level(value), 0, _TOP + self._y(value) - 4, right=1)
        found, step_s = instants(self._shown.begin_s, self._shown.end_s)
        before = ""
        for n, at_s in enumerate(found):
            x, day = self._x(at_s), f"{datetime.fromtimestamp(at_s).astimezone():%a %-d %b}"
            clock = units.clock(at_s, seconds=step_s < 60).partition(" ")[2]
            label = day if step_s >= _DAY_S else clock
            yield _text(label, x, HEIGHT - 24, anchor=_side(x), slim=n % 2 == 0)
            if label != day != before:
                yield _text(day, x, HEIGHT - 8, anchor=_side(x))
            before = day

    def gaps(self) -> Iterator[Markup]:
        """Draw time of which nothing is known."""
        for gap in self._picture.gaps:
            left, right = max(self._x(gap.begin_s), 0.0), min(self._x(gap.end_s), float(_WIDE))
            if right < 0 or left > _WIDE:
                continue
            yield element(
                "rect",
                {"class": "f-gap", "fill": _COLOURS["gap"], "fill-opacity": 0.55,
                 "x": left, "y": 0, "width": round(max(right - left, 1.0), 1), "height": _HIGH},
                element("title", {}, gap.why or LEGEND["gap"]),
            )  # fmt: skip

    def cone(self) -> Iterator[Markup]:
        """Draw where memory will be, between the fastest and the slowest growth."""
        forecast = self._picture.forecast
        if forecast is None or forecast.limit_bytes is None or forecast.low_s is None:
            return
        judged = (forecast.judged_at_s, forecast.level_bytes)
        top = self._y(forecast.limit_bytes)
        early = self._toward(judged, (forecast.judged_at_s + forecast.low_s, forecast.limit_bytes))
        points = [(self._x(judged[0]), self._y(judged[1])), early]
        fill = _COLOURS["band"]
        if forecast.high_s is None:  # it may level off before it gets there: an end that fades
            late = (_FAR * _WIDE, points[0][1])
            name = f"fade-{sha256(self._picture.key.encode()).hexdigest()[:12]}"
            yield _fade(name, points[0][0])
            fill = f"url(#{name})"
        else:
            late = self._toward(
                judged, (forecast.judged_at_s + forecast.high_s, forecast.limit_bytes)
            )
        if early[1] == top != late[1]:
            points.append((late[0], top))
        text = _points(*zip(*[*points, late], strict=True)) + "Z"
        yield element("path", {"fill": fill, "fill-opacity": BAND_OPACITY, "d": text})

    def curve(self) -> Iterator[Markup]:
        """Draw the memory used, with its lowest and highest."""
        curve = self._picture.curve
        for run in curve.runs():
            at = [self._x(curve.at_s[n]) for n in run]
            used, low, high = (
                [self._y(values[n] or 0.0) for n in run]
                for values in (curve.used_bytes, curve.low_bytes, curve.high_bytes)
            )
            if low != high and len(run) > 1:
                points = _points(at, high) + "L" + _points(at[::-1], low[::-1])[1:] + "Z"
                yield element("path", {"class": "f-range", "fill": _COLOURS["range"], "d": points})
            if len(run) == 1:
                yield _line("curve", f"M{at[0]} {used[0]}h0.01", 7)  # a circle would be stretched
            else:
                yield _line("curve", _points(at, used))

    def lines(self) -> Iterator[Markup]:
        """Draw floor, fit, limit and now."""
        picture, forecast = self._picture, self._picture.forecast
        if (floor := picture.floor) is not None:
            for run in floor.runs():
                levels_at = [self._y(floor.used_bytes[n] or 0.0) for n in run]
                points = _points([self._x(floor.at_s[n]) for n in run], levels_at)
                yield _line("floor", points, 1.75, FLOOR_DASH)
        if forecast is not None:
            fit = forecast.fit()
            places = [self._toward(fit[1], place) for place in fit]
            points = _points(*zip(*places, strict=True))
            yield _line("fit", points, 1.5, FIT_DASH)
            if len(places) > 2:
                x, y = places[2]
                yield _line("fit", f"M{x} {y}h0.01", 7)
        if picture.limit_bytes is not None:
            yield _line("limit", f"M0 {self._y(picture.limit_bytes)}h{_WIDE}", 1.75)
        if 0 < self._x(picture.now_s) < _WIDE - 2:
            yield _line("now", f"M{self._x(picture.now_s)} 0v{_HIGH}", 1, (1, 3))
        for mark in picture.marks:
            _, part = sign((mark,), ascii_only=False)
            yield _line(part, f"M{self._x(mark.at_s)} 0v{_HIGH}", 1, (2, 2))

    def mark_elements(self) -> Iterator[Markup]:
        """Mark what happened, above the chart; what is close together is one, with its number."""
        rows: list[list[Mark]] = []
        for mark in self._picture.marks:
            x = self._x(mark.at_s)
            if not 0 <= x <= _WIDE:
                continue
            if rows and x - self._x(rows[-1][-1].at_s) < _APART:
                rows[-1].append(mark)
            else:
                rows.append([mark])
        for row in rows:
            x = sum(self._x(mark.at_s) for mark in row) / len(row)
            text, part = sign(tuple(row), ascii_only=False)
            text += str(len(row)) if len(row) > 1 else ""
            yield _text(text, x, _TOP - 7, part, "middle")

    def words(self) -> Iterator[Markup]:
        """Write beside the lines what they are."""
        picture, forecast = self._picture, self._picture.forecast
        for gap in picture.gaps:
            left, right = max(self._x(gap.begin_s), 0.0), min(self._x(gap.end_s), float(_WIDE))
            text = gap.why or LEGEND["gap"]
            wide = (_CHAR * len(text) + 12) / max(right - left, 1.0) * _WIDE
            if wide < _BROAD:
                middle = (left + right) / 2
                yield _text(text, middle, _TOP + _HIGH / 2, anchor="middle", slim=wide < _SLIM)
        if picture.empty:
            yield _text(NOTHING, _WIDE / 2, _TOP + _HIGH / 2, anchor="middle")
        if picture.limit_bytes is not None:
            y = self._y(picture.limit_bytes)
            text = f"{LEGEND['limit']} {units.size(picture.limit_bytes)}" + (" ↑" if y < 0 else "")
            yield _text(text, 0, _TOP + (max(y, 0) + 15 if y < 14 else y - 6), "limit", right=64)
        if forecast is not None and forecast.end is not None:
            yield from self._end(forecast.end[0], self._y(forecast.end[1]))
        now = self._x(picture.now_s)
        if 0 < now < 0.92 * _WIDE:
            yield _text(LEGEND["now"], now, _TOP + _HIGH - 6, right=4)

    def _end(self, full_s: float, y: float) -> Iterator[Markup]:
        end = self._x(full_s)
        if end <= 0 or y < 0:
            return
        text = f"full {units.moment(full_s, now_s=self._picture.now_s)}"
        text += " →" if end > _WIDE else ""
        # Where it has room beside the label of the limit, on a phone too.
        half = _CHAR * len(text) / 2 / _SLIM * _WIDE
        beside = 0.5 * _WIDE + half < end < _WIDE - half
        at = (end, "middle") if beside else (_WIDE, "end")
        yield _text(text, at[0], _TOP + (y + 17 if y < 14 else y - 7), "ink", at[1])


def _points(at: Sequence[float], levels_at: Sequence[float]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in zip(at, levels_at, strict=True))


class Markup(str):
    """Markup that :func:`element` made; nothing else may make it."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it as it is: a template escapes only what lacks this."""
        return self


Node: TypeAlias = "Markup | str | Iterable[Node]"
"""Text, an element, or several."""


def element(name: str, attributes: dict[str, str | float | None], *children: Node) -> Markup:
    """Return one element of SVG; children that are text, and all attributes, are escaped.

    None leaves an attribute out.

    Examples
    --------
    >>> element("text", {"class": "a", "dx": None}, "1 < 2", [element("b", {}, "c")])
    '<text class="a">1 &lt; 2<b>c</b></text>'
    """
    pairs = ((key, value) for key, value in attributes.items() if value is not None)
    head = name + "".join(f' {key}="{_escaped(str(value))}"' for key, value in pairs)
    return Markup(f"<{head}>{_joined(children)}</{name}>")


def _joined(nodes: Node) -> str:
    if isinstance(nodes, str):
        return nodes if isinstance(nodes, Markup) else _escaped(nodes)
    return "".join(map(_joined, nodes))


def _escaped(value: str) -> str:
    return text.for_html(value.replace("\x00", "\ufffd"))
