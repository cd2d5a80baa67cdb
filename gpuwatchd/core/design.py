"""One design for everything that is looked at: words, marks and colours of verdicts and charts.

The live screen, pictures, mails, reports and the live page all take them from here. The hues are
those of Okabe and Ito (Color Universal Design, 2008), which people who see fewer colours can tell
apart; where text is written in one, it is darkened or lightened until it can be read (WCAG 2.2,
contrast 4.5). Colour is never alone: every kind has a word and a mark of its own.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["critical", "leak", "watch", "calm", "unknown", "trouble", "held"]
"""What a verdict comes to, at a glance, worst first but for the last two: ``trouble`` is a device
that cannot be read or is broken, ``held`` idle memory."""


class VerdictStyle(NamedTuple):
    """How one kind of verdict looks everywhere."""

    word: str
    """Where there is no nearer one, such as the pattern."""
    mark: str
    """One character."""
    ascii_mark: str
    fill: str
    """Behind black text: a badge."""
    light: str
    """Of text on white."""
    dark: str
    """Of text on :data:`NIGHT`, and on a terminal with many colours."""
    style: str
    """On a terminal with few: a style of ``gpuwatchctl``."""


LOOKS: Final[dict[Kind, VerdictStyle]] = {
    "critical": VerdictStyle("CRITICAL", "▲", "!", "#d55e00", "#a84300", "#ff8c42", "red-bold"),
    "leak": VerdictStyle("LEAK", "▲", "!", "#e69f00", "#855700", "#f5b12e", "yellow-bold"),
    "watch": VerdictStyle("watch", "◆", "~", "#f0e442", "#6a6200", "#f0e442", "yellow"),
    "calm": VerdictStyle("stable", "●", "=", "#009e73", "#006b4e", "#3cc99e", "green"),
    "unknown": VerdictStyle("no verdict", "○", "?", "#c3c9d1", "#59616b", "#a3acb7", "dim"),
    "trouble": VerdictStyle("trouble", "✕", "x", "#cc79a7", "#8f3c6b", "#e59cc4", "yellow"),
    "held": VerdictStyle("held idle", "■", "#", "#56b4e9", "#00609a", "#6cbef0", "cyan"),
}
BADGE_INK: Final = "#000000"
"""Of the text on a :attr:`VerdictStyle.fill`."""

PAPER: Final = "#ffffff"
NIGHT: Final = "#12161c"
"""The ground of dark mode and of the live screen."""


class Paint(NamedTuple):
    """Colour of a part of a chart, on white and on :data:`NIGHT`."""

    light: str
    dark: str


PARTS: Final[dict[str, Paint]] = {
    "ink": Paint("#1d232b", "#e6e9ed"),
    "faint": Paint("#59616b", "#a3acb7"),
    "grid": Paint("#e2e5e9", "#2a313a"),
    "surface": Paint("#f5f6f8", "#1a2028"),
    "curve": Paint("#0072b2", "#56b4e9"),
    "range": Paint("#9ccbe6", "#1f5f86"),
    "floor": Paint("#006b4e", "#3cc99e"),
    "fit": Paint("#1d232b", "#e6e9ed"),
    "band": Paint("#e69f00", "#e69f00"),
    "limit": Paint("#a84300", "#ff8c42"),
    "gap": Paint("#d5d9de", "#333b46"),
    "now": Paint("#8a8f96", "#8a929c"),
}
"""Curve: memory used; range: from the lowest to the highest within one point; floor: the level
that memory always came back to; fit and band: the forecast with its 90 % interval; limit: where
memory ends; gap: time of which nothing is known."""


def colours(*, dark: bool) -> dict[str, str]:
    """Return the colour of each part and each kind of verdict, on the dark ground or the light."""
    looks = PARTS | {kind: Paint(look.light, look.dark) for kind, look in LOOKS.items()}
    return {name: look.dark if dark else look.light for name, look in looks.items()}


BAND_OPACITY: Final = 0.35
FIT_DASH: Final = (6, 4)
FLOOR_DASH: Final = (2, 3)
"""Lengths of dash and space: parts differ by line as well as by colour."""

LEGEND: Final[dict[str, str]] = {
    "curve": "memory used",
    "range": "lowest to highest",
    "floor": "floor",
    "fit": "fit",
    "band": "full within (90 %)",
    "limit": "limit",
    "gap": "no data",
    "now": "now",
}
"""The one word for each part, in every legend."""


class Flag(NamedTuple):
    """How something that happened is marked on a chart."""

    word: str
    mark: str
    """One character."""
    ascii_mark: str
    colour: str
    """A kind of :data:`LOOKS` or a part of :data:`PARTS`; an alert has that of its severity."""


FLAGS: Final[dict[str, Flag]] = {
    "watch": Flag("watch", "◆", "~", "watch"),
    "alert": Flag("alert", "△", "!", "leak"),
    "critical": Flag("critical", "▲", "*", "critical"),
    "died": Flag("out of memory", "✖", "X", "critical"),
    "resolved": Flag("resolved", "●", "=", "calm"),
    "event": Flag("event", "✕", "x", "trouble"),
    "restart": Flag("restart", "↺", "^", "faint"),
    "began": Flag("began", "▸", ">", "faint"),
    "ended": Flag("ended", "◂", "<", "faint"),
    "saved": Flag("checkpoint saved", "✓", "v", "calm"),
    "asked": Flag("checkpoint asked", "◌", "o", "held"),
}
"""For each ``pictures.chart.MarkKind``."""
SEVERITY_KINDS: Final[dict[str, Kind]] = {
    "critical": "critical",
    "warning": "leak",
    "info": "watch",
}
"""The look of an alert, by its severity."""
