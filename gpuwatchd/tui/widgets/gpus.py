"""The GPUs of the first screen, one row each, two where there is room; bars, daemon and alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd import __version__
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.tui.polling import FAILED
from gpuwatchd.view.blocks import Page, width_of
from gpuwatchd.view.queries import current_state, state_location
from gpuwatchd.view.text import badges, delivery_text, status, subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Part, Row
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.text.badges import Badge

BADGE: Final = badges.WORD_CELLS + 2
"""Columns of a badge: mark, blank, word."""
_ETA_SHORT, _ETA_BAND, _ETA_LONG, _RATE, _LOAD, _HEAT = 7, 22, 37, 13, 5, 11
_BAR_MIN, _BAR_MOST, _SPARK_MOST, _SUSPECT = 14, 32, 32, 24
_NARROW, _BAR_NARROW = 60, 12


class Plan(NamedTuple):
    """What there is room for, in columns; 0 is left out."""

    label: int
    bar: int
    eta: int
    load: int
    heat: int
    rate: int
    spark: int
    rest: int
    """For the suspect, and the name."""


def plan(view: View, width: int) -> Plan:
    """Return what fits into a row of ``width`` columns, the most needed first."""
    label = max((width_of(item.device.label) for item in view.devices), default=5)
    least = _BAR_NARROW if width < _NARROW else _BAR_MIN
    room = width - 1 - label - 1 - BADGE - 1 - least
    given: list[int] = []
    # "2 h 19 min (2 h 5 min to 2 h 34 min)" is worth its columns where nothing else is lost by it.
    band = _ETA_LONG if room >= _ETA_LONG + _LOAD + _HEAT + _RATE + 4 else _ETA_BAND
    for wish, instead in ((band, _ETA_SHORT), (_LOAD, 0), (_HEAT, 0), (_RATE, 0)):
        taken = next((w for w in (wish, instead) if w and w + 1 <= room), 0)
        room -= taken + 1 if taken else 0
        given.append(taken)
    spark = 0
    if room >= 9 and width >= _NARROW:
        spark = min(_SPARK_MOST, room - 1, 8 + max(0, room - 9 - _SUSPECT) // 2)
        room -= spark + 1
    more = min(room, _BAR_MOST - least) if room < _SUSPECT + 1 else min(room // 4, 12)
    rest = max(0, room - more - 1)
    if rest < _SUSPECT:
        more, rest = min(room, _BAR_MOST - least), 0
    eta, load, heat, rate = given
    return Plan(label, least + more, eta, load, heat, rate, spark, rest)


def head(painter: Painter, columns: Plan, view: View, shown: int) -> Row:
    """Return the names of the columns, and how many of the devices are shown."""
    count = len(view.devices)
    memory = f"MEMORY {shown} of {count}" if shown < count else "MEMORY"
    named = [
        ("GPU", columns.label, False), ("VERDICT", BADGE, False), (memory, columns.bar, False),
        ("FULL IN" if columns.eta < _ETA_BAND else "FULL IN (90 %)", columns.eta, False),
        ("UTIL", columns.load, True), ("TEMP POWER", columns.heat, True),
        ("GROWTH", columns.rate, True), ("RECENT", columns.spark, False),
        (f"SUSPECT, NAME ({units.count(count, 'GPU')})", columns.rest, False),
    ]  # fmt: skip
    text = " ".join(painter.cell(name, wide, right=right) for name, wide, right in named if wide)
    return [(f" {text}", "head faint")]


def row(painter: Painter, columns: Plan, item: LiveDevice, *, chosen: bool) -> Row:
    """Return the row of one device."""
    badge, reading, finding = badges.device(item), item.reading, item.finding
    here = "chosen" if chosen else ""
    mark = ">" if chosen and not painter.rich else " "
    leaks = finding is not None and is_leak(finding)
    label = painter.cell(item.device.label, columns.label)
    cells: Row = [(mark, here), (label, f"bold {here}"), (" ", here)]
    word = painter.cell(f"{painter.mark(badge.kind)} {badge.word}", BADGE)
    loud = badge.kind in {"critical", "leak", "trouble"}
    cells += [(word, f"{badge.kind} badge" if loud else f"{badge.kind} {here}"), (" ", here)]
    cells += _memory(painter, item, columns.bar, badge)
    util, temp, power = None, None, None
    if reading is not None:
        util, temp, power = reading.util_pct, reading.temp_c, reading.power_w
    load = "?" if util is None else f"{util:.0f} %"
    degrees = "C" if painter.ascii else "°C"
    warm = "?" if temp is None else f"{temp:.0f}{degrees}"
    watt = "?" if power is None else f"{power:.0f}W"
    recent, total = item.recent_bytes, item.total_bytes
    curve = spark(recent, total, columns.spark, ascii_only=painter.ascii)
    for text, wide, right, style in (
        (_eta(item, columns.eta), columns.eta, False, badge.kind if leaks else ""),
        (load, columns.load, True, ""),
        (f"{warm:>5} {watt:>5}", columns.heat, True, ""),
        (_rate(item), columns.rate, True, ""),
        (curve, columns.spark, False, "curve"),
        (", ".join(filter(None, (_suspect(item), item.device.name))), columns.rest, False, "faint"),
    ):
        if wide:
            cells += [(" ", here), (painter.cell(text, wide, right=right), f"{style} {here}")]
    return cells


def second(painter: Painter, view: View, item: LiveDevice, width: int) -> Row:
    """Return the second row: what is wrong with it, its name, and whose growth it is."""
    now_s, finding = view.taken_at_s, item.finding
    state = subject_facts.state(item, now_s=now_s, released_until_s=view.released_until_s)
    parts: list[Part] = ["   "]
    if not state:
        badge = badges.device(item)
        leaks = finding is not None and is_leak(finding)
        parts += [_suspect(item), (badge.rest, badge.kind if leaks else "faint")]
    parts += [(item.device.name, "faint"), *state]
    parts += subject_facts.broken(item, now_s=now_s)
    parts.append((subject_facts.memory_note(item.device), "faint"))
    parts.append((subject_facts.processes(item), "yellow"))
    parts.append((subject_facts.unowned(item), "yellow"))
    parts.append((subject_facts.others(view, item), "dim"))
    return painter.cut(parts, width - 1, gap="  ")


def _memory(painter: Painter, item: LiveDevice, width: int, badge: Badge) -> Row:
    """Return the bar, with the figures on it as htop has them."""
    used, total = item.used_bytes, item.total_bytes
    share = used / total if used is not None and total else None
    text = f"{status.amount(used)}/{units.size(total)}"
    if width_of(text) > width - 2 * (not painter.rich):
        text = f"{status.amount(used)}/{status.amount(total)}"
    if width >= 20 and share is not None:
        text += f" {units.percent(share)}"
    kind = badge.kind if badge.kind != "unknown" else "curve"
    return figured(share, width, text, kind, ascii_only=painter.ascii, flat=not painter.rich)


def _eta(item: LiveDevice, width: int) -> str:
    finding = item.finding
    if finding is None or not is_leak(finding):
        return ""
    if verdict_text.stopped(finding):
        return "stopped"
    if finding.eta is None:
        return "?"
    band = verdict_text.eta(finding.eta)
    if width_of(band) <= width:
        return band
    middle = units.duration(finding.eta.mid_s)
    return middle if width_of(middle) <= width else f"{finding.eta.mid_s / 3600:.1f} h"


def _rate(item: LiveDevice) -> str:
    finding = item.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        return ""
    return verdict_text.rate(finding)


def _suspect(item: LiveDevice) -> str:
    finding = item.finding
    by = status.suspect(item, finding) if finding is not None and is_leak(finding) else ""
    return f"by {by}" if by else ""


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
