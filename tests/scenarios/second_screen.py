"""What the second screen costs: when a leak is watched, judged always and judged behind it.

``python -m tests.scenarios.second_screen [--seeds 2] [--first 500]`` plays every leak of the
laboratory at the step of a fleet, 60 s, and prints how much later it is watched and alerted where
a series is judged only while it rises, while anything is open, and once an hour besides. Then
what a single machine would save: the judgements of harmless series, at the samples and the pace
of its daemon, whose pauses grow with each calm look.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import screen
from gpuwatchd.core.config import Config, DetectionSection
from gpuwatchd.pipeline.state import State
from gpuwatchd.pipeline.track_evaluation import Evaluator
from tests.scenarios import blind, replay, worlds

if TYPE_CHECKING:
    from types import ModuleType

    from gpuwatchd.core.model import Series
    from gpuwatchd.pipeline.track import Track

STEP_S = 60.0
HOUR_S = 3600.0
MOST_S = 1200.0
"""No watch may come later by more than this."""


class Gated(Evaluator):
    """Judges a series while the second screen passes it, while anything is open, and each hour."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.turn_s = float("-inf")
        self.passed = self.asked = self.judged = 0

    def due(self, tracks: list[Track], now_s: float) -> list[Track]:
        """Return those of these tracks that deserve a look now."""
        due = [track for track in super().due(tracks, now_s) if self.passes(track, now_s)]
        self.judged += len(due)
        return due

    def passes(self, track: Track, now_s: float) -> bool:
        """Say whether the screen leaves it to the detectors, or its turn has come."""
        if track.alert is not None:
            return True
        series = track.series()
        t_s, used = series.t_s, series.used_bytes
        first = int(t_s.searchsorted(now_s - 6.4 * HOUR_S))
        scale = np.array([series.total_bytes or np.inf])
        settings = self.state.settings.config.detection
        self.asked += 1
        passes = screen.rising(used[None, first:], t_s[first:], scale, settings)[0]
        self.passed += bool(passes)
        if passes:
            return True
        if now_s - self.turn_s >= HOUR_S:
            self.turn_s = now_s
            return True
        return False


def thinned(series: Series) -> Series:
    """Return a series as a fleet sees it: the newest value of each minute."""
    grid = np.arange(series.t_s[0], series.t_s[-1], STEP_S)
    index = series.t_s.searchsorted(grid, side="right") - 1
    return replay.make(
        grid, series.used_bytes[index], float(series.total_bytes or 0.0), series.framework
    )


def delays_s(series: Series) -> tuple[float | None, float | None, float]:
    """Return how much later the watch and the alert come, and the share that was judged."""
    config = Config(detection=DetectionSection())
    always, gated = thinned(series), Gated(State(config))
    before, after = replay.replay(always), replay.replay(always, evaluator=gated)

    def later(first_s: float | None, then_s: float | None) -> float | None:
        if first_s is None:
            return None
        return (float(always.t_s[-1] - always.t_s[0]) if then_s is None else then_s) - first_s

    share = gated.passed / max(1, gated.asked)
    return later(before.watch_s, after.watch_s), later(before.alert_s, after.alert_s), share


class Counting(Evaluator):
    """Judges as the daemon does, and counts it."""

    judged = 0

    def due(self, tracks: list[Track], now_s: float) -> list[Track]:
        """Return those of these tracks that deserve a look now."""
        due = super().due(tracks, now_s)
        self.judged += len(due)
        return due


def judgements(corpus: ModuleType, families: int | None, seeds: range) -> tuple[int, int, float]:
    """Return judgements of harmless series, behind the screen and always, and their hours."""
    behind = always = hours = 0.0
    for family in list(corpus.BENIGN)[:families]:
        for seed in seeds:
            series = corpus.build(family, seed).series
            gated, counting = (
                of(State(Config(detection=DetectionSection()))) for of in (Gated, Counting)
            )
            replay.replay(series, evaluator=gated)
            replay.replay(series, evaluator=counting)
            behind, always = behind + gated.judged, always + counting.judged
            hours += float(series.t_s[-1] - series.t_s[0]) / HOUR_S
    return int(behind), int(always), hours


def main() -> None:
    """Print a line for each leak that is watched later, and the sums."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--families", type=int, default=0, help="only so many of each corpus")
    options = parser.parse_args()
    rows = []
    seeds = range(options.first, options.first + options.seeds)
    for corpus in (worlds, blind):
        for family in list(corpus.LEAKS)[: options.families or None]:
            for seed in seeds:
                watch_s, alert_s, share = delays_s(corpus.build(family, seed).series)
                rows.append((watch_s, alert_s))
                if max(watch_s or 0.0, alert_s or 0.0) > MOST_S:
                    print(
                        f"{family} {seed}: watch {watch_s} s later, alert {alert_s} s, {share:.2f}"
                    )
    for name, column in (("watches", 0), ("alerts", 1)):
        late = [later_s for row in rows if (later_s := row[column]) is not None]
        print(
            f"{name}: {len(late)}, later by more than {MOST_S:g} s: "
            f"{sum(one > MOST_S for one in late)}, most {max(late, default=0.0):g} s, "
            f"median {np.median(late or [0.0]):g} s"
        )
    for corpus in (worlds, blind):
        behind, always, hours = judgements(corpus, options.families or None, seeds)
        print(f"{corpus.__name__}, harmless {hours:.0f} h: judged {behind}, without it {always}")


if __name__ == "__main__":
    main()
