"""What the demo shows: lines, JSON, or on a terminal a table above the last events; its score."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from gpuwatchd.cli import output
from gpuwatchd.core import units
from gpuwatchd.view.answers import program as answers
from gpuwatchd.view.answers.base import Eta, fill
from gpuwatchd.view.answers.program import Scored
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.live import Live
    from rich.table import Table

    from gpuwatchd.cli.output import Out
    from gpuwatchd.collect.simulate import Planted
    from gpuwatchd.core.model import Alert, Finding, Subject
    from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
    from gpuwatchd.view import blocks
    from gpuwatchd.view.answers.base import Answer

# Three ways to show the demo: plain lines, a live table, NDJSON.

EventKind = Literal["watch", "alert", "escalated", "cleared", "recovered", "crashed", "pop-up",
    "message", "step",
]  # fmt: skip
_KINDS: dict[EventKind, str] = {
    "watch": "yellow",
    "alert": "red-bold",
    "escalated": "red-bold",
    "recovered": "green",
    "cleared": "green",
    "crashed": "red",
    "pop-up": "cyan",
    "message": "cyan",
    "step": "red-bold",
}
_WATCH = "A watch is a suspicion: shown, and sent to nobody. An alert is sent."
_LEAST_ROOM = 30
_WIDE = 100
"""Columns from which the final table shows the interval too."""


class Event(NamedTuple):
    """One thing worth a line."""

    kind: EventKind
    world_s: float
    """World seconds since the demo began."""
    words: str
    """One sentence."""
    alert: Alert | None = None
    """The alert that it is about, if any."""

    def parts(self) -> tuple[blocks.Part, ...]:
        """Return the line, in pieces with their styles."""
        label, style = self.kind.upper() if self.kind == "alert" else self.kind, _KINDS[self.kind]
        if self.alert is not None and self.alert.died:
            label, style = "ended", "red"
        return f"{clock(self.world_s):>8}  ", (f"{label:<10}", style), self.words


def event_of(alert: Alert, world_s: float) -> Event:
    """Return the event of an alert whose state has just changed."""
    finding = alert.finding
    if alert.state == "resolved":
        words = f"{alert.title}: {alert.ended or 'it is resolved'}"
        # What was only watched was never told to anybody: nothing to recover from.
        return Event("recovered" if alert.firing_at_s else "cleared", world_s, words, alert)
    if alert.kind != "leak":
        return Event("alert", world_s, f"{alert.title}: {finding.reason}.", alert)
    pace, eta = finding.shown_rate_bytes_per_s, verdict_text.eta(finding.eta) or ""
    grows = "grows" if pace is None else f"grows {units.rate(pace)}"
    if alert.state == "watch":
        left = eta and f". If it goes on, full in {eta}"
        words = f"{alert.title} {grows} ({finding.pattern}){left}."
        return Event("watch", world_s, words, alert)
    sure = f"{units.strength(finding.confidence)}, {units.percent(finding.confidence)}"
    words = f"{alert.title} {grows} ({finding.pattern}, {sure}){eta and f'. Full in {eta}'}."
    fresh = alert.firing_at_s == alert.changed_at_s
    return Event("alert" if fresh else "escalated", world_s, words, alert)


class Lines:
    """One line per event; for pipes, logs and terminals without colour."""

    def __init__(self, out: Out, *, speed: float, quiet: bool = False) -> None:
        self.out = out
        self._speed = speed
        self._quiet = quiet

    def begin(self, title: str, note: str) -> None:
        """Write the heading."""
        if self._quiet:
            return
        self.out.line(("gpuwatchd demo", "bold"), f": {title}. All simulated.")
        for line in self._notes(note):
            self.out.line(line)
        self.out.flush()

    def _notes(self, note: str) -> list[str]:
        """Return what to know before the first event."""
        clock = f"+7 min is simulated time, at {self._speed:g} times real time."
        return [clock, _WATCH, *([note] if note else [])]

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:  # noqa: ARG002
        """Write the events of this tick."""
        if events and not self._quiet:
            self._write(events)
            self.out.flush()

    def _write(self, events: Sequence[Event]) -> None:
        for event in events:
            for line in self.lines_of(event):
                self.out.line(*line)

    def lines_of(self, event: Event) -> list[list[blocks.Part]]:
        """Return one event; on a terminal it wraps between words, under its own beginning."""
        *head, last = event.parts()
        words = str(last)
        margin = sum(len(part if isinstance(part, str) else part[0]) for part in head)
        room = self.out.width - margin
        if not self.out.terminal or room < _LEAST_ROOM or not words:
            return [[*head, words]]
        first, *rest = textwrap.wrap(words, room)
        lines: list[list[blocks.Part]] = [[*head, first]]
        lines += [[" " * margin + line] for line in rest]
        return lines

    def end(self, rows: Sequence[answers.Scored], *, simulated_s: float) -> None:
        """Write the final table and the next command."""
        self.out.line()
        wide = not self.out.terminal or self.out.width >= _WIDE
        table = [HEADERS, *(score_cells(row, wide=wide) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        gap = "  " if sum(widths) + 2 * len(widths) - 2 <= self.out.width else " "
        for number, cells in enumerate(table):
            line = gap.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            style = "bold" if number == 0 else "red-bold" if cells[-1] == WRONG else ""
            self.out.line((line.rstrip(), style))
        good = all(row.right for row in rows)
        words = verdict_line(rows, simulated_s=simulated_s)
        self.out.line()
        self.out.line((f"{words}.", "green" if good else "red-bold"))
        if self._quiet:
            self.out.flush()
            return
        self.out.line(f"Next: {_program()} doctor    what works on this machine")
        self.out.line("Then: the README says how to install it and watch your own GPUs")
        self.out.flush()

    def close(self) -> None:
        """Leave the terminal as it was, where something was changed; may be called twice."""


class Json:
    """One object per line, flushed: the same events for programs."""

    def begin(self, title: str, note: str) -> None:
        """Write the first object."""
        started = answers.DemoStarted(event="started", world_s=0.0, title=title, note=note)
        _emit(answers.DemoBegins, started)

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:  # noqa: ARG002
        """Write the events of this tick."""
        devices = {item.device.uid: item.device for item in state.devices}
        for event in events:
            alert = event.alert
            data = fill(
                answers.DemoEvent,
                alert or (),
                event=event.kind,
                world_s=event.world_s,
                at=state.taken_at_s,
                text=event.words,
                device=UNSET if alert is None else devices.get(alert.subject.device_uid),
            )
            _emit(answers.DemoGoesOn, data)

    def end(self, rows: Sequence[answers.Scored], *, simulated_s: float) -> None:
        """Write the last object."""
        words = verdict_line(rows, simulated_s=simulated_s)
        summary = answers.DemoSummary(
            event="summary", world_s=simulated_s, text=words, rows=tuple(rows)
        )
        _emit(answers.DemoEnds, summary)

    def close(self) -> None:
        """Nothing to restore."""


def _emit(kind: type[Answer], data: object) -> None:
    output.emit_answer(kind, data, source="simulate")


Show = Lines | Json
"""Whoever presents the demo."""


def _program() -> str:
    """Return how to call this program again: by name where that finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "gpuwatchctl" or shutil.which("gpuwatchctl"):
        return "gpuwatchctl"
    with contextlib.suppress(ValueError):
        called = called.resolve().relative_to(Path.cwd())
    return str(called)


