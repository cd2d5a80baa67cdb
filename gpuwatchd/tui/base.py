"""What all screens of ``gpuwatchctl top`` have in common: head and foot, reading, texts, lists.

A screen reads in a thread of its own, one question at a time, and shows the answer; it never waits
for it. A question whose answer nobody wants any more is forgotten.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.tui.polling import FAILED
from gpuwatchd.tui.widgets.texts import Choices, Lines, TextPage
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events
    from textual.app import ComposeResult
    from textual.widget import Widget

    from gpuwatchd.core.config import Loaded
    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import ProcessKey
    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Part, Row
    from gpuwatchd.view.queries.current_view import View

    Job = Callable[[], Any]
    """What is done in the thread; it touches nothing of the screen."""
    Keys = tuple[tuple[str, str], ...]
    """(key, what it does), the most needed first."""

_LOG = logging.getLogger(__name__)
_PATIENCE_S: Final = 0.2
"""A question that is answered sooner is answered without a word."""
_SHARE: Final = 20.0
"""A question is asked again after so many times as long as its answer took."""
_ARROWS: Final = {"↑↓": "up/down", "←→": "left/right"}
_NAMED: Final = {
    "?": "question_mark", "Enter": "enter", "/": "slash", "Tab": "tab", "Esc": "escape",
}  # fmt: skip
"""Keys of the last row -> as textual calls them."""


def clock() -> float:
    """Return the time of day; tests put their own in its place."""
    return time.time()


def background(work: Callable[[], object]) -> None:
    """Do something in a thread that nobody waits for at the end: a driver may never answer."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            work()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="view", daemon=True).start()


class Settled(Query):
    """A query with the configuration that was in force when it was read."""

    __slots__ = ("_loaded",)

    def __init__(self, query: Query) -> None:
        super().__init__(config=query.config, gpu=query.gpu, user=query.user)
        self._loaded = query.load_config()

    def load_config(self) -> Loaded:
        """Return the configuration without reading it again."""
        return self._loaded


@dataclass(kw_only=True, eq=False)
class SharedState:
    """What all screens share."""

    query: Query
    """Which GPUs, whose processes."""
    painter: Painter
    every_s: float
    """Seconds between two looks."""
    now_s: Callable[[], float]
    """The clock: epoch seconds."""
    view: View | None
    """The newest; None before the first look."""
    selected_device_uid: str | None = None
    """Under the cursor; None: all of them."""
    selected_process: ProcessKey | None = None

    def take(self, view: View) -> None:
        """Take a new view."""
        self.view = view

    def select(self, device_uid: str | None, process: ProcessKey | None) -> None:
        """Take what is under the cursor, for the screens that are opened about it."""
        self.selected_device_uid, self.selected_process = device_uid, process


class Program(Protocol):
    """What screens, and the terminal, ask of the program."""

    shared: SharedState
    notice: tuple[str, Kind] | None
    """(words, kind) for the last row of the screen."""

    def open(self, key: str) -> None:
        """Open the screen of a key."""

    def show_message(self, words: str, kind: Kind = "unknown") -> None:
        """Say something in the last row for a few seconds."""

    def written(self) -> None:
        """Draw again: the terminal has taken everything."""

    def action_all_again(self) -> None:
        """Paint everything again."""


