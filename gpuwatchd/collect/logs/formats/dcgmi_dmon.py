"""``dcgmi dmon``: columns by the short names of the header, amounts in MiB."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

_HEADER = re.compile(r"#\s*Entity\s+\S")
_ROW = re.compile(r"\s*(GPU|GPU-I|GPU-CI|Switch|CPU)\s+(\d{1,5})\s+(\S.*)$")
_ROLES = {"FBUSD": "used", "FBTTL": "total", "FBFRE": "free", "FBFREE": "free", "FBUSED": "used",
          "FBTOTAL": "total"}  # fmt: skip


class Reader(FormatReader):
    """Reads rows of GPUs; other entities are passed over."""

    name = "dcgmi-dmon"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._names: list[str] = []

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``dcgmi dmon`` stands here."""
        return bool(_HEADER.match(lines[at]))

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take headers and rows."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not stripped or stripped == "ID" or stripped.startswith("ID "):
                continue
            if _HEADER.match(stripped):
                self._names = stripped.lstrip("# ").split()[1:]
                continue
            match = _ROW.match(line)
            if match is None:
                return number
            if match.group(1) == "GPU":
                with self._sink.row(first_line + number):
                    self._row(int(match.group(2)), match.group(3).split())
        return len(lines)

    def _row(self, index: int, cells: list[str]) -> None:
        sink = self._sink
        if len(cells) != len(self._names):
            raise BadRow("torn")
        values = {_ROLES[name.upper()]: cell for name, cell in zip(self._names, cells, strict=True)
                 if name.upper() in _ROLES}  # fmt: skip
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
        place = sink.places.find(index=index)
        sink.ticks.of(("dcgmi", place.order))
        sink.point(place, None, used, total=None if math.isnan(total) else total)
