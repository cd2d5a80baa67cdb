"""Monitors: ``nvidia-smi dmon`` and ``pmon``, ``dcgmi dmon``, gpustat, rocm-smi, tegrastats.

Columns go by the names of the header, never by position. Of ``nvidia-smi``'s only ``-s m`` holds
an amount of memory; amounts say MB and mean MiB.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, ClassVar

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.reader import (
    NO_AMOUNT,
    JsonReader,
    LineReader,
    head_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector


_CARD = re.compile(r"card(\d{1,3})")
_NAMES = ("Card Series", "Card series", "Device Name", "Card model", "Card Model")
_ROCM_ROLES = {
    "VRAM Total Used Memory (B)": "used",
    "VRAM Total Memory (B)": "total",
    "Unique ID": "uuid",
    "PCI Bus": "bus",
}


class RocmReader(JsonReader):
    """``rocm-smi --json``: amounts in bytes as text, no time; keys vary between releases."""

    start = re.compile(r'"card\d{1,3}"\s*:\s*\{')

    lacking = "no VRAM figure; log with rocm-smi --showmeminfo vram --json", ""
    units: ClassVar = {"used": 1.0, "total": 1.0}
    vendor = "amd"
    documents = True

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the cards of one look."""
        self._sink.ticks.document()
        for key, card in value.items():
            match = _CARD.fullmatch(key)
            if match and isinstance(card, dict):
                names = (text_of(card.get(name)) for name in _NAMES)
                name = next((name for name in names if name and name[:2] != "0x"), "AMD GPU")
                row = {"index": match.group(1), "name": name} | _renamed(card, _ROCM_ROLES)
                self._rows.take(row, line)


def _renamed(value: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, str]:
    """Return what an object holds under the keys that have a role."""
    return {role: text_of(value[key]) for key, role in roles.items() if key in value}


_GPUSTAT = re.compile(r'"gpus"\s*:\s*\[')
_GPU_ROLES = {
    "uuid": "uuid",
    "index": "index",
    "name": "name",
    "memory.used": "used",
    "memory.total": "total",
}
_PROCESS_ROLES = {
    "pid": "pid",
    "command": "process",
    "username": "user",
    "gpu_memory_usage": "used",
}


class GpustatObjects(JsonReader):
    """``gpustat --json``: one object per look, amounts in MiB, null where unknown."""

    documents = True

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a list of GPUs begins here."""
        head = head_of(lines, at)
        return bool(_GPUSTAT.search(head)) and ('"query_time"' in head or '"memory.used"' in head)

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the GPUs of one look."""
        gpus = value.get("gpus")
        if not isinstance(gpus, list):
            raise BadRow("torn")
        look = _renamed(value, {"query_time": "time", "hostname": "host"})
        self._sink.ticks.document()
        for gpu in gpus:
            with self._sink.counts.row(line):
                if not isinstance(gpu, dict):
                    raise BadRow("torn")
                self._gpu(look | _renamed(gpu, _GPU_ROLES), gpu.get("processes"), line)

    def _gpu(self, row: Mapping[str, str], processes: object, line: int) -> None:
        t = self._rows.time(row)
        place = self._rows.devices.of(row)
        with self._sink.counts.row(line):
            self._rows.device(row, t, place)
        for each in processes if isinstance(processes, list) else ():
            if isinstance(each, dict):
                argv = each.get("full_command")
                words = [text_of(word) for word in argv] if isinstance(argv, list) else ()
                with self._sink.counts.row(line):
                    self._rows.process(_renamed(each, _PROCESS_ROLES), t, place, words)


_ROW = re.compile(
    r"\[(?P<index>\d{1,3})\]\s+(?P<name>.+?)\s*\|[^|]*\|\s*(?P<used>\d{1,9}|\?+)\s*/"
    r"\s*(?P<total>\d{1,9}|\?+)\s*MB\s*\|?(?P<rest>.*)$"
)
_HEAD = re.compile(r"(?P<host>\S+)\s+(?P<time>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})(?:\s|$)")
_PROCESS = re.compile(
    r"(?P<user>[\w.-]+):(?P<process>[^\s()]+?)/(?P<pid>\d{1,10})\((?P<used>\d{1,9})M\)"
)