class TopScreen(Screen[None]):
    """A head row, the body, and a row of keys.

    A subclass gives its ``name_shown``, its ``keys`` and :meth:`parts`, and calls :meth:`draw`
    after everything that changes it.
    """

    name_shown: ClassVar[str] = ""
    """In the head row."""
    own_keys: ClassVar[Keys] = ()
    """Beside those of every screen."""
    keys: ClassVar[Keys] = (("Esc", "back"), ("?", "help"), ("q", "quit"))
    AUTO_FOCUS = ""

    @property
    def program(self) -> Program:
        """The program."""
        return cast("Program", self.app)

    @property
    def shared(self) -> SharedState:
        """What it shares with other screens."""
        return self.program.shared

    @property
    def painter(self) -> Painter:
        """What the terminal can show."""
        return self.shared.painter

    def parts(self) -> Iterable[Widget]:
        """Return what is between the first and the last line."""
        return ()

    def compose(self) -> ComposeResult:
        """Lay out the first line, the body and the last line."""
        yield Lines(self.painter, id="head", classes="line")
        yield from self.parts()
        yield Lines(self.painter, id="foot", classes="line")

    def on_mount(self) -> None:
        """Show what is known already, when there is a size to lay it out for."""
        self.call_after_refresh(self.begin)

    def on_resize(self) -> None:
        """Lay everything out anew."""
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        """Show what came in while another screen lay above."""
        self.draw()

    def begin(self) -> None:
        """Show what is known already."""
        self.draw()

    def show(self, view: View) -> None:
        """Take a new live state."""
        del view
        self.draw()

    def draw(self) -> None:
        """Draw what has changed: here the first and the last line."""
        width = self.size.width
        if self.is_mounted and self.is_current and width:
            self.query_one("#head", Lines).put([self.head(width)])
            self.query_one("#foot", Lines).put([self.foot(width)])

    def title_shown(self) -> str:
        """Return the name of the screen, with what is left out of it."""
        return self.name_shown

    def head(self, width: int) -> Row:
        """Return what is looked at, how many alerts are open, and when it was seen."""
        view = self.shared.view
        left: Row = [(" gpuwatchctl top ", "bar bold")]
        left.append((f" {self.painter.safe(self.title_shown())} ", "bar"))
        right: Row = []
        if view is not None:
            at = units.clock(view.taken_at_s, now_s=self.shared.now_s(), seconds=True)
            words, fine = _daemon(view)
            right = [(f" {at} ", "bar"), (f" {words} ", "bar" if fine else "trouble bar bold")]
            loud = current_state.shown(view.alerts)
            if loud:
                kind = "leak" if loud[0].state == "firing" else "watch"
                kind = "critical" if any(a.severity == "critical" for a in loud) else kind
                right.append((f" {current_state.counted(loud)} ", f"{kind} bar bold"))
        return spread(left, right, width, "bar")

    def foot(self, width: int) -> Row:
        """Return what has just happened, else the keys, as many as there is room for."""
        if self.program.notice:
            words, kind = self.program.notice
            return [(self.painter.cell(f" {words}", width), f"{kind} bar")]
        row: Row = []
        for key, does in (*self.own_keys, *self.keys):
            label = _ARROWS.get(key, key) if self.painter.ascii else key
            if len(label) + len(does) + 3 <= width:
                width -= len(label) + len(does) + 3
                press = f"@{_NAMED.get(key, key)}" if len(key) == 1 or key in _NAMED else ""
                row += [(f" {label}", f"bar bold {press}"), (f" {does} ", f"bar faint {press}")]
        return [*row, (" " * width, "bar")]


def _daemon(view: View) -> tuple[str, bool]:
    """Return how live it is, and whether that is as it should be."""
    codes = {code for code, _ in view.warnings}
    if FAILED in codes:
        return "not live", False
    if not view.daemon.running:
        return "daemon off", False
    return ("daemon late", False) if "daemon-late" in codes else ("live", True)


def spread(left: Row, right: Row, width: int, ground: str = "") -> Row:
    """Return a row of two ends; where there is too little room, the right one loses its first."""
    right = list(right)
    while right and wide(left) + wide(right) > width:
        del right[0]
    return [*left, (" " * max(0, width - wide(left) - wide(right)), ground), *right]


def wide(row: Row) -> int:
    """Return the columns of a row."""
    return sum(blocks.width_of(words) for words, _ in row)


