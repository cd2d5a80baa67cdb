"""The default table of nvidia-smi, repeated by ``watch`` or a loop."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import FormatReader
from gpuwatchd.collect.logs.documents import Card, Instance, Memory, Process, keep
from gpuwatchd.collect.logs.times import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.documents import Time

_RULE = re.compile(r"\s*\+[-=+]{20,}\s*$")
_BANNER = re.compile(r"\s*\|\s*NVIDIA-SMI\s")
_DATED = re.compile(r".*\d\d:\d\d:\d\d.*\d{4}|.*\d{4}.*\d\d:\d\d")
_GPU = re.compile(
    r"\s*\|\s*(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*"
    r"\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s"
)
_MEMORY = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_PART = re.compile(r"\s*\|\s*(\d{1,3})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*\|")
_TYPE = r"(?:[CGM](?:\+[CGM])*)"
_PROCESS = re.compile(
    r"\s*\|\s*(\d{1,3})\s+(?:(N/A|\d+)\s+(N/A|\d+)\s+)?(\d+)\s+"
    + _TYPE
    + r"\s+(.*?)\s+(\d+\s*MiB|N/A)\s*\|"
)
_CLOCK = Clock()


def _date_in(line: str) -> str | None:
    """Return the date that a separator line holds, if any."""
    if len(line) > 120 or not _DATED.match(line):
        return None
    text = line.strip().strip("=#-*[]").strip()
    return None if math.isnan(_CLOCK.parse(text)) else text


class Reader(FormatReader):
    """Reads the first box, the box of MIG devices and the box of processes."""

    name = "nvidia-smi-table"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._t: Time = None
        self._cards: dict[int, Card] = {}
        self._box = ""
        self._open: Card | None = None
        self._line = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a table, or the date just above one, stands here."""
        if _RULE.match(lines[at]):
            return at + 1 < len(lines) and bool(_BANNER.match(lines[at + 1]))
        if _date_in(lines[at]) is None:
            return False
        for below in range(at + 1, min(at + 4, len(lines) - 1)):
            if _RULE.match(lines[below]):
                return bool(_BANNER.match(lines[below + 1]))
        return False

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take tables and the dates above them."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not stripped or _RULE.match(stripped):
                continue
            if stripped[0] == "|":
                self._inside(stripped, first_line + number)
                continue
            date = _date_in(stripped)
            if date is None:
                return number
            self.close()
            self._t = self._sink.clock.both(date)
        return len(lines)

    def _inside(self, line: str, number: int) -> None:
        if _BANNER.match(line):
            if self._box:
                self.close()
            self._box, self._line = "cards", number
        elif line.startswith("| MIG devices:"):
            self._box = "parts"
        elif line.startswith("| Processes:") or "Process name" in line:
            self._box = "processes"
        elif self._box == "cards":
            self._card(line, number)
        elif self._box == "parts":
            self._part(line)
        elif self._box == "processes":
            self._process(line)

    def _card(self, line: str, number: int) -> None:
        if match := _GPU.match(line):
            index = int(match.group(1))
            self._open = Card(bus=match.group(3), index=index, name=match.group(2))
            self._cards[index] = self._open
            self._line = number
        elif self._open is not None and (found := _MEMORY.search(line)):
            self._open.memory = Memory(f"{found.group(2)} MiB", f"{found.group(1)} MiB")
            self._open = None
        elif self._open is not None and "|" in line[1:-1]:
            self._open.memory = Memory(used="N/A")
            self._open = None

    def _part(self, line: str) -> None:
        match, found = _PART.match(line), _MEMORY.search(line)
        if match and found and (card := self._cards.get(int(match.group(1)))) is not None:
            memory = Memory(f"{found.group(2)} MiB", f"{found.group(1)} MiB")
            card.instances.append(Instance(match.group(2), match.group(3), memory))

    def _process(self, line: str) -> None:
        match = _PROCESS.match(line)
        if match is None:
            return
        index, gi, ci, pid, name, used = match.groups()
        card = self._cards.get(int(index))
        if card is not None:
            card.processes.append(Process(pid, name, used, gi, ci))

    def close(self) -> None:
        """End the last table."""
        cards, self._cards = self._cards, {}
        self._box, self._open = "", None
        if not cards:
            return
        self._sink.ticks.advance()
        for card in cards.values():
            self._sink.ticks.of(("table", card.index))
            keep(card, self._t, self._line, self._sink)
        self._t = None
