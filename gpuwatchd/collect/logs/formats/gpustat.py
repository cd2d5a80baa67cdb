"""What gpustat prints: lines for people, and objects with ``--json``."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader, Place
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of
from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Time

_GPUSTAT = re.compile(r'"gpus"\s*:\s*\[')
_ROW = re.compile(
    r"\[(\d{1,3})\]\s+(.+?)\s*\|[^|]*\|\s*(\d{1,9}|\?+)\s*/\s*(\d{1,9}|\?+)\s*MB\s*\|?(.*)$"
)
_HEAD = re.compile(r"(\S+)\s+(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})(?:\s|$)")
_PROCESS = re.compile(r"([\w.-]+):([^\s()]+?)(?:/(\d{1,10}))?\((\d{1,9}|\?+)M\)")


class ObjectReader(JsonReader):
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


class TextReader(FormatReader):
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
