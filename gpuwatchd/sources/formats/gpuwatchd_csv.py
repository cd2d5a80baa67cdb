"""Our own export as CSV: ``taken_at,device_uid,index,name,pid,used_bytes,total_bytes,...``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.sources.formats.columns import layout_of
from gpuwatchd.sources.formats.headed import HeadedReader
from gpuwatchd.sources.formats.processes import ProcessTable
from gpuwatchd.sources.formats.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.sources.formats.columns import Layout
    from gpuwatchd.sources.formats.rowwise import RowTable


class Reader(HeadedReader):
    """A row with a pid is about a process, one without about the device."""

    name = "gpuwatchd-csv"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of an export stands here."""
        line = lines[at]
        return line[:1] != "{" and "device_uid" in line and layout_of(line) is not None

    def make(self, layout: Layout, header: str) -> RowTable:
        """Return the table under a header."""
        kind = ProcessTable if "pid" in layout.roles else Table
        return kind(layout, self._sink, header)
