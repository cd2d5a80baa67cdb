"""One jump: an event, not a leak; what came after it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import Series

LEAST_JUMP = 256.0 * numerics.MIB
SETTLE_S = 120.0
"""After this time it can be said whether memory settled."""
SETTLED, GROWING, TOO_EARLY = 0.0, 1.0, -1.0


class Spike:
    """The largest rise within a short time.

    When it fires
        A rise by 20 % of the used memory before it, by 256 MiB, above the fence of 1.5
        interquartile ranges of all rises, within 30 s (never less than three samples).
    When it must not
        Steady growth, noise. It is not a leak: fact ``after`` is 0 settled, 1 growing, -1 too
        early to say; ``kept`` is the share that is still held.
    Cost
        O(n).

    References
    ----------
        Tukey's fence on the differences.

    Parameters
    ----------
    percent
        Least jump in per cent of the used memory.
    window_s
        Time within which it rises.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 1200.0, 10.0)
    >>> jump = np.where(t < 600, 4e9, 9e9)
    >>> signal = Spike().detect(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=jump,
    ...                              limit_bytes=None))
    >>> signal.pattern, signal.facts["jump_bytes"], signal.facts["after"]
    ('spike', 5000000000.0, 0.0)
    """

    name = "spike"

    def __init__(self, percent: float = 20.0, window_s: float = 30.0) -> None:
        self.percent = percent
        self.window_s = window_s

    def detect(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(numerics.prepare(series))

    def look_at(self, view: SeriesWindow) -> Signal | None:
        """Return what is seen in the view, or None."""
        width = max(1, round(max(self.window_s, 2.0 * view.step_s) / max(view.step_s, 1e-9)))
        if view.t_s.size < width + 4:
            return None
        rise = view.mean[width:] - view.mean[:-width]
        index = int(rise.argmax())
        jump = float(rise[index])
        before = float(view.mean[index])
        if jump < max(LEAST_JUMP, self.percent / 100.0 * max(before, 0.0)):
            return None
        low, high = numerics.quantile(rise, 0.25), numerics.quantile(rise, 0.75)
        fence = high + 1.5 * (high - low)
        if jump <= fence:
            return None
        at = float(view.t_s[index + width])
        after = self._after(view, index + width, jump)
        kept = min(max((float(view.floor[index + width]) - before) / jump, 0.0), 1.0)
        large = np.concatenate(([False], rise >= 0.5 * jump))
        return Signal(
            detector=self.name,
            pattern="spike",
            rate_bytes_per_s=0.0,
            confidence=min(1.0, jump / (jump + fence + view.noise_bytes)),
            since_s=view.now_s + float(view.t_s[index]),
            n=int(rise.size),
            facts={
                "jump_bytes": jump,
                "before_bytes": before,
                "fence_bytes": fence,
                "after": after,
                "kept": kept,
                "age_s": abs(at),
                "median_rise_bytes": numerics.median(rise),
                "alike": float(np.count_nonzero(large[1:] & ~large[:-1])),
            },
        )

    @staticmethod
    def _after(view: SeriesWindow, index: int, jump: float) -> float:
        tail_t, tail = view.t_s[index:], view.floor[index:]
        if -float(tail_t[0]) < max(SETTLE_S, 4.0 * view.step_s):
            return TOO_EARLY
        middle = tail.size // 2
        late = float(tail[-1] - tail[middle])
        return GROWING if late > max(0.05 * jump, 3.0 * view.noise_bytes) else SETTLED
