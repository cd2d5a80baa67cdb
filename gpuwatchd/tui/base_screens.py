"""What every screen behind a key of ``gpuwatchctl top`` has in common.

A view reads in a thread of its own, one question at a time, and draws what it has been told; the
screen never waits for it. A question whose answer nobody wants any more is forgotten.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.tui.page import Page
from gpuwatchd.tui.widgets import frame
from gpuwatchd.tui.widgets.command_output import Pages
from gpuwatchd.view import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events
    from textual.app import ComposeResult
    from textual.strip import Strip

    from gpuwatchd.tui.strips import Cell, Painter, Row
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query

    Job = Callable[[], Any]
    """What is done in the thread; it touches nothing of the screen."""

_LOG = logging.getLogger(__name__)
_PATIENCE_S: Final = 0.2
"""A question that is answered sooner is answered without a word."""
_SHARE: Final = 20.0
"""A question is asked again after so many times as long as its answer took."""
_WORTH_CUTTING: Final = 12
"""Columns below which a piece is left out rather than cut."""


def background(work: Callable[[], object]) -> None:
    """Do something in a thread that nobody waits for at the end: a driver may never answer."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            work()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="view", daemon=True).start()


class Bar(Widget):
    """One line: pieces from the left, as many as there is room for, and one at the right."""

    DEFAULT_CSS = """
    Bar { height: 1; width: 100%; }
    """

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(id=id)
        self._painter = painter
        self._pieces: tuple[Cell, ...] = ()
        self._right: Cell = ("", "")

    def show(self, pieces: Iterable[Cell], right: Cell = ("", "")) -> None:
        """Show these texts with their parts."""
        pair = tuple(pieces), right
        if pair != (self._pieces, self._right):
            self._pieces, self._right = pair
            self.refresh()

    @property
    def text(self) -> str:
        """What is shown, without its looks."""
        return "".join(words for words, _ in self._row())

    def _row(self) -> Row:
        return _fitted(self._pieces, self._right, self.size.width, self._painter)

    def render_line(self, y: int) -> Strip:
        """Return the line."""
        return self._painter.strip(self._row() if y == 0 else (), self.size.width)


def _fitted(pieces: Iterable[Cell], right: Cell, width: int, painter: Painter) -> Row:
    """Return pieces, two columns apart, that fit; one that does not is cut where that is worth it.

    The first is shown however little room there is.
    """
    room = width - (blocks.width_of(right[0]) + 2 if right[0] else 0)
    pairs: Row = []
    used = 0
    for words, parts in pieces:
        gap = 2 if pairs else 0
        safe = painter.safe(words)
        if not safe:
            continue
        left = room - used - gap
        if blocks.width_of(safe) > left and pairs and left < _WORTH_CUTTING:
            break
        text = painter.fit(safe, max(1, left))
        pairs += [(" " * gap, ""), (text, parts)] if gap else [(text, parts)]
        used += blocks.width_of(text) + gap
        if text != safe:
            break
    if right[0] and used + 2 + blocks.width_of(right[0]) <= width:
        pairs += [(" " * (width - used - blocks.width_of(right[0])), ""), right]
    return pairs


