"""Three ways to show the demo: plain lines, a live table, NDJSON."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuwatchd.cli import demo_score, envelope, output
from gpuwatchd.core import units
from gpuwatchd.pipeline import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.output import Out
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.live import LiveState

_KINDS = {
    "watch": "yellow",
    "alert": "red-bold",
    "escalated": "red-bold",
    "recovered": "green",
    "cleared": "green",
    "crashed": "red",
    "pop-up": "cyan",
}
_LEAST_ROOM = 30
_WIDE = 100
"""Columns from which the final table shows the interval too."""


class Event:
    """One thing worth a line.

    Parameters
    ----------
    kind
        One of watch, alert, escalated, cleared, recovered, crashed, pop-up.
    world_s
        World seconds since the demo began.
    words
        One sentence.
    alert
        The alert that it is about, if any.
    """

    def __init__(self, kind: str, world_s: float, words: str, alert: Alert | None = None) -> None:
        self.kind = kind
        self.world_s = world_s
        self.words = words
        self.alert = alert

    def parts(self) -> tuple[output.Part, ...]:
        """Return the line, in pieces with their styles."""
        label = self.kind.upper() if self.kind == "alert" else self.kind
        return (
            f"+{units.duration(self.world_s):<8} ",
            (f"{label:<10}", _KINDS[self.kind]),
            self.words,
        )


def event_of(alert: Alert, world_s: float) -> Event:
    """Return the event of an alert whose state has just changed."""
    finding = alert.finding
    if alert.state == "resolved":
        words = f"{alert.title} no longer grows: {alert.ended or 'it is over'}"
        # What was only watched was never told to anybody: nothing to recover from.
        return Event("recovered" if alert.firing_at_s else "cleared", world_s, words, alert)
    words = (
        f"{alert.title} {messages.growth_line(finding)}. Full in {messages.eta_words(finding.eta)}."
    )
    if alert.state == "watch":
        return Event("watch", world_s, words, alert)
    fresh = alert.firing_at_s == alert.changed_at_s
    return Event("alert" if fresh else "escalated", world_s, words, alert)


class Show(Protocol):
    """Whoever presents the demo."""

    def begin(self, title: str, note: str) -> None:
        """Say what is about to happen."""

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:
        """Take one tick."""

    def end(self, rows: Sequence[demo_score.Row], *, simulated_s: float) -> None:
        """Say what was found against what was planted."""

    def close(self) -> None:
        """Leave the terminal as it was. May be called twice."""


class Lines:
    """One line per event; for pipes, logs and terminals without colour."""

    def __init__(self, out: Out, *, quiet: bool = False) -> None:
        self.out = out
        self._quiet = quiet

    def begin(self, title: str, note: str) -> None:
        """Write the heading."""
        if self._quiet:
            return
        self.out.line(("gpuwatchd demo", "bold"), f": {title}. All simulated.")
        if note:
            self.out.line(note)
        self.out.flush()

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:  # noqa: ARG002
        """Write the events of this tick."""
        if self._quiet:
            return
        for event in events:
            self._write(event)
        if events:
            self.out.flush()

    def _write(self, event: Event) -> None:
        for line in self.lines_of(event):
            self.out.line(*line)

    def lines_of(self, event: Event) -> list[list[output.Part]]:
        """Return one event; on a terminal it wraps between words, under its own beginning."""
        *head, last = event.parts()
        words = str(last)
        margin = sum(len(part if isinstance(part, str) else part[0]) for part in head)
        room = self.out.width - margin
        if not self.out.terminal or room < _LEAST_ROOM or not words:
            return [[*head, words]]
        first, *rest = textwrap.wrap(words, room)
        lines: list[list[output.Part]] = [[*head, first]]
        lines += [[" " * margin + line] for line in rest]
        return lines

    def end(self, rows: Sequence[demo_score.Row], *, simulated_s: float) -> None:
        """Write the final table and the next command."""
        self.out.line()
        wide = not self.out.terminal or self.out.width >= _WIDE
        self._table_of([demo_score.HEADERS, *(demo_score.cells(row, wide=wide) for row in rows)])
        good = all(row.right for row in rows)
        words = demo_score.verdict_line(rows, simulated_s=simulated_s)
        self.out.line()
        self.out.line((f"{words}.", "green" if good else "red-bold"))
        if self._quiet:
            self.out.flush()
            return
        self.out.line(f"Next: {_program()} doctor    what works on this machine")
        self.out.line("Then: the README says how to install it and watch your own GPUs")
        self.out.flush()

    def _table_of(self, rows: Sequence[Sequence[str]]) -> None:
        """Write aligned columns, the first row as heading; a false verdict stands out."""
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        gap = "  " if sum(widths) + 2 * len(widths) - 2 <= self.out.width else " "
        for number, row in enumerate(rows):
            line = gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            style = "bold" if number == 0 else "red-bold" if row[-1] == demo_score.WRONG else ""
            self.out.line((line.rstrip(), style))

    def close(self) -> None:
        """Nothing to restore."""


class Json:
    """One object per line, flushed: the same events for programs."""

    def begin(self, title: str, note: str) -> None:
        """Write the first object."""
        self._write({"event": "started", "world_s": 0.0, "title": title, "note": note})

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:  # noqa: ARG002
        """Write the events of this tick."""
        devices = {item.device.uid: item.device for item in state.devices}
        for event in events:
            data: dict[str, Any] = {
                "event": event.kind,
                "world_s": event.world_s,
                "at": units.instant(state.taken_at_s),
                "text": event.words,
            }
            if event.alert is not None:
                subject = event.alert.subject
                device, process = devices.get(subject.device_uid), subject.process
                data |= {
                    "key": event.alert.key,
                    "device": None if device is None else envelope.device_json(device),
                    "pid": None if process is None else process.pid,
                    "started_at": None if process is None else units.instant(process.started_at_s),
                    "verdict": envelope.verdict_json(event.alert.finding),
                }
            self._write(data)

    def end(self, rows: Sequence[demo_score.Row], *, simulated_s: float) -> None:
        """Write the last object."""
        self._write(
            {
                "event": "summary",
                "world_s": simulated_s,
                "text": demo_score.verdict_line(rows, simulated_s=simulated_s),
                "rows": [demo_score.row_json(row) for row in rows],
            }
        )

    def close(self) -> None:
        """Nothing to restore."""

    @staticmethod
    def _write(data: dict[str, Any]) -> None:
        output.emit_json(envelope.answer("demo", data, source="simulate"))


def _program() -> str:
    """Return how to call this program again: by name where that finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "gpuwatchctl" or shutil.which("gpuwatchctl"):
        return "gpuwatchctl"
    with contextlib.suppress(ValueError):
        called = called.resolve().relative_to(Path.cwd())
    return str(called)