class GpustatLines(LineReader):
    """Lines of gpustat: ``[0] NAME | 45'C, 12 % | 123 / 8192 MB | user:process/pid(mem) ...``."""

    _look: Mapping[str, str] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of gpustat stands here."""
        if _ROW.match(lines[at].strip()):
            return True
        below = lines[at + 1 : at + 2]
        return bool(_HEAD.match(lines[at])) and bool(below and _ROW.match(below[0].strip()))

    def line(self, _line: str, stripped: str, number: int) -> bool:
        """Take a line of gpustat."""
        if head := _HEAD.match(stripped):
            self._look = head.groupdict()
            self._sink.ticks.advance()
            return True
        match = _ROW.match(stripped)
        if match is not None:
            self._row({**self._look, **match.groupdict()}, number)
        return match is not None

    def _row(self, row: dict[str, str], number: int) -> None:
        if "?" in row["used"] + row["total"]:
            raise BadRow("not available")
        t, place = self._rows.time(row), self._rows.devices.of(row)
        self._rows.device(row, t, place)
        for each in _PROCESS.finditer(row["rest"]):
            process = each.groupdict()
            if int(process["used"]) <= int(row["total"]):
                with self._sink.counts.row(number):
                    self._rows.process(process, t, place)


_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)", re.ASCII)
_DAY_S = 86400.0
_NVIDIA_ROLES = {"gpu": "index", "fb": "used", "command": "process", "name": "process"}
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

    of_processes: ClassVar[bool]

    @classmethod
    def starts(cls, lines: Sequence[str], at: int) -> bool:
        """Say whether a header of this monitor stands here."""
        names = names_of(lines[at])
        return bool(names) and ("pid" in names) == cls.of_processes

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._midnights = 0
        self._last_s = 0.0

    def line(self, line: str, stripped: str, _number: int) -> bool:
        """Take a header or a row."""
        if names := names_of(line):
            if not self.starts([line], 0):
                return False  # the other monitor
            if names != self._names:
                self._names, self._rows = names, self._reader_of(names)
            return True
        if line.startswith("#"):
            units = not _UNITS.isdisjoint(stripped.lstrip("# ").split())
            return units and not stripped.startswith("####")
        if not (stripped[0].isdigit() or stripped[0] == "-") or "," in stripped:
            return False
        # A command at the end may hold blanks.
        cells = stripped.split(None, len(self._names) - 1 if self.of_processes else -1)
        if len(cells) != len(self._names):
            raise BadRow("torn")
        roles = (_NVIDIA_ROLES.get(name, name) for name in self._names)
        self._row(dict(zip(roles, cells, strict=True)))
        return True

    def _row(self, row: dict[str, str]) -> None:
        if fields.whole(row["index"]) is None:
            raise BadRow("torn")
        if row.get("pid") == "-":  # no process runs on this device
            place = self._rows.devices.of(row)
            if "time" not in row:
                self._sink.ticks.of((place.order, None))
            return
        if "time" in row:
            before = row.get("date")
            row["time"] = f"{before} {row['time']}" if before else self._time(row["time"])
        self._rows.read(row)

    def _time(self, text: str) -> str:
        """Return a time of day as seconds since the first midnight."""
        match = _TIME_OF_DAY.fullmatch(text)
        if match is None:
            raise BadRow("bad time")
        hour, minute, second = map(int, match.groups())
        moment_s = hour * 3600.0 + minute * 60.0 + second
        self._midnights += moment_s < self._last_s - _DAY_S / 2
        self._last_s = moment_s
        return str(moment_s + self._midnights * _DAY_S)


class DeviceMonitor(NvidiaMonitor):
    """``nvidia-smi dmon``: one row per device and tick; only ``-s m`` holds amounts of memory."""

    of_processes = False
    lacking = (
        "no memory column (mem is use of the bandwidth); columns found: {columns}",
        "log with nvidia-smi dmon -s mu -o DT",
    )


class ProcessMonitor(NvidiaMonitor):
    """``nvidia-smi pmon``: one row per process and tick; only ``-s m`` holds amounts of memory."""

    of_processes = True
    lacking = f"{NO_AMOUNT}; columns found: {{columns}}", "log with nvidia-smi pmon -s um -o DT"


_DCGMI_ROW = re.compile(r"\s*(GPU|GPU-I|GPU-CI|Switch|CPU)\s+(\d{1,5})\s+(\S.*)$")
_DCGMI_ROLES = {"FBUSD": "used", "FBTTL": "total", "FBFRE": "free", "FBFREE": "free",
                "FBUSED": "used", "FBTOTAL": "total"}  # fmt: skip


class DcgmiMonitor(LineReader):
    """``dcgmi dmon``: columns by the short names of the header; rows of GPUs only."""

    start = re.compile(r"#\s*Entity\s+\S")
    lacking = "no memory column; columns found: {columns}", "log with dcgmi dmon -e 250,252"
    _names: Sequence[str] = ()

    def line(self, line: str, stripped: str, _number: int) -> bool:
        """Take a header, its line of units, or a row."""
        if stripped == "ID" or stripped.startswith("ID "):
            return True
        if self.start.match(stripped):
            self._names = stripped.lstrip("# ").split()[1:]
            self._rows = self._reader_of(self._names)
            return True
        match = _DCGMI_ROW.match(line)
        if match is not None and match.group(1) == "GPU":
            cells = match.group(3).split()
            if len(cells) != len(self._names):
                raise BadRow("torn")
            roles = (_DCGMI_ROLES.get(name.upper(), name) for name in self._names)
            self._rows.read({"index": match.group(2)} | dict(zip(roles, cells, strict=True)))
        return match is not None


class TegraMonitor(LineReader):
    """``tegrastats``: a line per look; the GPU of a Jetson shares the memory of the machine."""

    start = re.compile(r"(?P<time>.{0,60}?)\bRAM (?P<used>\d{1,9})/(?P<total>\d{1,9})MB \(lfb ")

    def line(self, line: str, _stripped: str, _number: int) -> bool:
        """Take a line; what stands before it is its time, by the tool or by who wrote the log."""
        match = self.start.match(line)
        if match is None:
            return False
        row = match.groupdict() | {"index": "0", "name": "Tegra"}
        if stamp := row.pop("time").strip(" \t[]|,;:-"):
            month_first, day_first = self._sink.clock.both(stamp)
            # The tool itself writes the month first.
            row["time"] = str(day_first if math.isnan(month_first) else month_first)
        self._rows.read(row)
        self._sink.note(
            "unified memory: the figures are those of the machine, which the GPU shares"
        )
        return True
