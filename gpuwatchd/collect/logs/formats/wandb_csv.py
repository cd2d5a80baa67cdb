"""System metrics of Weights & Biases, exported as CSV."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import FormatReader
from gpuwatchd.collect.logs.wandb import COLUMN, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector


class Reader(FormatReader):
    """One wide table."""

    name = "wandb-csv"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with such columns stands here."""
        line = lines[at]
        if "memoryAllocated" not in line or line[:1] == "{":
            return False
        return any(COLUMN.search(name) for name in _cells(line))

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the header and its rows."""
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            if self.starts([line], 0):
                self._names = _cells(line)
                continue
            cells = _cells(line)
            if len(cells) < 2:
                return number
            if len(cells) != len(self._names):
                self._sink.bad("torn", first_line + number)
            else:
                row = dict(zip(self._names, cells, strict=True))
                take(row, first_line + number, self._sink)
        return len(lines)


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []
