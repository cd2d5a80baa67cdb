"""Names of the system metrics that Weights & Biases keeps, shared by its CSV and its JSON lines."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.collect.logs.collector import Collector

COLUMN = re.compile(
    r"(?:^|[\s./-])gpu\.(process\.)?(\d{1,3})\.(memoryAllocatedBytes|memoryAllocated)$"
)
"""``gpu.0.memory`` is use of the bandwidth and never taken."""
_TIMES = ("_timestamp", "timestamp", "_runtime", "Relative Time (Process)", "Wall Time")
_RUN_ONLY = "memory of the run's own process only"


def take(row: Mapping[str, str], line: int, sink: Collector) -> None:
    """Read one row for each device; amounts in bytes are preferred to per cent of the total."""
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
    t = None if stamp is None else sink.clock.both(stamp)
    if t is not None and math.isnan(t[0]):
        sink.bad("bad time", line)
        return
    for index, (rank, text) in best.items():
        with sink.row(line):
            _reading(index, rank, text, t, sink)


def _reading(
    index: int, rank: int, text: str, t: tuple[float, float] | None, sink: Collector
) -> None:
    value = fields.amount(text, 1.0)
    if rank >= 2:
        sink.note(_RUN_ONLY)
    total = sink.options.total_bytes
    if rank % 2:
        if total is None:
            sink.no_memory = "memory in per cent only, and the total is not known"
            sink.no_memory_hint = "pass --total, for example --total 24GiB"
            raise BadRow("not available")
        value = value / 100.0 * total
    if math.isnan(value) or (total is not None and value > total):
        raise BadRow("not available" if math.isnan(value) else "torn")
    place = sink.places.find(index=index)
    if t is None:
        sink.ticks.of(("wandb", index))
    sink.point(place, t, value)
