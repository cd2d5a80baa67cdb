"""Long tables of DCGM metrics: one row per metric, device and time, pivoted here."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader
from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Place

_ROLES = {
    "DCGM_FI_DEV_FB_USED": "used",
    "DCGM_FI_DEV_FB_FREE": "free",
    "DCGM_FI_DEV_FB_TOTAL": "total",
    "DCGM_FI_DEV_FB_RESERVED": "reserved",
}
_NEEDED = frozenset({"timestamp", "metric_name", "value"})


class Reader(FormatReader):
    """Keeps the used memory at once; the others only give the total of each device."""

    name = "dcgm-csv"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._at: dict[str, int] = {}
        self._width = 0
        self._header = ""
        self._last: dict[Place, dict[str, tuple[float, float]]] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of such a table stands here."""
        return "metric_name" in lines[at] and set(_names(lines[at])) >= _NEEDED

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the header and its rows."""
        for number, line in enumerate(lines):
            if not line.strip() or line == self._header:
                continue
            if not self._at or self.starts([line], 0):
                names = _names(line)
                self._header, self._width = line, len(names)
                self._at = {name: position for position, name in enumerate(names)}
                continue
            if "," not in line:
                return number
            with self._sink.row(first_line + number):
                self._row(line)
        return len(lines)

    def close(self) -> None:
        """Give each device the total that its last figures tell."""
        for place, amounts in self._last.items():
            track = self._sink.track(place, timed=True)
            if track is None or "used" not in amounts:
                continue
            used_at, used = amounts["used"]
            same = {role: value for role, (at, value) in amounts.items() if at == used_at}
            if "total" in same:
                track.total = same["total"]
            elif "free" in same:
                track.total = used + same["free"] + same.get("reserved", 0.0)
            if "free" in same:
                track.usable = used + same["free"]

    def _row(self, line: str) -> None:
        sink = self._sink
        try:
            cells = next(csv.reader([line], strict=True), [])
        except csv.Error:
            cells = []
        if len(cells) != self._width:
            raise BadRow("torn")
        role = _ROLES.get(self._cell(cells, "metric_name"))
        if role is None:
            sink.good()
            return
        t = sink.clock.both(self._cell(cells, "timestamp"))
        if math.isnan(t[0]):
            raise BadRow("bad time")
        value = fields.amount(self._cell(cells, "value"), MIB)
        if math.isnan(value):
            raise BadRow("not available")
        place = self._place(cells)
        self._last.setdefault(place, {})[role] = (t[0], value)
        if role == "used":
            sink.point(place, t, value)
        else:
            sink.good()

    def _cell(self, cells: list[str], name: str) -> str:
        at = self._at.get(name)
        return "" if at is None else cells[at]

    def _place(self, cells: list[str]) -> Place:
        host, gpu = self._cell(cells, "hostname"), self._cell(cells, "gpu_id")
        model = self._cell(cells, "modelname") or "GPU"
        return self._sink.places.find(
            uuid=fields.uuid(self._cell(cells, "uuid")),
            index=fields.whole(gpu),
            host=host or None,
            name=f"{model} ({host}/{gpu})" if host else model,
        )


def _names(line: str) -> list[str]:
    try:
        cells = next(csv.reader([line]), []) if len(line) < 65536 else []
    except csv.Error:
        return []
    return [cell.strip().lower() for cell in cells]
