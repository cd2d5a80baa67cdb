"""``?``: the keys, what marks and colours mean, where to read on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import design
from gpuwatchd.tui.base import PagedScreen

if TYPE_CHECKING:
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.view.blocks import Page, Part

EVERYWHERE: Final[Keys] = (
    ("P", "Predict: the forecast of every GPU, with its chart"),
    ("d, Enter", "Detail: everything about the process under the cursor"),
    ("z", "Held: idle memory, and what would free it"),
    ("a", "Alerts: open and past; Enter shows one in full"),
    ("s", "Snooze: how long an alert is silenced"),
    ("x", "Free: end an idle process of yours; asks first"),
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


_MEANS: Final[dict[design.Kind, str]] = {
    "critical": "it leaks, and memory is full soon",
    "leak": "it leaks",
    "watch": "it may leak: watched, no message yet",
    "calm": "no leak: stable, levelled off, a pool, a sawtooth, or marked as normal",
    "unknown": "no verdict: too few samples, asleep, or not monitored",
    "trouble": "the GPU cannot be read, or is broken",
    "held": "there is idle memory",
}
_SIGNS: Final = {"floor": "┄", "fit": "╌", "limit": "─", "now": "│", "band": "▒", "gap": "░",
                 "range": "▒"}  # fmt: skip
_ASCII_SIGNS: Final = {"floor": ".", "fit": "-", "limit": "=", "now": "|", "band": ":", "gap": " ",
                       "range": "%"}  # fmt: skip


class HelpScreen(PagedScreen):
    """Made of the same design as everything it explains."""

    name_shown = "Help"

    def begin(self) -> None:
        """Show all of it: it says the same whatever there is to be seen."""
        super().begin()
        self.page.write(write)


def write(out: Page) -> None:
    """Write the whole help, part by part."""
    for title, keys in (
        ("Keys everywhere", EVERYWHERE),
        ("In the overview", OVERVIEW),
        ("In charts", CHARTS),
        ("In lists and texts", LISTS),
    ):
        out.line((title, "bold"))
        for key, what in keys:
            parts: list[Part] = [(f"{key:<12}", "bold"), *what.split(" ")]
            out.flow(parts, first="  ", rest=" " * 15, gap=" ")
        out.line("")
    out.line(("Verdicts", "bold"))
    for kind, words in _MEANS.items():
        look = design.LOOKS[kind]
        mark = look.ascii_mark if out.ascii else look.mark
        parts = [(f"{mark} {look.word:<12}", kind), *words.split(" ")]
        out.flow(parts, first="  ", rest=" " * 17, gap=" ")
    out.line("")
    out.line(("What a chart consists of", "bold"))
    for part, word in design.LEGEND.items():
        sign = _ASCII_SIGNS.get(part, "#") if out.ascii else _SIGNS.get(part, "█")
        out.line("  ", (sign * 4, part), f"  {word}")
    out.line("")
    out.line(("What is marked on a chart", "bold"))
    for flag in design.FLAGS.values():
        sign = flag.ascii_mark if out.ascii else flag.mark
        out.line("  ", (sign, flag.colour), f"  {flag.word}")
    out.line("")
    out.line(("To read on", "bold"))
    for page in PAGES:
        out.line((f"gpuwatchctl docs {page}", "cyan"))
