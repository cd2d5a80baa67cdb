"""Whole documents in a log: JSON values one after another, and reports of nvidia-smi."""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, FormatReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector, Place

# JSON values one after another: pretty-printed or one per line, in an array or not.

MAX_CHARS = 32 << 20
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_HEAD_LINES = 60
_HEAD_CHARS = 8192


def head_of(lines: Sequence[str], at: int) -> str:
    """Return the beginning of a JSON text that starts at a line, or "" when none does."""
    first = lines[at].lstrip()
    if first[:1] not in {"{", "["}:
        return ""
    size, parts = 0, []
    for line in lines[at : at + _HEAD_LINES]:
        parts.append(line[:_HEAD_CHARS])
        size += len(line)
        if size > _HEAD_CHARS:
            break
    head = "\n".join(parts)
    return head if first[:1] == "{" or "{" in head else ""


class JsonReader(FormatReader):
    """Base of the JSON formats: puts values together and hands each to ``value``."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._lines: list[str] = []
        self._depth = 0
        self._chars = 0
        self._line = 0
        self._decoder = json.JSONDecoder()

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the lines of JSON values; text between two values is not ours."""
        for number, line in enumerate(lines):
            stripped = line.strip()
            if not self._lines:
                if not stripped.strip("[],"):
                    continue
                if stripped.lstrip("[, ")[:1] != "{":
                    return number
                self._line = first_line + number
            elif line[:1] == "{" and self._lines[0][:1] == "{":
                # Pretty printing indents what is inside: the value before was cut off.
                self._torn()
                self._line = first_line + number
            self._lines.append(line)
            self._chars += len(line)
            bare = _STRING.sub("", line)
            self._depth += bare.count("{") - bare.count("}")
            if self._depth <= 0:
                self._parse()
            elif self._chars > MAX_CHARS:
                self._torn()
        return len(lines)

    def close(self) -> None:
        """Count a value that never ended."""
        if self._lines:
            self._torn()

    @abstractmethod
    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""

    def _torn(self) -> None:
        self._reset()
        self._sink.bad("torn", self._line)

    def _reset(self) -> None:
        self._lines, self._depth, self._chars = [], 0, 0

    def _parse(self) -> None:
        text, at = "\n".join(self._lines), 0
        self._reset()
        while at < len(text):
            if text[at] in " \t\n,[]":
                at += 1
                continue
            try:
                value, at = self._decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self._sink.bad("torn", self._line)
                return
            if isinstance(value, dict):
                self.value(value, self._line)
            else:
                self._sink.bad("torn", self._line)


def text_of(value: object) -> str:
    """Return a JSON scalar as a table would print it; null and false are not available."""
    if value is None or isinstance(value, bool | dict | list):
        return ""
    return f"{value!r}" if isinstance(value, float) else str(value)


# One report of nvidia-smi about one card (XML or ``-q`` text), ready for the collector.


@dataclass(slots=True)
class Memory:
    """Amounts as printed; None where a line is missing."""

    total: str | None = None
    used: str | None = None
    free: str | None = None


@dataclass(slots=True)
class Instance:
    """A MIG instance."""

    gi: str = "-"
    ci: str = "-"
    memory: Memory = field(default_factory=Memory)


@dataclass(slots=True)
class Process:
    """A process in the list of a card."""

    pid: str | None = None
    name: str | None = None
    used: str | None = None
    gi: str | None = None
    ci: str | None = None


@dataclass(slots=True)
class Card:
    """What one report says about one card."""

    bus: str | None = None
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    memory: Memory = field(default_factory=Memory)
    instances: list[Instance] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)


Time = tuple[float, float] | None


def keep(card: Card, t: Time, line: int, sink: Collector) -> None:
    """Put the readings of a card, its instances and its processes into the collector."""
    try:
        total = _bytes(card.memory.total)
        place = sink.places.find(
            uuid=fields.uuid(card.uuid),
            bus=fields.bus(card.bus),
            index=card.index,
            name=fields.value_or_none(card.name),
            total=total or None,
        )
    except ValueError:
        sink.bad("torn", line)
        return
    if t is not None and math.isnan(t[0]) and math.isnan(t[1]):
        sink.bad("bad time", line)
        return
    with sink.row(line):
        _level(place, card.memory, t, sink)
    parts = {}
    for instance in card.instances:
        key = f"{instance.gi}/{instance.ci}"
        parts[key] = sink.places.find(parent=place, key=key, name=f"MIG {key}")
        with sink.row(line):
            _level(parts[key], instance.memory, t, sink)
    for process in card.processes:
        key = f"{process.gi}/{process.ci}"
        inside = fields.whole(process.gi) is not None
        where = parts.get(key)
        if where is None and inside:
            where = sink.places.find(parent=place, key=key, name=f"MIG {key}")
        with sink.row(line):
            _process(where or place, process, t, sink)


def _bytes(text: str | None) -> float | None:
    value = math.nan if text is None else fields.amount(text)
    return None if math.isnan(value) else value


def _level(place: Place, memory: Memory, t: Time, sink: Collector) -> None:
    used, free, total = _bytes(memory.used), _bytes(memory.free), _bytes(memory.total)
    if used is None:
        if memory.used is not None and total is None:
            sink.no_memory = "unified memory: this log holds no memory figure"
        raise BadRow("not available")
    if total is not None and (used > total or (free or 0.0) > total * 1.02):
        raise BadRow("torn")
    usable = None if free is None else used + free
    sink.point(place, t, used, total=total, usable=usable)


def _process(place: Place, process: Process, t: Time, sink: Collector) -> None:
    pid = fields.whole(process.pid)
    if pid is None:
        raise BadRow("not available" if fields.not_available(process.pid or "") else "torn")
    who = sink.process(pid, fields.value_or_none(process.name))
    used = _bytes(process.used)
    if used is None or who is None:
        raise BadRow("not available")
    if place.total is not None and used > place.total:
        raise BadRow("torn")
    sink.point(place, t, used, process=who)
