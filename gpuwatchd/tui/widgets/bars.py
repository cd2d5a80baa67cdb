"""Bars and sparklines, with and without Unicode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.core import units
from gpuwatchd.tui.polling import FAILED
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import current_state, state_location
from gpuwatchd.view.text import delivery_text, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row
    from gpuwatchd.view.queries.current_view import View


def figured(
    share: float | None, cells: int, value: str, parts: str, *, ascii_only: bool, flat: bool
) -> Row:
    """Return a bar of the used share with the figures written on it.

    Parameters
    ----------
    value
        The figures; where they are too long, what fits of them.
    parts
        Colour of the full part.
    ascii_only
        Signs behind the figures show how full it is, where nothing can be reversed.
    flat
        The terminal has few colours: the full part is reversed, and in brackets.

    Examples
    --------
    >>> figured(0.5, 12, "12/16", "calm", ascii_only=True, flat=True)
    [('[', 'faint'), ('12/16', 'calm reverse'), ('-----', ''), (']', 'faint')]
    >>> figured(0.7, 10, "12/16", "calm", ascii_only=False, flat=False)
    [('12/16  ', 'calm filled'), ('   ', 'empty')]
    """
    inner = cells - 2 if flat else cells
    if inner < 1:
        return []
    value = value[:inner]
    full = 0 if share is None else min(inner, max(0, round(share * inner)))
    if ascii_only:
        value += "#" * max(0, full - len(value))
    text = value.ljust(inner, "-" if ascii_only and share is not None else " ")
    if flat:
        return [
            ("[", "faint"), (text[:full], f"{parts} reverse"), (text[full:], ""), ("]", "faint")
        ]  # fmt: skip
    return [(text[:full], f"{parts} filled"), (text[full:], "empty")]


def spark(
    values: Sequence[int | None], total: float | None, points: int, *, ascii_only: bool
) -> str:
    """Return the values as a sparkline of ``points`` columns; the newest one is the last.

    Examples
    --------
    >>> spark([0, 50, None, 100], 100, 5, ascii_only=True)
    ' _= #'
    """
    if points < 1:
        return ""
    every = max(1, -(-len(values) // points))
    shown: list[float | None] = list(values[::-1][::every][::-1])
    known = [value for value in shown if value is not None]
    if len(known) < 2:
        return " " * points
    low, high = status.spark_scale(known, total)
    return units.spark(shown, low=low, high=high, ascii_only=ascii_only).rjust(points)


# Above and below the processes: how the daemon is, what is open, idle memory.


def daemon_rows(painter: Painter, view: View, width: int, most: int) -> list[Row]:
    """Return how the daemon is: a row on it, or a row for each thing that is wrong with it."""
    rows: list[Row] = []
    for code, sentence in view.warnings:
        age = status.age(view, code, now_s=view.taken_at_s + view.stale_s)
        quiet = code == state_location.NOTE[0]
        text = f"{'' if quiet else '! '}{sentence}{age}"
        loud = "critical" if code.startswith(("daemon", FAILED)) else "leak"
        rows.append([(painter.fit(f" {text}", width), "faint" if quiet else loud)])
    if not rows:
        rows.append([(painter.fit(f" {_summary(view)}", width), "faint")])
    return rows[:most]


def _summary(view: View) -> str:
    daemon = view.daemon
    other = daemon.version is not None and daemon.version != __version__
    who = f"gpuwatchd {daemon.version}, which is not this version" if other else "gpuwatchd"
    up = ""
    if daemon.started_at_s is not None and view.taken_at_s >= daemon.started_at_s:
        up = f", up {units.duration(view.taken_at_s - daemon.started_at_s)}"
    count = sum(len(item.processes or ()) for item in view.devices)
    many = f"{units.count(len(view.devices), 'GPU')}, {units.count(count, 'process')}"
    return f"{who}{up}; {many}; last sample {units.duration(view.stale_s)} ago"


def alerts(painter: Painter, view: View, width: int, most: int) -> list[Row]:
    """Return what is open and what somebody should know, worst first, at most ``most`` rows."""
    if most < 1:
        return []
    lines: list[Row] = [
        painter.cut([" ", *status.alert_line(alert, view)], width, gap="  ")
        for alert in current_state.shown(view.alerts)
    ]
    lines += _others(painter, view, width)
    if not lines:
        return [[(painter.cell(" no open alerts", width), "head faint")]]
    if most == 1:
        return [*lines[:1]]
    return [_head(painter, view, width, len(lines) - most + 1), *lines[: most - 1]]


def _head(painter: Painter, view: View, width: int, hidden: int) -> Row:
    counted = current_state.counted(current_state.shown(view.alerts))
    text = f" {counted} open" if counted else " no open alerts"
    if view.silences:
        text += f", {units.count(len(view.silences), 'silence')}"
    more = f" ({hidden} more below: a)" if hidden > 0 else ""
    return [(painter.cell(text + more, width), "head faint")]


def _others(painter: Painter, view: View, width: int) -> list[Row]:
    sheet = Page(10_000, ascii_only=painter.ascii, terminal=True)
    delivery_text.write_deaths(sheet, view)
    delivery_text.write_undelivered(sheet, view)
    status.holdings(sheet, view)
    for problem in view.daemon.problems:
        sheet.flow([("problem: " + problem, "yellow")])
    return [painter.cut([" ", *row], width) for row in sheet.rows()]
