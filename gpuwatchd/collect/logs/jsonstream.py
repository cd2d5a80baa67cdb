"""JSON values one after another: pretty-printed or one per line, in an array or not."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

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


class JsonReader(ABC):
    """Base of the JSON formats: puts values together and hands each to ``value``."""

    name = ""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
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
