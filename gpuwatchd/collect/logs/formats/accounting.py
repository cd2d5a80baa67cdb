"""Tables of nvidia-smi that hold no course over time: accounted applications, retired pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import FormatReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector


class Reader(FormatReader):
    """Passes over such a table and says so."""

    name = "nvidia-smi-accounted"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._width = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of such a table stands here."""
        line = lines[at]
        return "," in line and ("max_memory_usage" in line or "retired_pages.cause" in line)

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Pass over the header and its rows."""
        del first_line
        done = 0
        if self.starts(lines, 0):
            self._width, done = lines[0].count(","), 1
            if "max_memory_usage" in lines[0]:
                self._sink.no_memory = self._sink.no_memory or (
                    "accounted applications hold peaks only: no series"
                )
        while done < len(lines):
            line = lines[done]
            if line.strip() and (line.count(",") < self._width or self.starts(lines, done)):
                break
            done += 1
        return done
