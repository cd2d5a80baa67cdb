"""A view with a chart: time spans, zoom, pan and cursor by the same keys everywhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from textual.binding import Binding, BindingType
from textual.containers import Container

from gpuwatchd.core import units
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import is_leak
from gpuwatchd.tui.base import ViewScreen
from gpuwatchd.tui.widgets.chart import Chart
from gpuwatchd.tui.widgets.texts import Lines
from gpuwatchd.view.queries import charts, history_query, state_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.widget import Widget

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Finding, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.chart import Piece, Window
    from gpuwatchd.view.queries.charts import Asked
    from gpuwatchd.view.queries.current_view import View

_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
SPANS: Final[tuple[tuple[str, str, float | None], ...]] = (
    ("1", "1h", _HOUR_S),
    ("2", "6h", 6 * _HOUR_S),
    ("3", "24h", _DAY_S),
    ("4", "7d", 7 * _DAY_S),
    ("5", "30d", 30 * _DAY_S),
    ("6", "all", None),
)
"""(key, name, seconds); None is everything there is."""
_LONGEST_S: Final = 5 * 365 * _DAY_S
_MARGIN: Final = 0.5
"""So much more than what is seen is read at each side: a step aside shows something at once."""
_PER_COLUMN: Final = 2
_FEWEST: Final = 120
Identity = tuple[str, "ProcessKey | None"]
"""Uid of a device, and a process on it, or None."""


class About(NamedTuple):
    """What a chart is about: a device, or a process on it."""

    item: LiveDevice
    process: LiveProcess | None = None
    ended: bool = False
    """Whether it is among the processes no more; then it is as it was seen last."""

    @property
    def finding(self) -> Finding | None:
        """What is judged of it."""
        return self.item.finding if self.process is None else self.process.finding

    @property
    def key(self) -> ProcessKey | None:
        """Of the process; None where it is about the device."""
        return None if self.process is None else self.process.info.key

    @property
    def identity(self) -> Identity:
        """What tells it from all others, at any time."""
        return self.item.device.uid, self.key


def every(view: View) -> list[About]:
    """Return every device, each followed by its processes, the largest first."""
    abouts = []
    for item in view.devices:
        ranked = sorted(item.processes or (), key=lambda process: -(process.used_bytes or 0))
        abouts += [About(item), *(About(item, process) for process in ranked)]
    return abouts


class ReadPicture(NamedTuple):
    """A picture that was read, with what is wrong with the history."""

    picture: Picture
    note: str


def read_picture(view: View, about: About, asked: Asked, *, tight: bool) -> ReadPicture:
    """Return a picture, made with the history where there is one. Runs in a thread.

    Parameters
    ----------
    asked
        Its begin may be 0: then everything is wanted.
    tight
        Whether to begin where the record of the subject begins, if that is later.
    """
    try:
        with history_query.reader() as history:
            return ReadPicture(_picture(history, view, about, asked, tight=tight), "")
    except StoreError as error:
        picture = _picture(None, view, about, asked, tight=tight)
        return ReadPicture(picture, _without_path(error.message))


def _without_path(message: str) -> str:
    path = str(state_location.state_dir() / history_query.FILE_NAME)
    return message.replace(f"{path}: ", "").replace(path, "the history")


def _picture(
    history: Reader | None, view: View, about: About, asked: Asked, *, tight: bool
) -> Picture:
    if asked.begin_s <= 0:
        oldest_s = None if history is None else history.oldest_s(about.item.device.uid)
        begin_s = asked.end_s - _HOUR_S if oldest_s is None else oldest_s
        begin_s = min(max(begin_s, asked.end_s - _LONGEST_S), asked.end_s - 60.0)
        asked = asked._replace(begin_s=begin_s)
    picture = _drawn(history, view, about, asked)
    shorter = charts.since_record([picture], asked) if tight else asked
    return picture if shorter == asked else _drawn(history, view, about, shorter)


def _drawn(history: Reader | None, view: View, about: About, asked: Asked) -> Picture:
    if about.process is None:
        return charts.of_device(history, view, about.item, asked)
    if about.ended and history is not None:
        return charts.past_process(history, about.item.device, about.process.info, asked)
    return charts.of_process(history, view, about.item, about.process, asked)


class ChartScreen(ViewScreen):
    """A view whose chart has the id "chart", and whose read-out has the id "told"."""

    beside_columns: ClassVar[int]
    """Columns from which on the text stands beside the chart."""
    DEFAULT_CSS = """
    ChartScreen #halves { layout: vertical; height: 1fr; }
    ChartScreen.beside #halves { layout: horizontal; }
    ChartScreen #left { height: 1fr; width: 1fr; }
    """
    chart_keys: ClassVar[Keys] = (
        ("←→", "pan"), ("+-", "zoom"), ("0", "reset"), ("1-6", "span"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "chart('zoom', 1)", show=False),
        Binding("minus,underscore", "chart('zoom', -1)", show=False),
        Binding("left", "chart('pan', -1)", show=False),
        Binding("right", "chart('pan', 1)", show=False),
        Binding("shift+left,comma,less_than_sign", "chart('step', -1)", show=False),
        Binding("shift+right,full_stop,greater_than_sign", "chart('step', 1)", show=False),
        Binding("0,home", "chart('reset')", show=False),
        *(Binding(key, f"span('{key}')", show=False) for key, _, _ in SPANS),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.about: About | None = None
        self.span_s: float | None = None
        self.span_name = ""
        self._usual = True
        """Whether nobody chose a span: then it begins no earlier than the record does."""
        self._follows = True
        self._shown_at_s = 0.0

    def body(self) -> Iterable[Widget]:
        """Return the chart, and the text or list beside it, or below."""
        left = Container(
            Chart(self.painter, id="chart"),
            Lines(self.painter, id="told", classes="line"),
            id="left",
        )
        yield Container(left, self.page_kind(self.painter, id=self.page_id), id="halves")

    def on_resize(self) -> None:
        """Put the text where there is room for it."""
        self.set_class(self.size.width >= self.beside_columns, "beside")
        super().on_resize()

    @property
    def chart(self) -> Chart:
        """The chart."""
        return self.query_one("#chart", Chart)

    def action_chart(self, movement: str, *steps: int) -> None:
        """Zoom, pan, move the cursor, or show the whole span again."""
        getattr(self.chart, movement)(*steps)

    def action_span(self, key: str) -> None:
        """Show another span, up to now."""
        self.span_name, self.span_s = next((name, s) for text, name, s in SPANS if text == key)
        self._usual = False
        self.chart.reset()

    def usual_span(self) -> tuple[str, float | None]:
        """Return the span of a view that was just opened: 6 h, longer where a growth needs it."""
        finding = None if self.about is None else self.about.finding
        if finding is None or finding.onset_at_s is None or not is_leak(finding) or not self.view:
            return SPANS[1][1:]
        need_s = 1.2 * (self.view.taken_at_s - finding.onset_at_s)
        enough = (span[1:] for span in SPANS[1:] if span[2] is not None and span[2] >= need_s)
        return next(enough, SPANS[-1][1:])

    def asked(self) -> Asked:
        """Return what is to be read for what is seen; begin 0 is everything there is."""
        assert self.view is not None  # noqa: S101 - there is nothing to ask before
        now_s = self.view.taken_at_s
        if not self.span_name:
            self.span_name, self.span_s = self.usual_span()
            self._usual = True
        points = max(_FEWEST, _PER_COLUMN * self.chart.size.width)
        window = self.chart.window
        if window is None:
            begin_s = 0.0 if self.span_s is None else now_s - self.span_s
            return charts.Asked(begin_s, now_s, points)
        begin_s, end_s = window
        beside_s = _MARGIN * (end_s - begin_s)
        last_s = min(end_s + beside_s, now_s)
        first_s = min(begin_s - beside_s, last_s - 60.0)
        return charts.Asked(max(1.0, first_s), last_s, round(points * (1 + 2 * _MARGIN)))

    def job(self) -> Callable[[], Any] | None:
        """Return what reads the chart."""
        if self.view is None or self.about is None:
            return None
        asked = self.asked()
        tight = self._usual and self.chart.window is None
        return partial(read_picture, self.view, self.about, asked, tight=tight)

    def answered(self, picture: ReadPicture) -> None:
        """Show the chart."""
        self.chart.put(picture.picture)
        self.trouble = self.trouble or picture.note
        self.on_chart_pointed()

    def redrawn(self) -> None:
        """Go along with time, unless somebody looks at an earlier one."""
        assert self.view is not None  # noqa: S101
        window, at_s = self.chart.window, self.view.taken_at_s
        if window is not None and self._follows and self._shown_at_s:
            moved_s = at_s - self._shown_at_s
            self.chart.show_span((window[0] + moved_s, window[1] + moved_s))
        self._shown_at_s = at_s

    def on_chart_moved(self) -> None:
        """Read what is seen now."""
        window: Window | None = self.chart.window
        at_s = self.view.taken_at_s if self.view is not None else 0.0
        self._follows = window is None or window[1] >= at_s
        self.on_chart_pointed()
        self.request(anew=True)

    def on_chart_pointed(self) -> None:
        """Write the line below the chart: what is under the cursor, else what is seen."""
        pieces = self.chart.point_under_cursor() or self.caption()
        told = self.query_one("#told", Lines)
        told.put([self.painter.cut(pieces, told.size.width, gap="  ")])

    def caption(self) -> list[Piece]:
        """Return what the chart shows, where there is no cursor."""
        picture = self.chart.picture
        if picture is None:
            return []
        zoomed = " (zoomed, 0 resets)" if self.chart.window is not None else ""
        span = self.span_name
        seen_s = picture.end_s - picture.begin_s
        if self._usual and not zoomed and self.span_s is not None and seen_s < self.span_s - 1.0:
            span = f"{units.duration(seen_s)}, since recording started"
        pieces: list[Piece] = [(f"span {span}{zoomed}", "faint")]
        pieces += [(note, "faint") for note in picture.notes]
        return pieces
