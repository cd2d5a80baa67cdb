"""Where readers put what they read: devices, processes, readings, and what was wrong."""

from __future__ import annotations

import contextlib
import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.logs.fields import MIB, Clock
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from gpuwatchd.collect.logs.log_types import LogOptions
    from gpuwatchd.core.model import FloatArray


Time = tuple[float, float] | None
"""A time with the month and with the day read first; None where a row has none."""


# Which device a reading belongs to: UUID before bus id before (host, index).

_SAME_TOTAL = 2 * MIB


@dataclass(slots=True, eq=False, kw_only=True)
class Place:
    """One device as the rows describe it. Rows of one key but another name are another place."""

    order: int = -1
    uuid: str | None = None
    bus: str | None = None
    index: int | None = None
    host: str | None = None
    name: str | None = None
    total: float | None = None
    """Explicit total, bytes."""
    vendor: str = "nvidia"
    parent: Place | None = None
    """The card of a MIG instance."""
    key: str = ""
    """The instance's "gi/ci" on its card."""
    letter: str = ""
    """(a), (b): told apart under one key."""

    @property
    def uid(self) -> str:
        """Stable identity: the UUID, else host and bus id or index."""
        if self.uuid:
            base = self.uuid
        elif self.parent is not None:
            # Short enough that its own end is not cut off.
            base = f"{self.parent.uid[:200]}/{self.key}"
        else:
            where = self.bus if self.bus is not None else self.index
            base = f"log:{(self.host or '-')[:200]}/{'-' if where is None else where}"
        return f"{base} {self.letter}" if self.letter else base

    def device(self, total_bytes: float | None) -> Device:
        """Return the device as the rest of the program knows it."""
        name = self.name or ("MIG instance" if self.parent else "GPU")
        return Device(
            uid=clean(self.uid),
            vendor=self.vendor,
            index=self.index,
            name=clean(f"{name} {self.letter}" if self.letter else name),
            memory_total_bytes=None if total_bytes is None else round(total_bytes),
            parent_uid=clean(self.parent.uid) if self.parent else None,
            source="replay",
            pci_bus=self.bus,
        )

    def take(self, other: Place) -> None:
        """Take over what another description of the same device knows."""
        if other.name and (self.name is None or self.name.endswith("..")):
            self.name = other.name
        self.total = other.total if self.total is None else self.total
        self.uuid, self.bus = self.uuid or other.uuid, self.bus or other.bus
        self.index = other.index if self.index is None else self.index

    def fits(self, other: Place) -> bool:
        """Say whether name and total of a description can be of this device."""
        totals = [each.total for each in (self, other) if each.total is not None]
        if totals and max(totals) - min(totals) > _SAME_TOTAL:
            return False
        if self.name is None or other.name is None or self.name == other.name:
            return True
        # The default table cuts names, and how far depends on its width.
        return any(
            cut.endswith("..") and whole.startswith(cut.rstrip(". "))
            for cut, whole in ((self.name, other.name), (other.name, self.name))
        )


def _may_be_one(group: Sequence[Place], others: Sequence[Place]) -> bool:
    """Say whether no UUID and no bus id speaks against two groups being one device."""
    return not any(
        (one.uuid and other.uuid and one.uuid != other.uuid)
        or (one.bus and other.bus and one.bus != other.bus)
        for one in group
        for other in others
    )


