"""The demo on a terminal: a live table above the last events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from gpuwatchd.cli.demo_show import Event, Lines
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from gpuwatchd.cli import demo_score, output
    from gpuwatchd.cli.output import Out
    from gpuwatchd.core.model import Finding
    from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState

_RICH = {"red-bold": "bold red", "yellow-bold": "bold yellow"}
_FRAME_S = 0.25
_LEAST_EVENTS = 4
"""Lines that are kept for events, however low the window is."""
_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("memory", "right", 8),
    ("growth", "right", 12),
    ("full in", "right", 7),
    ("verdict", "left", 13),
)
"""Columns of fixed width: header, side, width. The first two share what is left."""


class Screen(Lines):
    """A live table above the last events, for terminals."""

    def __init__(self, out: Out, *, length_s: float, speed: float) -> None:
        super().__init__(out)
        self._length_s = length_s
        self._speed = speed
        self._title = ""
        self._note = ""
        self._events: list[Event] = []
        self._trend_width = 9
        self._drawn_s = -1.0
        self._live: Live | None = None

    def begin(self, title: str, note: str) -> None:
        """Take over the lower part of the terminal."""
        from rich.live import Live  # noqa: PLC0415 - 40 ms, only for this screen

        self._title, self._note = title, note
        self._live = Live(console=self._console(), auto_refresh=False, transient=True)
        self._live.start()

    def update(self, state: LiveState, world_s: float, events: Sequence[Event]) -> None:
        """Draw, a few times a second at most."""
        self._events.extend(events)
        now_s = time.monotonic()
        if self._live is None or (now_s - self._drawn_s < _FRAME_S and not events):
            return
        self._drawn_s = now_s
        self._live.update(self._picture(state, world_s), refresh=True)

    def end(self, rows: Sequence[demo_score.Row], *, simulated_s: float) -> None:
        """Replace the live table by what remains: heading, events, final table."""
        self.close()
        super().begin(self._title, self._note)
        for event in self._events:
            self._write(event)
        super().end(rows, simulated_s=simulated_s)

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _console(self) -> Console:
        from rich.console import Console  # noqa: PLC0415

        return Console(
            color_system="standard",
            highlight=False,
            markup=False,
            emoji=False,
            width=self.out.width,
        )

    def _picture(self, state: LiveState, world_s: float) -> Any:
        from rich.console import Group  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        clock = (
            f"+{units.duration(world_s)} of {units.duration(self._length_s)} "
            f"({self._speed:g}x), Ctrl-C ends it"
        )
        lines = [self._text(f"gpuwatchd demo: {self._title}", "bold"), self._text(clock, "dim")]
        if self._note:
            lines.append(self._text(self._note, "dim"))
        height = self._height()
        room = height - len(lines) - _LEAST_EVENTS - 1
        full = 1 + sum(1 + len(item.processes or ()) for item in state.devices)
        table = self._table(state, everybody=full <= room)
        below = [line for event in self._events[-height:] for line in self.lines_of(event)]
        left = max(_LEAST_EVENTS, height - len(lines) - table.row_count - 2)
        texts = (
            Text.assemble(*((self.out.safe(w), self._style(s)) for w, s in map(_pair, line)))
            for line in below[-left:]
        )
        return Group(*lines, table, *texts)

    def _height(self) -> int:
        return self._live.console.size.height if self._live is not None else 24

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
        if reading is None or reading.used_bytes is None:
            return [self._text(name, "bold"), "?", trend, "", "", self._text("no answer", "red")]
        used = units.size(reading.used_bytes)
        return [self._text(name, "bold"), used, trend, "", "", ""]

    def _process_cells(self, process: LiveProcess) -> list[Any]:
        info, finding = process.info, process.finding
        who = f"  {info.numbered} {info.user or ''}"
        return [
            self._text(who),
            units.size(process.used_bytes),
            self._text(info.framework or "", "dim"),
            *self._judgement(finding),
        ]

    def _judgement(self, finding: Finding | None) -> list[Any]:
        if finding is None:
            return ["", "", ""]
        if finding.tier == "none":
            return [
                "",
                "",
                self._text(finding.pattern, "dim" if finding.pattern == "unknown" else "green"),
            ]
        style = "red-bold" if finding.tier == "alert" else "yellow-bold"
        eta = "" if finding.eta is None else units.duration(finding.eta.mid_s)
        level = finding.tier.upper() if finding.tier == "alert" else finding.tier
        words = f"{level} {finding.pattern}"
        return [units.rate(finding.rate_bytes_per_s), eta, self._text(words, style)]

    def _text(self, words: str, style: str = "") -> Any:
        from rich.text import Text  # noqa: PLC0415

        return Text(self.out.safe(words), style=self._style(style))

    @staticmethod
    def _style(style: str) -> str:
        return _RICH.get(style, style)


def _thinned(values: Sequence[int | None], count: int) -> list[float | None]:
    """Return at most ``count`` of the values, evenly spread, the last one included."""
    total = len(values)
    count = min(count, total)
    return [values[total - 1 - (count - 1 - place) * total // count] for place in range(count)]


def _pair(part: output.Part) -> tuple[str, str]:
    return (part, "") if isinstance(part, str) else part
