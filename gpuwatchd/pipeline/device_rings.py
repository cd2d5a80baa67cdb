"""What goes into the rings of one device, and what of it only came with its processes.

What processes bring as they come is no growth of the device, unless they are a crowd: where they
are known it is judged without that, live and in logs by the same rule.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.attribution import JOIN_S
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuwatchd.core.model import FloatArray, Period, ProcessInfo, ProcessKey, ProcessUse

CROWD, ALIKE = 4, 1.25
"""From so many processes of one name and (within this factor) size on that are there at once, what
another brings is growth: workers that nobody ends."""

_HOLD_S = 75.0
"""A process that does not change is recorded once a minute."""


def is_crowd(level: float, others: Sequence[float]) -> bool:
    """Say whether a process is one more of a crowd of the same name and size."""
    if len(others) + 1 < CROWD:
        return False
    usual = median(others)
    return usual / ALIKE <= level <= usual * ALIKE


class Arrivals:
    """What the processes of one device brought, look by look.

    Of those that the first list names nobody knows when they came.
    """

    def __init__(self) -> None:
        self.rings: dict[int, Ring] = {}
        """At 0 the device without it, at 1 what nobody owns with what a crowd of workers brought;
        each from when it is another than the device's own."""
        self.crowd_bytes = 0.0
        """What those brought that joined a crowd and are there."""
        self._crowd: set[ProcessKey] = set()
        self._brought: dict[ProcessKey, float] = {}
        self._left: dict[ProcessKey, float] = {}
        """The same of those that only the newest list lacks: it may be a slip of the driver."""
        self._young: dict[ProcessKey, tuple[float, float | None]] = {}
        """Who came lately: when, and what nobody owned just before."""
        self._rest: float | None = None
        self._known: set[ProcessKey] | None = None
        """Whom the last list named."""
        self._listed: list[ProcessKey] | None = None
        self._total = 0.0

    def restore(self, whole: Ring, parts: Mapping[ProcessKey, Ring]) -> None:
        """Take up what an earlier run of the daemon saw of the device and its processes."""
        if whole.last is None:
            return
        t_s, used = whole.window()
        self._known, late = set(), False
        for key, ring in parts.items():
            own_s, own = ring.window()
            if not own_s.size:
                continue
            here = own_s[-1] >= t_s[-1] - _HOLD_S
            if here:
                self._known.add(key)
            if own_s[0] <= t_s[0] + JOIN_S:
                continue  # It may have been there before.
            late = True
            level = float(own[own_s.searchsorted(own_s[0] + JOIN_S, side="right") - 1])
            first, last = t_s.searchsorted((own_s[0], own_s[-1])).tolist()
            span = slice(first, None if here else last)
            held = own[own_s.searchsorted(t_s[span], side="right") - 1]
            used[span] -= held.clip(max=level)
            if here:
                self._brought[key] = level
        if late:
            self.rings[0] = joint = Ring(whole.span_s)
            for at_s, value in zip(t_s.tolist(), used.tolist(), strict=True):
                joint.add(at_s, max(value, 0.0))

    def total(
        self,
        uses: Sequence[ProcessUse] | None,
        rest: float | None,
        now_s: float,
        infos: Mapping[ProcessKey, ProcessInfo],
    ) -> float:
        """Return how much of what is used came with processes that are there.

        ``rest`` is what none of them owns, as far as that is known.
        """
        if uses is None:  # Nobody is known to have gone.
            return self._total
        listed = [use.key for use in uses]
        if self._young or listed != self._listed:  # In most ticks they are the same.
            self._listed = listed
            held = {use.key: float(use.used_bytes or 0) for use in uses}
            known, self._known = self._known, set(held)
            if known is not None and known != self._known:
                self._note_moves(known, self._known, now_s)
            for key in list(self._young):
                self._settle(key, held, rest, now_s, infos)
            self.crowd_bytes = sum([self._brought[key] for key in self._crowd])
            self._total = sum(self._brought.values())
        self._rest = self._rest if rest is None else rest
        return self._total

    def values(
        self, rings: Sequence[Ring], held: Sequence[int | None]
    ) -> Iterator[tuple[Ring, float]]:
        """Yield its rings with what to put into them, from now on or as before.

        ``rings`` and ``held`` are those of the device and of what nobody owns.
        """
        moved = -int(self._total), int(self.crowd_bytes)
        for position, (ring, held_bytes, more) in enumerate(zip(rings, held, moved, strict=True)):
            if more and position not in self.rings:
                self.rings[position] = ring.copy()
            if position in self.rings and held_bytes is not None:
                yield self.rings[position], max(held_bytes + more, 0)

    def _note_moves(self, before: set[ProcessKey], now: set[ProcessKey], now_s: float) -> None:
        for key in now - before:
            if key in self._left:
                self._brought[key] = self._left[key]
            else:
                self._young[key] = now_s, self._rest
        self._left = {}
        for key in before - now:
            self._young.pop(key, None)
            self._crowd.discard(key)
            self._left[key] = self._brought.pop(key, 0.0)

    def _settle(
        self,
        key: ProcessKey,
        held: Mapping[ProcessKey, float],
        rest: float | None,
        now_s: float,
        infos: Mapping[ProcessKey, ProcessInfo],
    ) -> None:
        came_s, before = self._young[key]
        if now_s - came_s <= JOIN_S:
            own = held[key]
            # Only what the device shows of it came with it: a list that goes on names processes
            # that were there before.
            shown = own if rest is None or before is None else rest + own - before
            self._brought[key] = min(max(shown, 0.0), own)
            return
        del self._young[key]
        settled = [other for other in held if other != key and other not in self._young]
        name = infos[key].name if key in infos else ""
        alike = [held[other] for other in settled if other in infos and infos[other].name == name]
        if is_crowd(held[key], alike):
            self._crowd.add(key)

    def move(self, by_s: float) -> None:
        """Move what is remembered in time: the wall clock was stepped."""
        for ring in self.rings.values():
            ring.shift(by_s)
        self._young = {key: (at_s + by_s, rest) for key, (at_s, rest) in self._young.items()}


CLOCK_TICKS = 64
"""What stands still is brought up to date at least this often."""


class Feeder:
    """Gives every ring its value at every look, and touches only those whose value changed.

    The others follow a clock: they take its times in when somebody looks at them.
    """

    __slots__ = ("_clock", "_fed")

    def __init__(self) -> None:
        self._clock: list[float] = []
        self._fed: dict[Ring, float] = {}
        """What each got at the last look."""

    def feed(self, now_s: float, values: Sequence[tuple[Ring, float]] | None = None) -> None:
        """Give only these rings their values; of one that is there twice the first counts.

        None: every ring gets what it got at the last look.
        """
        changed: list[Ring] = []
        if values is not None:
            before, self._fed = self._fed, dict(reversed(values))
            for ring in before.keys() - self._fed.keys():
                ring.leave()
            changed = [ring for ring, value in self._fed.items() if before.get(ring) != value]
            for ring in changed:
                ring.add(now_s, self._fed[ring])
        if len(self._clock) >= CLOCK_TICKS:
            self._clock = []
            for ring in self._fed:
                ring.follow(self._clock)
        self._clock.append(now_s)
        for ring in changed:
            ring.follow(self._clock)


# What a device did lately: utilisation and power, in which the epochs of its job show.

SPAN_S: Final = 6.4 * 3600.0
AGAIN_S: Final = 120.0
"""So long what was found stands."""
SOURCES: Final = ("utilisation", "power")


class Activity:
    """Curves of one device, and the period that was last found in them."""

    __slots__ = ("_asked_s", "_curves", "_period")

    def __init__(self, curves: dict[str, tuple[FloatArray, FloatArray]] | None = None) -> None:
        self._curves = curves or {}
        self._asked_s: float | None = None
        self._period: Period | None = None

    def curves(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return times and figures (n,) of each source."""
        return self._curves

    def period(self, now_s: float) -> Period | None:
        """Return the epochs that show by an instant; looks for them anew every two minutes."""
        if self._asked_s is None or not 0.0 <= now_s - self._asked_s < AGAIN_S:
            # As the detectors, loaded when something is judged first.
            from gpuwatchd.analysis.period import period_of  # noqa: PLC0415 - numpy: 300 ms

            self._asked_s, known = now_s, []
            for source, (t_s, values) in self.curves().items():
                first, last = t_s.searchsorted((now_s - SPAN_S, now_s + 1e-3)).tolist()
                known.append((source, t_s[first:last], values[first:last]))
            self._period = period_of(known, now_s)
        return self._period


class RecentActivity(Activity):
    """The last hours of a device that is watched."""

    __slots__ = ("_rings",)

    def __init__(self, points: Iterable[tuple[float, float | None, float | None]] = ()) -> None:
        super().__init__()
        self._rings = tuple([Ring(SPAN_S) for _ in SOURCES])
        for point in points:
            self.add(*point)

    def add(self, t_s: float, util_pct: float | None, power_w: float | None) -> None:
        """Take in the figures of an instant, as far as they are known."""
        for ring, value in zip(self._rings, (util_pct, power_w), strict=True):
            if value is not None:
                ring.add(t_s, value)

    def curves(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return copies of what is remembered."""
        rings = zip(SOURCES, self._rings, strict=True)
        return {source: ring.window() for source, ring in rings if len(ring)}

    def move(self, by_s: float) -> None:
        """Move what is remembered in time: the wall clock was stepped."""
        self._asked_s = None
        for ring in self._rings:
            ring.shift(by_s)
