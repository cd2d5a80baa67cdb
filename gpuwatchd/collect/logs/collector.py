"""Where readers put what they read: compact arrays per subject, and counts of what was wrong."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.device_identity import Place, Places
from gpuwatchd.collect.logs.times import Clock
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from gpuwatchd.collect.logs.log import LogOptions
    from gpuwatchd.core.model import FloatArray

MAX_SUBJECTS = 20_000
"""More devices and processes than this in one log are a sign of damage; the rest is not kept."""


@dataclass(slots=True, eq=False)
class Track:
    """The readings of one subject, in file order."""

    place: Place
    process: ProcessInfo | None
    timed: bool
    unitless: bool = False
    t: array[float] = field(default_factory=lambda: array("d"))
    other: array[float] | None = None
    """The times with day and month exchanged, where both readings are possible."""
    used: array[float] = field(default_factory=lambda: array("d"))
    total: float | None = None
    """Total from the rows, or used + free (the largest seen); None when unknown."""
    usable: float | None = None
    """Last known used + free."""
    counted: bool = False
    """No column names the device: rows of one time are counted."""
    derived: bool = False
    """Made of other tracks, not of rows."""

    def add(self, t: FloatArray, used: FloatArray, other: FloatArray | None) -> None:
        """Append readings; ``other`` are the times read day first."""
        if other is not None and self.other is None:
            self.other = array("d", self.t)
        self.t.frombytes(t.tobytes())
        self.used.frombytes(used.tobytes())
        if self.other is not None:
            self.other.frombytes((t if other is None else other).tobytes())

    def append(self, t: float, other: float, used: float) -> None:
        """Append one reading; ``other`` is its time read day first."""
        if other != t and self.other is None:
            self.other = array("d", self.t)
        self.t.append(t)
        self.used.append(used)
        if self.other is not None:
            self.other.append(other)


class Ticks:
    """Tick numbers for logs without times: a key that comes again starts a new tick."""

    def __init__(self) -> None:
        self.now = 0
        self._seen: set[Hashable] = set()

    def of(self, key: Hashable) -> float:
        """Return the tick of a row about ``key``."""
        if key in self._seen:
            self.advance()
        self._seen.add(key)
        return float(self.now)

    def many(self, keys: Iterable[Hashable]) -> FloatArray:
        """Return the ticks of rows in file order."""
        return np.array([self.of(key) for key in keys], dtype=np.float64)

    def advance(self) -> None:
        """Start a new tick, unless nothing came in this one."""
        if self._seen:
            self._seen.clear()
            self.now += 1


class Collector:
    """What one log gives, while it is read.

    Attributes
    ----------
    rows, skipped
        Data rows met, and how many of them were rejected, by reason.
    first_bad
        Line number and reason of the first rejected row.
    """

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.clock = Clock(options.tz, options.date_order)
        self.places = Places()
        self.ticks = Ticks()
        self.rows = 0
        self.skipped: Counter[str] = Counter()
        self.first_bad: tuple[int, str] | None = None
        self.failure: tuple[int, str] | None = None
        self.notes: list[str] = []
        self.no_memory: str | None = None
        """Why a table gave no memory figure, where that is known."""
        self.no_memory_hint = ""
        self.open_line: int | None = None
        """Number of the last line when it has no line end."""
        self.now: float | None = None
        """Time of the document being read, for formats that say it once per document."""
        self.tracks: dict[tuple[int, ProcessKey | None, str, bool], Track] = {}
        self._known: dict[tuple[int, str, float | None], ProcessInfo] = {}
        self._by_pid: dict[int, list[ProcessInfo]] = {}

    @property
    def processes(self) -> list[ProcessInfo]:
        """Everybody met, in order of appearance."""
        return [each for group in self._by_pid.values() for each in group]

    def good(self, count: int = 1) -> None:
        """Count data rows that gave a reading."""
        self.rows += count

    def bad(self, reason: str, line: int, count: int = 1) -> None:
        """Count data rows that gave none."""
        self.rows += count
        self.skipped[reason] += count
        if self.first_bad is None:
            self.first_bad = (line, reason)

    def note(self, text: str) -> None:
        """Keep one sentence for the reader, once."""
        if text not in self.notes and len(self.notes) < 40:
            self.notes.append(text)

    def process(
        self,
        pid: int,
        name: str | None,
        *,
        user: str | None = None,
        argv: Iterable[str] = (),
        started_at_s: float | None = None,
    ) -> ProcessInfo | None:
        """Return who a row is about, or None when there are too many to keep."""
        text = mask_argv([name])[0] if name else "?"
        alias = (pid, text, started_at_s)
        found = self._known.get(alias)
        if found is None:
            of_pid = self._by_pid.setdefault(pid, [])
            found = next((each for each in of_pid if _same_name(each.name, text)
                          and each.key.started_at_s == started_at_s), None)  # fmt: skip
        if found is None:
            if len(self._known) >= MAX_SUBJECTS:
                return None
            found = ProcessInfo(
                key=ProcessKey(pid=pid, started_at_s=started_at_s),
                name=text,
                user=clean(user) if user else None,
                argv=mask_argv(argv),
            )
            self._by_pid[pid].append(found)
        if len(self._known) < MAX_SUBJECTS:
            self._known[alias] = found
        return found

    def track(
        self, place: Place, process: ProcessInfo | None = None, *, timed: bool
    ) -> Track | None:
        """Return where the readings of a subject go; None when there are too many subjects."""
        key = (place.order, process.key if process else None, process.name if process else "",
               timed)  # fmt: skip
        found = self.tracks.get(key)
        if found is None:
            if len(self.tracks) >= MAX_SUBJECTS:
                self.note(f"more than {MAX_SUBJECTS:,} devices and processes; the rest is left out")
                return None
            found = self.tracks[key] = Track(place, process, timed)
        return found

    def point(
        self,
        place: Place,
        t: tuple[float, float] | float | None,
        used: float,
        *,
        total: float | None = None,
        usable: float | None = None,
        process: ProcessInfo | None = None,
        unitless: bool = False,
    ) -> None:
        """Add one good reading. ``t`` None means "now, by the ticks"."""
        timed = t is not None
        track = self.track(place, process, timed=timed)
        self.rows += 1
        if track is None:
            return
        if t is None:
            t = float(self.ticks.now)
        pair = t if isinstance(t, tuple) else (t, t)
        track.append(pair[0], pair[1], used)
        track.unitless |= unitless
        remember(track, total, usable)


def as_array(values: FloatArray) -> array[float]:
    """Return numpy values as the compact array that tracks keep."""
    return array("d", np.asarray(values, dtype=np.float64).tobytes())


def _same_name(text: str, other: str) -> bool:
    """Say whether two tools may mean one process: they cut names and drop folders.

    Examples
    --------
    >>> _same_name("/root/tools/memhog", "memhog"), _same_name("...pp/a.exe", "C:/x App/a.exe")
    (True, True)
    >>> _same_name("python", "bash")
    False
    """
    if text == other or "?" in {text, other}:
        return True
    short, long = sorted((text, other), key=len)
    if short.startswith("..."):
        return long.endswith(short.lstrip("."))
    return re.split(r"[/\\]", long)[-1] == short.removeprefix("./")


def remember(track: Track, total: float | None, usable: float | None) -> None:
    """Keep the total and the sum of used and free of the latest reading."""
    if total is not None and math.isfinite(total):
        track.total = total if track.total is None else max(track.total, total)
    if usable is not None and math.isfinite(usable):
        track.usable = usable


# Whether the figures of a row can be true together.

SLACK = 1.02
"""Used and free may exceed the total by rounding only."""
RESERVE_SHARE, RESERVE_BYTES = 0.1, 1.5 * 1024**3
"""What the driver may keep for itself where no column says so: the larger of the two."""


class Torn(ValueError):
    """A row that two writers or a crash have broken."""


def used_of(amounts: dict[str, float], total_bytes: float | None) -> float | None:
    """Return used memory, from total and free where it is not printed; None when unknown."""
    used = amounts.get("used")
    if used is not None:
        return used if math.isfinite(used) else None
    total = amounts.get("total", math.nan)
    if math.isnan(total) and total_bytes is not None:
        total = total_bytes
    left = total - amounts.get("free", math.nan)
    return left if math.isfinite(left) and left >= 0 else None


def sane(amounts: dict[str, FloatArray]) -> bool:
    """Say whether the memory figures of rows can be true together; unknown figures are no lie."""
    used, total = amounts.get("used"), amounts.get("total")
    free = amounts.get("free")
    if total is None:
        return True
    slack = total * SLACK
    if used is not None and (used > total).any():
        return False
    if free is not None and (free > slack).any():
        return False
    if used is None or free is None:
        return True
    both = used + free + np.nan_to_num(amounts.get("reserved", np.zeros(1)))
    # Without a reserved column the driver's reserve is missing from the sum.
    least = total - np.maximum(RESERVE_SHARE * total, RESERVE_BYTES)
    return not bool(((both > slack) | (both < least)).any())


def sane_row(amounts: dict[str, float]) -> bool:
    """Say of one row what ``sane`` says of many; a row is not worth an array.

    Examples
    --------
    >>> sane_row({"used": 3.0, "total": 2.0}), sane_row({"used": 1.0, "total": math.nan})
    (False, True)
    """
    total = amounts.get("total", math.nan)
    used, free = amounts.get("used", math.nan), amounts.get("free", math.nan)
    if used > total or free > total * SLACK:
        return False
    reserved = amounts.get("reserved", 0.0)
    both = used + free + (0.0 if math.isnan(reserved) else reserved)
    return not (both > total * SLACK or both < total - max(RESERVE_SHARE * total, RESERVE_BYTES))
