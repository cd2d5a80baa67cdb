"""Where each false alert of a family comes from, item by item; tuning families only.

``python -m tests.scenarios.false_alerts FAMILY [FIRST LAST]`` replays the seeds from FIRST up to
LAST with default settings and prints one line for each first alert, in minutes: when, on which
growth, how often the subject had given back a quarter of that or more, how soon it gives back half.
"""

from __future__ import annotations

import argparse

import numpy as np

from gpuwatchd.analysis import numerics
from tests.scenarios import worlds
from tests.scenarios.replay import replay

COLUMNS = "seed  alert  confidence  pattern   growth for  of room  full in  releases  falls in"


def row(family: str, seed: int) -> str | None:
    """Return the line of an item; None where it is not alerted."""
    series = worlds.build(family, seed).series
    life = replay(series, stop_at_alert=True)
    found = life.alert
    if life.alert_s is None or found is None or found.onset_at_s is None:
        return None
    grown, t, x = found.growth_bytes or 1.0, series.t_s, series.used_bytes
    end = int(t.searchsorted(found.judged_at_s, side="right"))
    turns = numerics.zigzag(*numerics.extremes(t[:end], x[:end]), 0.25 * grown)
    releases = sum(kind > 0 for _, _, kind in turns)
    after = x[end:]
    fallen = np.flatnonzero(np.maximum.accumulate(after) - after >= 0.5 * grown)
    falls = f"{(t[end + fallen[0]] - found.judged_at_s) / 60:.1f}" if fallen.size else "-"
    room = (series.limit_bytes or 0.0) - float(x[end - 1])
    left = "-" if found.eta is None else f"{found.eta.mid_s / 60:.0f}"
    age = (found.judged_at_s - found.onset_at_s) / 60
    return (
        f"{seed:4}  {life.alert_s / 60:5.1f}  {found.confidence:10.2f}  {found.pattern:8}  "
        f"{age:10.1f}  {grown / (grown + room):7.2f}  {left:>7}  {releases:8}  {falls:>8}"
    )


def main() -> None:
    """Print the lines of a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=sorted(worlds.TUNING & set(worlds.BENIGN)))
    parser.add_argument("first", nargs="?", type=int, default=worlds.TUNING_SEEDS[0])
    parser.add_argument("last", nargs="?", type=int, default=worlds.TUNING_SEEDS[0] + 100)
    args = parser.parse_args()
    print(COLUMNS)
    rows = [row(args.family, seed) for seed in range(args.first, args.last)]
    alerted = [line for line in rows if line is not None]
    print(*alerted, f"{len(alerted)} of {len(rows)} alerted", sep="\n")


if __name__ == "__main__":
    main()
