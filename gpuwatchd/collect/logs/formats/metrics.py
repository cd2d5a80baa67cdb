"""Metrics of exporters: saved Prometheus scrapes, DCGM's long tables, Weights & Biases."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect import prometheus
from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, Place
from gpuwatchd.collect.logs.reader import GIVE_TOTAL, JsonReader, LineReader, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time
    from gpuwatchd.collect.logs.reader import RowReader


_COLUMN = re.compile(
    r"(?:^|[\s./-])gpu\.(process\.)?(\d{1,3})\.(memoryAllocatedBytes|memoryAllocated)$"
)
"""``gpu.0.memory`` is use of the bandwidth and never taken."""
_TIMES = ("_timestamp", "timestamp", "_runtime", "Relative Time (Process)", "Wall Time")


def _take(row: Mapping[str, str], line: int, rows: RowReader) -> None:
    """Read one row for each device; amounts in bytes are preferred to per cent of the total."""
    best: dict[str, tuple[int, str]] = {}
    for name, text in row.items():
        match = _COLUMN.search(name)
        if match is None or fields.not_available(text):
            continue
        rank = (match.group(3) == "memoryAllocated") + 2 * bool(match.group(1))
        index = str(int(match.group(2)))
        if index not in best or rank < best[index][0]:
            best[index] = (rank, text)
    if not best:
        return  # other metrics of the run: no row about memory
    stamps = [row[name] for name in _TIMES if name in row]
    t = rows.time({"time": stamps[0]}) if stamps else None
    for index, (rank, text) in best.items():
        with rows.sink.counts.row(line):
            used = _used(text, rank, rows.sink)
            rows.device({"used": used}, t, rows.devices.of({"index": index}))


def _used(text: str, rank: int, sink: Collector) -> str:
    total, used = sink.options.total_bytes, fields.amount(text, 1.0)
    if rank >= 2:
        sink.note("memory of the run's own process only")
    if rank % 2:
        if total is None:
            sink.lacks_memory("memory in per cent only, and the total is not known", GIVE_TOTAL)
            raise BadRow("not available")
        used = used / 100.0 * total
    if total is not None and used > total:
        raise BadRow("torn")
    return f"{used} B"


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
            _take(dict(zip(self._names, cells, strict=True)), number, self._rows)
        return True


class WandbLines(JsonReader):
    """System metrics of Weights & Biases as JSON lines (the events stream)."""

    start = re.compile(r'"[^"]*gpu\.(?:process\.)?\d{1,3}\.memoryAllocated')

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        _take({key: text_of(each) for key, each in value.items()}, line, self._rows)


METRICS: dict[str, tuple[str, str]] = {
    "DCGM_FI_DEV_FB_USED": ("used", "MiB"),
    "DCGM_FI_DEV_FB_FREE": ("free", "MiB"),
    "DCGM_FI_DEV_FB_TOTAL": ("total", "MiB"),
    "DCGM_FI_DEV_FB_RESERVED": ("reserved", "MiB"),
    "nvidia_smi_memory_used_bytes": ("used", "B"),
    "nvidia_smi_memory_free_bytes": ("free", "B"),
    "nvidia_smi_memory_total_bytes": ("total", "B"),
    "nvidia_gpu_memory_used_bytes": ("used", "B"),
    "nvidia_gpu_memory_total_bytes": ("total", "B"),
    "gpuwatchd_device_memory_used_bytes": ("used", "B"),
    "gpuwatchd_device_memory_total_bytes": ("total", "B"),
}
"""Metric -> its role in a row, and its unit."""
_LINE = re.compile(
    r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+([-+]?(?:[0-9][0-9.eE+-]*|NaN|Inf))(?:\s+(-?\d{1,16}))?\s*$"
)
_LABEL_ROLES = (
    ("instance", "host"),
    ("hostname", "host"),
    ("minor_number", "index"),
    ("index", "index"),
    ("gpu", "index"),
    ("device_uid", "uuid"),
    ("gpu_uuid", "uuid"),
    ("uuid", "uuid"),
    ("gpu_i_id", "part"),
    ("name", "name"),
    ("modelname", "name"),
    ("gpu_i_profile", "part_name"),
)
"""Of two labels for one role the later counts."""
_KEYS = [label for label, role in _LABEL_ROLES if role not in {"name", "part_name"}]


class PrometheusReader(LineReader):
    """Prometheus text exposition, scrapes saved one after another: DCGM and other exporters."""

    start = re.compile(
        r"(?:# (?:HELP|TYPE) )?(?:" + "|".join(METRICS) + r"|DCGM_FI_\w+|nvidia_smi_\w+)[ {]"
    )

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._seen: set[str] = set()
        self._scrape: dict[tuple[str | None, ...], dict[str, str]] = {}
        """The row of each device, by the labels that tell it from others."""
        self._stamp_s: float | None = None
        self._line = 0

    def line(self, _line: str, stripped: str, number: int) -> bool:
        """Take a metric or a comment."""
        if stripped.startswith(("# HELP", "# TYPE", "# EOF")):
            return True
        match = _LINE.match(stripped) if len(stripped) < 65536 else None
        if match is not None:
            self._metric(match, number)
        elif self.start.match(stripped):
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
        values = {
            key.lower(): prometheus.unescaped(text)
            for key, text in prometheus.LABEL.findall(labels or "")
        }
        named = {role: values[label] for label, role in _LABEL_ROLES if values.get(label)}
        row = self._scrape.setdefault(tuple(map(values.get, _KEYS)), {"used": ""})
        role, unit = METRICS[name]
        row |= named | {role: f"{value} {unit}" if value[0].isdigit() else value}

    def close(self) -> None:
        """End the last scrape."""
        rows, self._scrape = self._scrape, {}
        stamp_s, self._stamp_s = self._stamp_s, None
        self._seen.clear()
        self._sink.ticks.advance()
        for row in rows.values():
            with self._sink.counts.row(self._line):
                self._device(row, None if stamp_s is None else (stamp_s, stamp_s))

    def _device(self, row: dict[str, str], t: Time) -> None:
        if fields.whole(row.get("index")) is None:
            row.pop("index", None)
        place = self._rows.devices.of(row)
        if "part" in row:
            name = row.get("part_name", "MIG instance")
            place = self._sink.places.find(Place(parent=place, key=row["part"], name=name))
        self._rows.device(row, t, place)


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
            if track is not None and "used" in amounts:
                used_at = amounts["used"][0]
                same = {role: value for role, (at, value) in amounts.items() if at == used_at}
                self._rows.describe(track, same)

    def _row(self, row: dict[str, str]) -> None:
        sink = self._sink
        role, unit = METRICS.get(row.get("metric_name", ""), ("", ""))
        if not role:
            sink.counts.good(1)
            return
        t = self._rows.time({"time": row.get("timestamp", "")})
        value = fields.amount(row.get("value", ""), fields.UNITS[unit.lower()])
        if t is None or math.isnan(value):
            raise BadRow("not available")
        host, gpu = row.get("hostname", ""), row.get("gpu_id", "")
        model = row.get("modelname") or "GPU"
        place = self._rows.devices.of(
            {
                "uuid": row.get("uuid", ""),
                "index": gpu if fields.whole(gpu) is not None else "",
                "host": host,
                "name": f"{model} ({host}/{gpu})" if host else model,
            }
        )
        self._last.setdefault(place, {})[role] = (t[0], value)
        if role == "used":
            sink.point(place, t, value)
        else:
            sink.counts.good(1)
