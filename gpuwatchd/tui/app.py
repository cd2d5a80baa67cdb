"""The program behind ``gpuwatchctl top``: its screens, its state, and how it ends.

A screen is a :class:`~gpuwatchd.tui.base.TopScreen` and one line in ``VIEWS``. Whatever opens one
has chosen before what it is about: :meth:`~gpuwatchd.tui.base.SharedState.select`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.console import Console
from textual.app import App
from textual.binding import Binding, BindingType
from textual.scrollbar import ScrollBar
from textual.theme import Theme

from gpuwatchd.core import design, registry
from gpuwatchd.tui import driver, polling
from gpuwatchd.tui.base import SharedState, TopScreen, clock
from gpuwatchd.tui.screens.overview import OverviewScreen
from gpuwatchd.tui.theme import Painter
from gpuwatchd.tui.widgets.texts import ThinScrollBar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType
    from textual.driver import Driver
    from textual.filter import LineFilter

    from gpuwatchd.core.design import Kind
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

VIEWS: Final[dict[str, str]] = {
    "P": "gpuwatchd.tui.screens.predict:PredictScreen",
    "d": "gpuwatchd.tui.screens.detail:DetailScreen",
    "z": "gpuwatchd.tui.screens.idle:HeldScreen",
    "a": "gpuwatchd.tui.screens.alerts:AlertsScreen",
    "s": "gpuwatchd.tui.screens.alerts:SnoozeScreen",
    "x": "gpuwatchd.tui.screens.idle:ReapScreen",
    "h": "gpuwatchd.tui.screens.history:PastScreen",
    "question_mark": "gpuwatchd.tui.screens.help:HelpScreen",
}
"""Key, as textual calls it -> the screen that it opens, made without arguments."""
THEME: Final = "gpuwatchd"
NOTICE_S: Final = 6.0
"""How long the last row says what has just happened."""
_DEPTHS: Final = {"true": "truecolor", "256": "256", "16": "standard", "none": "standard"}


class TopApp(App[int]):
    """The live screen.

    Parameters
    ----------
    query
        Which GPUs, whose processes.
    color, ascii_only
        "auto", "always" or "never"; whether the terminal shows nothing but ASCII.
    every_s
        Seconds between two looks.
    first
        What has been seen already; None waits for the first look.
    now
        The clock: epoch seconds.

    Attributes
    ----------
    shared
        What its screens share.
    painter
        What the terminal can show.
    broken
        The mistake of ours that it ended for.
    """

    CSS = """
    Screen { background: $background; color: $foreground; }
    .flat Choices > .option-list--option-highlighted {
        background: transparent; text-style: reverse;
    }
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "end(130)", show=False, priority=True),
        Binding("ctrl+q", "end(0)", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("ctrl+l", "all_again", show=False, priority=True),
    ]

    def __init__(
        self,
        query: Query,
        *,
        color: str = "auto",
        ascii_only: bool = False,
        every_s: float = 1.0,
        first: View | None = None,
        now: Callable[[], float] = clock,
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.painter = Painter(color, ascii_only=ascii_only)
        self.shared = SharedState(
            query=query, painter=self.painter, every_s=every_s, now_s=now, view=first
        )
        ScrollBar.renderer = ThinScrollBar.use(self.painter)
        if self.painter.rich:
            ink = design.PARTS["ink"].dark
            self.register_theme(Theme(THEME, primary=ink, foreground=ink, background=design.NIGHT))
        self.theme = THEME if self.painter.rich else "ansi-dark"
        self.set_class(not self.painter.rich, "flat")
        self.notice: tuple[str, Kind] | None = None
        self.broken: Exception | None = None
        self._feed = polling.Feed(query, self.post_message, every_s=every_s)
        self._calm: Any = None
        self._held = False
        self._owed = False
        self._lost = False
        self.console = Console(
            color_system=_DEPTHS[self.painter.depth],  # type: ignore[arg-type]
            file=self.console.file, markup=False, highlight=False, emoji=False,
            legacy_windows=False, force_terminal=True, safe_box=False, soft_wrap=False,
            _environ={},
        )  # fmt: skip

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return none: the painter writes no colour that the terminal or its user will not have."""
        return ()

    def get_driver_class(self) -> type[Driver]:
        """Return the driver: to the terminal that stdout is, whatever becomes of stderr."""
        found = super().get_driver_class()
        if found.__module__.endswith("linux_driver"):
            return driver.Terminal
        return found

    # Life

    def on_mount(self) -> None:
        """Open the overview and begin to look."""
        self.push_screen(OverviewScreen())
        self._feed.start(self.shared.view)

    def on_unmount(self) -> None:
        """End the looking."""
        self._feed.stop()

    def exit(
        self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        """End, and soon, whatever the terminal does; what came first is the exit code."""
        if self._exit:
            return
        leave = getattr(self._driver, "leave", None)
        if leave is not None:
            leave(result or 0)
        super().exit(result, return_code, message)

    def post_display_hook(self) -> None:
        """Draw nothing more until the terminal has taken this."""
        if self._held:
            self._lost = True  # what a new size drew meanwhile went nowhere
        elif getattr(self._driver, "busy", False):
            self._held = True
            self._begin_batch()

    def written(self) -> None:
        """Draw what has changed meanwhile, once: the terminal has taken everything."""
        if not self._held:
            return
        self._held = False
        self._end_batch()
        if self._exit or not self.screen_stack:
            return
        if self._owed:
            self._owed = False
            self._show()
        if self._lost:
            self._lost = False
            self.action_all_again()
        self.screen.check_idle()

    def action_end(self, code: int) -> None:
        """End with an exit code: Ctrl-C as it ends every other verb."""
        self.exit(code)

    def action_all_again(self) -> None:
        """Paint everything again, as soon as the terminal takes it."""
        if self.screen_stack and not self._exit:
            self.screen.refresh(layout=True)

    def on_view_read(self, message: polling.ViewRead) -> None:
        """Hand a new view to the screen that is shown."""
        self.shared.take(message.view)
        self._show()

    def on_failed(self, message: polling.Failed) -> None:
        """Say why there is nothing new; what was seen last stays, and is not called live."""
        if self.shared.view is not None:
            self.shared.view.warnings[:] = [(polling.FAILED, message.error.message)]
            self._show()

    def _show(self) -> None:
        self._owed = self._held
        view = self.shared.view
        if isinstance(self.screen, TopScreen) and view is not None and not self._held:
            self.screen.show(view)

    def show_message(self, words: str, kind: Kind = "unknown") -> None:
        """Say something in the last row for a few seconds."""
        self._notice((words, kind))
        if self._calm is not None:
            self._calm.stop()
        self._calm = self.set_timer(NOTICE_S, lambda: self._notice(None))

    def _notice(self, notice: tuple[str, Kind] | None) -> None:
        self.notice = notice
        if isinstance(self.screen, TopScreen):
            self.screen.draw()

    def open(self, key: str) -> None:
        """Open the screen of a key, anew where it lies below; the one that is shown stays."""
        try:
            screen = registry.load(VIEWS, key)
        except (ImportError, AttributeError) as error:
            self.show_message(f"this screen cannot be loaded: {error}", "trouble")
            return
        if isinstance(self.screen, screen):
            return
        while any(isinstance(shown, screen) for shown in self.screen_stack):
            self.pop_screen()  # else they would be as many as keys were pressed
        self.push_screen(screen())

    def on_key(self, event: Any) -> None:
        """Open the screen whose key it is, where the screen itself has no use for it."""
        if event.key in self.screen.active_bindings:
            return  # textual runs those after us
        if event.key in VIEWS:
            event.stop()
            self.open(event.key)
        elif event.key == "q":
            self.exit(0)
        elif event.key == "escape" and len(self.screen_stack) > 2:
            self.pop_screen()

    # A mistake of ours: textual would print what it looked like inside

    def _handle_exception(self, error: Exception) -> None:
        """End for a mistake of ours; the caller tells it in one line."""
        if not self._exit:  # a screen that is taken down half way asks for parts that are gone
            self.broken = self.broken or error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Close, without a word."""
        self._close_messages_no_wait()

    def panic(self, *renderables: RenderableType) -> None:
        """Close, without a word: the terminal itself failed."""
        text = " ".join(renderable for renderable in renderables if isinstance(renderable, str))
        self.broken = self.broken or RuntimeError(text or "the terminal cannot be read")
        self._close_messages_no_wait()
