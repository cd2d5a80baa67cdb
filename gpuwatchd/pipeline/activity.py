"""What a device did lately: utilisation and power, in which the epochs of its job show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import FloatArray, Period

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
