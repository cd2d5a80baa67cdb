"""Rows about processes: a pid, a name that may hold the separator, and an amount."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import Torn
from gpuwatchd.collect.logs.rowwise import RowTable

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.columns import Layout
    from gpuwatchd.core.model import ProcessInfo

NO_AMOUNT = "processes are listed without a memory figure"


def split_around(line: str, layout: Layout) -> list[str]:
    """Return the cells of a row whose process name is unquoted and may hold separators.

    The fixed fields are split off from the left and from the right; the middle is the name.
    """
    cells = line.split(layout.separator)
    extra = len(cells) - layout.width
    at = layout.roles.get("process")
    if extra <= 0 or at is None:
        return cells
    name = layout.separator.join(cells[at : at + extra + 1])
    return [*cells[:at], name, *cells[at + extra + 1 :]]


class ProcessTable(RowTable):
    """A table whose rows are processes; a row without a pid is about the device."""

    def _cells(self, line: str) -> list[str]:
        return super()._cells(line) if '"' in line else split_around(line, self.layout)

    def _reading(self, row: dict[str, str], t: tuple[float, float] | None, number: int) -> None:
        if not row["pid"].strip() and "uuid" in row:
            super()._reading(row, t, number)
            return
        process = self._process(row)
        if process is None:
            reason = "torn" if fields.value_or_none(row["pid"]) is not None else "not available"
            self.sink.bad(reason, number)
            return
        used = fields.amount(row["used"], self.layout.unit("used")) if "used" in row else math.nan
        if math.isnan(used):
            self.sink.no_memory = self.sink.no_memory or NO_AMOUNT
            self.sink.bad("not available", number)
            return
        self._keep(row, t, used, process)

    def _keep(
        self, row: dict[str, str], t: tuple[float, float] | None, used: float, process: ProcessInfo
    ) -> None:
        place = self._place(row, 0)
        if place.total is not None and used > place.total:
            raise Torn
        if t is None:
            self.sink.ticks.of((place.order, process.key.pid))
        self.sink.point(place, t, used, process=process, unitless=self.layout.unitless())

    def _process(self, row: dict[str, str]) -> ProcessInfo | None:
        pid = fields.whole(row["pid"])
        if pid is None:
            return None
        name = row.get("process", "").strip()
        return self.sink.process(
            pid,
            None if fields.not_available(name) else name,
            user=fields.value_or_none(row.get("user")),
            started_at_s=self._started(row),
        )

    def _started(self, row: dict[str, str]) -> float | None:
        value = self.sink.clock.parse(row["started"]) if row.get("started") else math.nan
        return None if math.isnan(value) else value
