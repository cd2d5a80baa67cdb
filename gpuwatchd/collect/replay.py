"""A recorded log as a source, and the one way to read a log of any format."""

from __future__ import annotations

import contextlib
import io
import math
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from gpuwatchd.collect.logs.collector import Collector
from gpuwatchd.collect.logs.dispatch import Dispatcher, Stream, opened, refusal
from gpuwatchd.collect.logs.fields import Clock
from gpuwatchd.collect.logs.formats import FORMATS, torch_snapshot
from gpuwatchd.collect.logs.log_types import LogFile, LogOptions, LogSeries
from gpuwatchd.collect.logs.series_builder import GAP_INTERVALS, finish, median_interval_s
from gpuwatchd.core import text
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import Availability, DeviceReading, Fault, ProcessUse, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey

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
                torch_snapshot.read(raw, sink)
                log.format = torch_snapshot.NAME
                finish(sink, log)
            else:
                _read(Stream(raw), sink, log, options)
    except torch_snapshot.SnapshotError as error:
        log.error, log.hint = str(error), error.hint
    except IsADirectoryError:
        log.error = "this is a directory"
    except (EOFError, zlib.error):
        log.error = "the compressed log is damaged from its start"
    except OSError as error:
        log.error = f"cannot be read: {error.strerror or error}"
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
    dispatcher = Dispatcher(sink, options.format)
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
    value = f"known formats: {', '.join(FORMATS)}"
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
