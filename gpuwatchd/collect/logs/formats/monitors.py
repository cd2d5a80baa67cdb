"""Monitors of a row per tick: ``nvidia-smi dmon``, ``nvidia-smi pmon`` and ``dcgmi dmon``.

Columns go by the names of the header, never by position. Of nvidia-smi's only ``-s m`` holds an
amount of memory; amounts say MB and mean MiB.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader, Place
from gpuwatchd.collect.logs.tables import NO_AMOUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time

_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)", re.ASCII)
_DAY_S = 86400.0
_UNITS = frozenset({"Idx", "YYYYMMDD", "HH:MM:SS"})
"""Words of the line of units under a header."""


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


class NvidiaMonitor(FormatReader):
    """Base of the two of nvidia-smi: names after ``#``, columns by whitespace, header repeated."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._midnights = 0
        self._last_s = 0.0

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a header or a row."""
        del number
        if names := names_of(line):
            if ("pid" in names) != ("pid" in (self._names or names)):
                return False  # the other monitor
            self._names = names
            return True
        if line.startswith("#"):
            units = not _UNITS.isdisjoint(stripped.lstrip("# ").split())
            return units and not stripped.startswith("####")
        if not (stripped[0].isdigit() or stripped[0] == "-") or "," in stripped:
            return False
        # A command at the end may hold blanks.
        cells = stripped.split(None, len(self._names) - 1 if "pid" in self._names else -1)
        if len(cells) != len(self._names):
            raise BadRow("torn")
        row = dict(zip(self._names, cells, strict=True))
        self.row(row, fields.whole(row["gpu"]), self._time(row))
        return True

    @abstractmethod
    def row(self, row: dict[str, str], index: int | None, t: Time) -> None:
        """Read one row."""

    def _time(self, row: dict[str, str]) -> Time:
        """Return the time of a row, NaN when it is broken, None when there is no column for it."""
        if "time" not in row:
            return None
        if "date" in row:
            return self._sink.clock.both(f"{row['date']} {row['time']}")
        match = _TIME_OF_DAY.fullmatch(row["time"])
        if match is None:
            return math.nan, math.nan
        hour, minute, second = map(int, match.groups())
        moment_s = hour * 3600.0 + minute * 60.0 + second
        self._midnights += moment_s < self._last_s - _DAY_S / 2
        self._last_s = moment_s
        return (moment_s + self._midnights * _DAY_S,) * 2


class DeviceMonitor(NvidiaMonitor):
    """``nvidia-smi dmon``: one row per device and tick; only ``-s m`` holds amounts of memory."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of the device monitor stands here."""
        names = names_of(lines[at])
        return bool(names) and "pid" not in names

    def row(self, row: dict[str, str], index: int | None, t: Time) -> None:
        """Read one row."""
        if index is None:
            raise BadRow("torn")
        if t is not None and math.isnan(t[0]):
            raise BadRow("bad time")
        if "fb" not in row:
            self._sink.no_memory = (
                "no memory column (mem is use of the bandwidth); columns found: "
                f"{', '.join(self._names)}"
            )
            self._sink.no_memory_hint = "log with nvidia-smi dmon -s mu -o DT"
            raise BadRow("no memory column")
        used = fields.amount(row["fb"])
        if math.isnan(used):
            raise BadRow("not available")
        place = self._sink.places.find(Place(index=index))
        if t is None:
            self._sink.ticks.of(("gpu", place.order))
        self._sink.point(place, t, used)


class ProcessMonitor(NvidiaMonitor):
    """``nvidia-smi pmon``: one row per process and tick; only ``-s m`` holds amounts of memory."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of the process monitor stands here."""
        return "pid" in names_of(lines[at])

    def row(self, row: dict[str, str], index: int | None, t: Time) -> None:
        """Read one row."""
        sink, pid = self._sink, fields.whole(row["pid"])
        place = None if index is None else sink.places.find(Place(index=index))
        if place is None or (pid is None and row["pid"] != "-"):
            raise BadRow("torn")
        if pid is not None and t is not None and math.isnan(t[0]):
            raise BadRow("bad time")
        if t is None:
            sink.ticks.of(("pid", place.order, pid))
        if pid is None:
            return
        process = sink.process(pid, row.get("command") or row.get("name"))
        if "fb" not in row:
            text = f"{NO_AMOUNT}; columns found: {', '.join(self._names)}"
            sink.no_memory = sink.no_memory or text
            sink.no_memory_hint = sink.no_memory_hint or "log with nvidia-smi pmon -s um -o DT"
            raise BadRow("no memory column")
        used = fields.amount(row["fb"])
        if math.isnan(used) or process is None:
            raise BadRow("not available")
        sink.point(place, t, used, process=process)


_DCGMI_HEADER = re.compile(r"#\s*Entity\s+\S")
_DCGMI_ROW = re.compile(r"\s*(GPU|GPU-I|GPU-CI|Switch|CPU)\s+(\d{1,5})\s+(\S.*)$")
_DCGMI_ROLES = {"FBUSD": "used", "FBTTL": "total", "FBFRE": "free", "FBFREE": "free",
                "FBUSED": "used", "FBTOTAL": "total"}  # fmt: skip


class DcgmiMonitor(FormatReader):
    """``dcgmi dmon``: columns by the short names of the header; rows of GPUs only."""

    _names: Sequence[str] = ()

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``dcgmi dmon`` stands here."""
        return bool(_DCGMI_HEADER.match(lines[at]))

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a header, its line of units, or a row."""
        del number
        if stripped == "ID" or stripped.startswith("ID "):
            return True
        if _DCGMI_HEADER.match(stripped):
            self._names = stripped.lstrip("# ").split()[1:]
            return True
        match = _DCGMI_ROW.match(line)
        if match is not None and match.group(1) == "GPU":
            self._row(int(match.group(2)), match.group(3).split())
        return match is not None

    def _row(self, index: int, cells: list[str]) -> None:
        sink = self._sink
        if len(cells) != len(self._names):
            raise BadRow("torn")
        roles = (_DCGMI_ROLES.get(name.upper()) for name in self._names)
        values = {role: cell for role, cell in zip(roles, cells, strict=True) if role}
        if "used" not in values:
            sink.no_memory = f"no memory column; columns found: {', '.join(self._names)}"
            sink.no_memory_hint = "log with dcgmi dmon -e 250,252"
            raise BadRow("no memory column")
        amounts = {role: fields.amount(cell) for role, cell in values.items()}
        used, total = amounts["used"], amounts.get("total", math.nan)
        if math.isnan(total):
            total = used + amounts.get("free", math.nan)
        if math.isnan(used) or used > total:
            raise BadRow("not available" if math.isnan(used) else "torn")
        place = sink.places.find(Place(index=index))
        sink.ticks.of(("dcgmi", place.order))
        sink.point(place, None, used, total=total)
