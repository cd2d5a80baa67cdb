"""``nvidia-smi --query-gpu=... --format=csv`` in all its variants of columns and units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.sources.formats.columns import layout_of
from gpuwatchd.sources.formats.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.sources.formats.collect import Collector

_OWN_WORDS = re.compile(
    r"(?:^|,)\s*(?:memory\.(?:used|free|total|reserved)|utilization\.(?:gpu|memory)|power\.draw"
    r"|temperature\.gpu|pci\.bus_id|fan\.speed|clocks\.\S+|driver_version|pstate)\b",
    re.IGNORECASE,
)


class Reader:
    """One table of readings per device."""

    name = "nvidia-smi-csv"

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
        self._table: Table | None = None

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``--query-gpu`` stands here."""
        line = lines[at]
        if not _OWN_WORDS.search(line) or line[:1] in {"#", "{", "|"}:
            return False
        layout = layout_of(line)
        return layout is not None and "pid" not in layout.roles

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the header and the rows under it."""
        header, done = lines[0], 0
        if self._table is None or self.starts(lines, 0):
            layout = layout_of(header)
            if layout is None:
                return 0
            done = 1
            if self._table is None or header.strip() != self._table.header.strip():
                self._table = Table(layout, self._sink, header)
            if not self._table.has_memory:
                self._sink.no_memory = f"no memory column; columns found: {layout.found()}"
        return done + self._table.feed(lines[done:], first_line + done)

    def close(self) -> None:
        """End the table."""
        if self._table is not None:
            self._table.close()
