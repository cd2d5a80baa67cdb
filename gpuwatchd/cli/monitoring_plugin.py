"""What a monitoring plug-in prints: ranges, performance data, four states.

Source: Monitoring Plugins Development Guidelines (monitoring-plugins.org): one line, "|" and the
performance data, long text below; exit 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATES: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_ORDER: Final = (OK, UNKNOWN, WARNING, CRITICAL)
_LINE_CHARS: Final = 400
FIRST_CHARS: Final = 80
"""Of the first line before the performance data: what a pager or a table shows."""
_MOST_LINES: Final = 20
"""Nagios keeps 8 KiB of an answer, older ones 4."""


class Range(NamedTuple):
    """A threshold: what lies outside of it alerts; with ``inside``, what lies in it."""

    low: float
    high: float
    inside: bool = False

    def alerts(self, value: float) -> bool:
        """Say whether a value is one to tell of; both ends belong to the range.

        Examples
        --------
        >>> parse("10:").alerts(9), parse("10:").alerts(10), parse("@10:20").alerts(20)
        (True, False, True)
        """
        return (self.low <= value <= self.high) == self.inside

    def __str__(self) -> str:
        """Return it as the guidelines write it."""
        if self.low == -math.inf:
            low = "~:"
        else:
            low = "" if self.low == 0 and self.high < math.inf else f"{number(self.low)}:"
        high = "" if self.high == math.inf else number(self.high)
        return f"{'@' if self.inside else ''}{low}{high}"


def parse(words: str, to_number: Callable[[str], float] = float) -> Range:
    """Return the range of a text such as ``14400:``, ``90``, ``@10:20`` or ``~:10``.

    Parameters
    ----------
    to_number
        Reads one end: seconds of "4h", say.

    Raises
    ------
    ValueError
        When it is none, or ends before it begins.

    Examples
    --------
    >>> [str(parse(words)) for words in ("14400:", "90", "0:90", "@10:20", "~:10", "5:")]
    ['14400:', '90', '90', '@10:20', '~:10', '5:']
    """
    body = words.strip()
    inside = body.startswith("@")
    first, colon, last = body.removeprefix("@").partition(":")
    if not colon:
        first, last = "", first
        if not last:
            raise ValueError("a range is a number, or START:END")
    low = -math.inf if first == "~" else to_number(first) if first else 0.0
    high = to_number(last) if last else math.inf
    ends = [end for end, wanted in ((low, first not in {"", "~"}), (high, last)) if wanted]
    if not all(math.isfinite(end) for end in ends) or low > high:
        raise ValueError("the range ends before it begins")
    return Range(low, high, inside)


def number(value: float) -> str:
    """Return a number as performance data has it: a point, no exponent.

    Examples
    --------
    >>> number(2820.0), number(25174220864), number(97.25)
    ('2820', '25174220864', '97.25')
    """
    return f"{value:.3f}".rstrip("0").rstrip(".")


class Perf(NamedTuple):
    """One value of the performance data; a value of None is unknown."""

    label: str
    value: float | None
    unit: str = ""
    """s, %, B, c or nothing."""
    warn: Range | None = None
    crit: Range | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return it as the guidelines write it.

        Examples
        --------
        >>> str(Perf("gpu0_eta", 2820.0, "s", parse("14400:"), parse("3600:"), 0.0))
        "'gpu0_eta'=2820s;14400:;3600:;0;"
        >>> str(Perf("gpu0_eta", None, "s", low=0.0))
        "'gpu0_eta'=U;;;0;"
        """
        label = text.clean(self.label).translate({ord("="): "_", ord("'"): "_"})
        value = f"{_maybe(self.value)}{self.unit}" if _maybe(self.value) else "U"
        rest = (self.warn or "", self.crit or "", *(_maybe(v) for v in (self.low, self.high)))
        return f"'{label}'={value};{';'.join(str(part) for part in rest)}"


def _maybe(value: float | None) -> str:
    return number(value) if value is not None and math.isfinite(value) else ""


class Answer(NamedTuple):
    """What one check found."""

    state: int
    line: str
    perf: tuple[Perf, ...] = ()
    more: tuple[str, ...] = ()
    """Long text, a line each."""


def judge(value: float | None, warn: Range | None, crit: Range | None) -> int:
    """Return the state of a value; OK when it is unknown: there is nothing to warn of.

    Examples
    --------
    >>> [judge(value, parse("90"), parse("98")) for value in (50, 95, 99, None)]
    [0, 1, 2, 0]
    """
    if value is None:
        return OK
    if crit is not None and crit.alerts(value):
        return CRITICAL
    return WARNING if warn is not None and warn.alerts(value) else OK


def worst(states: Iterable[int]) -> int:
    """Return the worst of some states, OK of none.

    Examples
    --------
    >>> worst([0, 3, 1]), worst([3, 0]), worst([])
    (1, 3, 0)
    """
    return max(states, key=_ORDER.index, default=OK)


def safe(words: str) -> str:
    r"""Return text that neither ends the line nor begins performance data.

    Examples
    --------
    >>> safe("a|b\nc")
    'a/b c'
    """
    return text.clean(words, limit=_LINE_CHARS).replace("|", "/").strip()


def render(answer: Answer) -> str:
    """Return what is printed, without a line feed at the end.

    Examples
    --------
    >>> print(render(Answer(OK, "2 GPUs", (Perf("findings", 0.0),), ("one | two",))))
    GPUWATCHD OK - 2 GPUs | 'findings'=0;;;;
    one / two
    """
    first = f"GPUWATCHD {STATES[answer.state]} - {safe(answer.line)}"
    if answer.perf:
        perf = " ".join(str(perf) for perf in answer.perf)
        first = f"{text.cut(first, FIRST_CHARS)} | {perf}"
    more = [line for line in (safe(words) for words in answer.more) if line]
    if len(more) > _MOST_LINES:
        more = [*more[: _MOST_LINES - 1], f"and {len(more) - _MOST_LINES + 1} more"]
    return "\n".join([first, *more])
