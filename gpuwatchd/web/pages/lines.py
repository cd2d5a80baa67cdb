"""What a verb would write, taken line by line for the page."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from gpuwatchd.cli import panel
from gpuwatchd.cli.output import Out
from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.output import Part
    from gpuwatchd.core.model import Alert

_LONGEST = 4096
_WIDE = 100_000


class Lines(Out):
    """Keeps the lines that are written, each without its indent.

    Attributes
    ----------
    kept
        (depth, text, style) of each line; depth counts the steps of two columns that it was
        indented, and the style is that of its first part.
    """

    def __init__(self, flags: Globals) -> None:
        super().__init__(flags, io.StringIO())
        self.ascii = False
        self.colour = False
        self.width = _WIDE
        self.kept: list[tuple[int, str, str]] = []

    def line(self, *parts: Part, end: str = "\n") -> None:  # noqa: ARG002 - there is one end only
        """Keep parts one after the other."""
        self._keep("".join(_words(part) for part in parts), parts)

    def flow(
        self,
        parts: Iterable[Part],
        *,
        first: str = "",
        rest: str = "",  # noqa: ARG002 - a browser breaks lines itself
        gap: str = "  ",
        whole: bool = False,  # noqa: ARG002 - as above
    ) -> None:
        """Keep parts with gaps; wider ones become commas, as the page has no columns."""
        between, kept = gap if len(gap) == 1 else ", ", list(parts)
        self._keep(first + joined(kept, between), kept)

    def texts(self) -> list[str]:
        """Return the lines alone."""
        return [words for _, words, _ in self.kept]

    def _keep(self, words: str, parts: Sequence[Part]) -> None:
        plain = words.strip()
        if plain:
            style = "" if isinstance(parts[0], str) else parts[0][1]
            self.kept.append(((len(words) - len(words.lstrip())) // 2, plain, style))


def joined(parts: Iterable[Part], between: str = ", ") -> str:
    """Return parts as one clean line."""
    texts = (_words(part).strip() for part in parts)
    return between.join(value for value in texts if value)


def of_alert(alert: Alert, view: View) -> str:
    """Return an open alert in one line."""
    begin, *rest = panel.alert_line(alert, view)
    return joined([joined([begin]).rstrip(":"), *rest])


def _words(part: Part) -> str:
    return text.clean(part if isinstance(part, str) else part[0], limit=_LONGEST)