class Places:
    """All devices of one log."""

    def __init__(self) -> None:
        self.all: list[Place] = []
        self.groups: list[list[Place]] = []
        """Places that share a key, each group in order of appearance."""
        self._keys: dict[tuple[object, ...], list[Place]] = {}

    def find(self, row: Place) -> Place:
        """Return the place that a row describes: the description itself on first sight."""
        row.name = clean(row.name) if row.name else None
        row.host = clean(row.host) if row.host else None
        group = self._group(row)
        for place in group:
            if place.fits(row):
                place.take(row)
                return place
        row.order = len(self.all)
        group.append(row)
        self.all.append(row)
        return row

    def _group(self, row: Place) -> list[Place]:
        keys: list[tuple[object, ...]] = [("uuid", row.uuid)] if row.uuid else []
        if row.parent is not None:
            keys.append(("part", row.parent.order, row.key))
        else:
            if row.bus:
                keys.append(("bus", row.host, row.bus))
            if row.index is not None or not keys:
                keys.append(("index", row.host, row.index))
        groups = [self._keys[key] for key in keys if key in self._keys]
        groups = [group for group in groups if _may_be_one(group, [row])]
        if not groups:
            groups = [[]]
            self.groups += groups
        group = groups[0]
        for other in groups[1:]:
            if other is not group and _may_be_one(group, other):
                # A row has named both: they are one device.
                group += other
                self._keys = {k: group if g is other else g for k, g in self._keys.items()}
                self.groups = [each for each in self.groups if each is not other]
        for key in keys:
            self._keys.setdefault(key, group)
        return group

    def united(self) -> dict[int, Place]:
        """Return, by order, the place that stands for each place which is no device of its own."""
        same: dict[int, Place] = {}
        for group in self.groups:
            places: list[Place] = []
            for place in group:
                twin = next((each for each in places if each.fits(place)), None)
                if twin is None or place.parent is not None:
                    places.append(place)
                    continue
                twin.take(place)
                same[place.order] = twin
            group[:] = places
        return same | self._united_parts(same)

    def _united_parts(self, same: dict[int, Place]) -> dict[int, Place]:
        """Unite the MIG instances of cards that turned out to be one."""
        parts: dict[tuple[int, str], Place] = {}
        places: dict[int, Place] = {}
        for place in self.all:
            if place.parent is None:
                continue
            place.parent = same.get(place.parent.order, place.parent)
            twin = parts.setdefault((place.parent.order, place.key), place)
            if twin is not place:
                twin.take(place)
                places[place.order] = twin
        for group in self.groups:
            group[:] = [place for place in group if place.order not in places]
        return places


class BadRow(ValueError):
    """A row that gives no figure; its text is the reason that it is counted under."""


MAX_SUBJECTS = 20_000
"""More devices and processes than this in one log are a sign of damage; the rest is not kept."""


@dataclass(slots=True, eq=False)
class Track:
    """The readings of one subject, in file order, while they come."""

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
    breaks: tuple[int, ...] | None = None
    """Where segments start, in a log that says it; None: gaps tell."""
    activity: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)
    """Times and figures of how busy the device is, by column."""

    def note_activity(self, name: str, t: Sequence[float], figures: Sequence[float]) -> None:
        """Append what a column says of how busy the device is."""
        times, values = self.activity.setdefault(name, (array("d"), array("d")))
        times.extend(t)
        values.extend(figures)

    def add(
        self, t: Sequence[float], used: Sequence[float], other: Sequence[float] | None = None
    ) -> None:
        """Append readings; ``other`` are the times read day first, where they differ."""
        if other is not None and self.other is None:
            self.other = array("d", self.t)
        self.t.extend(t)
        self.used.extend(used)
        if self.other is not None:
            self.other.extend(t if other is None else other)

    def remember(self, total: float, usable: float) -> None:
        """Keep the total, and the sum of used and free, of the latest reading; NaN is unknown."""
        if math.isfinite(total):
            self.total = total if self.total is None else max(self.total, total)
        if math.isfinite(usable):
            self.usable = usable


def as_array(values: FloatArray) -> array[float]:
    """Return numpy values as the compact array that tracks keep."""
    return array("d", np.asarray(values, dtype=np.float64).tobytes())


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

    def advance(self) -> None:
        """Start a new tick, unless nothing came in this one."""
        if self._seen:
            self._seen.clear()
            self.now += 1

    def document(self) -> None:
        """Start the tick of a document, which counts also where nothing comes of it."""
        self.advance()
        self._seen.add(None)


