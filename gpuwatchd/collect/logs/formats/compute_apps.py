"""``nvidia-smi --query-compute-apps``, with or without a header, and tables with a pid column."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.columns import Layout, layout_of
from gpuwatchd.collect.logs.rowwise import NO_AMOUNT, ProcessTable
from gpuwatchd.collect.logs.tables import HeadedReader

if TYPE_CHECKING:
    from collections.abc import Sequence

_UUID = re.compile(r"\s*(?:GPU|MIG)-[0-9A-Za-z-]+\s*")
_AMOUNT = re.compile(r"\s*(?:\d+(?:\.\d+)? (?:MiB|MB)|\[N/A\])\s*")
_NAME = re.compile(
    r"\s*(?:\[(?:Insufficient Permissions|Not Found)\]|[A-Za-z]:\\.*|\.{0,2}/.*"
    r"|[A-Za-z_][\w.+-]*)\s*"
)
_STAMP = re.compile(r"\s*\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?\s*")


def _bare(line: str) -> Layout | None:
    """Return the columns of a row without a header, when each can be only one thing."""
    cells = line.split(",")
    if not 2 <= len(cells) <= 12:
        return None
    roles: dict[str, int] = {}
    for at, cell in enumerate(cells):
        role = _kind(cell)
        if role is None or role in roles:
            # The only thing that may go on over separators is the name.
            if roles.get("process") == at - 1 or ("process" in roles and role is None):
                continue
            return None
        roles[role] = at
    if "pid" not in roles or not {"process", "used"} & set(roles):
        return None
    name = cells[roles["process"]].strip() if "process" in roles else ""
    if (
        "uuid" not in roles
        and "used" not in roles
        and name[:1] not in {"[", "/"}
        and ":" not in name
    ):
        return None  # any words with a number would do
    return Layout([""] * len(cells), roles, {"used": fields.MIB})


def _kind(cell: str) -> str | None:
    for role, shape in (("uuid", _UUID), ("time", _STAMP), ("used", _AMOUNT), ("process", _NAME)):
        if shape.fullmatch(cell):
            return role
    return "pid" if fields.whole(cell) is not None else None


class Reader(HeadedReader):
    """One table of processes."""

    name = "compute-apps-csv"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with a pid column, or such a row without a header, stands here."""
        line = lines[at]
        if line[:1] in {"{", "|", "+"} or len(line) > 65536:
            return False
        layout = layout_of(line)
        if layout is not None:
            return "pid" in layout.roles and "max_memory_usage" not in line
        return _bare(line) is not None

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take a header and rows; without a header the first row tells the columns."""
        if layout_of(lines[0]) is not None:
            return super().feed(lines, first_line)
        if self._table is None:
            layout = _bare(lines[0])
            if layout is None:
                return 0
            self._table = ProcessTable(layout, self._sink)
            if "used" not in layout.roles:
                self._sink.no_memory = NO_AMOUNT
        return self._table.feed(lines, first_line)

    def _say_missing(self, table: object) -> None:
        if isinstance(table, ProcessTable) and "used" not in table.layout.roles:
            self._sink.no_memory = f"{NO_AMOUNT}; columns found: {table.layout.column_names()}"
