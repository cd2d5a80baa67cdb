"""The processes of the first screen: who they are, in which order, and which of them are shown."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.text import badges, subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row
    from gpuwatchd.view.queries.current_view import View

Who = tuple[str, "ProcessKey"]
"""Uid of the device, and the process: one that is on two devices has two rows."""


class Entry(NamedTuple):
    """One process on one device."""

    item: LiveDevice
    process: LiveProcess

    @property
    def who(self) -> Who:
        """What it is known by."""
        return self.item.device.uid, self.process.info.key


_entry = partial(tuple.__new__, Entry)
"""Without a call of Python for each of hundreds."""
Cell = tuple[str, str]
"""A text and its style."""


def _left_s(entry: Entry) -> float:
    finding = entry.process.finding
    if finding is None or finding.eta is None or not is_leak(finding):
        return float("inf")
    return finding.eta.mid_s


def _card(entry: Entry) -> tuple[int, int, str]:
    device = entry.item.device
    card = device.index if device.parent_index is None else device.parent_index
    return -1 if card is None else card, -1 if device.index is None else device.index, device.uid


def _kind(entry: Entry) -> Kind:
    return badges.process(entry.process).kind


def _number(item: LiveDevice) -> str:
    return (item.device.number or item.device.label)[:8]


def _growth(entry: Entry, _: float) -> Cell:
    finding = entry.process.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        host = entry.process.host_finding
        return ("host memory", "yellow") if host is not None and is_leak(host) else ("", "faint")
    if verdict_text.stopped(finding):
        return "stopped", "faint"
    return verdict_text.growth(finding.rate_bytes_per_s), _kind(entry) if is_leak(finding) else ""


def _verdict(entry: Entry, _: float) -> Cell:
    badge = badges.process(entry.process)
    return badge.word, f"{badge.kind} badge" if badge.kind in {"critical", "leak"} else badge.kind


def _full_in(entry: Entry, _: float) -> Cell:
    left_s = _left_s(entry)
    return "" if left_s == float("inf") else units.duration(left_s), ""


def age(entry: Entry, now_s: float) -> Cell:
    """Return for how long it has run."""
    started_at_s = entry.process.info.key.started_at_s
    if started_at_s is None:
        return "?", "faint"
    return units.duration(max(0.0, now_s - started_at_s)), ""


def _sm(entry: Entry, _: float) -> Cell:
    share = entry.process.sm_pct
    return ("?", "faint") if share is None else (f"{share:.0f} %", "")


class Column(NamedTuple):
    """One column."""

    name: str
    wide: int
    side: Literal["<", ">"]
    from_width: int
    """It is left out of a narrower screen."""
    by: Callable[[Entry], Any]
    """What it sorts by, the most striking first."""
    cell: Callable[[Entry, float], Cell]
    """Given what time it is."""
    rare: Callable[[LiveProcess], object] | None = None
    """What not every machine, or log, knows: the column is left out where nobody has it."""


_COLUMNS = (
    Column("GPU", 3, "<", 0, _card, lambda entry, _: (_number(entry.item), "faint")),
    Column("PID", 8, ">", 52, lambda entry: entry.process.info.key.pid,
           lambda entry, _: (str(entry.process.info.key.pid), "")),
    Column("USER", 9, "<", 62,
           lambda entry: (entry.process.info.user is None, (entry.process.info.user or "").lower()),
           lambda entry, _: (entry.process.info.user or "?", "faint")),
    Column("MEMORY", 9, ">", 0, lambda entry: -(entry.process.used_bytes or -1),
           lambda entry, _: (units.size(entry.process.used_bytes), "")),
    Column("GROWTH", 13, ">", 0, lambda entry: -subject_facts.leak_rate(entry.process), _growth),
    Column("VERDICT", badges.WORD_CELLS, "<", 72,
           lambda entry: badges.WORST_FIRST.index(_kind(entry)), _verdict),
    Column("FULL IN", 11, ">", 96, _left_s, _full_in),
    Column("SM", 5, ">", 101,
           lambda entry: -(-1.0 if entry.process.sm_pct is None else entry.process.sm_pct), _sm,
           lambda process: process.sm_pct),
    Column("HOST MEM", 9, ">", 120, lambda entry: -(entry.process.host_bytes or -1),
           lambda entry, _: (units.size(entry.process.host_bytes), "faint"),
           lambda process: process.host_bytes),
    Column("TIME", 11, ">", 112,
           lambda entry: entry.process.info.key.started_at_s or float("inf"), age,
           lambda process: process.info.key.started_at_s),
    Column("NAME", 0, "<", 0, lambda entry: entry.process.info.label.lower(),
           lambda entry, _: (entry.process.info.label, "")),
)  # fmt: skip
NATURAL: Final = "GROWTH"


def entries(view: View, device_uid: str | None = None) -> list[Entry]:
    """Return every process of a view, or of one device."""
    return [
        entry
        for item in view.devices
        if device_uid is None or item.device.uid == device_uid
        for entry in map(_entry, zip(repeat(item), item.processes or ()))
    ]


def ordered(found: Iterable[Entry], by: str, *, turned: bool) -> list[Entry]:
    """Return them sorted: what is equal by growth, then memory, then pid."""
    rows = sorted(found, key=lambda entry: subject_facts.place(*entry))
    if turned or by != NATURAL:
        rows.sort(key=next(column.by for column in _COLUMNS if column.name == by), reverse=turned)
    return rows


def matching(found: Sequence[Entry], wish: str) -> list[Entry]:
    """Return those that every word of a filter is found in."""
    return [
        entry
        for entry in found
        if subject_facts.matches(*entry, wish, badge=badges.process(entry.process).word)
    ]


_NAME_MIN = 8
_NAME_WHOLE = 24
"""Columns of a name from which on there is room for the interpreter, too."""
_SIGNS = 3
"""Columns before the first: the cursor, the mark of the verdict, a blank."""


def columns(view: View, width: int) -> tuple[Column, ...]:
    """Return the columns that a width has room for; the last one takes the rest."""
    processes = [process for item in view.devices for process in item.processes or ()]
    gpu, *others, name = _COLUMNS
    gpu = gpu._replace(wide=max([3, *(len(_number(item)) for item in view.devices)]))
    shown = [
        column
        for column in (gpu, *others)
        if width >= column.from_width
        and (column.rare is None or any(column.rare(p) is not None for p in processes))
    ]
    used = _SIGNS + sum(column.wide + 1 for column in shown)
    return (*shown, name._replace(wide=max(_NAME_MIN, width - used - 1)))


def heads(painter: Painter, shown: Sequence[Column], by: str, *, turned: bool) -> Row:
    """Return the names of the columns, the sorted one marked."""
    row: Row = [("   ", "head")]
    arrow = ("^" if turned else "v") if painter.ascii else ("▲" if turned else "▼")
    for column in shown:
        text, style = column.name, "head faint"
        if column.name == by:
            text, style = f"{text[: column.wide - 1]}{arrow}", "head bold underline"
        row += [(painter.cell(text, column.wide, right=column.side == ">"), style), (" ", "head")]
    return row


def column_at(shown: Sequence[Column], x: int) -> str | None:
    """Return the column whose head was clicked."""
    at = _SIGNS
    for column in shown:
        if at <= x < at + column.wide + 1:
            return column.name
        at += column.wide + 1
    return None


def row(
    painter: Painter, shown: Sequence[Column], entry: Entry, *, chosen: bool, now_s: float
) -> Row:
    """Return the row of one process."""
    badge = badges.process(entry.process)
    here = "chosen" if chosen else ""
    sign = ">" if chosen and not painter.rich else " "
    cells: Row = [(sign, here), (f"{painter.mark(badge.kind)} ", f"{badge.kind} {here}")]
    *others, name = shown
    for column in others:
        text, style = column.cell(entry, now_s)
        text = painter.cell(text, column.wide, right=column.side == ">")
        cells += [(text, f"{style} {here}"), (" ", here)]
    return [*cells, *_name(painter, entry, name.wide, here), (" ", here)]


def _name(painter: Painter, entry: Entry, width: int, here: str) -> Row:
    """Return who it is without pid and user, what it runs, and for whom."""
    info = entry.process.info
    whole = verdict_text.who(info)
    plain = verdict_text.is_named(info)
    ended = " (defunct)" if plain and verdict_text.is_defunct(info) else ""
    script = info.entry_point[1]  # alone, without its interpreter, where there is little room
    called = info.label if width >= _NAME_WHOLE or not script else script
    first = painter.fit(f"{called}{ended}" if plain else whole, width)
    cells: Row = [(first, f"bold {here}" if is_leak(entry.process.finding) else here)]
    room = width - width_of(first)
    more = [subject_facts.runs(info), *subject_facts.where(info)]
    if len(info.argv) > 1 and not info.foreign:
        more.append(" ".join(info.argv[1:]))
    for what in more:
        if what and room > 4:
            value = painter.fit(what, room - 2)
            cells += [("  ", here), (value, f"faint {here}")]
            room -= width_of(value) + 2
    cells.append((" " * max(0, room), here))
    return cells
