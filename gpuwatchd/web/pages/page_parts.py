"""What every view says: whether it is live, what is missing, and which alerts are open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuwatchd import __version__
from gpuwatchd.core import text, units
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import alert_order
from gpuwatchd.view.text import delivery_text, status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.blocks import Part
    from gpuwatchd.view.queries.current_state import View

# What a verb would write, taken line by line for the page.

_LONGEST = 4096
_WIDE = 100_000


class Lines(Page):
    """Keeps the lines that are written, each without its indent.

    Attributes
    ----------
    kept
        (depth, text, style) of each line; depth counts the steps of two columns that it was
        indented, and the style is that of its first part.
    """

    def __init__(self) -> None:
        super().__init__(_WIDE)
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
    begin, *rest = status.alert_line(alert, view)
    return joined([joined([begin]).rstrip(":"), *rest])


def _words(part: Part) -> str:
    return text.clean(part if isinstance(part, str) else part[0], limit=_LONGEST)


def head(view: View) -> dict[str, Any]:
    """Return the part of an answer that the frame around each view is drawn from."""
    now_s = time.time()
    open_now = alert_order.shown(view.alerts)
    return {
        "host": envelope.host(),
        "version": __version__,
        "clock": units.clock(now_s, now_s=now_s, seconds=True),
        "zone": units.zone(now_s),
        "seen": units.clock(view.taken_at_s, now_s=now_s, seconds=True),
        "live": live(view),
        "interval_s": view.interval_s,
        "daemon": _daemon(view, now_s),
        "warnings": _warnings(view, now_s),
        "open": [
            {
                "key": text.clean(alert.key),
                "said": of_alert(alert, view),
                "watched": alert.state == "watch",
            }
            for alert in open_now
        ],
        "counted": alert_order.counted(open_now),
    }


def live(view: View) -> bool:
    """Return whether a daemon keeps this fresh."""
    late = any(code == "daemon-late" for code, _ in view.warnings)
    return view.source == "state-file" and view.daemon.running and not late


def _daemon(view: View, now_s: float) -> str:
    daemon = view.daemon
    if not daemon.running:
        return "No daemon is running."
    since = ""
    if daemon.started_at_s is not None:
        since = f" since {units.clock(daemon.started_at_s, now_s=now_s)}"
    whom = " for the whole machine" if daemon.scope == "system" else ""
    return f"The daemon {daemon.version or '?'} runs{whom}{since}."


def _warnings(view: View, now_s: float) -> list[dict[str, Any]]:
    """Return what ``status`` says above and below the GPUs, one sentence each."""
    said = []
    for code, sentence in view.warnings:
        words = text.clean(sentence, limit=1024) + status.age(view, code, now_s=now_s)
        bad = code.startswith("daemon")
        said.append({"code": code, "text": words, "bad": bad, "more": []})
    said += _unheard(view)
    problems = delivery_text.other_problems(view)
    said += [{"code": "problem", "text": text.clean(p), "bad": False, "more": []} for p in problems]
    return said


def _unheard(view: View) -> list[dict[str, Any]]:
    """Return what nobody has heard of, each with the lines below it, and what is silent."""
    out = Lines()
    if view.untold or view.lost:
        delivery_text.banner(out, view)
    delivery_text.silences(out, view)
    said: list[dict[str, Any]] = []
    for depth, words, style in out.kept:
        if depth and said:
            said[-1]["more"].append(words)
            continue
        bad = style == delivery_text.ALARM
        plain = words[len(delivery_text.MARK) :] if bad else words
        said.append({"code": "unheard", "text": plain, "bad": bad, "more": []})
    return said


def silent_until(view: View) -> dict[str, str]:
    """Return key of an open alert -> "silent until 14:00", of those that are snoozed."""
    from gpuwatchd import alerts  # noqa: PLC0415 - the page alone asks for it here

    now_s = time.time()
    held = delivery_text.in_force(view.silences, now_s)
    pairs = ((alert.key, alerts.silenced(alert, held, now_s)) for alert in view.alerts)
    return {
        key: delivery_text.silent(silence, now_s=now_s)
        for key, silence in pairs
        if silence is not None
    }
