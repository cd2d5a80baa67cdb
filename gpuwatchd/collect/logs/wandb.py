"""Names of the system metrics that Weights & Biases keeps, shared by its CSV and its JSON lines."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.collect.logs.collector import Collector

COLUMN = re.compile(
    r"(?:^|[\s./-])gpu\.(process\.)?(\d{1,3})\.(memoryAllocatedBytes|memoryAllocated)$"
)
"""``gpu.0.memory`` is use of the bandwidth and never taken."""
_TIMES = ("_timestamp", "timestamp", "_runtime", "Relative Time (Process)", "Wall Time")
_RUN_ONLY = "memory of the run's own process only"


class Wide:
    """Turns one wide row into a reading for each device."""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink

    def take(self, row: Mapping[str, str], line: int) -> None:
        """Read one row; amounts in bytes are preferred to per cent of the total."""
        best: dict[int, tuple[int, str]] = {}
        for name, text in row.items():
            match = COLUMN.search(name)
            if match is None or fields.not_available(text):
                continue
            rank = (match.group(3) == "memoryAllocated") + 2 * bool(match.group(1))
            index = int(match.group(2))
            if index not in best or rank < best[index][0]:
                best[index] = (rank, text)
        if not best:
            return  # other metrics of the run: no row about memory
        stamp = next((row[name] for name in _TIMES if name in row), None)
        t = None if stamp is None else self._sink.clock.both(stamp)
        if t is not None and math.isnan(t[0]):
            self._sink.bad("bad time", line)
            return
        for index, (rank, text) in best.items():
            self._reading(index, rank, text, t, line)

    def _reading(
        self, index: int, rank: int, text: str, t: tuple[float, float] | None, line: int
    ) -> None:
        sink = self._sink
        try:
            value = fields.amount(text, 1.0)
        except ValueError:
            sink.bad("bad number", line)
            return
        if rank >= 2:
            sink.note(_RUN_ONLY)
        total = sink.options.total_bytes
        if rank % 2:
            if total is None:
                sink.no_memory = "memory in per cent only, and the total is not known"
                sink.no_memory_hint = "pass --total, for example --total 24GiB"
                sink.bad("not available", line)
                return
            value = value / 100.0 * total
        if math.isnan(value) or (total is not None and value > total):
            sink.bad("not available" if math.isnan(value) else "torn", line)
            return
        place = sink.places.find(index=index)
        if t is None:
            sink.ticks.of(("wandb", index))
        sink.point(place, t, value)
