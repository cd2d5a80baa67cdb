"""Prometheus text exposition, scrapes saved one after another: DCGM and other exporters."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader
from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

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


class Reader(FormatReader):
    """Gathers one scrape at a time: a series that comes again starts the next one."""

    name = "prometheus"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._seen: set[str] = set()
        self._rows: dict[_Key, dict[str, float]] = {}
        self._labels: dict[_Key, dict[str, str]] = {}
        self._stamp: float | None = None
        self._line = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of such an exposition stands here."""
        return bool(_START.match(lines[at]))

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take metric lines and comments."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not stripped or stripped.startswith(("# HELP", "# TYPE", "# EOF")):
                continue
            match = _LINE.match(stripped) if len(stripped) < 65536 else None
            if match is None:
                if _START.match(stripped):
                    self._sink.bad("torn", first_line + number)
                    continue
                return number
            self._metric(match, first_line + number)
        return len(lines)

    def _metric(self, match: re.Match[str], number: int) -> None:
        name, labels, value, stamp = match.groups()
        if name not in METRICS:
            return
        series = f"{name}{{{labels}}}"
        if series in self._seen or (stamp and self._stamp and int(stamp) / 1e3 != self._stamp):
            self.close()
        self._seen.add(series)
        self._line = number
        self._stamp = int(stamp) / 1e3 if stamp else None
        values = {key.lower(): _unescaped(text) for key, text in _LABEL.findall(labels or "")}
        key = tuple(values.get(each) for each in _KEYS)
        role, unit = METRICS[name]
        with self._sink.row(number):
            self._rows.setdefault(key, {})[role] = fields.amount(value, unit)
            self._labels[key] = values

    def close(self) -> None:
        """End the last scrape."""
        rows, self._rows = self._rows, {}
        stamp, self._stamp = self._stamp, None
        self._seen.clear()
        self._sink.ticks.advance()
        for key, amounts in rows.items():
            with self._sink.row(self._line):
                self._device(self._labels[key], amounts, stamp)

    def _device(
        self, labels: dict[str, str], amounts: dict[str, float], stamp: float | None
    ) -> None:
        sink, used = self._sink, amounts.get("used", math.nan)
        total = amounts.get("total", math.nan)
        free = amounts.get("free", math.nan)
        if math.isnan(total):
            total = used + free + amounts.get("reserved", 0.0)
        if math.isnan(used) or used > total:
            raise BadRow("not available" if math.isnan(used) else "torn")
        index = labels.get("gpu") or labels.get("index") or labels.get("minor_number")
        place = sink.places.find(
            uuid=fields.uuid(
                labels.get("uuid") or labels.get("gpu_uuid") or labels.get("device_uid")
            ),
            index=fields.whole(index),
            host=labels.get("hostname") or labels.get("instance"),
            name=labels.get("modelname") or labels.get("name"),
        )
        if part := labels.get("gpu_i_id"):
            profile = labels.get("gpu_i_profile", "MIG instance")
            place = sink.places.find(parent=place, key=part, name=profile)
        sink.ticks.of(("prometheus", place.order))
        usable = None if math.isnan(free) else used + free
        known = None if math.isnan(total) else total
        sink.point(place, stamp, used, total=known, usable=usable)


def _unescaped(text: str) -> str:
    r"""Return a label as it was before it was escaped; a line end becomes a blank.

    Examples
    --------
    >>> print(_unescaped(r'C:\\new \"big\"'))
    C:\new "big"
    """
    return _ESCAPED.sub(lambda match: " " if match[1] == "n" else match[1], text)
