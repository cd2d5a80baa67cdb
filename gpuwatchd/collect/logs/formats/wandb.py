"""System metrics of Weights & Biases: exported as CSV, or as JSON lines (the events stream)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader, Place
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time

_COLUMN = re.compile(
    r"(?:^|[\s./-])gpu\.(process\.)?(\d{1,3})\.(memoryAllocatedBytes|memoryAllocated)$"
)
"""``gpu.0.memory`` is use of the bandwidth and never taken."""
_KEY = re.compile(r'"[^"]*gpu\.(?:process\.)?\d{1,3}\.memoryAllocated')
_TIMES = ("_timestamp", "timestamp", "_runtime", "Relative Time (Process)", "Wall Time")


def _take(row: Mapping[str, str], line: int, sink: Collector) -> None:
    """Read one row for each device; amounts in bytes are preferred to per cent of the total."""
    best: dict[int, tuple[int, str]] = {}
    for name, text in row.items():
        match = _COLUMN.search(name)
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
        raise BadRow("bad time")
    for index, (rank, text) in best.items():
        with sink.row(line):
            _reading(index, rank, text, t, sink)


def _reading(index: int, rank: int, text: str, t: Time, sink: Collector) -> None:
    value = fields.amount(text, 1.0)
    if rank >= 2:
        sink.note("memory of the run's own process only")
    total = sink.options.total_bytes
    if rank % 2:
        if total is None:
            sink.no_memory = "memory in per cent only, and the total is not known"
            sink.no_memory_hint = "pass --total, for example --total 24GiB"
            raise BadRow("not available")
        value = value / 100.0 * total
    if math.isnan(value) or (total is not None and value > total):
        raise BadRow("not available" if math.isnan(value) else "torn")
    if t is None:
        sink.ticks.of(("wandb", index))
    sink.point(sink.places.find(Place(index=index)), t, value)


class CsvReader(FormatReader):
    """System metrics of Weights & Biases, exported as CSV."""

    _names: Sequence[str] = ()

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with such columns stands here."""
        line = lines[at]
        if "memoryAllocated" not in line or line[:1] == "{":
            return False
        return any(_COLUMN.search(name) for name in fields.cells_of(line))

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take the header or a row."""
        del stripped
        cells = fields.cells_of(line)
        if self.starts([line], 0):
            self._names = cells
        elif len(cells) < 2:
            return False
        elif len(cells) != len(self._names):
            raise BadRow("torn")
        else:
            _take(dict(zip(self._names, cells, strict=True)), number, self._sink)
        return True


class LinesReader(JsonReader):
    """System metrics of Weights & Biases as JSON lines (the events stream)."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with such keys begins here."""
        return bool(_KEY.search(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        _take({key: text_of(each) for key, each in value.items()}, line, self._sink)
