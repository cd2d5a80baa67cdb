"""Prints how well the time left is foretold: ``python -m tests.scenarios.eta [--write]``.

Leaks of families that may be looked at are judged at thirteen instants between onset and
out-of-memory, wherever there is a watch or an alert. ``--write`` fits the interval anew
(``gpuwatchd/analysis/forecast/eta_coefficients.py``). What is printed beside it leaves each
family out of the fit that judges it.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.forecast.eta import Forecast, forecast_median, offsets
from gpuwatchd.analysis.forecast.eta_coefficients import COEFFICIENTS, FEATURES, LEVELS
from gpuwatchd.analysis.verdict import growth
from gpuwatchd.core.config import DetectionSection
from tests.scenarios import eta_fit, eta_worlds, worlds
from tests.scenarios.replay import series_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.core.model import Series
    from tests.scenarios.world import Array

SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Shares of the time from onset to out-of-memory that are gone at the instants looked at."""
LEAST_LEFT_S = 30.0
NOMINAL = ((0.25, 0.75), (0.1, 0.9), (0.05, 0.95), (0.025, 0.975))
SETTINGS = DetectionSection()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One forecast and what came of it."""

    family: str
    gone: float
    left_s: float
    ahead: Forecast

    @property
    def ratio(self) -> float:
        """Log of truth over middle."""
        return math.log(self.left_s / self.ahead.mid_s)


@dataclass(kw_only=True)
class Look:
    """All forecasts of a set of leaks."""

    rows: list[Row] = field(default_factory=list)
    silent: Counter[str] = field(default_factory=Counter)
    """Family -> how often growth that runs full was said to level off before."""


class Leak(NamedTuple):
    """A series, what was known of it after a number of samples, onset and end of its truth."""

    series: Series
    known: Callable[[int], Series]
    onset_s: float
    oom_s: float


def judge_at(look: Look, family: str, leak: Leak) -> None:
    """Judge one leak at its instants."""
    t = leak.series.t_s - leak.series.t_s[0]
    for gone in SHARES:
        at = leak.onset_s + gone * (leak.oom_s - leak.onset_s)
        count = int(np.searchsorted(t, at, side="right"))
        if count < 5 or at > t[-1] or leak.oom_s - t[count - 1] < LEAST_LEFT_S:
            continue
        seen: list[Forecast] = []

        def listen(*args: Any, _to: list[Forecast] = seen, **named: Any) -> Forecast:
            _to.append(forecast_median(*args, **named))
            return _to[-1]

        with mock.patch.object(growth, "forecast_median", listen):
            finding = verdict.judge(leak.known(count), SETTINGS)
        if finding.tier != "none" and finding.eta is None:
            look.silent[family] += 1
        elif finding.tier != "none" and seen:
            left_s = float(leak.oom_s - t[count - 1])
            look.rows.append(Row(family=family, gone=gone, left_s=left_s, ahead=seen[-1]))


def drawn(family: str, seed: int) -> Iterator[Leak]:
    """Yield one leak of those drawn for the calibration."""
    one = eta_worlds.build(family, seed)
    yield Leak(one.series, lambda n: series_at(one.series, n), one.onset_s, one.oom_s)


def lived(family: str, seed: int) -> Iterator[Leak]:
    """Yield one leak of the laboratory, as its device and as its process shows it."""
    item = worlds.build(family, seed)
    truth = item.truth
    if truth.oom_s is not None and math.isfinite(truth.oom_s):
        yield Leak(
            item.series, lambda n: series_at(item.series, n), truth.onset_s or 0.0, truth.oom_s
        )
    for view in item.processes.values():
        if view.truth.leak and view.truth.oom_s is not None and math.isfinite(view.truth.oom_s):
            yield Leak(view.series, view.at, view.truth.onset_s or 0.0, view.truth.oom_s)


def judged(items: int, first: int = 0) -> Look:
    """Judge ``items`` leaks of every family that may be looked at."""
    look = Look()
    for family in eta_worlds.FAMILIES:
        for seed in range(first, first + items):
            for leak in drawn(family, seed):
                judge_at(look, family, leak)
    for family in worlds.LEAKS:
        if family in worlds.TUNING:
            for seed in worlds.TUNING_SEEDS[first : first + max(items // 2, 1)]:
                for leak in lived(family, seed):
                    judge_at(look, family, leak)
    return look


def bands(found: Sequence[Row], coefficients: Array) -> Array:
    """Return the quantiles of log(truth / middle) that are foretold, (rows, levels)."""
    features = np.array([row.ahead.features for row in found])
    return offsets(features, np.asarray(coefficients, dtype=np.float64))


def left_out(found: Sequence[Row]) -> Array:
    """Return the quantiles of each row from a fit without its family."""
    out = np.empty((len(found), len(LEVELS)))
    family = np.array([row.family for row in found])
    for name in sorted(set(family.tolist())):
        mine = family == name
        others = [row for row in found if row.family != name]
        chosen = [row for row in found if row.family == name]
        out[mine] = bands(chosen, fit(others))
    return out


def fit(found: Sequence[Row]) -> Array:
    """Return the coefficients (levels, features) for these rows."""
    return eta_fit.fit(
        np.array([row.ahead.features for row in found]),
        np.array([row.ratio for row in found]),
        np.array([row.family for row in found]),
        LEVELS,
    )


def table(look: Look, band: Array) -> str:
    """Return middle, coverage and width by family and by share of the time gone, and nominals."""
    found = look.rows
    low, high = band[:, LEVELS.index(0.05)], band[:, LEVELS.index(0.95)]
    ratio = np.array([row.ratio for row in found])
    inside = (ratio >= low) & (ratio <= high)
    family = np.array([row.family for row in found])
    names = list(dict.fromkeys(family.tolist()))
    lines = [
        f"{'family':18s} {'n':>5s} {'|log|':>6s} {'bias':>6s} {'in 90':>6s} {'width':>6s}  no eta"
    ]

    def line(name: str, mine: Array) -> str:
        return (
            f"{name:18s} {mine.sum():6d} {np.median(np.abs(ratio[mine])):6.3f} "
            f"{-np.median(ratio[mine]):+6.2f} {inside[mine].mean():6.3f} "
            f"{np.median((high - low)[mine]):6.2f}"
        )

    lines += [line(name, family == name) + f"  {look.silent[name] or '':>6}" for name in names]
    covered = [inside[family == name].mean() for name in names]
    middles = [np.median(np.abs(ratio[family == name])) for name in names]
    widths = [np.median((high - low)[family == name]) for name in names]
    lines.append(
        f"{'mean of families':18s} {len(found):6d} {np.mean(middles):6.3f} {'':6s} "
        f"{np.mean(covered):6.3f} {np.mean(widths):6.2f}"
    )
    gone = np.array([row.gone for row in found])
    lines.append("\nshare of the time gone")
    lines += [line(f"{share:.0%}", gone == share) for share in SHARES if (gone == share).any()]
    lines.append(f"\n{'nominal':>8s} {'observed':>9s}   (mean of families)")
    for below, above in NOMINAL:
        ends = band[:, LEVELS.index(below)], band[:, LEVELS.index(above)]
        here = (ratio >= ends[0]) & (ratio <= ends[1])
        shares = [here[family == name].mean() for name in names]
        lines.append(f"{above - below:8.0%} {np.mean(shares):9.3f}")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; with ``--write`` fit anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=40, help="leaks a family")
    parser.add_argument("--write", action="store_true", help="write the calibration anew")
    options = parser.parse_args()
    look = judged(options.items)
    if options.write:
        eta_fit.write(fit(look.rows), LEVELS, FEATURES, options.items)
    print("each family left out of the fit that judges it\n")
    print(table(look, left_out(look.rows)))
    if not options.write:
        fresh = judged(max(options.items // 4, 1), first=500)
        print("\nwith the calibration as it is, on seeds that it has not seen\n")
        print(table(fresh, bands(fresh.rows, np.array(COEFFICIENTS))))


if __name__ == "__main__":
    main()
