"""``nvidia-smi dmon``: one row per device and tick; only ``-s m`` holds an amount of memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.tables import HashedReader, names_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reader(HashedReader):
    """Reads by the names of the header, never by position."""

    name = "nvidia-smi-dmon"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of the device monitor stands here."""
        names = names_of(lines[at])
        return bool(names) and "pid" not in names

    def row(self, line: str) -> None:
        """Read one row."""
        cells, sink = line.split(), self._sink
        if len(cells) != len(self._names):
            raise BadRow("torn")
        row = dict(zip(self._names, cells, strict=True))
        index, t = fields.whole(row["gpu"]), self.time(row)
        if index is None:
            raise BadRow("torn")
        if t is not None and math.isnan(t[0]):
            raise BadRow("bad time")
        if "fb" not in row:
            sink.no_memory = (
                "no memory column (mem is use of the bandwidth); columns found: "
                f"{', '.join(self._names)}"
            )
            sink.no_memory_hint = "log with nvidia-smi dmon -s mu -o DT"
            raise BadRow("no memory column")
        used = self.memory(row)
        if used is None:
            raise BadRow("not available")
        place = sink.places.find(index=index)
        if t is None:
            sink.ticks.of(("gpu", place.order))
        sink.point(place, t, used)
