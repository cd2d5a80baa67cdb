"""Lines of gpustat."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import BadRow, FormatReader, Place
from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time

_ROW = re.compile(
    r"\[(\d{1,3})\]\s+(.+?)\s*\|[^|]*\|\s*(\d{1,9}|\?+)\s*/\s*(\d{1,9}|\?+)\s*MB\s*\|?(.*)$"
)
_HEAD = re.compile(r"(\S+)\s+(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})(?:\s|$)")
_PROCESS = re.compile(r"([\w.-]+):([^\s()]+?)(?:/(\d{1,10}))?\((\d{1,9}|\?+)M\)")


class Reader(FormatReader):
    """Lines of gpustat: ``[0] NAME | 45'C, 12 % | 123 / 8192 MB | user:process/pid(mem) ...``."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._t: Time = None
        self._host: str | None = None

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a line of gpustat stands here."""
        if _ROW.match(lines[at].strip()):
            return True
        below = lines[at + 1 : at + 2]
        return bool(_HEAD.match(lines[at])) and bool(below and _ROW.match(below[0].strip()))

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a line of gpustat."""
        del line, number
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
