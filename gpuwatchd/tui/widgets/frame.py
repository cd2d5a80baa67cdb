"""The first and the last row of every screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.tui.polling import FAILED
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.queries import alert_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.tui.app import TopApp
    from gpuwatchd.tui.strips import Cell, Row
    from gpuwatchd.view.queries.current_state import View


def head(top: TopApp, name: str, width: int) -> Row:
    """Return what is looked at, how many alerts are open, and when it was seen."""
    view, painter = top.view, top.painter
    left: Row = [(" gpuwatchctl top ", "bar bold"), (f" {painter.safe(name)} ", "bar")]
    right: Row = []
    if view is not None:
        at = units.clock(view.taken_at_s, now_s=top.now_s(), seconds=True)
        right.append((f" {at} ", "bar"))
        words, fine = _daemon(view)
        right.append((f" {words} ", "bar" if fine else "trouble bar bold"))
        loud = alert_order.shown(view.alerts)
        if loud:
            kind = "leak" if loud[0].state == "firing" else "watch"
            kind = "critical" if any(a.severity == "critical" for a in loud) else kind
            right.append((f" {alert_order.counted(loud)} ", f"{kind} bar bold"))
    return spread(left, right, width, "bar")


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
    while right and _wide(left) + _wide(right) > width:
        del right[0]
    return [*left, (" " * max(0, width - _wide(left) - _wide(right)), ground), *right]


def _wide(row: Sequence[Cell]) -> int:
    return sum(width_of(words) for words, _ in row)


def foot(top: TopApp, keys: Sequence[tuple[str, str]], width: int) -> Row:
    """Return what has just happened, else the keys, as many as there is room for."""
    painter = top.painter
    if top.notice:
        words, kind = top.notice
        text = painter.cell(f" {words}", width)
        return [(text, f"{kind} bar")]
    pairs = spans(keys, width)
    row: Row = []
    used = 0
    for key, does in keys:
        if key in pairs:
            row += [(f" {key}", "bar bold"), (f" {does} ", "bar faint")]
            used = pairs[key][1]
    row.append((" " * max(0, width - used), "bar"))
    return row


def spans(keys: Sequence[tuple[str, str]], width: int) -> dict[str, tuple[int, int]]:
    """Return the keys that there is room for, with their first column and the one behind them.

    Examples
    --------
    >>> spans([("q", "quit"), ("?", "help")], 9)
    {'q': (0, 8)}
    """
    pairs: dict[str, tuple[int, int]] = {}
    used = 0
    for key, does in keys:
        long = len(key) + len(does) + 3
        if used + long <= width:
            pairs[key] = (used, used + long)
            used += long
    return pairs


def clicked(top: TopApp, keys: Sequence[tuple[str, str]], x: int, width: int) -> None:
    """Press the key of the last row that was clicked, where it is one key."""
    if top.notice:
        return
    dict_items = spans(keys, width).items()
    key = next((name for name, (begin, end) in dict_items if begin <= x < end), "")
    if len(key) == 1 or key in _NAMED:
        top.simulate_key(_NAMED.get(key, key))


_NAMED: Final = {
    "?": "question_mark", "Enter": "enter", "/": "slash", "Tab": "tab", "Esc": "escape",
}  # fmt: skip


def clock() -> float:
    """Return the time of day; tests put their own in its place."""
    return time.time()
