"""``z``: idle memory, as ``zombies`` tells; ``x``: end a process that has it, but never by KILL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from gpuwatchd.core import units
from gpuwatchd.core.codes import ReapResult
from gpuwatchd.core.errors import ActionError
from gpuwatchd.tui.base import SCROLLING, PagedScreen, Settled, ViewScreen
from gpuwatchd.view.queries import direct_holdings, reaping, user_filter
from gpuwatchd.view.queries.direct_holdings import NOBODY
from gpuwatchd.view.text import idle_memory, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import ProcessInfo, ProcessKey
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.texts import Written
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
    from gpuwatchd.view.queries.reaping import Candidate, ReapOutcome
    from gpuwatchd.view.query import Query


class HeldScreen(PagedScreen):
    """Dead owners, ghosts, idle holders, hung ranks: who, since when, what it costs, what to do."""

    name_shown = "Idle memory"
    own_keys: ClassVar[Keys] = (*PagedScreen.own_keys, ("x", "free"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("x", "free", show=False)]

    def job(self) -> Callable[[], Written]:
        """Return what looks, and gives what writes it."""
        query = self.shared.query

        def read() -> Written:
            settled = Settled(query)
            view, loose = direct_holdings.idle_memory(settled)
            return partial(_show, settled, view, loose)

        return read

    def subject(self) -> Iterable[Part]:
        """Return how much it is, by the live state, until the whole story is read."""
        holdings = () if self.view is None else self.view.holdings
        known = [holding.held_bytes for holding in holdings if holding.held_bytes is not None]
        count = len(holdings)
        if not count:
            yield "no idle memory, as far as is known", "calm"
            return
        least = "at least " if len(known) < count else ""
        yield f"{units.count(count, 'holding')}, {least}{units.size(sum(known))}", "held bold"
        yield "x ends one of yours, after a question", "faint"

    def action_free(self) -> None:
        """Ask whether one of the user's own is to be ended."""
        self.app.push_screen(ReapScreen(listed_first=True))

    def answered(self, written: Written) -> None:
        """Show what was found."""
        self.page.write(written)


def _show(query: Query, view: View, loose: UnlistedOpeners, page: Page) -> None:
    page.verbose = True
    idle_memory.show(page, query, view, loose)


class Looked(NamedTuple):
    """What there is to be said of a process, and which one would be ended now."""

    write: Written
    ready: ProcessKey | None = None


class ReapScreen(ViewScreen):
    """What would be sent to one process; ``y`` sends it, and the screen says what came of it.

    Parameters
    ----------
    listed_first
        Begin with one that is listed as idle, whatever process is chosen.
    """

    name_shown = "Free"
    own_keys: ClassVar[Keys] = (("y", "end it"), ("Tab", "next of yours"), ("↑↓", "scroll"))
    BINDINGS: ClassVar[list[BindingType]] = [
        *SCROLLING,
        Binding("y", "end_it", show=False),
        Binding("tab", "next", show=False),
    ]

    def __init__(self, *, listed_first: bool = False) -> None:
        super().__init__()
        self._listed_first = listed_first
        self._process: ProcessKey | None = None
        self._ready: ProcessKey | None = None

    def _listed(self) -> list[ProcessInfo]:
        """Return the user's own processes that have idle memory, each once."""
        holdings = () if self.view is None else self.view.holdings
        infos = {one.process.key: one.process for one in holdings if one.process is not None}
        return [info for info in infos.values() if info.user == user_filter.user()]

    def redrawn(self) -> None:
        """Choose a process, once."""
        if self._process is None:
            keys, chosen = [info.key for info in self._listed()], self.shared.selected_process
            if chosen is None or (self._listed_first and chosen not in keys):
                chosen = next(iter(keys), None)
            self._process = chosen
        if self._process is None:
            self.page.write(lambda out: out.prose("none of your processes has idle memory"))

    def job(self) -> Callable[[], Looked] | None:
        """Return what looks at the process."""
        if self._process is None:
            return None
        return partial(_look, self.shared.query, self._process)

    def answered(self, looked: Looked) -> None:
        """Show what would be sent, or what has come of it."""
        self._ready = looked.ready
        self.page.write(looked.write)

    def subject(self) -> Iterable[Part]:
        """Return which process, and of how many."""
        process, listed = self._process, self._listed()
        if process is None:
            return
        info = next((info for info in listed if info.key == process), None)
        yield f"pid {process.pid}" if info is None else verdict_text.who(info), "bold"
        yield f"{len(listed)} of yours with idle memory", "faint"

    def action_next(self) -> None:
        """Go to the next of the user's own that are listed."""
        keys = [info.key for info in self._listed()]
        if keys:
            at = keys.index(self._process) + 1 if self._process in keys else 0
            self._process, self._ready = keys[at % len(keys)], None
            self.headline()
            self.request(anew=True)

    def action_end_it(self) -> None:
        """End the process that is shown, if that is allowed now; the screen goes on meanwhile."""
        process, query = self._ready, self.shared.query
        self._ready = None
        if process is None:
            return

        def work() -> ReapOutcome:
            run = reaping.begin(query, process)
            self.app.call_from_thread(self._look_again)
            return run.outcome.result()

        self.change(work, self._ended)

    def _ended(self, outcome: ReapOutcome) -> None:
        kind: Kind = "calm" if outcome.exit_code == 0 else "watch"
        self.program.show_message(outcome.text, kind)
        self._look_again()

    def refused(self, trouble: str) -> None:
        """Say why it was not ended."""
        super().refused(trouble)
        self._look_again()

    def _look_again(self) -> None:
        if self.is_attached:
            self.request(anew=True)


def _look(query: Query, process: ProcessKey) -> Looked:
    """Look at a process. Runs in a thread."""
    run = reaping.latest(process.pid)
    try:
        if run is not None and run.process == process:
            outcome = run.outcome_now()
            if outcome.result in {ReapResult.ENDED, ReapResult.UNDER_WAY}:
                return Looked(partial(_show_outcome, outcome))
        with reaping.candidate(query, process.pid) as candidate:
            reaping.require_same(process, candidate.target)
            return Looked(partial(_show_candidate, Settled(query), candidate), process)
    except ActionError as error:
        return Looked(partial(_show_refusal, error))


def _show_candidate(query: Query, candidate: Candidate, out: Page) -> None:
    idle_memory.show(out, query, candidate.view, NOBODY)
    out.line("")
    out.prose(f"would send {candidate.plan}", rest="  ")
    out.prose(f"y ends {candidate.target.name}; Esc leaves it alone", "bold", rest="  ")


def _show_refusal(error: ActionError, out: Page) -> None:
    out.prose(error.message, "yellow", rest="  ")
    if error.hint:
        out.prose(f"-> {error.hint}", "cyan", rest="   ")


def _show_outcome(outcome: ReapOutcome, out: Page) -> None:
    out.prose(outcome.text, "bold", rest="  ")
    out.warn(outcome.warnings)
