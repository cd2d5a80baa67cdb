"""A chart that can be moved about: zoom, pan, and a cursor that says what was there."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpuwatchd.charts import chart_model, terminal
from gpuwatchd.core import units

if TYPE_CHECKING:
    from textual import events

    from gpuwatchd.charts.chart_model import Curve, Picture
    from gpuwatchd.tui.theme import Painter

Window = tuple[float, float]
"""From and to, epoch seconds."""
Piece = tuple[str, str]
"""A text and its style."""

SHORTEST_S: Final = 30.0
"""Zoomed in as far as it goes."""
_STEP: Final = 1.6
"""How much one step of zoom is."""
_SHIFT: Final = 0.25
"""How much of what is seen one step to the side is."""


def _nearest(curve: Curve, at_s: float) -> int | None:
    if not curve.at_s:
        return None
    after = bisect_left(curve.at_s, at_s)
    around = [one for one in (after - 1, after) if 0 <= one < len(curve.at_s)]
    return min(around, key=lambda one: abs(curve.at_s[one] - at_s))


def _floor(floor: Curve | None, at_s: float) -> float | None:
    if floor is None or not floor.at_s or not floor.at_s[0] <= at_s <= floor.at_s[-1]:
        return None
    at = _nearest(floor, at_s)
    return None if at is None else floor.used_bytes[at]


def point_text(picture: Picture, at_s: float, *, within_s: float = 0.0) -> list[Piece]:
    """Return what a picture says of an instant in words, the most telling first.

    Parameters
    ----------
    within_s
        How far away a sample may be: half of what one column of the chart stands for.
    """
    curve, forecast, now_s = picture.curve, picture.forecast, picture.now_s
    at = _nearest(curve, at_s)
    usual_s = (curve.at_s[-1] - curve.at_s[0]) / (len(curve.at_s) - 1) if curve.at_s[1:] else 0.0
    far = max(within_s, curve.width_s, usual_s)
    if at is not None and (abs(curve.at_s[at] - at_s) > far or curve.used_bytes[at] is None):
        at = None
    shown_s = at_s if at is None else curve.at_s[at]
    when = units.moment(shown_s, now_s=now_s)
    if now_s - shown_s < 6 * 3600.0 and shown_s <= now_s:
        when = units.clock(shown_s, now_s=now_s, seconds=True)
    pieces: list[Piece] = [(when, "bold")]
    why = next((gap.why for gap in picture.gaps if gap.begin_s <= at_s <= gap.end_s), None)
    if at is not None:
        pieces.append((units.size(curve.used_bytes[at]), "curve"))
        low, high = curve.low_bytes[at], curve.high_bytes[at]
        if low is not None and high is not None and units.size(low) != units.size(high):
            pieces.append((f"{units.size(low)} - {units.size(high)}", "faint"))
        floor = _floor(picture.floor, at_s)
        if floor is not None:
            pieces.append((f"floor {units.size(floor)}", "floor"))
    elif why is not None or picture.begin_s <= at_s <= now_s:
        pieces.append((why or "no data", "faint"))
    elif forecast is not None and at_s > forecast.judged_at_s:
        foreseen = forecast.level_bytes + forecast.rate_bytes_per_s * (at_s - forecast.judged_at_s)
        if forecast.limit_bytes is not None:
            foreseen = min(foreseen, forecast.limit_bytes)
        pieces += [(f"fit {units.size(foreseen)}", "band"), ("a forecast", "faint")]
    return pieces


class Chart(Widget):
    """One picture; what of it is seen can be moved with keys and mouse.

    The screen around it gets :class:`Moved` when another span is wanted, so that it can read finer
    points of it, and :class:`Pointed` when the cursor stands somewhere else.
    """

    DEFAULT_CSS = """
    Chart { height: 1fr; width: 1fr; }
    """

    class Moved(Message):
        """Another span is seen."""

    class Pointed(Message):
        """The cursor stands at another instant."""

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(id=id)
        self._painter = painter
        self._ascii = painter.ascii
        self.picture: Picture | None = None
        self.window: Window | None = None
        """What is seen; None for all of the picture."""
        self.cursor_s: float | None = None
        self._drawn: list[Strip] = []
        self._plot = terminal.Plot(0, 0, 0, 0.0, 1.0)
        self._drag: tuple[int, Window] | None = None

    def put(self, picture: Picture | None) -> None:
        """Show another picture of the same subject; zoom and cursor stay."""
        self.picture = picture
        self._redraw()

    def show_span(self, window: Window | None) -> None:
        """Show this span."""
        self.window = window
        self._redraw()

    @property
    def span(self) -> Window:
        """From and to of what is seen."""
        if self.window is not None:
            return self.window
        return self._plot.begin_s, self._plot.end_s

    def zoom(self, steps: int, at_s: float | None = None) -> None:
        """Zoom in (or out, where ``steps`` is less than 0) around an instant, else the cursor.

        Without both, around now, where that is seen: there the newest samples are.
        """
        if self.picture is None:
            return
        begin_s, end_s = self.span
        around_s = at_s if at_s is not None else self.cursor_s
        if around_s is None or not begin_s <= around_s <= end_s:
            now_s = self.picture.now_s
            around_s = now_s if begin_s <= now_s <= end_s else (begin_s + end_s) / 2
        span_s = max(SHORTEST_S, (end_s - begin_s) / _STEP**steps)
        share = (around_s - begin_s) / max(end_s - begin_s, 1e-9)
        self.go((around_s - share * span_s, around_s + (1 - share) * span_s))

    def pan(self, steps: int) -> None:
        """Go to later times, or to earlier ones."""
        if self.picture is None:
            return
        begin_s, end_s = self.span
        shift_s = steps * _SHIFT * (end_s - begin_s)
        self.go((begin_s + shift_s, end_s + shift_s))

    def reset(self) -> None:
        """Show all of the picture again, without a cursor."""
        self.cursor_s = None
        self.show_span(None)
        self.post_message(self.Moved())
        self.post_message(self.Pointed())

    def step(self, columns: int) -> None:
        """Move the cursor by columns; where there is none it begins at the newest sample."""
        if self.picture is None or self._plot.right <= self._plot.left:
            return
        begin_s, end_s = self.span
        if self.cursor_s is None or not begin_s <= self.cursor_s <= end_s:
            at_s = self.picture.curve.at_s
            newest_s = at_s[-1] if at_s else self.picture.now_s
            self.point_at(min(max(newest_s, begin_s), end_s))
            return
        per_column_s = (end_s - begin_s) / (self._plot.right - self._plot.left)
        self.point_at(min(max(self.cursor_s + columns * per_column_s, begin_s), end_s))

    def point_at(self, at_s: float | None) -> None:
        """Let the cursor stand at an instant, or nowhere."""
        if at_s != self.cursor_s:
            self.cursor_s = at_s
            self.refresh()
            self.post_message(self.Pointed())

    def point_under_cursor(self) -> list[Piece]:
        """Return what is under the cursor in words; [] where there is none."""
        if self.picture is None or self.cursor_s is None:
            return []
        begin_s, end_s = self.span
        columns = max(1, self._plot.right - self._plot.left)
        return point_text(self.picture, self.cursor_s, within_s=(end_s - begin_s) / columns / 2)

    def go(self, window: Window) -> None:
        """Look at a span, but never at one in which nothing can be."""
        assert self.picture is not None  # noqa: S101 - asked before
        begin_s, end_s = window
        # Something of what is recorded, or of the forecast, stays in sight.
        latest_s = max(self.picture.now_s, chart_model.span(self.picture)[1])
        over_s = end_s - latest_s - 0.1 * (end_s - begin_s)
        if over_s > 0:
            begin_s, end_s = begin_s - over_s, end_s - over_s
        self.show_span((begin_s, end_s))
        self.post_message(self.Moved())
        if self.cursor_s is not None:
            self.post_message(self.Pointed())

    def _at_s(self, x: int) -> float | None:
        """Return the instant of a column; None beside the plot."""
        plot = self._plot
        if not plot.left <= x < plot.right:
            return None
        begin_s, end_s = self.span
        return begin_s + (x - plot.left + 0.5) / (plot.right - plot.left) * (end_s - begin_s)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the cursor, or what is seen while a button is held."""
        if self._drag is None:
            self.point_at(self._at_s(event.x))
            return
        from_x, (begin_s, end_s) = self._drag
        columns = max(1, self._plot.right - self._plot.left)
        shift_s = (from_x - event.x) / columns * (end_s - begin_s)
        if shift_s:
            self.go((begin_s + shift_s, end_s + shift_s))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Take hold of the chart."""
        if self.picture is not None and event.button == 1:
            self._drag = (event.x, self.span)
            self.capture_mouse()

    def on_mouse_up(self) -> None:
        """Let go of it."""
        self._drag = None
        self.release_mouse()

    def on_leave(self) -> None:
        """Take the cursor away with the mouse."""
        if self._drag is None:
            self.point_at(None)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in where the mouse is."""
        event.stop()
        self.zoom(1, self._at_s(event.x))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out where the mouse is."""
        event.stop()
        self.zoom(-1, self._at_s(event.x))

    def on_resize(self) -> None:
        """Draw anew."""
        self._redraw()

    def _redraw(self) -> None:
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        strips: list[Strip] = []
        if self.picture is not None:
            rows = terminal.draw(
                self.picture, width, height, ascii_only=self._ascii, window=self.window
            )
            self._plot = terminal.plot(self.picture, width, height, window=self.window)
            strips = [self._painter.strip(row, width) for row in rows]
        if strips != self._drawn:
            self._drawn = strips
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one row of the screen."""
        width = self.size.width
        if y >= len(self._drawn):
            return self._painter.strip([], width)
        strip = self._drawn[y]
        column = self._column()
        if column is None or not 0 <= y < self._plot.bottom:
            return strip
        before, under, after = strip.divide([column, column + 1, width])
        marked = self._painter.style("cursor")
        # What is drawn there keeps its colour.
        lit = Style(bgcolor=marked.bgcolor, reverse=marked.reverse)
        under = Strip(Segment.apply_style(under, post_style=lit), 1)
        return Strip.join([before, under, after])

    def _column(self) -> int | None:
        """Return where the cursor stands; None where it cannot be seen."""
        if self.cursor_s is None or self.picture is None:
            return None
        plot, (begin_s, end_s) = self._plot, self.span
        if not begin_s <= self.cursor_s <= end_s:
            return None
        share = (self.cursor_s - begin_s) / max(end_s - begin_s, 1e-9)
        return min(plot.left + int(share * (plot.right - plot.left)), plot.right - 1)
