"""Rows of a table without a header (``noheader``): columns given, or guessed, or refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import FormatReader
from gpuwatchd.collect.logs.columns import guess, layout_from
from gpuwatchd.collect.logs.rowwise import ProcessTable, between
from gpuwatchd.collect.logs.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.rowwise import RowTable

_LOOK_AT = 256
_ROW = re.compile(
    r"\s*(?:\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d|\d{1,2}-\d{1,2}-\d{4}|\d{1,13}\s*,"
    r"|GPU-[0-9a-f]{8}|\d{9,13}\.\d+\s*,)"
)
_CELL = re.compile(r"\s*(?:\d+(?:\.\d+)?(?: (?:MiB|%|W|C|MHz))?|\[[A-Z][^\]]*\])\s*")


class Reader(FormatReader):
    """Holds the first rows back until they tell what their columns are."""

    name = "csv-without-header"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._held: list[str] = []
        self._first_line = 0
        self._table: RowTable | None = None
        self._refused = 0
        if sink.options.columns:
            layout = layout_from(sink.options.columns)
            kind = ProcessTable if "pid" in layout.roles else Table
            self._table = kind(layout, sink)
            if not self._table.has_memory:
                sink.no_memory = f"no memory column; columns named: {layout.column_names()}"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a row of numbers stands here."""
        line = lines[at]
        if len(line) > 65536 or not _ROW.match(line):
            return False
        cells = line.split(",")
        return len(cells) >= 3 and sum(_CELL.fullmatch(cell) is not None for cell in cells) >= 2

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take rows."""
        if self._table is not None:
            return self._table.feed(lines, first_line)
        taken = 0
        for line in lines:
            if "," not in line and not between(line):
                break
            taken += 1
        if not self._held:
            self._first_line = first_line
        self._held += [line for line in lines[:taken] if "," in line]
        if len(self._held) >= _LOOK_AT:
            self._settle()
        return taken

    def close(self) -> None:
        """Settle what the rows are with what there is."""
        self._settle()
        if self._table is not None:
            self._table.close()

    def _settle(self) -> None:
        held, self._held = self._held, []
        if not held or self._table is not None:
            return
        layout = guess(held) if not self._refused else None
        if layout is None:
            self._refused += len(held)
            self._sink.bad("no header", self._first_line, len(held))
            self._sink.no_memory = (
                f"line {self._first_line}: a table without a header, and its columns cannot be "
                "identified"
            )
            self._sink.no_memory_hint = (
                "pass --columns, for example --columns timestamp,index,memory.used,memory.total"
            )
            return
        names = {at: role for role, at in layout.roles.items()}
        text = ", ".join(names.get(at, "-") for at in range(layout.width))
        self._sink.note(f"no header; the only columns that fit: {text}")
        self._table = Table(layout, self._sink)
        self._table.feed(held, self._first_line)
