"""Metrics of exporters: saved Prometheus scrapes, DCGM's long tables, Weights & Biases."""

from __future__ import annotations

import math
import re
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


class WandbTable(LineReader):
    """System metrics of Weights & Biases, exported as CSV."""

    _names: Sequence[str] = ()

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with such columns stands here."""
        line = lines[at]
        if "memoryAllocated" not in line or line[:1] == "{":
            return False
        return any(_COLUMN.search(name) for name in fields.cells_of(line))

    def line(self, line: str, _stripped: str, number: int) -> bool:
        """Take the header or a row."""
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


class WandbLines(JsonReader):
    """System metrics of Weights & Biases as JSON lines (the events stream)."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with such keys begins here."""
        return bool(_KEY.search(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        _take({key: text_of(each) for key, each in value.items()}, line, self._sink)


METRICS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_FB_USED": ("used", MIB),
    "DCGM_FI_DEV_FB_FREE": ("free", MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("total", MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("reserved", MIB),
    "nvidia_smi_memory_used_bytes": ("used", 1.0),
    "nvidia_smi_memory_free_bytes": ("free", 1.0),
    "nvidia_smi_memory_total_bytes": ("total", 1.0),
    "nvidia_gpu_memory_used_bytes": ("used", 1.0),
    "nvidia_gpu_memory_total_bytes": ("total", 1.0),
    "gpuwatchd_device_memory_used_bytes": ("used", 1.0),
    "gpuwatchd_device_memory_total_bytes": ("total", 1.0),
}
"""Metric -> what it is, and bytes per unit."""
_LINE = re.compile(
    r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([-+]?(?:[0-9][0-9.eE+-]*|NaN|Inf))(?:\s+(-?\d{1,16}))?\s*$"
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_START = re.compile(
    r"(?:# (?:HELP|TYPE) )?(?:" + "|".join(METRICS) + r"|DCGM_FI_\w+|nvidia_smi_\w+)[ {]"
)
_KEYS = ("uuid", "gpu_uuid", "device_uid", "gpu", "index", "minor_number", "gpu_i_id", "hostname",
         "instance")  # fmt: skip
_Key = tuple[str | None, ...]


class PrometheusReader(LineReader):
    """Prometheus text exposition, scrapes saved one after another: DCGM and other exporters."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._seen: set[str] = set()
        self._rows: dict[_Key, dict[str, float]] = {}
        self._labels: dict[_Key, dict[str, str]] = {}
        self._stamp_s: float | None = None
        self._line = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of such an exposition stands here."""
        return bool(_START.match(lines[at]))

    def line(self, _line: str, stripped: str, number: int) -> bool:
        """Take a metric or a comment."""
        if stripped.startswith(("# HELP", "# TYPE", "# EOF")):
            return True
        match = _LINE.match(stripped) if len(stripped) < 65536 else None
        if match is not None:
            self._metric(match, number)
        elif _START.match(stripped):
            raise BadRow("torn")
        return match is not None

    def _metric(self, match: re.Match[str], number: int) -> None:
        name, labels, value, stamp = match.groups()
        if name not in METRICS:
            return
        series = f"{name}{{{labels}}}"
        stamp_s = int(stamp) / 1e3 if stamp else None
        if series in self._seen or (stamp_s and self._stamp_s and stamp_s != self._stamp_s):
            self.close()
        self._seen.add(series)
        self._line, self._stamp_s = number, stamp_s
        values = {key.lower(): _unescaped(text) for key, text in _LABEL.findall(labels or "")}
        key = tuple(values.get(each) for each in _KEYS)
        role, unit = METRICS[name]
        self._rows.setdefault(key, {})[role] = fields.amount(value, unit)
        self._labels[key] = values

    def close(self) -> None:
        """End the last scrape."""
        rows, self._rows = self._rows, {}
        stamp_s, self._stamp_s = self._stamp_s, None
        self._seen.clear()
        self._sink.ticks.advance()
        for key, amounts in rows.items():
            with self._sink.row(self._line):
                self._device(self._labels[key], amounts, stamp_s)

    def _device(
        self, labels: dict[str, str], amounts: dict[str, float], stamp_s: float | None
    ) -> None:
        sink = self._sink
        used, free, total = (amounts.get(role, math.nan) for role in ("used", "free", "total"))
        if math.isnan(total):
            total = used + free + amounts.get("reserved", 0.0)
        if math.isnan(used) or used > total:
            raise BadRow("not available" if math.isnan(used) else "torn")
        uuid = labels.get("uuid") or labels.get("gpu_uuid") or labels.get("device_uid")
        index = labels.get("gpu") or labels.get("index") or labels.get("minor_number")
        place = sink.places.find(
            Place(
                uuid=fields.uuid(uuid),
                index=fields.whole(index),
                host=labels.get("hostname") or labels.get("instance"),
                name=labels.get("modelname") or labels.get("name"),
            )
        )
        if part := labels.get("gpu_i_id"):
            profile = labels.get("gpu_i_profile", "MIG instance")
            place = sink.places.find(Place(parent=place, key=part, name=profile))
        sink.ticks.of(("prometheus", place.order))
        t = None if stamp_s is None else (stamp_s, stamp_s)
        sink.point(place, t, used, total=total, usable=used + free)


def _unescaped(text: str) -> str:
    r"""Return a label as it was before it was escaped; a line end becomes a blank.

    Examples
    --------
    >>> print(_unescaped(r'C:\\new \"big\"'))
    C:\new "big"
    """
    return _ESCAPED.sub(lambda match: " " if match[1] == "n" else match[1], text)


class DcgmTable(LineReader):
    """Long tables of DCGM metrics: one row per metric, device and time, pivoted here."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []
        self._header = ""
        self._last: dict[Place, dict[str, tuple[float, float]]] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of such a table stands here."""
        line = lines[at]
        if "metric_name" not in line or len(line) >= 65536:
            return False
        names = {cell.lower() for cell in fields.cells_of(line)}
        return names >= {"timestamp", "metric_name", "value"}

    def line(self, line: str, _stripped: str, _number: int) -> bool:
        """Take the header or a row."""
        if line == self._header:
            return True
        if not self._names or self.starts([line], 0):
            self._header = line
            self._names = [cell.lower() for cell in fields.cells_of(line)]
            return True
        if "," not in line:
            return False
        cells = fields.cells_of(line, strict=True)
        if len(cells) != len(self._names):
            raise BadRow("torn")
        self._row(dict(zip(self._names, cells, strict=True)))
        return True

    def close(self) -> None:
        """Give each device the total that its last figures tell."""
        for place, amounts in self._last.items():
            track = self._sink.track(place, timed=True)
            if track is None or "used" not in amounts:
                continue
            used_at, used = amounts["used"]
            same = {role: value for role, (at, value) in amounts.items() if at == used_at}
            if "total" in same:
                track.total = same["total"]
            elif "free" in same:
                track.total = used + same["free"] + same.get("reserved", 0.0)
            if "free" in same:
                track.usable = used + same["free"]

    def _row(self, row: dict[str, str]) -> None:
        sink = self._sink
        role, unit = METRICS.get(row.get("metric_name", ""), ("", MIB))
        if not role:
            sink.good(1)
            return
        t = sink.clock.both(row.get("timestamp", ""))
        if math.isnan(t[0]):
            raise BadRow("bad time")
        value = fields.amount(row.get("value", ""), unit)
        if math.isnan(value):
            raise BadRow("not available")
        host, gpu = row.get("hostname", ""), row.get("gpu_id", "")
        model = row.get("modelname") or "GPU"
        place = sink.places.find(
            Place(
                uuid=fields.uuid(row.get("uuid")),
                index=fields.whole(gpu),
                host=host or None,
                name=f"{model} ({host}/{gpu})" if host else model,
            )
        )
        self._last.setdefault(place, {})[role] = (t[0], value)
        if role == "used":
            sink.point(place, t, value)
        else:
            sink.good(1)
