"""``?``: the keys, what marks and colours mean, where to read on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import design
from gpuwatchd.tui.base import PagedScreen
from gpuwatchd.tui.widgets.texts import blank, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.texts import Written
    from gpuwatchd.view.blocks import Page, Part

EVERYWHERE: Final[Keys] = (
    ("P", "Predict: the forecast of every GPU, with its chart"),
    ("d, Enter", "Detail: everything about the process under the cursor"),
    ("z", "Held: idle memory, and what would free it"),
    ("a", "Alerts: open and past; Enter shows one in full"),
    ("s", "Snooze: how long an alert is silenced"),
    ("h", "History: memory over time of the GPU or process under the cursor"),
    ("?", "Help"),
    ("Esc", "back"),
    ("q, Ctrl-C", "quit"),
    ("Ctrl-L", "paint everything again"),
)
OVERVIEW: Final[Keys] = (
    ("Up, Down", "move the cursor (j, k, PgUp, PgDn, Home, End, too); Home follows what is first"),
    ("Tab", "to the GPUs and back"),
    ("/", "filter while you type: name, user, pid, framework, model, job, gpu0; Esc clears it"),
    ("0 ... 9", "the processes of one GPU alone; again for all"),
    ("< >", "sort by the next column; so do Left and Right, and a click on its name"),
    ("M, N, r", "sort by memory, by growth; the other way round"),
)
CHARTS: Final[Keys] = (
    ("Left, Right", "earlier, later; dragging does the same"),
    ("+, -", "zoom in, zoom out; so does the wheel of the mouse"),
    (
        "< >",
        "move the cursor: it shows the values there; so do Shift-Left and -Right, and the mouse",
    ),
    ("0, Home", "the whole span again"),
    ("1 ... 6", "span: 1 h, 6 h, 24 h, 7 d, 30 d, everything there is"),
)
LISTS: Final[Keys] = (
    ("Up, Down", "choose (j and k do, too); in a text: scroll"),
    ("PgUp, PgDn", "go further; in History with Up and Down: from one event to the next"),
    ("Tab", "in History: the next GPU or process; in Snooze: the reason"),
    ("u", "in Alerts: take a snooze back"),
)
PAGES: Final = ("see-it", "reading-the-charts", "understand-a-verdict", "be-warned", "quiet")
"""Of the documentation, as ``gpuwatchctl docs`` calls them."""


class HelpScreen(PagedScreen):
    """Made of the same design as everything it explains."""

    name_shown = "Help"

    def begin(self) -> None:
        """Show all of it."""
        super().begin()
        # It says the same whatever there is to be seen.
        self.page.write(*written())


def written() -> Iterator[Written]:
    """Yield the whole help, part by part."""
    for title, keys in (
        ("Keys everywhere", EVERYWHERE),
        ("In the overview", OVERVIEW),
        ("In charts", CHARTS),
        ("In lists and texts", LISTS),
    ):
        yield partial(_title, title)
        for key, what in keys:
            yield partial(_key, key, what)
        yield blank
    yield partial(_title, "Verdicts")
    for kind, words in _MEANS.items():
        yield partial(_verdict, kind, words)
    yield blank
    yield partial(_title, "What a chart consists of")
    for part, word in design.LEGEND.items():
        yield partial(_part, part, word)
    yield blank
    yield partial(_title, "What is marked on a chart")
    for name in design.FLAGS:
        yield partial(_flag, name)
    yield blank
    yield partial(_title, "To read on")
    for page in PAGES:
        yield sentence(f"gpuwatchctl docs {page}", "cyan")


_MEANS: Final[dict[design.Kind, str]] = {
    "critical": "it leaks, and memory is full soon",
    "leak": "it leaks",
    "watch": "it may leak: watched, no message yet",
    "calm": "no leak: stable, levelled off, a pool, a sawtooth, or marked as normal",
    "unknown": "no verdict: too few samples, asleep, or not monitored",
    "trouble": "the GPU cannot be read, or is broken",
    "held": "there is idle memory",
}


def _title(words: str, out: Page) -> None:
    out.line((words, "bold"))


def _key(key: str, what: str, out: Page) -> None:
    room = 14
    parts: list[Part] = [(f"{key:<{room - 2}}", "bold"), *what.split(" ")]
    out.flow(parts, first="  ", rest=" " * (room + 1), gap=" ")


def _verdict(kind: design.Kind, words: str, out: Page) -> None:
    look = design.LOOKS[kind]
    mark = look.ascii_mark if out.ascii else look.mark
    parts: list[Part] = [(f"{mark} {look.word:<12}", kind), *words.split(" ")]
    out.flow(parts, first="  ", rest=" " * 17, gap=" ")


def _part(part: str, word: str, out: Page) -> None:
    sign = _ASCII_SIGNS.get(part, "#") if out.ascii else _SIGNS.get(part, "█")
    out.line(("  ", ""), (f"{sign * 4}", part), (f"  {word}", ""))


_SIGNS: Final = {"floor": "┄", "fit": "╌", "limit": "─", "now": "│", "band": "▒", "gap": "░",
                 "range": "▒"}  # fmt: skip
_ASCII_SIGNS: Final = {"floor": ".", "fit": "-", "limit": "=", "now": "|", "band": ":", "gap": " ",
                       "range": "%"}  # fmt: skip


def _flag(name: str, out: Page) -> None:
    flag = design.FLAGS[name]
    sign = flag.ascii_mark if out.ascii else flag.mark
    out.line(("  ", ""), (f"{sign}", flag.colour), (f"  {flag.word}", ""))
