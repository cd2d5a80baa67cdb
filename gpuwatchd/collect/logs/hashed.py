"""Tables of ``dmon`` and ``pmon``: names after ``#``, columns by whitespace, header repeated."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)", re.ASCII)
_DAY_S = 86400.0


def names_of(line: str) -> list[str]:
    """Return the lower-case column names of a header line, or nothing when it is none.

    Examples
    --------
    >>> names_of("#Date       Time        gpu     fb")
    ['date', 'time', 'gpu', 'fb']
    >>> names_of("# Idx           #    C/G")
    []
    """
    if not line.startswith("#"):
        return []
    names = line.lstrip("# ").lower().split()
    if "gpu" not in names[:3] or not {"sm", "pwr", "fb", "pid", "mclk", "temp"} & set(names):
        return []
    return names


class HashedReader(ABC):
    """Base of the two monitors."""

    name = ""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
        self._names: list[str] = []
        self._midnights = 0
        self._last_s = 0.0

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take headers and rows until a line that is neither."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not stripped:
                continue
            if line.startswith("#"):
                if names := names_of(line):
                    if ("pid" in names) != ("pid" in (self._names or names)):
                        return number  # the other monitor
                    self._names = names
                elif stripped.startswith("####") or not self._is_units(stripped):
                    return number
                continue
            if not (stripped[0].isdigit() or stripped[0] == "-") or "," in stripped:
                return number
            self.row(stripped, first_line + number)
        return len(lines)

    def close(self) -> None:  # noqa: B027 - a default, not a gap
        """Nothing is held back."""

    @abstractmethod
    def row(self, line: str, number: int) -> None:
        """Read one row."""

    @staticmethod
    def _is_units(line: str) -> bool:
        words = line.lstrip("# ").split()
        return bool({"Idx", "YYYYMMDD", "HH:MM:SS"} & set(words))

    def time(self, row: dict[str, str]) -> tuple[float, float] | None:
        """Return the time of a row, NaN when it is broken, None when there is no column for it."""
        if "time" not in row:
            return None
        if "date" in row:
            return self._sink.clock.both(f"{row['date']} {row['time']}")
        match = _TIME_OF_DAY.fullmatch(row["time"])
        if match is None:
            return math.nan, math.nan
        hour, minute, second = map(int, match.groups())
        moment = hour * 3600.0 + minute * 60.0 + second
        self._midnights += moment < self._last_s - _DAY_S / 2
        self._last_s = moment
        self._sink.clock.elapsed = True
        return moment + self._midnights * _DAY_S, moment + self._midnights * _DAY_S

    def memory(self, row: dict[str, str]) -> float | None:
        """Return frame buffer memory in bytes (columns say MB and mean MiB); None if unknown."""
        value = fields.amount(row["fb"]) if "fb" in row else math.nan
        return None if math.isnan(value) else value
