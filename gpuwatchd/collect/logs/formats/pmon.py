"""``nvidia-smi pmon``: one row per process and tick; only ``-s m`` holds an amount of memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.rowwise import NO_AMOUNT
from gpuwatchd.collect.logs.tables import HashedReader, names_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reader(HashedReader):
    """Reads by the names of the header; a pid of ``-`` is "no process"."""

    name = "nvidia-smi-pmon"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of the process monitor stands here."""
        return "pid" in names_of(lines[at])

    def row(self, line: str) -> None:
        """Read one row."""
        sink = self._sink
        cells = line.split(None, len(self._names) - 1)
        if len(cells) != len(self._names):
            raise BadRow("torn")
        row = dict(zip(self._names, cells, strict=True))
        index, pid, t = fields.whole(row["gpu"]), fields.whole(row["pid"]), self.time(row)
        place = sink.places.find(index=index) if index is not None else None
        if row["pid"] == "-" and place is not None:
            if t is None:
                sink.ticks.of(("pid", place.order, None))
            return
        if pid is None or place is None:
            raise BadRow("torn")
        if t is not None and math.isnan(t[0]):
            raise BadRow("bad time")
        process = sink.process(pid, row.get("command") or row.get("name"))
        used = self.memory(row)
        if t is None:
            sink.ticks.of(("pid", place.order, pid))
        if used is None or process is None:
            if "fb" not in row:
                sink.no_memory = sink.no_memory or (
                    f"{NO_AMOUNT}; columns found: {', '.join(self._names)}"
                )
                sink.no_memory_hint = sink.no_memory_hint or "log with nvidia-smi pmon -s um -o DT"
            raise BadRow("not available" if "fb" in row else "no memory column")
        sink.point(place, t, used, process=process)
