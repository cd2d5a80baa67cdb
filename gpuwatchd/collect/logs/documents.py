"""How the text of a log is gone through: line by line, or in documents of many lines."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector


class FormatReader(ABC):
    """What a format is: a class that FORMATS names."""

    start: ClassVar[re.Pattern[str]]
    """How a block of the format begins."""

    def __init__(self, sink: Collector) -> None:
        self._sink = sink
        self._rows = RowReader(sink)

    @classmethod
    def starts(cls, lines: Sequence[str], at: int) -> bool:
        """Say whether a block of this format begins at line ``at``."""
        return cls.start.match(lines[at]) is not None

    @abstractmethod
    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines from the front; return how many."""

    def close(self) -> None:  # noqa: B027 - most formats hold nothing back
        """End a block: another format follows, or the end of the log."""


class LineReader(FormatReader):
    """A format that is read line by line."""

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines up to the first that is not of this format; return how many."""
        for number, line in enumerate(lines, first_line):
            if stripped := line.strip():
                with self._sink.counts.row(number):
                    if not self.line(line, stripped, number):
                        return number - first_line
        return len(lines)

    @abstractmethod
    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a line that is not blank; say whether it is of this format.

        A line is counted as a bad row where this raises ValueError.
        """


_MAX_CHARS = 32 << 20
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)')
"""One that is not closed ends with its line: else each quote in it would be tried again."""
_HEAD_LINES = 60
_HEAD_CHARS = 8192


class DocumentReader(LineReader):
    """Base of formats whose documents take many lines: gathers the lines of one."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._lines: list[str] = []
        self._chars = 0
        self._line = 0

    def close(self) -> None:
        """Count a document that never ended."""
        if self._lines:
            self._torn()

    def _add(self, line: str, number: int) -> None:
        if not self._lines:
            self._line = number
        self._lines.append(line)
        self._chars += len(line)

    def _text(self) -> str:
        """Return what was gathered, and begin anew."""
        lines, self._lines, self._chars = self._lines, [], 0
        return "\n".join(lines)

    def _torn(self) -> None:
        self._text()
        self._sink.counts.bad("torn", self._line)


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
    return head if "{" in head else ""


class JsonReader(DocumentReader):
    """Base of the JSON formats: pretty-printed or one value per line, in an array or not."""

    _depth = 0

    @classmethod
    def starts(cls, lines: Sequence[str], at: int) -> bool:
        """Say whether a value with something that the format is known by begins here."""
        return cls.start.search(head_of(lines, at)) is not None

    def line(self, line: str, stripped: str, number: int) -> bool:
        """Take a line of a JSON value; text between two values is not ours."""
        if not self._lines:
            if not stripped.strip("[],"):
                return True
            if stripped.lstrip("[, ")[:1] != "{":
                return False
            self._depth = 0
        elif line[:1] == "{" and self._lines[0][:1] == "{":
            # Pretty printing indents what is inside: the value before was cut off.
            self._torn()
            self._depth = 0
        self._add(line, number)
        bare = _STRING.sub("", line)
        self._depth += bare.count("{") - bare.count("}")
        if self._depth <= 0:
            self._parse()
        elif self._chars > _MAX_CHARS:
            self._torn()
        return True

    @abstractmethod
    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""

    def _parse(self) -> None:
        text, at, decoder = self._text(), 0, json.JSONDecoder()
        while at < len(text):
            if text[at] in " \t\n,[]":
                at += 1
                continue
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self._sink.counts.bad("torn", self._line)
                return
            with self._sink.counts.row(self._line):
                if not isinstance(value, dict):
                    raise BadRow("torn")
                self.value(value, self._line)


def text_of(value: object) -> str:
    """Return a JSON scalar as a table would print it; null and false are not available."""
    return "" if value is None or isinstance(value, bool | dict | list) else str(value)
