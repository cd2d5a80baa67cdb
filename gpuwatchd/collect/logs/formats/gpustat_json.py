"""Objects of gpustat."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, Place
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Time

_OWN = re.compile(r'"gpus"\s*:\s*\[')


class Reader(JsonReader):
    """``gpustat --json``: one object per look, amounts in MiB, null where unknown."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a list of GPUs begins here."""
        head = head_of(lines, at)
        return bool(_OWN.search(head)) and ('"query_time"' in head or '"memory.used"' in head)

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