class ViewScreen(TopScreen):
    """A screen that shows one thing about what the view has, most of it read in a thread."""

    is_changed_above: ClassVar[bool] = False
    """Whether a screen above may have changed what it shows: then it is read again."""
    page_id: ClassVar[str] = "text"
    """Of its text, or list."""
    page_kind: ClassVar[type[TextPage | Choices]] = TextPage
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back", show=False)]
    DEFAULT_CSS = "ViewScreen { layout: vertical; background: transparent; }"

    class Answered(Message):
        """A question was answered, or could not be."""

        def __init__(self, serial: int, answer: Any, trouble: str, took_s: float) -> None:
            super().__init__()
            self.serial = serial
            self.answer = answer
            self.trouble = trouble
            self.took_s = took_s

    def __init__(self) -> None:
        super().__init__()
        self.view: View | None = None
        self._serial = 0
        self.asking = False
        """Whether something is being read."""
        self._slow = False
        self._again = False
        self._due_s = 0.0
        self.trouble = ""

    def body(self) -> Iterable[Widget]:
        """Return what is below the subject: by default its text or list alone."""
        yield self.page_kind(self.painter, id=self.page_id)

    def job(self) -> Job | None:
        """Return what is to be read now; None for nothing."""
        return None

    def answered(self, answer: Any) -> None:
        """Show what was read."""

    def redrawn(self) -> None:
        """Show what a new live state says, at once."""

    def subject(self) -> Iterable[Part]:
        """Return what it is about, the most telling part first."""
        return ()

    def parts(self) -> Iterable[Widget]:
        """Return the line of what it is about, and the body."""
        yield Lines(self.painter, id="subject", classes="line")
        yield from self.body()

    @property
    def page(self) -> TextPage:
        """Its text."""
        return self.query_one(f"#{self.page_id}", TextPage)

    @property
    def list(self) -> Choices:
        """Its list."""
        return self.query_one(f"#{self.page_id}", Choices)

    def begin(self) -> None:
        """Show what is known already."""
        self.headline()
        if self.shared.view is not None:
            self.show(self.shared.view)

    def headline(self) -> None:
        """Write the line of what it is about, with what there is to wait for or to regret."""
        painter, width = self.painter, self.size.width
        parts, right = list(self.subject()), []
        if self.trouble:
            # What it is about stays; how that does gives way to what is wrong.
            left = painter.cut(parts[:1], width // 2 if width < 2 * len(self.trouble) else width)
            left += [("  ", "")] if left else []
            right = [(painter.fit(self.trouble, width - wide(left)), "watch")]
        else:
            right = [("reading...", "faint")] if self.asking and self._slow else []
            left = painter.cut(parts, width - wide(right) - 2 * len(right), gap="  ")
        self.query_one("#subject", Lines).put([spread(left, right, width)])

    def show(self, view: View) -> None:
        """Take a new live state."""
        self.view = view
        if self.is_mounted and self.size.width:
            self.redrawn()
            self.headline()
            self.draw()
            self.request()

    def request(self, *, anew: bool = False) -> None:
        """Read again, if it is time to; ``anew``: what was asked before is not wanted any more."""
        if anew:
            self._serial += 1
            self._due_s = 0.0
        if self.asking:
            self._again = self._again or anew
            return
        job = self.job() if time.monotonic() >= self._due_s else None
        if job is None:
            return
        self.asking, self._slow = True, False
        serial = self._serial
        self.set_timer(_PATIENCE_S, lambda: self._wait(serial))
        background(lambda: self._read(job, serial))

    def _read(self, job: Job, serial: int) -> None:
        """Run in the thread: answer one question."""
        begun_s = time.perf_counter()
        answer, trouble = self._outcome_of(job, "this cannot be shown")
        self.post_message(self.Answered(serial, answer, trouble, time.perf_counter() - begun_s))

    def _outcome_of(self, work: Job, failed: str) -> tuple[Any, str]:
        """Return what work gives, and why it failed, "" where it did not."""
        try:
            return work(), ""
        except GpuwatchdError as error:
            return None, f"{error.message} ({error.hint})" if error.hint else error.message
        except Exception as error:  # noqa: BLE001 - the screen goes on, whatever it meets
            _LOG.exception("view=%s", type(self).__name__)
            return None, f"{failed}: {type(error).__name__}"

    def _wait(self, serial: int) -> None:
        if self.asking and serial == self._serial and self.is_attached:
            self._slow = True
            self.headline()

    def on_view_screen_answered(self, message: Answered) -> None:
        """Show an answer, unless nobody wants it any more."""
        message.stop()
        self.asking = False
        if message.serial == self._serial:
            self._due_s = time.monotonic() + _SHARE * message.took_s
            self.trouble = message.trouble
            if not message.trouble:
                self.answered(message.answer)
        self.headline()
        if self._again:
            self._again = False
            self.request()

    def on_screen_resume(self) -> None:
        """Show what came in while another screen lay above."""
        if self.view is not None and self.is_changed_above:
            self.request(anew=True)
        if self.view is not None and self.shared.view is not None:
            self.show(self.shared.view)

    def change(self, work: Job, done: Callable[[Any], None]) -> None:
        """Change something in a thread; ``done`` is given what that returned."""

        def run() -> None:
            result, trouble = self._outcome_of(work, "not done")
            if trouble:
                self.app.call_from_thread(self.refused, trouble)
            else:
                self.app.call_from_thread(done, result)

        background(run)  # a worker's thread would be waited for at the end

    def refused(self, trouble: str) -> None:
        """Say why something was not changed."""
        self.program.show_message(trouble, "trouble")

    def action_back(self) -> None:
        """Leave the view; what it still reads is forgotten."""
        self._serial += 1
        self.app.pop_screen()

    def action_text(self, movement: str) -> None:
        """Scroll the text."""
        getattr(self.page, f"scroll_{movement}")(animate=False)

    def action_move(self, by: int) -> None:
        """Choose another entry of the list."""
        self.list.move(by)


def typed(value: str, event: events.Key) -> str | None:
    """Return a value after a key was typed into it; None where the key means something else."""
    if event.key in {"backspace", "ctrl+h"}:
        return value[:-1]
    if event.key == "ctrl+u":
        return ""
    return value + (event.character or "") if event.is_printable else None


SCROLLING: list[BindingType] = [
    Binding("up,k", "text('up')", show=False),
    Binding("down,j", "text('down')", show=False),
    Binding("pageup,b", "text('page_up')", show=False),
    Binding("pagedown,space", "text('page_down')", show=False),
    Binding("end,G", "text('end')", show=False),
]


LISTED: list[BindingType] = [
    Binding("up,k", "move(-1)", show=False),
    Binding("down,j", "move(1)", show=False),
    Binding("pageup", "move(-8)", show=False),
    Binding("pagedown,space", "move(8)", show=False),
    Binding("home", "move(-9999)", show=False),
    Binding("end", "move(9999)", show=False),
]


class PagedScreen(ViewScreen):
    """A view that is one text to be scrolled through."""

    own_keys: ClassVar[Keys] = (("↑↓", "scroll"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        *SCROLLING,
        Binding("home", "text('home')", show=False),
    ]