class Framed(Widget):
    """The first or the last line, as every screen of ``top`` has it."""

    DEFAULT_CSS = """
    Framed { height: 1; width: 100%; }
    """

    def __init__(
        self,
        painter: Painter,
        row: Callable[[int], Row],
        click: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self._painter = painter
        self._row = row
        self._click = click
        self._said: Row = []

    def on_click(self, event: events.Click) -> None:
        """Press what was clicked."""
        if self._click is not None:
            self._click(event.x, self.size.width)

    def again(self) -> None:
        """Draw it again, if it says something else now."""
        if self._row(self.size.width) != self._said:
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the line."""
        width = self.size.width
        self._said = self._row(width)
        return self._painter.strip(self._said if y == 0 else (), width, ground="bar")


class ViewScreen(Page):
    """A screen that shows one thing about what ``app.view`` has."""

    own_keys: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(key, what it does) beside those of every screen."""
    ascii_keys: ClassVar[dict[str, str]] = {"↑↓": "up/down", "←→": "left/right"}
    is_changed_above: ClassVar[bool] = False
    """Whether a screen above may have changed what it shows: then it is read again."""
    page_id: ClassVar[str] = "text"
    """Of its rows of text."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back", show=False)]
    DEFAULT_CSS = """
    ViewScreen { layout: vertical; background: transparent; }
    """

    class Answered(Message):
        """A question was answered, or could not be."""

        def __init__(self, serial: int, found: Any, trouble: str, took_s: float) -> None:
            super().__init__()
            self.serial = serial
            self.found = found
            self.trouble = trouble
            self.took_s = took_s

    def __init__(self) -> None:
        super().__init__()
        self.view: View | None = None
        self._serial = 0
        self.asking = False
        self._again = False
        self._due_s = 0.0
        self.trouble = ""

    # ---- what a view fills in

    def parts(self) -> Iterable[Widget]:
        """Return what is between the first and the last line: by default rows of text alone."""
        yield Pages(self.painter, id=self.page_id)

    def job(self) -> Job | None:
        """Return what is to be read now; None for nothing."""
        return None

    def answered(self, found: Any) -> None:
        """Show what was read."""

    def redrawn(self) -> None:
        """Show what a new live state says, at once."""

    # ---- what all of them do

    @property
    def query_asked(self) -> Query:
        """Which GPUs, whose processes."""
        return self.top.query_asked

    @property
    def page(self) -> Pages:
        """Its rows of text."""
        return self.query_one(f"#{self.page_id}", Pages)

    def compose(self) -> ComposeResult:
        """Lay out the first line, the subject, the body and the last line."""
        yield Framed(self.painter, lambda width: frame.head(self.top, self.name_shown, width))
        yield Bar(self.painter, id="subject")
        yield from self.parts()
        yield Framed(
            self.painter,
            lambda width: frame.foot(self.top, self._hints(), width),
            lambda x, width: frame.clicked(self.top, self._hints(), x, width),
        )

    def _hints(self) -> tuple[tuple[str, str], ...]:
        keys = (*self.own_keys, *self.keys)
        plain = self.painter.ascii
        return tuple((self.ascii_keys.get(key, key) if plain else key, what) for key, what in keys)

    def on_mount(self) -> None:
        """Show what is known already, when there is a size to lay it out for."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.retitled()
        if self.top.view is not None:
            self.show(self.top.view)

    def headline(self, *pieces: Cell) -> None:
        """Write the line of what it is about, with what there is to wait for or to regret."""
        state: Cell = ("", "")
        if self.trouble:
            # Who it is about stays; how that one does gives way to what is wrong.
            pieces = pieces[:1]
            taken = sum(blocks.width_of(words) + 3 for words, _ in pieces)
            state = (self.painter.fit(self.trouble, max(20, self.size.width - taken)), "watch")
        elif self.asking and self._slow:
            state = ("reading...", "faint")
        self.query_one("#subject", Bar).show(pieces, state)

    _slow = False

    def show(self, view: View) -> None:
        """Take a new live state."""
        self.view = view
        if self.is_mounted and self.size.width:
            self.redrawn()
            self.draw()
            self.request()

    def draw(self) -> None:
        """Draw what depends on nothing that is read: the first and the last line."""
        if self.is_mounted and self.is_current:
            for framed in self.query(Framed):
                framed.again()

    def request(self, *, anew: bool = False) -> None:
        """Read again, if it is time to; ``anew``: what was asked before is not wanted any more."""
        if anew:
            self._serial += 1
            self._due_s = 0.0
        if self.asking:
            self._again = self._again or anew
            return
        if time.monotonic() < self._due_s:
            return
        job = self.job()
        if job is None:
            return
        self.asking = True
        self._slow = False
        serial = self._serial
        self.set_timer(_PATIENCE_S, lambda: self._wait(serial))
        background(lambda: self._read(job, serial))

    def _read(self, job: Job, serial: int) -> None:
        """Run in the thread: answer one question."""
        begun_s = time.perf_counter()
        found, trouble = None, ""
        try:
            found = job()
        except GpuwatchdError as error:
            trouble = f"{error.message} ({error.hint})" if error.hint else error.message
        except Exception as error:  # noqa: BLE001 - the screen goes on, whatever a view meets
            _LOG.exception("view=%s", type(self).__name__)
            trouble = f"this cannot be shown: {type(error).__name__}"
        took_s = time.perf_counter() - begun_s
        self.post_message(self.Answered(serial, found, trouble, took_s))

    @property
    def busy(self) -> bool:
        """Whether something is being read."""
        return self.asking

    def _wait(self, serial: int) -> None:
        if self.asking and serial == self._serial and self.is_attached:
            self._slow = True
            self.retitled()

    def retitled(self) -> None:
        """Write the first line again; a view that says more there overrides it."""
        self.headline()

    def on_view_screen_answered(self, message: Answered) -> None:
        """Show an answer, unless nobody wants it any more."""
        message.stop()
        self.asking = False
        if message.serial == self._serial:
            self._due_s = time.monotonic() + _SHARE * message.took_s
            self.trouble = message.trouble
            if not message.trouble:
                self.answered(message.found)
        self.retitled()
        if self._again:
            self._again = False
            self.request()

    def on_screen_resume(self) -> None:
        """Show what came in while another screen lay above."""
        if self.view is not None and self.is_changed_above:
            self.request(anew=True)
        if self.view is not None and self.top.view is not None:
            self.show(self.top.view)

    def action_back(self) -> None:
        """Leave the view; what it still reads is forgotten."""
        self._serial += 1
        self.app.pop_screen()

    def action_scroll(self, rows: int) -> None:
        """Scroll the text by rows."""
        self.page.scroll_relative(y=rows, animate=False)

    def action_scroll_page(self, pages: int) -> None:
        """Scroll the text by what is seen at once, less a row."""
        height = max(1, self.page.size.height - 1)
        self.page.scroll_relative(y=pages * height, animate=False)

    def action_scroll_to(self, end: int) -> None:
        """Scroll to the first row of the text, or to the last."""
        if end:
            self.page.scroll_end(animate=False)
        else:
            self.page.scroll_home(animate=False)


# A view that is one page of text to be scrolled through.

SCROLLING: list[BindingType] = [
    Binding("up,k", "scroll(-1)", show=False),
    Binding("down,j", "scroll(1)", show=False),
    Binding("pageup,b", "scroll_page(-1)", show=False),
    Binding("pagedown,space", "scroll_page(1)", show=False),
    Binding("home", "scroll_to(0)", show=False),
    Binding("end,G", "scroll_to(1)", show=False),
]


class PagedScreen(ViewScreen):
    """One :class:`~gpuwatchd.tui.widgets.command_output.Pages`, and nothing beside it."""

    own_keys: ClassVar[tuple[tuple[str, str], ...]] = (("↑↓", "scroll"),)
    BINDINGS: ClassVar[list[BindingType]] = SCROLLING
