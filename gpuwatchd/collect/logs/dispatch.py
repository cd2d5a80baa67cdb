"""Hands the blocks of a log to the reader of the format that stands there; logs mix formats."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from gpuwatchd.collect.logs.formats import FORMATS
from gpuwatchd.core import registry
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.stream import Block

FAILURE = re.compile(
    r"NVIDIA-SMI has failed|No devices were found|Failed to initialize NVML|Unable to determine the"
    r" device handle|GPU is lost|No supported GPUs|Driver/library version mismatch",
    re.IGNORECASE,
)

_WINDOW = 64
"""Lines offered at once after a line that no reader took."""


class Reader(Protocol):
    """What a format is."""

    name: str

    def __init__(self, sink: Collector) -> None: ...

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a block of this format begins at line ``at``."""

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take lines from the front; return how many."""

    def close(self) -> None:
        """End a block: another format follows, or the end of the log."""


class Dispatcher:
    """Finds the reader for every part of a log.

    Attributes
    ----------
    used
        Name of each format met -> rows it gave.
    """

    def __init__(self, sink: Collector, only: str | None = None) -> None:
        self._sink = sink
        self._only = only
        self._classes: dict[str, type[Reader]] = {}
        self._readers: dict[str, Reader] = {}
        self._now: Reader | None = None
        self.used: Counter[str] = Counter()
        self.ignored = 0
        self.first_line = ""

    def feed(self, block: Block) -> None:
        """Take the next lines of the log."""
        lines, number = block.lines, block.first_line
        if block.open_end:
            self._sink.open_line = number + len(lines) - 1
        start = 0
        for at, line in enumerate(lines if block.touched else ()):
            if "\0" in line:
                self._clean(lines[start:at], number + start)
                self._touched(line, number + at)
                start = at + 1
        self._clean(lines[start:] if start else lines, number + start)

    def close(self) -> None:
        """End the log."""
        if self._now is not None:
            self._count(self._now, self._now.close)

    def _touched(self, line: str, number: int) -> None:
        """Count a line that a run of NULs has touched as torn, unless it is a header."""
        left = line.replace("\0", "").strip()
        header = left and not left[0].isdigit()
        if header and (text := self._detect([left], 0)) is not None:
            self._enter(text)
            self._take([left], number)
        else:
            self._sink.bad("torn", number)

    def _clean(self, lines: Sequence[str], number: int) -> None:
        at, window = 0, len(lines)
        while at < len(lines):
            if self._now is not None or self._start(lines, at):
                part = lines[at : at + window]
                taken = self._take(part, number + at)
                if taken < len(part) and self._start(lines, at + taken):
                    at, window = at + taken, _WINDOW
                    taken = self._take(lines[at : at + window], number + at)
                    if taken:
                        at += taken
                        continue
                    taken = 0
                elif taken == len(part):
                    at, window = at + taken, window * 4
                    continue
                at += taken
            # After a line of nobody, offer few lines at a time: the next one may be near.
            self._stray(lines[at], number + at)
            at, window = at + 1, _WINDOW

    def _start(self, lines: Sequence[str], at: int) -> bool:
        text = self._detect(lines, at)
        if text is not None:
            self._enter(text)
        return text is not None

    def _take(self, lines: Sequence[str], number: int) -> int:
        reader = self._now
        if reader is None:
            return 0
        before = self._sink.rows
        taken = reader.feed(lines, number)
        self.used[reader.name] += self._sink.rows - before
        return taken

    def _count(self, reader: Reader, act: object) -> None:
        before = self._sink.rows
        if callable(act):
            act()
        self.used[reader.name] += self._sink.rows - before

    def _enter(self, name: str) -> None:
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = self._class(name)(self._sink)
        if self._now is not None and self._now is not reader:
            self._count(self._now, self._now.close)
        self._now = reader

    def _class(self, name: str) -> type[Reader]:
        if name not in self._classes:
            self._classes[name] = registry.load(FORMATS, name)
        return self._classes[name]

    def _detect(self, lines: Sequence[str], at: int) -> str | None:
        if not lines[at].strip():
            return None
        if self._only is not None:
            # Told by the caller: the first line that is not blank is theirs.
            fits = self._now is None or self._class(self._only).starts(lines, at)
            return self._only if fits else None
        for name in FORMATS:
            if self._class(name).starts(lines, at):
                return name
        return None

    def _stray(self, line: str, number: int) -> None:
        stripped = line.strip()
        if not stripped:
            return
        if FAILURE.search(stripped) and self._sink.failure is None:
            self._sink.failure = (number, clean(stripped, limit=120))
            return
        self.ignored += 1
        self.first_line = self.first_line or clean(stripped, limit=60)


_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (
        b":W&B",
        "this is the binary log of Weights & Biases, which is not read",
        "export the system metrics of the run as CSV",
    ),
    (
        b"PK\x03\x04",
        "this is a zip archive or a PyTorch file, not a log",
        "unpack it, or log with nvidia-smi",
    ),
    (b"SQLite format 3\0", "this is a database, not a log", "use gpuwatchctl history"),
    (b"PAR1", "this is a Parquet file, not a log", "export it as CSV"),
    (b"\x89HDF", "this is an HDF5 file, not a log", "export it as CSV"),
    (b"BZh", "this is compressed with bzip2, which is not read", "decompress it, or use gzip"),
    (b"\xfd7zXZ\0", "this is compressed with xz, which is not read", "decompress it, or use gzip"),
    (b"\x28\xb5\x2f\xfd", "this is compressed with zstd, which is not read", "decompress it"),
    (b"\x7fELF", "this is a program, not a log", ""),
)


def refusal(head: bytes) -> tuple[str, str] | None:
    r"""Return the sentence and the hint for a binary file, or None for what may be text.

    Examples
    --------
    >>> refusal(b"\x7fELF\x02\x01")[0]
    'this is a program, not a log'
    >>> refusal(b"timestamp, index") is None
    True
    """
    for magic, sentence, hint in _KINDS:
        if head.startswith(magic):
            return sentence, hint
    return None
