"""What the readers of tables with a header share: enter at a header, leave at a foreign line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.collect.logs.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.columns import Layout
    from gpuwatchd.collect.logs.rowwise import RowTable

WHAT_TO_LOG = (
    "log it with nvidia-smi --query-gpu=timestamp,index,uuid,memory.used,memory.total "
    "--format=csv -l 5"
)


class HeadedReader(ABC):
    """Base of the readers of tables with a header; a format says how its header looks."""

    name = ""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
        self._table: RowTable | None = None

    @staticmethod
    @abstractmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of this format stands here."""

    def make(self, layout: Layout, header: str) -> RowTable:
        """Return the table under a header."""
        return Table(layout, self._sink, header)

    def layout(self, header: str) -> Layout | None:
        """Return what the columns under a header hold; None when it is none."""
        return layout_of(header)

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take a header and the rows under it, or more rows."""
        done = 0
        if self._table is None or self.starts(lines, 0):
            header = lines[0]
            layout = self.layout(header)
            if layout is None:
                return 0
            done = 1
            if self._table is None or header.strip() != self._table.header.strip():
                self.close()
                self._table = self.make(layout, header)
            self._say_missing(self._table)
        return done + self._table.feed(lines[done:], first_line + done)

    def close(self) -> None:
        """End the table; rows that follow another block's still belong to it."""
        if self._table is not None:
            self._table.close()

    def _say_missing(self, table: RowTable) -> None:
        if table.has_memory:
            return
        text = table.layout.column_names()
        if "free" in table.layout.roles:
            self._sink.no_memory = f"free memory without a total; columns found: {text}"
            self._sink.no_memory_hint = "pass --total, for example --total 24GiB"
        else:
            self._sink.no_memory = f"no memory column; columns found: {text}"
            self._sink.no_memory_hint = WHAT_TO_LOG
