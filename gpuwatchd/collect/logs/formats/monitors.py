"""Monitors: ``nvidia-smi dmon`` and ``pmon``, ``dcgmi dmon``, gpustat, rocm-smi, tegrastats.

Columns go by the names of the header, never by position. Of ``nvidia-smi``'s only ``-s m`` holds
an amount of memory; amounts say MB and mean MiB.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import (
    BadRow,
    JsonReader,
    LineReader,
    Place,
    head_of,
    text_of,
)
from gpuwatchd.collect.logs.fields import MIB
from gpuwatchd.collect.logs.tables import NO_AMOUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time


_CARD = re.compile(r"card(\d{1,3})")
_ROCM = re.compile(r'"card\d{1,3}"\s*:\s*\{')
_TOTAL, _USED = "VRAM Total Memory (B)", "VRAM Total Used Memory (B)"
_NAMES = ("Card Series", "Card series", "Device Name", "Card model", "Card Model")


class RocmReader(JsonReader):
    """``rocm-smi --json``: amounts in bytes as text, no time; keys vary between releases."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object of cards begins here."""
        return bool(_ROCM.search(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the cards of one look."""
        self._sink.ticks.advance()
        for key, card in value.items():
            match = _CARD.fullmatch(key)
            if match and isinstance(card, dict):
                self._sink.ticks.of(key)
                with self._sink.row(line):
                    self._card(int(match.group(1)), card)

    def _card(self, index: int, card: dict[str, Any]) -> None:
        if _USED not in card:
            self._sink.no_memory = "no VRAM figure; log with rocm-smi --showmeminfo vram --json"
            raise BadRow("no memory column")
        used = fields.amount(text_of(card[_USED]), 1.0)
        total = fields.amount(text_of(card.get(_TOTAL)), 1.0)
        if math.isnan(used) or used > total:
            raise BadRow("not available" if math.isnan(used) else "torn")
        names = (text_of(card.get(name)) for name in _NAMES)
        name = next((name for name in names if name and not name.startswith("0x")), "AMD GPU")
        known = None if math.isnan(total) or total <= 0 else total
        place = Place(
            uuid=fields.value_or_none(text_of(card.get("Unique ID"))),
            bus=fields.bus(text_of(card.get("PCI Bus"))),
            index=index,
            name=name,
            total=known,
            vendor="amd",
        )
        self._sink.point(self._sink.places.find(place), None, used, total=known)


_GPUSTAT = re.compile(r'"gpus"\s*:\s*\[')
_ROW = re.compile(
    r"\[(\d{1,3})\]\s+(.+?)\s*\|[^|]*\|\s*(\d{1,9}|\?+)\s*/\s*(\d{1,9}|\?+)\s*MB\s*\|?(.*)$"
)
_HEAD = re.compile(r"(\S+)\s+(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})(?:\s|$)")
_PROCESS = re.compile(r"([\w.-]+):([^\s()]+?)(?:/(\d{1,10}))?\((\d{1,9}|\?+)M\)")


class GpustatObjects(JsonReader):
    """``gpustat --json``: one object per look, amounts in MiB, null where unknown."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a list of GPUs begins here."""
        head = head_of(lines, at)
        return bool(_GPUSTAT.search(head)) and ('"query_time"' in head or '"memory.used"' in head)

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the GPUs of one look."""
        gpus, stamp = value.get("gpus"), value.get("query_time")
        if not isinstance(gpus, list):
            raise BadRow("torn")
        t = None if stamp is None else self._sink.clock.both(text_of(stamp))
        self._sink.ticks.advance()
        for position, gpu in enumerate(gpus):
            self._sink.ticks.of(("gpustat", position))
            with self._sink.row(line):
                if not isinstance(gpu, dict):
                    raise BadRow("torn")
                self._gpu(gpu, text_of(value.get("hostname")), t, line)

    def _gpu(self, gpu: dict[str, Any], host: str, t: Time, line: int) -> None:
        if t is not None and math.isnan(t[0]):
            raise BadRow("bad time")
        used = fields.amount(text_of(gpu.get("memory.used")))
        total = fields.amount(text_of(gpu.get("memory.total")))
        if used > total:
            raise BadRow("torn")
        known = None if math.isnan(total) or total <= 0 else total
        place = self._sink.places.find(
            Place(
                uuid=fields.uuid(text_of(gpu.get("uuid"))),
                index=fields.whole(text_of(gpu.get("index"))),
                host=host or None,
                name=fields.value_or_none(text_of(gpu.get("name"))),
                total=known,
            )
        )
        if math.isnan(used):
            self._sink.no_memory = "unified memory: this log holds no memory figure"
            self._sink.bad("not available", line)
        else:
            self._sink.point(place, t, used, total=known)
        processes = gpu.get("processes")
        for each in processes if isinstance(processes, list) else ():
            if isinstance(each, dict):
                with self._sink.row(line):
                    self._process(each, place, t)

    def _process(self, each: dict[str, Any], place: Place, t: Time) -> None:
        pid = fields.whole(text_of(each.get("pid")))
        argv = each.get("full_command")
        who = None if pid is None else self._sink.process(
            pid,
            fields.value_or_none(text_of(each.get("command"))),
            user=fields.value_or_none(text_of(each.get("username"))),
            argv=[text_of(word) for word in argv] if isinstance(argv, list) else (),
        )  # fmt: skip
        used = fields.amount(text_of(each.get("gpu_memory_usage")))
        if who is None or math.isnan(used):
            raise BadRow("not available")
        if place.total is not None and used > place.total:
            raise BadRow("torn")
        self._sink.point(place, t, used, process=who)


class GpustatLines(LineReader):
    """Lines of gpustat: ``[0] NAME | 45'C, 12 % | 123 / 8192 MB | user:process/pid(mem) ...``."""

    _t: Time = None
    _host: str | None = None

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of gpustat stands here."""
        if _ROW.match(lines[at].strip()):
            return True
        below = lines[at + 1 : at + 2]
        return bool(_HEAD.match(lines[at])) and bool(below and _ROW.match(below[0].strip()))

    def line(self, _line: str, stripped: str, _number: int) -> bool:
        """Take a line of gpustat."""
        if head := _HEAD.match(stripped):
            self._host = head.group(1)
            self._t = self._sink.clock.both(head.group(2))
            self._sink.ticks.advance()
            return True
        row = _ROW.match(stripped)
        if row is not None:
            self._row(row)
        return row is not None

    def _row(self, row: re.Match[str]) -> None:
        index, name, used, total, rest = row.groups()
        sink = self._sink
        if "?" in used or "?" in total:
            raise BadRow("not available")
        used_bytes, total_bytes = int(used) * MIB, int(total) * MIB
        if used_bytes > total_bytes:
            raise BadRow("torn")
        row_place = Place(index=int(index), host=self._host, name=name, total=total_bytes)
        place = sink.places.find(row_place)
        if self._t is None:
            sink.ticks.of(("gpustat", place.order))
        sink.point(place, self._t, used_bytes, total=total_bytes)
        for user, command, pid, held in _PROCESS.findall(rest):
            if not pid or "?" in held or int(held) * MIB > total_bytes:
                continue
            who = sink.process(int(pid), command, user=user)
            if who is not None:
                sink.point(place, self._t, int(held) * MIB, process=who)


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


class NvidiaMonitor(LineReader):
    """Base of the two of nvidia-smi: names after ``#``, columns by whitespace, header repeated."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._midnights = 0
        self._last_s = 0.0

    def line(self, line: str, stripped: str, _number: int) -> bool:
        """Take a header or a row."""
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
            why = "no memory column (mem is use of the bandwidth)"
            why += f"; columns found: {', '.join(self._names)}"
            self._sink.lacks_memory(why, "log with nvidia-smi dmon -s mu -o DT")
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


class DcgmiMonitor(LineReader):
    """``dcgmi dmon``: columns by the short names of the header; rows of GPUs only."""

    _names: Sequence[str] = ()

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``dcgmi dmon`` stands here."""
        return bool(_DCGMI_HEADER.match(lines[at]))

    def line(self, line: str, stripped: str, _number: int) -> bool:
        """Take a header, its line of units, or a row."""
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
            why = f"no memory column; columns found: {', '.join(self._names)}"
            sink.lacks_memory(why, "log with dcgmi dmon -e 250,252")
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


_TEGRA = re.compile(r"(.{0,60}?)\bRAM (\d{1,9})/(\d{1,9})MB \(lfb ")


class TegraMonitor(LineReader):
    """``tegrastats``: a line per look; the GPU of a Jetson shares the memory of the machine."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of tegrastats stands here."""
        return _TEGRA.match(lines[at]) is not None

    def line(self, line: str, _stripped: str, _number: int) -> bool:
        """Take a line; what stands before it is its time, by the tool or by who wrote the log."""
        match = _TEGRA.match(line)
        if match is None:
            return False
        before, used, total = match.groups()
        sink = self._sink
        t: Time = None
        if stamp := before.strip(" \t[]|,;:-"):
            month_first, day_first = sink.clock.both(stamp)
            # The tool itself writes the month first.
            t = (day_first if math.isnan(month_first) else month_first,) * 2
            if math.isnan(t[0]):
                raise BadRow("bad time")
        if int(used) > int(total):
            raise BadRow("torn")
        sink.note("unified memory: the figures are those of the machine, which the GPU shares")
        place = sink.places.find(Place(index=0, name="Tegra", total=int(total) * MIB))
        if t is None:
            sink.ticks.of(("tegra", place.order))
        sink.point(place, t, int(used) * MIB, total=int(total) * MIB)
        return True