class RowCounts:
    """How many data rows a log holds, and which of them gave nothing."""

    def __init__(self) -> None:
        self.rows = 0
        self.skipped: Counter[str] = Counter()
        """How many of the ``rows`` were rejected, by reason."""
        self.first_bad: tuple[int, str] | None = None
        """Line number and reason of the first rejected row."""

    def good(self, count: int) -> None:
        """Count rows that gave readings, or that hold something else than memory."""
        self.rows += count

    def bad(self, reason: str, line: int, count: int = 1) -> None:
        """Count rows that gave none."""
        self.rows += count
        self.skipped[reason] += count
        if self.first_bad is None:
            self.first_bad = (line, reason)

    @contextlib.contextmanager
    def row(self, line: int, otherwise: str = "bad number") -> Iterator[None]:
        """Count the row that is read inside as a bad one where that raises."""
        try:
            yield
        except BadRow as error:
            self.bad(str(error), line)
        except ValueError:
            self.bad(otherwise, line)


class NamedProcesses:
    """The processes that a log names, each once however it is spelt."""

    def __init__(self) -> None:
        self._aliases: dict[tuple[int, str, float | None], ProcessInfo] = {}
        self._by_pid: dict[int, list[ProcessInfo]] = {}

    def all(self) -> list[ProcessInfo]:
        """Return them in order of appearance, those of one pid together."""
        return [each for group in self._by_pid.values() for each in group]

    def find(
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
        process = self._aliases.get(alias)
        if process is None:
            of_pid = self._by_pid.setdefault(pid, [])
            same = (each for each in of_pid if each.key.started_at_s == started_at_s)
            process = next((each for each in same if _same_name(each.name, text)), None)
        if process is None:
            if len(self._aliases) >= MAX_SUBJECTS:
                return None
            words = mask_argv(argv)
            process = ProcessInfo(
                key=ProcessKey(pid=pid, started_at_s=started_at_s),
                name=text,
                user=clean(user) if user else None,
                argv=words,
                framework=frameworks.recognise(words or (text,), (), text)[0],
            )
            self._by_pid[pid].append(process)
        if len(self._aliases) < MAX_SUBJECTS:
            self._aliases[alias] = process
        return process


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


class Collector:
    """What one log gives, while it is read."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.clock = Clock(options.tz, options.date_order)
        self.counts = RowCounts()
        self.places = Places()
        self.processes = NamedProcesses()
        self.ticks = Ticks()
        self.tracks: dict[tuple[int, ProcessKey | None, str, bool], Track] = {}
        self.failure: tuple[int, str] | None = None
        self.notes: list[str] = []
        self.no_memory: tuple[str, str] | None = None
        """Why a table gave no memory figure and what would help, where that is known."""
        self.open_line: int | None = None
        """Number of the last line when it has no line end."""

    def lacks_memory(self, why: str, hint: str = "") -> None:
        """Keep why a table gave no memory figure, and what would help."""
        self.no_memory = why, hint

    def note(self, text: str) -> None:
        """Keep one sentence for the reader, once."""
        if text not in self.notes and len(self.notes) < 40:
            self.notes.append(text)

    def track(
        self, place: Place, process: ProcessInfo | None = None, *, timed: bool
    ) -> Track | None:
        """Return where the readings of a subject go; None when there are too many subjects."""
        who = (process.key, process.name) if process else (None, "")
        key = (place.order, *who, timed)
        found = self.tracks.get(key)
        if found is None:
            if len(self.tracks) >= MAX_SUBJECTS:
                self.note(f"more than {MAX_SUBJECTS:,} devices and processes; the rest is left out")
                return None
            found = self.tracks[key] = Track(place, process, timed)
        return found

    def point(
        self, place: Place, t: Time, used: float, process: ProcessInfo | None = None
    ) -> Track | None:
        """Add one good reading and return its track. ``t`` None means "now, by the ticks"."""
        self.counts.good(1)
        track = self.track(place, process, timed=t is not None)
        if track is not None:
            month_first, day_first = t or (float(self.ticks.now),) * 2
            both = None if month_first == day_first else (day_first,)
            track.add((month_first,), (used,), both)
        return track
