"""Bytes of a log to blocks of lines: gzip, encodings, line ends, NULs; in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 1 << 17
MAX_LINE_BYTES = 16 << 20
"""A longer line is no log line; it becomes one torn row."""
TORN = "\0"
"""What stands for a line that is too long to be kept."""


@dataclass(slots=True)
class Block:
    """Some whole lines of a log, without their ends."""

    lines: list[str]
    first_line: int
    """Number of the first line in the file, from 1."""
    open_end: bool = False
    """The last line had no line end: it may be torn or still growing."""
    touched: bool = False
    """There are NULs in it."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
    """Open a file, ``-`` for stdin, decompressing gzip by its magic number.

    Raises
    ------
    OSError
        When the file cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        if path == "-":
            if sys.stdin is None:
                raise OSError("there is no standard input")
            raw = cast("io.BufferedReader", sys.stdin.buffer)
        else:
            raw = stack.enter_context(Path(path).open("rb"))
        if raw.peek(2)[:2] == b"\x1f\x8b":
            unpacked = gzip.GzipFile(fileobj=raw)
            yield stack.enter_context(io.BufferedReader(cast("io.RawIOBase", unpacked)))
        else:
            yield raw


def encoding_of(head: bytes) -> str:
    r"""Return the encoding that the first bytes tell; "utf-8" may later turn out as Latin-1.

    Examples
    --------
    >>> encoding_of(b"\xff\xfet\0i\0"), encoding_of(b"time,used")
    ('utf-16', 'utf-8')
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:2048]
    # UTF-16 without its mark: every second byte is NUL. NUL runs of torn logs are not like that.
    if len(sample) > 16 and b"\0\0" not in sample and sample[1::2].count(0) > len(sample) * 0.4:
        return "utf-16-le"
    return "utf-8"


class Stream:
    """The lines of an open log, block by block.

    Attributes
    ----------
    notes
        What had to be repaired, one sentence each.
    """

    def __init__(self, raw: io.BufferedReader, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._raw = raw
        self._block_bytes = block_bytes
        self._encoding = ""
        self._line = 1
        self.notes: list[str] = []
        self.bytes = 0

    def __iter__(self) -> Iterator[Block]:
        held = b""
        skipping = False
        while chunk := self._read():
            self.bytes += len(chunk)
            if not self._encoding:
                self._encoding = encoding_of(chunk)
                if self._encoding != "utf-8":
                    yield from self._wide(chunk)
                    return
                chunk = chunk.removeprefix(codecs.BOM_UTF8)
            cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, -1)) + 1
            if not cut:
                held = b"" if skipping else held + chunk
                skipping = skipping or len(held) > MAX_LINE_BYTES
                if skipping and self._line == 1 and self.bytes > 4 * MAX_LINE_BYTES:
                    # Endless (a device, a file of zeros): waiting for its first line is no use.
                    self.notes.append(f"no line ends in the first {self.bytes >> 20} MiB")
                    return
                continue
            if skipping:
                held, chunk = TORN.encode() + b"\n", chunk[chunk.find(b"\n") + 1 :]
                cut = chunk.rfind(b"\n") + 1
            whole = held + chunk[:cut]
            held, skipping = chunk[cut:], False
            yield self._block(self._decode(whole), open_end=False)
        if skipping:
            held = TORN.encode()
        if held:
            yield self._block(self._decode(held), open_end=True)

    def _read(self) -> bytes:
        try:
            return self._raw.read(self._block_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.notes.append("the compressed log ends in the middle; what came before was read")
        except OSError as error:
            self.notes.append(f"reading stopped early: {error.strerror or error}")
        return b""

    def _decode(self, data: bytes) -> str:
        if self._encoding == "utf-8":
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                self._encoding = "latin-1"
                self.notes.append("the log is not valid UTF-8; read as Latin-1")
        return data.decode("latin-1")

    def _wide(self, chunk: bytes) -> Iterator[Block]:
        decoder = codecs.getincrementaldecoder(self._encoding)(errors="replace")
        held = ""
        while chunk:
            text = held + decoder.decode(chunk)
            cut = text.rfind("\n") + 1
            held = text[cut:][:MAX_LINE_BYTES]
            if cut:
                yield self._block(text[:cut], open_end=False)
            chunk = self._read()
            self.bytes += len(chunk)
        held += decoder.decode(b"", final=True)
        if held:
            yield self._block(held, open_end=True)

    def _block(self, text: str, *, open_end: bool) -> Block:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "\x1b" in text:
            text = without_escapes(text)
        lines = text.split("\n")
        if not open_end or lines[-1] == "":
            open_end = False
            lines.pop()
        block = Block(lines, self._line, open_end, "\0" in text)
        self._line += len(lines)
        return block


def without_escapes(text: str) -> str:
    """Return text without the terminal sequences that a capture of ``watch`` is full of."""
    return re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\n]*\x07?|[()][A-Z0-9]|.)?", "", text)
