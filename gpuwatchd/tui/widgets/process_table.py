"""The processes of the first screen: who they are, in which order, and which of them are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.tui.widgets.gpus import badge_cell
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.text import badges, process_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row
    from gpuwatchd.view.queries.current_state import View

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


def _left_s(entry: Entry) -> float:
    finding = entry.process.finding
    if finding is None or finding.eta is None or not is_leak(finding):
        return float("inf")
    return finding.eta.mid_s


def _gpu(entry: Entry) -> tuple[int, int, str]:
    device = entry.item.device
    card = device.index if device.parent_index is None else device.parent_index
    return (
        -1 if card is None else card, -1 if device.index is None else device.index, device.uid,
    )  # fmt: skip


def _age_s(entry: Entry) -> float:
    started_at_s = entry.process.info.key.started_at_s
    return float("inf") if started_at_s is None else started_at_s


_KINDS = ("critical", "leak", "trouble", "watch", "held", "unknown", "calm")
SORTS: Final[dict[str, Callable[[Entry], object]]] = {
    "gpu": _gpu,
    "pid": lambda entry: entry.process.info.key.pid,
    "user": lambda entry: (
        entry.process.info.user is None,
        (entry.process.info.user or "").lower(),
    ),
    "memory": lambda entry: -(entry.process.used_bytes or -1),
    "growth": lambda entry: -process_facts.leak_rate(entry.process),
    "verdict": lambda entry: _KINDS.index(badges.process(entry.process).kind),
    "full in": _left_s,
    "sm": lambda entry: -(-1.0 if entry.process.sm_pct is None else entry.process.sm_pct),
    "host": lambda entry: -(entry.process.host_bytes or -1),
    "time": _age_s,
    "name": lambda entry: entry.process.info.label.lower(),
}
"""Name of a column -> what it sorts by, the most striking first."""
NATURAL: Final = "growth"


def entries(view: View, device_uid: str | None = None) -> list[Entry]:
    """Return every process of a view, or of one device."""
    return [
        Entry(item, process)
        for item in view.devices
        if device_uid is None or item.device.uid == device_uid
        for process in item.processes or ()
    ]


def ordered(found: Iterable[Entry], by: str, *, turned: bool) -> list[Entry]:
    """Return them sorted: what is equal by growth, then memory, then pid."""
    rows = sorted(found, key=lambda entry: process_facts.place(*entry))
    rows.sort(key=SORTS[by], reverse=turned)  # type: ignore[arg-type]
    return rows


def matching(found: Sequence[Entry], wish: str) -> list[Entry]:
    """Return those that every word of a filter is found in."""
    return [
        entry
        for entry in found
        if process_facts.matches(*entry, wish, badge=badges.process(entry.process).word)
    ]


class Column(NamedTuple):
    """One column."""

    name: str
    wide: int
    side: Literal["<", ">"]
    from_width: int
    """It is left out of a narrower screen."""


_COLUMNS = (
    Column("gpu", 3, "<", 0), Column("pid", 8, ">", 52), Column("user", 9, "<", 62),
    Column("memory", 9, ">", 0), Column("growth", 13, ">", 0),
    Column("verdict", badges.WORD_CELLS, "<", 72), Column("full in", 11, ">", 96),
    Column("sm", 5, ">", 101), Column("host", 9, ">", 120), Column("time", 11, ">", 112),
)  # fmt: skip
_NAME_MIN = 8
_NAME_WHOLE = 24
"""Columns of a name from which on there is room for the interpreter, too."""
_SIGNS = 3
"""Columns before the first: the cursor, the mark of the verdict, a blank."""
_HEADS = {"pid": "PID", "gpu": "GPU", "sm": "SM", "host": "HOST MEM", "time": "TIME"}


def columns(view: View, width: int) -> tuple[Column, ...]:
    """Return the columns that a width has room for; the last one takes the rest.

    One in which nothing is known of anybody is left out.
    """
    gpu = max((len(_short(item)) for item in view.devices), default=3)
    found = [
        column._replace(wide=max(3, gpu)) if column.name == "gpu" else column
        for column in _COLUMNS
        if width >= column.from_width
        and (column.name not in _RARE or _any_known(view, _RARE[column.name]))
    ]
    used = _SIGNS + sum(column.wide + 1 for column in found)
    return (*found, Column("name", max(_NAME_MIN, width - used - 1), "<", 0))


_RARE: Final[dict[str, Callable[[LiveProcess], object]]] = {
    "sm": lambda process: process.sm_pct,
    "host": lambda process: process.host_bytes,
    "time": lambda process: process.info.key.started_at_s,
}
"""What not every machine, or log, tells."""


def _any_known(view: View, what: Callable[[LiveProcess], object]) -> bool:
    return any(
        what(process) is not None for item in view.devices for process in item.processes or ()
    )


def heads(painter: Painter, shown: Sequence[Column], by: str, *, turned: bool) -> Row:
    """Return the names of the columns, the sorted one marked."""
    row: Row = [("   ", "head")]
    arrow = ("^" if turned else "v") if painter.ascii else ("▲" if turned else "▼")
    for column in shown:
        text = _HEADS.get(column.name, column.name.upper())
        if column.name == by:
            text = f"{text[: column.wide - 1]}{arrow}"
        parts = "head bold underline" if column.name == by else "head faint"
        row += [(painter.cell(text, column.wide, right=column.side == ">"), parts), (" ", "head")]
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
    for column in shown:
        if column.name == "verdict":
            if badge.kind in {"critical", "leak"}:
                # The mark stands at the beginning of the row.
                style = badge_cell(painter, badge, column.wide)[0][1]
                cells.append((painter.cell(badge.word, column.wide), style))
            else:
                cells.append((painter.cell(badge.word, column.wide), f"{badge.kind} {here}"))
        elif column.name == "name":
            cells += _name(painter, entry, column.wide, here)
        else:
            text, parts = _TEXTS[column.name](entry, now_s)
            text = painter.cell(text, column.wide, right=column.side == ">")
            cells.append((text, f"{parts} {here}"))
        cells.append((" ", here))
    return cells


def _short(item: LiveDevice) -> str:
    return (item.device.number or item.device.label)[:8]


def _grown(entry: Entry, _: float) -> tuple[str, str]:
    finding = entry.process.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        host = entry.process.host_finding
        if host is not None and is_leak(host):
            return "host memory", "yellow"
        return "", "faint"
    if verdict_text.stopped(finding):
        return "stopped", "faint"
    loud = badges.process(entry.process).kind
    return verdict_text.growth(finding.rate_bytes_per_s), loud if is_leak(finding) else ""


def _full(entry: Entry, _: float) -> tuple[str, str]:
    left_s = _left_s(entry)
    return ("", "") if left_s == float("inf") else (units.duration(left_s), "")


def _time(entry: Entry, now_s: float) -> tuple[str, str]:
    started_at_s = entry.process.info.key.started_at_s
    if started_at_s is None:
        return "?", "faint"
    return units.duration(max(0.0, now_s - started_at_s)), ""


def _sm(entry: Entry, _: float) -> tuple[str, str]:
    share = entry.process.sm_pct
    return ("?", "faint") if share is None else (f"{share:.0f} %", "")


_TEXTS: Final[dict[str, Callable[[Entry, float], tuple[str, str]]]] = {
    "gpu": lambda entry, _: (_short(entry.item), "faint"),
    "pid": lambda entry, _: (str(entry.process.info.key.pid), ""),
    "user": lambda entry, _: (entry.process.info.user or "?", "faint"),
    "memory": lambda entry, _: (units.size(entry.process.used_bytes), ""),
    "growth": _grown,
    "full in": _full,
    "sm": _sm,
    "host": lambda entry, _: (units.size(entry.process.host_bytes), "faint"),
    "time": _time,
}


def _called(info: ProcessInfo, width: int) -> str:
    """Return its name; where there is little room the script alone, without its interpreter."""
    _, script = info.entry_point
    return info.label if width >= _NAME_WHOLE or not script else script


def _name(painter: Painter, entry: Entry, width: int, here: str) -> Row:
    """Return who it is without pid and user, what it runs, and for whom."""
    info = entry.process.info
    whole = verdict_text.who(info)
    plain = verdict_text.is_named(info)
    ended = " (defunct)" if plain and verdict_text.is_defunct(info) else ""
    text = f"{_called(info, width)}{ended}" if plain else whole
    first = painter.fit(text, width)
    cells: Row = [(first, f"bold {here}" if is_leak(entry.process.finding) else here)]
    room = width - width_of(first)
    more = [process_facts.runs(info), *process_facts.where(info)]
    if len(info.argv) > 1 and not info.foreign:
        more.append(" ".join(info.argv[1:]))
    for what in more:
        if what and room > 4:
            value = painter.fit(what, room - 2)
            cells += [("  ", here), (value, f"faint {here}")]
            room -= width_of(value) + 2
    cells.append((" " * max(0, room), here))
    return cells
