"""The stop prior of one program: where its earlier runs stopped is normal, growth beyond is new.

Without history the growth of a benign ramp is taken to stop as a Lomax law says. A program that
has run before says it better: each earlier run gives a chance that a run like it gets to the
present level, with the present growth, at the present age; and the chance to get from there to the
limit. Siblings of the same job and the same hour of yesterday are earlier runs in the same sense.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.analysis.forecast.posterior import LEAK_PRIOR, STOP_SCALE_S, STOP_SHAPE
from gpuwatchd.analysis.forecast.previous_runs import IN_STEP, SPREAD, PreviousRuns, previous_runs
from gpuwatchd.analysis.forecast.profile import PROFILE_AGES_S, PROFILE_LOOKBACKS_S, TOLERANCE
from gpuwatchd.core import units

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, Series

ORDINARY = 0.05
"""κ: how many earlier runs the ordinary stop prior counts for."""
DOUBT = 1.0
"""β: weight of the ordinary prior of a leak against suspicious earlier runs."""
SLOWER = 1.5
"""A run may take this much longer for the same growth."""
FASTER = 1.25
"""Or be this much faster."""
LAST_RESORT = 0.08
"""With less than this share of the memory left, history silences nothing."""
EXPECTED = 0.2
"""Growth that an earlier run reaches with this chance is nothing new."""
NORMAL = 0.1
"""Growth that one reaches with this chance is not even watched: within 1.38 times what it did."""
_LOG_LOOKBACKS = np.log(PROFILE_LOOKBACKS_S)
_LOG_STEP = float(_LOG_LOOKBACKS[1] - _LOG_LOOKBACKS[0])


class _RunLikelihoods(NamedTuple):
    """What each earlier run (r,) says of each window (k,)."""

    here: FloatArray
    """Chance (k, r) that a run like it gets here."""
    further: FloatArray
    """The same on to the limit."""
    counts: FloatArray
    """How much (k, r) that run counts for."""
    slower: FloatArray
    """Logarithm (k, r) of the growth over what it grew by in that time at most."""
    later: FloatArray
    """The same over what it grew by after that age."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPrior:
    """What history says about the growth of one subject at one instant."""

    past: PreviousRuns
    suspects: float
    """λ: earlier runs that may have leaked; a run of which the user said so counts for five."""
    age_s: float
    scale: float
    """Memory of the card, bytes."""
    _asked: list[tuple[Windows, _RunLikelihoods]] = field(default_factory=list, repr=False)
    """What was said already: the same windows are asked about several times."""

    def chance(self, windows: Windows, headroom: FloatArray, reach_s: FloatArray) -> FloatArray:
        """Return the chance (k, laws) that growth goes on until the limit.

        Parameters
        ----------
        windows
            Windows (k,).
        headroom
            (k,) bytes from the recent peak to the limit.
        reach_s
            (k, laws) seconds until the limit, by each law.

        Notes
        -----
        With v the chance of each run to get here, l to get to the limit, and S0 the ordinary
        survival: S = (κ S0(A) + Σ v) / (κ + Σ d), S_R = (κ S0(A + R) + Σ l) / (κ + Σ d), where
        d = 1 for a run that stopped, d = v for one that knows nothing beyond its proven level, and
        between them for a run that ended at an earlier age;
        g = min(1, S_R / S); π = (0.1 β + λ) / (β + λ);
        ω = π / (π + (1 - π) S); ω + (1 - ω) g.
        λ fades where another run is known to have stood: there it explains nothing. Where none
        has, the chance is at least the ordinary one.
        """
        runs, likelihoods = self.past, self._likelihoods(windows)
        climbing, here = runs.climbing, likelihoods.here
        left = likelihoods.counts * runs.weight
        knows = np.where(runs.stopped, self._knows(windows), climbing)
        seen = ORDINARY + np.add.reduce((here + (1.0 - here) * knows) * left, axis=1)
        age = windows.age_s
        before = (STOP_SCALE_S / (STOP_SCALE_S + age)) ** STOP_SHAPE
        after = (STOP_SCALE_S / (STOP_SCALE_S + age[:, None] + reach_s)) ** STOP_SHAPE
        alive = ORDINARY * before + np.add.reduce(here * left, axis=1)
        further = np.add.reduce(likelihoods.further * left, axis=1)
        in_time = after * (ORDINARY / alive)[:, None]
        in_time += (further / alive)[:, None]
        np.minimum(in_time, 1.0, out=in_time)
        shown = np.where(climbing | (left == 0.0), 0.0, here).max(axis=1, initial=0.0)
        new = np.maximum(1.0 - shown / EXPECTED, 0.0)
        suspects = self.suspects * new
        prior = (LEAK_PRIOR * DOUBT + suspects) / (DOUBT + suspects)
        leak = prior / (prior + (1.0 - prior) * alive / seen)
        chance: FloatArray = in_time * (1.0 - leak)[:, None]
        chance += leak[:, None]
        # What no run has proved, and what leaves little memory, is no calmer than without history.
        new[headroom < LAST_RESORT * self.scale] = 1.0
        if new.any():
            usually = LEAK_PRIOR / (LEAK_PRIOR + (1.0 - LEAK_PRIOR) * before)
            usual = after * ((1.0 - usually) / before * new)[:, None]
            usual += (usually * new)[:, None]
            np.maximum(chance, usual, out=chance)
        return chance

    def expects(
        self, windows: Windows, headroom: FloatArray | None = None
    ) -> npt.NDArray[np.bool_]:
        """Say of each window (k,) whether its growth is what earlier runs did as well."""
        likelihoods = self._likelihoods(windows)
        here = np.where(self.past.climbing | (likelihoods.counts == 0.0), 0.0, likelihoods.here)
        normal: npt.NDArray[np.bool_] = here.max(axis=1, initial=0.0) >= NORMAL
        if headroom is not None:
            normal &= headroom >= LAST_RESORT * self.scale
        return normal

    def words(self, windows: Windows, index: int, *, beyond: bool = False) -> str:
        """Return how the growth of a window compares with earlier runs; "" where they say nothing.

        "as in 3 earlier runs", "1.2 GiB above what 3 earlier runs reached", "faster than 3 earlier
        runs grew", "3 earlier runs grew less at this age". With ``beyond`` only what is new.
        """
        runs, likelihoods = self.past, self._likelihoods(windows)
        here = likelihoods.here[index]
        usual = ~runs.climbing & (likelihoods.counts[index] > 0.0) & (here >= NORMAL)
        # Of a run that ended young nothing is known of this age.
        told = ~runs.climbing & (runs.weight > 0.0) & (usual | (self._knows(windows)[index] > 0.0))
        who = _who([kind for kind, one in zip(runs.kinds, told.tolist(), strict=True) if one])
        if usual.any() and not beyond:
            return f"as in {who or 'earlier runs'}"
        if not who:
            return ""
        higher = float((runs.above - runs.height)[told].min())
        if higher > TOLERANCE * self.scale:
            return f"{units.size(higher)} above what {who} reached"
        slower, later = (
            float(values[index][told].min()) for values in (likelihoods.slower, likelihoods.later)
        )
        if max(slower, later) <= 0.0:
            return ""
        return f"faster than {who} grew" if slower >= later else f"{who} grew less at this age"

    def _knows(self, windows: Windows) -> FloatArray:
        """Return how much (k, r) each run knows of what comes at the age of each window.

        One that ended young does not know what comes later: at half the age it knows nothing, nor
        does it of growth that began when it had ended.
        """
        until = np.maximum(self.age_s + windows.end_s, 1.0)[:, None]
        lived_s = self.past.lived_s
        knows = np.minimum(np.maximum(2.0 * lived_s / until - 1.0, 0.0), 1.0)
        begun = np.maximum(self.age_s + windows.begin_s, 0.0)[:, None]
        since = np.maximum(SLOWER * lived_s - begun, 0.0) / np.maximum(until - begun, 1.0)
        knows = np.minimum(knows, np.where(self.past.aged, since, 1.0))
        sibling = self.past.sibling
        if sibling.any():
            begun = begun + IN_STEP * self.age_s
            since = np.maximum(lived_s - begun, 0.0) / np.maximum(until - begun, 1.0)
            knows = np.where(sibling, np.minimum(knows, since), knows)
        return knows

    def _counts(self, windows: Windows, here: FloatArray) -> FloatArray:
        """Return how much (k, r) each run counts for.

        A sibling that climbs, and is level with this run or ahead, knows no more than it does; and
        where half of the siblings do, the others are no proof that it will stop.
        """
        runs = self.past
        out = np.ones(here.shape)
        # Growth that began when a run had ended is none that it knows of.
        begun = (self.age_s + windows.begin_s)[:, None]
        out[runs.aged & (begun >= SLOWER * runs.lived_s)] = 0.0
        if not runs.weight.all():
            # What was still climbing says what may be expected for as long as it was seen.
            older = (self.age_s + windows.end_s)[:, None] > SLOWER * runs.lived_s
            out[(runs.weight == 0.0) & older] = 0.0
        if runs.climbing.any():
            alike = np.where(runs.climbing, np.minimum(here / EXPECTED, 1.0), 0.0)
            share = alike.sum(axis=1) / runs.sibling.sum()
            out = np.where(runs.sibling, np.maximum(1.0 - 2.0 * share, 0.0)[:, None], out)
            out = np.where(runs.climbing, 1.0 - alike, out)
        return out

    def _likelihoods(self, found: Windows) -> _RunLikelihoods:
        for windows, likelihoods in self._asked:
            if windows is found:
                return likelihoods
        runs, small = self.past, TOLERANCE * self.scale
        # Between two look-backs of the table, on the logarithm of time.
        at = (np.log(FASTER * found.age_s) - _LOG_LOOKBACKS[0]) / _LOG_STEP
        at = np.minimum(np.maximum(at, 0.0), PROFILE_LOOKBACKS_S.size - 1.0)
        first = np.minimum(at.astype(np.intp), PROFILE_LOOKBACKS_S.size - 2)
        part = (at - first)[:, None]
        normal = runs.grown[first] * (1.0 - part) + runs.grown[first + 1] * part
        begun = self.age_s + found.begin_s
        rank = PROFILE_AGES_S.searchsorted(begun / SLOWER, side="right")
        after = runs.late[rank]
        grown = np.log(found.growth + small)[:, None]
        slower, later = grown - np.log(normal + small), grown - np.log(after + small)
        above = np.log((runs.above + small) / (runs.height + small))
        limit = np.log((runs.room + small) / (runs.height + small))
        here = np.maximum(np.maximum(slower, later), above)
        tails = _tail(np.concatenate((here, limit[None])) / SPREAD)
        here, limit = tails[:-1], tails[-1]
        counts = self._counts(found, here)
        out = _RunLikelihoods(here, np.minimum(here, limit), counts, slower, later)
        self._asked.append((found, out))
        return out


def program_prior(series: Series, view: SeriesWindow) -> ProgramPrior | None:
    """Return what the history of a series says about it now; None without history."""
    if not series.history or not view.t_s.size:
        return None
    runs, suspects, age_s, scale = previous_runs(series, view)
    return ProgramPrior(past=runs, suspects=suspects, age_s=age_s, scale=scale)


def _who(kinds: list[str]) -> str:
    """Return the runs, the siblings and yesterday in words; "" for none."""
    parts = []
    for kind, text, many in (
        ("run", "an earlier run", "{} earlier runs"),
        ("sibling", "a sibling", "{} siblings"),
        ("yesterday", "the same hour of yesterday", ""),
    ):
        count = kinds.count(kind)
        if count:
            parts.append(text if count == 1 else many.format(count))
    return " and ".join(parts)


def _tail(z: FloatArray) -> FloatArray:
    """Return the upper tail of the normal law, to 2e-4 (Bowling and others, 2009)."""
    bounded = np.minimum(np.maximum(z, -8.0), 8.0)
    out: FloatArray = 1.0 / (1.0 + np.exp(bounded * (1.5976 + 0.07056 * bounded * bounded)))
    return out