_RICH = {"red-bold": "bold red", "yellow-bold": "bold yellow"}
_FRAME_S = 0.25
_LEAST_EVENTS = 4
"""Lines that are kept for events, however low the window is."""
_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("memory", "right", 8),
    ("growth", "right", 12),
    ("full in", "right", 11),
    ("verdict", "left", 13),
)
"""Columns of fixed width: header, side, width. The first two share what is left."""


class Screen(Lines):
    """A live table above the last events, for terminals."""

    def __init__(self, out: Out, *, length_s: float, speed: float) -> None:
        super().__init__(out, speed=speed)
        self._length_s = length_s
        self._title = ""
        self._note = ""
        self._events: list[Event] = []
        self._trend_width = 9
        self._drawn_s = -1.0
        self._live: Live | None = None

    def begin(self, title: str, note: str) -> None:
        """Take over the lower part of the terminal."""
        from rich.console import Console  # noqa: PLC0415 - 40 ms, only for this screen
        from rich.live import Live  # noqa: PLC0415

        self._title, self._note = title, note
        console = Console(
            color_system="standard",
            highlight=False,
            markup=False,
            emoji=False,
            width=self.out.width,
        )
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:
        """Draw, a few times a second at most."""
        self._events.extend(events)
        now_s = time.monotonic()
        if self._live is None or (now_s - self._drawn_s < _FRAME_S and not events):
            return
        self._drawn_s = now_s
        self._live.update(self._picture(state, world_s), refresh=True)

    def end(self, rows: Sequence[answers.Scored], *, simulated_s: float) -> None:
        """Replace the live table by what remains: heading, events, final table."""
        self.close()
        super().begin(self._title, self._note)
        self._write(self._events)
        super().end(rows, simulated_s=simulated_s)

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self, state: LiveState, world_s: float) -> Any:
        from rich.console import Group  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        ends = f"{clock(world_s)} of {clock(self._length_s)[1:]}, Ctrl-C ends it"
        lines = [self._text(f"gpuwatchd demo: {self._title}", "bold")]
        lines += [self._text(line, "dim") for line in (*self._notes(self._note), ends)]
        height = self._live.console.size.height if self._live is not None else 24
        room = height - len(lines) - _LEAST_EVENTS - 1
        full = 1 + sum(1 + len(item.processes or ()) for item in state.devices)
        table = self._table(state, everybody=full <= room)
        below = [line for event in self._events[-height:] for line in self.lines_of(event)]
        left = max(_LEAST_EVENTS, height - len(lines) - table.row_count - 2)
        texts = (
            Text.assemble(*(self._text(*((p,) if isinstance(p, str) else p)) for p in line))
            for line in below[-left:]
        )
        return Group(*lines, table, *texts)

    def _table(self, state: LiveState, *, everybody: bool) -> Table:
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        spare = self.out.width - sum(width + 1 for *_, width in _COLUMNS) - 2
        self._trend_width = min(32, max(9, spare // 3))
        first = ("GPU / process", "left", min(40, max(12, spare - self._trend_width)))
        trend = ("trend", "left", self._trend_width)
        for header, justify, width in (first, _COLUMNS[0], trend, *_COLUMNS[1:]):
            side: Literal["left", "right"] = "right" if justify == "right" else "left"
            table.add_column(header, justify=side, width=width, no_wrap=True, overflow="ellipsis")
        for item in state.devices:
            table.add_row(*self._device_cells(item))
            for process in item.processes or ():
                # Where the window is too low for all, those that are judged to grow are shown.
                if everybody or (process.finding is not None and process.finding.tier != "none"):
                    table.add_row(*self._process_cells(process))
        return table

    def _device_cells(self, item: LiveDevice) -> list[Any]:
        reading, device = item.reading, item.device
        total = device.memory_total_bytes or 0
        values = _thinned(item.recent_bytes, self._trend_width)
        known = [value for value in values if value is not None]
        # On the scale of the data, so that the shape shows; flat memory stays flat.
        low, high = (min(known), max(known)) if known else (0, 1)
        margin = max(0.02 * (total or 1) - (high - low), 0.0)
        trend = units.spark(values, low=low, high=high + margin, ascii_only=self.out.ascii)
        short = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        name = f"{device.index} {short}, {units.size(total)}"
        cells = [self._text(name, "bold"), "?", trend, "", "", self._text("no answer", "red")]
        if reading is not None and reading.used_bytes is not None:
            cells[1], cells[-1] = units.size(reading.used_bytes), ""
        return cells

    def _process_cells(self, process: LiveProcess) -> list[Any]:
        info, finding = process.info, process.finding
        first = [
            self._text(f"  {info.numbered} {info.user or ''}"),
            units.size(process.used_bytes),
            self._text(info.framework or "", "dim"),
        ]
        if finding is None:
            return [*first, "", "", ""]
        if finding.tier == "none":
            style = "dim" if finding.pattern == "unknown" else "green"
            return [*first, "", "", self._text(finding.pattern, style)]
        alert = finding.tier == "alert"
        words = f"{finding.tier.upper() if alert else finding.tier} {finding.pattern}"
        return [
            *first,
            "" if (pace := finding.shown_rate_bytes_per_s) is None else units.rate(pace),
            "" if finding.eta is None else units.duration(finding.eta.mid_s),
            self._text(words, "red-bold" if alert else "yellow-bold"),
        ]

    def _text(self, words: str, style: str = "") -> Any:
        from rich.text import Text  # noqa: PLC0415

        return Text(self.out.safe(words), style=_RICH.get(style, style))


def _thinned(values: Sequence[int | None], count: int) -> list[float | None]:
    """Return at most ``count`` of the values, evenly spread, the last one included."""
    total = len(values)
    count = min(count, total)
    return [values[total - 1 - (count - 1 - place) * total // count] for place in range(count)]


class _Story(msgspec.Struct, kw_only=True):
    """What happened to one subject's alerts."""

    subject: Subject
    watch_at_s: float | None = None
    firing: Alert | None = None


class DemoScore:
    """Collects judgements while the demo runs.

    Parameters
    ----------
    began_s
        World time at which the demo began, epoch seconds.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._stories: dict[str, _Story] = {}
        self._findings: dict[str, Finding] = {}

    def note(self, findings: Mapping[str, Finding], changes: Iterable[Alert]) -> None:
        """Take what one tick said."""
        self._findings.update(findings)
        for alert in changes:
            if alert.kind != "leak":
                continue  # Nobody planted a program for it: it is not judged by its growth.
            story = self._stories.setdefault(alert.subject.id, _Story(subject=alert.subject))
            if alert.state == "watch" and story.watch_at_s is None:
                story.watch_at_s = alert.watch_at_s
            if alert.state == "firing" and story.firing is None:
                story.firing = alert
                story.watch_at_s = story.watch_at_s or alert.watch_at_s

    def rows(self, truth: Iterable[Planted]) -> list[Scored]:
        """Return one row per planted program, leaks first, and one per alert of nothing planted."""
        programs: dict[str, list[Planted]] = {}
        for planted in truth:
            programs.setdefault(planted.program, []).append(planted)
        rows = [self._row(program, runs) for program, runs in programs.items()]
        rows.sort(key=lambda row: not row.leak)
        names = {planted.subject.id for runs in programs.values() for planted in runs}
        leaky = {p.subject.device_uid for runs in programs.values() for p in runs if p.leak}
        for key, story in self._stories.items():
            # The memory of a whole card grows with its leaking process: that is no false alarm.
            if key not in names and story.firing and story.subject.device_uid not in leaky:
                rows.append(self._unplanted(story, story.firing))
        return rows

    def _row(self, program: str, runs: list[Planted]) -> Scored:
        stories = [(run, self._stories.get(run.subject.id)) for run in runs]
        fired = [(run, story.firing) for run, story in stories if story and story.firing]
        watched = [story.watch_at_s for _, story in stories if story and story.watch_at_s]
        run, alert = fired[0] if fired else (runs[0], None)
        at_s = alert.firing_at_s if alert is not None else None
        in_time = at_s is not None and (run.oom_at_s is None or at_s < run.oom_at_s)
        return Scored(
            program=program,
            planted=f"{run.pattern} leak" if run.leak else run.pattern,
            found=self._found(runs, alert, watched=bool(watched)),
            watch_s=self._since(min(watched)) if watched else None,
            alert_s=self._since(at_s),
            eta=None if alert is None else fill(Eta, alert.finding.eta),
            true_eta_s=None if run.oom_at_s is None or at_s is None else run.oom_at_s - at_s,
            leak=run.leak,
            right=in_time if run.leak else alert is None,
        )

    def _found(self, runs: list[Planted], alert: Alert | None, *, watched: bool) -> str:
        if alert is not None:
            return f"{alert.finding.pattern} ALERT"
        last = self._findings.get(runs[-1].subject.id) or self._findings.get(runs[0].subject.id)
        pattern = last.pattern if last is not None else "nothing"
        return f"{pattern} (watch)" if watched else pattern

    def _unplanted(self, story: _Story, alert: Alert) -> Scored:
        return Scored(
            program=alert.title or story.subject.id,
            planted="nothing",
            found=f"{alert.finding.pattern} ALERT",
            watch_s=self._since(story.watch_at_s),
            alert_s=self._since(alert.firing_at_s),
            eta=fill(Eta, alert.finding.eta),
            true_eta_s=None,
            leak=False,
            right=False,
        )

    def _since(self, at_s: float | None) -> float | None:
        return None if at_s is None else at_s - self.began_s


def clock(world_s: float) -> str:
    """Return "+7 min": simulated time, everywhere in the same unit."""
    return f"+{world_s / 60:.0f} min"


def verdict_line(rows: Iterable[Scored], *, simulated_s: float) -> str:
    """Return the result in one sentence."""
    rows = list(rows)
    leaks = [row for row in rows if row.leak]
    found = sum(row.right for row in leaks)
    false = sum(not row.leak and not row.right for row in rows)
    alarms = "1 false alarm" if false == 1 else f"{false or 'no'} false alarms"
    if not leaks:
        return f"no leak planted, {alarms}, in {units.duration(simulated_s)} of simulated time"
    return (
        f"{found} of {len(leaks)} leaks found before the crash, {alarms}, "
        f"in {units.duration(simulated_s)} of simulated time"
    )


HEADERS = ("GPU, program", "planted", "found", "when", "ETA", "true ETA", "right")
WRONG = "NO"


def score_cells(row: Scored, *, wide: bool) -> list[str]:
    """Return the row as people read it; ``wide`` has room for the interval of the prediction."""
    text = "-"
    eta = row.eta
    if eta is not None and eta.low_s is not None and eta.mid_s is not None:
        text = units.band(eta.low_s, eta.mid_s, eta.high_s) if wide else units.duration(eta.mid_s)
    return [
        row.program.removeprefix("GPU "),
        row.planted,
        row.found,
        "-" if row.alert_s is None else clock(row.alert_s),
        text,
        "-" if row.true_eta_s is None else units.duration(row.true_eta_s),
        "yes" if row.right else WRONG,
    ]
