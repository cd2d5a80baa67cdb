"""A recorded log as a source, and the one way to read a log of any format."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import math
import re
import sys
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpuwatchd.collect.logs.collector import Collector
from gpuwatchd.collect.logs.fields import Clock
from gpuwatchd.collect.logs.formats import FORMATS, torch_snapshot
from gpuwatchd.collect.logs.log_types import LogFile, LogOptions, LogSeries
from gpuwatchd.collect.logs.series_builder import GAP_INTERVALS, finish, median_interval_s
from gpuwatchd.collect.logs.snapshot_reader import SnapshotError
from gpuwatchd.collect.logs.tables import NAME_COLUMNS
from gpuwatchd.collect.logs.terminal import ESCAPE, Screen
from gpuwatchd.core import registry, text
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Availability, DeviceReading, Fault, ProcessUse, Sample
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.collect.logs.reader import FormatReader
    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey


FAILURE = re.compile(
    r"NVIDIA-SMI has failed|No devices were found|Failed to initialize NVML|Unable to determine the"
    r" device handle|GPU is lost|No supported GPUs|Driver/library version mismatch",
    re.IGNORECASE,
)

_WINDOW = 64
"""Lines offered at once after a line that no reader took."""


class Dispatcher:
    """Finds the reader for every part of a log."""

    def __init__(self, sink: Collector, only: str | None = None) -> None:
        self._sink = sink
        self._only = only
        self._readers: dict[str, FormatReader] = {}
        self._now: FormatReader | None = None
        self._name = ""
        self.used: Counter[str] = Counter()
        """Name of each format met -> rows it gave."""
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
            before = self._sink.counts.rows
            self._now.close()
            self.used[self._name] += self._sink.counts.rows - before

    def _touched(self, line: str, number: int) -> None:
        """Count a line that a run of NULs has touched as torn, unless it is a header."""
        left = line.replace("\0", "").strip()
        header = left and not left[0].isdigit()
        if header and self._start([left], 0):
            self._take([left], number)
        else:
            self._sink.counts.bad("torn", number)

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
        name = self._detect(lines, at)
        if name is None:
            return False
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = _format(name)(self._sink)
        if self._now is not reader:
            self.close()
        self._now, self._name = reader, name
        return True

    def _take(self, lines: Sequence[str], number: int) -> int:
        reader = self._now
        if reader is None:
            return 0
        before = self._sink.counts.rows
        taken = reader.feed(lines, number)
        self.used[self._name] += self._sink.counts.rows - before
        return taken

    def _detect(self, lines: Sequence[str], at: int) -> str | None:
        if not lines[at].strip():
            return None
        if self._only is not None:
            # Told by the caller: the first line that is not blank is theirs.
            fits = self._now is None or _format(self._only).starts(lines, at)
            return self._only if fits else None
        return next((name for name in FORMATS if _format(name).starts(lines, at)), None)

    def _stray(self, line: str, number: int) -> None:
        stripped = line.strip()
        if not stripped:
            return
        if FAILURE.search(stripped) and self._sink.failure is None:
            self._sink.failure = (number, clean(stripped, limit=120))
            return
        self.ignored += 1
        self.first_line = self.first_line or clean(stripped, limit=60)


@cache
def _format(name: str) -> type[FormatReader]:
    """Return the reader of a format."""
    reader: type[FormatReader] = registry.load(FORMATS, name)
    return reader


_KINDS = (
    (
        b":W&B",
        "the binary log of Weights & Biases, which is not read",
        "export the system metrics of the run as CSV",
    ),
    (
        b"PK\x03\x04",
        "a zip archive or a PyTorch file, not a log",
        "unpack it, or log with nvidia-smi",
    ),
    (b"SQLite format 3\0", "a database, not a log", "use gpuwatchctl history"),
    (b"PAR1", "a Parquet file, not a log", "export it as CSV"),
    (b"\x89HDF", "an HDF5 file, not a log", "export it as CSV"),
    (b"BZh", "compressed with bzip2, which is not read", "decompress it, or use gzip"),
    (b"\xfd7zXZ\0", "compressed with xz, which is not read", "decompress it, or use gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which is not read", "decompress it"),
    (b"\x7fELF", "a program, not a log", ""),
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
    kinds = ((f"this is {kind}", hint) for magic, kind, hint in _KINDS if head.startswith(magic))
    return next(kinds, None)


# Bytes of a log to blocks of lines: gzip, encodings, line ends, NULs; in bounded memory.

BLOCK_BYTES = 1 << 17
MAX_LINE_CHARS = 16 << 20
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
    """Open a file, ``-`` for stdin, decompressing gzip by its magic number."""
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
    ('utf-16', 'utf-8-sig')
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:2048]
    # UTF-16 without its mark: every second byte is NUL. NUL runs of torn logs are not like that.
    if len(sample) > 16 and b"\0\0" not in sample and sample[1::2].count(0) > len(sample) * 0.4:
        return "utf-16-le"
    return "utf-8-sig"


class Stream:
    """The lines of an open log, block by block."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw = raw
        self._decoder: codecs.IncrementalDecoder | None = None
        self._screen = Screen()
        self._line = 1
        self.notes: list[str] = []
        self.bytes = 0

    def __iter__(self) -> Iterator[Block]:
        held = ""
        skipping = False
        while chunk := self._read():
            text = self._screen.feed(self._decode(chunk))
            self.bytes += max(len(chunk), len(text))
            cut = max(text.rfind("\n"), text.rfind("\r", 0, -1)) + 1
            if not cut:
                held = "" if skipping else held + text
                skipping = skipping or len(held) > MAX_LINE_CHARS
                if skipping and self._line == 1 and self.bytes > 4 * MAX_LINE_CHARS:
                    # Endless (a device, a file of zeros): waiting for its first line is no use.
                    self.notes.append(f"no line ends in the first {self.bytes >> 20} MiB")
                    return
                continue
            if skipping:
                held, text = f"{TORN}\n", text[text.find("\n") + 1 :]
                cut = text.rfind("\n") + 1
            whole = held + text[:cut]
            held, skipping = text[cut:], False
            yield self._block(whole, open_end=False)
        rest = self._screen.feed(self._decode(b"", final=True), final=True)
        held = TORN if skipping else held + rest
        if self._screen.dropped:
            self.notes.append(f"{self._screen.dropped:,} screens left out: too many, too large")
        if held:
            yield self._block(held, open_end=True)

    def _read(self) -> bytes:
        try:
            return self._raw.read(BLOCK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.notes.append("the compressed log ends in the middle; what came before was read")
        except OSError as error:
            self.notes.append(f"reading stopped early: {error.strerror or error}")
        return b""

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        if self._decoder is None:
            encoding = encoding_of(data)
            errors = "strict" if encoding == "utf-8-sig" else "replace"
            self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError:
            self.notes.append("the log is not valid UTF-8; read as Latin-1")
            data = self._decoder.getstate()[0] + data
            self._decoder = codecs.getincrementaldecoder("latin-1")()
            return self._decoder.decode(data.removeprefix(codecs.BOM_UTF8))

    def _block(self, text: str, *, open_end: bool) -> Block:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "\x1b" in text:
            text = ESCAPE.sub("", text)
        lines = text.split("\n")
        if not open_end or lines[-1] == "":
            open_end = False
            lines.pop()
        block = Block(lines, self._line, open_end, "\0" in text)
        self._line += len(lines)
        return block


__all__ = ["LogFile", "LogOptions", "LogSeries", "ReplaySource", "preview", "read_log"]

_GLANCE_BYTES = 64 << 10
_GIVE_UP_BYTES = 4 << 20
"""A log that shows no known format in so many bytes is none."""


def read_log(path: str | Path, options: LogOptions = LogOptions()) -> LogFile:  # noqa: B008 - frozen
    """Read a log of any known format; ``-`` is stdin, gzip is recognised.

    Content never raises: what cannot be read is counted in ``skipped``, and ``error`` says in one
    sentence why a log allows no verdict.
    """
    log = LogFile(path=str(path))
    wrong = _wrong(str(path), options)
    if wrong is not None:
        log.error, log.hint = wrong
        return log
    sink = Collector(options)
    try:
        with opened(str(path)) as raw:
            head = raw.peek(16)[:16]
            refused = refusal(head)
            if refused is not None:
                log.error, log.hint = refused
            elif torch_snapshot.is_pickle(head):
                log.format = torch_snapshot.NAME
                log.snapshot = torch_snapshot.read(raw, sink)
                finish(sink, log)
            else:
                _read(Stream(raw), sink, log, options)
    except SnapshotError as error:
        log.error, log.hint = str(error), error.hint
    except IsADirectoryError:
        log.error = "this is a directory"
    except (EOFError, zlib.error):
        log.error = "the compressed log is damaged from its start"
    except OSError as error:
        log.error = f"cannot be read: {error.strerror or error}"
        log.hint = "name a log, a folder of logs, or - for standard input"
    if log.error is not None:
        # It may quote the file.
        log.error = text.clean(log.error, limit=1024)
    return log


def preview(path: str | Path, options: LogOptions = LogOptions()) -> LogFile:  # noqa: B008 - frozen
    """Read the beginning of a log: enough to tell what it is about. Never raises."""
    log = LogFile(path=str(path))
    sink = Collector(options)
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(str(path)) as raw:
        head = raw.read(_GLANCE_BYTES)
        if refusal(head[:16]) is None and not torch_snapshot.is_pickle(head):
            _read(Stream(io.BufferedReader(io.BytesIO(head))), sink, log, options)
    return log


def _wrong(path: str, options: LogOptions) -> tuple[str, str] | None:
    if "\0" in path:
        return "no file can have this name", ""
    if options.format is not None and options.format not in FORMATS:
        return f"{options.format!r} is no log format", f"known: {', '.join(FORMATS)}"
    if options.tz is not None:
        try:
            ZoneInfo(options.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return f"{options.tz!r} is no time zone", "write for example Europe/Berlin"
    if options.interval_s is not None and not options.interval_s > 0:
        return "the interval must be more than 0 seconds", ""
    return None


def _read(stream: Stream, sink: Collector, log: LogFile, options: LogOptions) -> None:
    format_name = options.format or ("csv-without-header" if options.columns else None)
    dispatcher = Dispatcher(sink, format_name)
    for block in stream:
        dispatcher.feed(block)
        if not dispatcher.used and stream.bytes > _GIVE_UP_BYTES:
            break
    dispatcher.close()
    for note in stream.notes:
        sink.note(note)
    if dispatcher.ignored and dispatcher.used:
        sink.note(f"{dispatcher.ignored:,} lines that are no readings were skipped")
    log.format = "+".join(name for name, _ in dispatcher.used.most_common()) or "unknown"
    finish(sink, log)
    if log.error is None and not log.series:
        if dispatcher.used:
            log.error = f"no readings: this seems to be {log.format} without a usable row"
        else:
            log.error, log.hint = _unknown(stream, dispatcher)


def _unknown(stream: Stream, dispatcher: Dispatcher) -> tuple[str, str]:
    if not stream.bytes:
        return "the file is empty", ""
    value = f"{NAME_COLUMNS}; known formats: {', '.join(FORMATS)}"
    if dispatcher.ignored == 1 and not math.isnan(Clock().parse(dispatcher.first_line)):
        return "the log holds a date and no readings: the tool may have failed", ""
    if not dispatcher.first_line:
        return "the file holds no text", value
    return f"no known log format; the file starts with {dispatcher.first_line!r}", value


class ReplaySource:
    """Plays a recorded log as if its devices were here.

    The first recorded reading is "now"; from there recorded time runs at ``speed``, so rates are
    as recorded. A device is absent from a sample where the recording has a gap.
    """

    name = "replay"

    def __init__(
        self,
        file: str = "",
        speed: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._speed = speed
        self._clock = clock
        self._wall = wall
        self._log: LogFile | None = None
        self._started: tuple[float, float] | None = None
        self._first_s = 0.0
        self._last_s = 0.0
        self._patience_s = 0.0

    def probe(self) -> Availability:
        """Say whether the log can be played, and why not."""
        if not self._file:
            return Availability(ok=False, reason="no log is named", hint="sources.replay.file")
        if not self._speed > 0:
            return Availability(ok=False, reason="speed must be more than 0")
        log = self._loaded()
        if log.error is not None:
            return Availability(ok=False, reason=f"{self._file}: {log.error}", hint=log.hint)
        if not log.series:
            return Availability(ok=False, reason=f"{self._file}: no readings")
        return Availability(ok=True, reason=f"{len(log.series)} series from {self._file}")

    def devices(self) -> Sequence[Device]:
        """Return the devices of the log."""
        return self._loaded().devices if self._file else []

    def read(self) -> Sample:
        """Return what the recording says for this moment.

        Raises
        ------
        SourceUnavailable
            When the log cannot be played, or has been played to its end.
        """
        if self._started is None:
            self._start()
        started_mono_s, started_at_s = self._started or (0.0, 0.0)
        played_s = (self._clock() - started_mono_s) * self._speed
        at_s = self._first_s + played_s
        if at_s > self._last_s + self._patience_s:
            raise SourceUnavailable(
                "the recording has ended", hint="start the source anew", page="errors#recording"
            )
        return self._sample(at_s, started_at_s + played_s, started_mono_s + played_s)

    def close(self) -> None:
        """Forget the log."""
        self._log = None
        self._started = None

    def _loaded(self) -> LogFile:
        if self._log is None:
            self._log = read_log(self._file)
        return self._log

    def _start(self) -> None:
        available = self.probe()
        if not available.ok:
            raise SourceUnavailable(available.reason, hint=available.hint, page="errors#recording")
        series = self._loaded().series
        self._first_s = min(float(each.t_s[0]) for each in series)
        self._last_s = max(float(each.t_s[-1]) for each in series)
        longest = max(series, key=lambda each: each.t_s.size)
        # A reading stays good for ten usual intervals.
        self._patience_s = GAP_INTERVALS * (median_interval_s(longest.t_s) or 1.0)
        self._started = (self._clock(), self._wall())

    def _sample(self, at_s: float, taken_at_s: float, taken_mono_s: float) -> Sample:
        used: dict[str, tuple[int, LogSeries]] = {}
        uses: dict[str, list[ProcessUse]] = {}
        people: dict[ProcessKey, ProcessInfo] = {}
        for series in self._loaded().series:
            # The latest recorded value; none before the start and in a gap.
            position = int(np.searchsorted(series.t_s, at_s, side="right")) - 1
            if position < 0 or at_s - float(series.t_s[position]) > self._patience_s:
                continue
            value = round(float(series.used_bytes[position]))
            if series.process is None:
                used[series.device.uid] = (value, series)
                continue
            people[series.process.key] = series.process
            use = ProcessUse(key=series.process.key, used_bytes=value)
            uses.setdefault(series.device.uid, []).append(use)
        devices = self._loaded().devices
        why = "no reading in the recording here"
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=taken_mono_s,
            boot_id=f"replay:{Path(self._file).name}",
            readings=tuple(
                _reading(device, used.get(device.uid), uses.get(device.uid))
                for device in devices
                if device.uid in used or device.uid in uses
            ),
            processes=tuple(people.values()),
            faults=tuple(
                Fault(where=f"replay/{device.uid}", why=why, device_uid=device.uid)
                for device in devices
                if device.uid not in used
            ),
        )


def _reading(
    device: Device, level: tuple[int, LogSeries] | None, uses: list[ProcessUse] | None
) -> DeviceReading:
    used, limit = (None, None) if level is None else (level[0], level[1].limit_bytes)
    total = device.memory_total_bytes
    return DeviceReading(
        device_uid=device.uid,
        used_bytes=used,
        free_bytes=None if used is None or limit is None else max(0, round(limit) - used),
        total_bytes=total,
        reserved_bytes=None if total is None or limit is None else max(0, total - round(limit)),
        uses=None if uses is None else tuple(uses),
        uses_reason="the recording holds no processes here" if uses is None else None,
    )
