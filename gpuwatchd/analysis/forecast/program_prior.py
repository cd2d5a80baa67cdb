"""The stop prior of one program: where its earlier runs stopped is normal, growth beyond is new.

Without history the growth of a benign ramp is taken to stop as a Lomax law says. A program that
has run before says it better: each earlier run gives a chance that a run like it gets to the
present level, with the present growth, at the present age; and the chance to get from there to the
limit. Siblings of the same job and the same hour of yesterday are earlier runs in the same sense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from gpuwatchd.analysis.forecast.profile import PROFILE_AGES_S, PROFILE_LOOKBACKS_S, TOLERANCE
from gpuwatchd.analysis.forecast.rises import upper_tail
from gpuwatchd.analysis.forecast.stages import AHEAD, curves, follow
from gpuwatchd.analysis.forecast.windows import HOLD_MARGIN
from gpuwatchd.core import units
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model.findings import GrowthFact

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.analysis.forecast.stages import Curves, Followed
    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, Profile, Series

    Flags = npt.NDArray[np.bool_]

STOP_SHAPE = 2.0
STOP_SCALE_S = 2400.0
LEAK_PRIOR = 0.1
"""Share of ramps that never stop, before anything is known."""
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
    normal: FloatArray
    """What (k, r) it grew by in that time at most, bytes."""
    after: FloatArray
    """What it grew by after that age."""
    knows: FloatArray
    """How much (k, r) it knows of what comes at the age of the window."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPrior:
    """What history says about the growth of one subject at one instant."""

    past: PreviousRuns
    suspects: float
    """λ: earlier runs that may have leaked; a run of which the user said so counts for five."""
    age_s: float
    scale: float
    """Memory of the card, bytes."""
    limit: float
    _asked: list[tuple[Windows, _RunLikelihoods]] = field(default_factory=list, repr=False)
    """What was said already: the same windows are asked about several times."""

    def chance(self, windows: Windows, headroom: FloatArray, reach_s: FloatArray) -> FloatArray:
        """Return the chance (k, laws) that growth goes on until the limit.

        ``headroom`` (k,) is bytes from the recent peak to the limit, ``reach_s`` (k, laws) seconds
        until the limit, by each law.

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
        knows = np.where(runs.stopped, likelihoods.knows, climbing)
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
        suspects = self.suspects * new if self.suspects else 0.0
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

    @cached_property
    def facts(self) -> tuple[GrowthFact, ...]:
        """Where earlier runs say that growth ends, as one fact; () where they say nothing.

        Its weight falls to 0 as the subject grows beyond that level; with k runs it is at most
        k / (k + 1), less where some of them may have leaked.
        """
        runs, name = self.past, FactName.EARLIER_STAGES
        told = runs.follows.nonzero()[0].tolist()
        if not told:
            name = FactName.EARLIER_RUNS
            told = (runs.stopped & (runs.weight > 0.0)).nonzero()[0].tolist()
        who = _who([runs.kinds[k] for k in told])
        if not who:
            return ()
        small, weight, counted, levels = TOLERANCE * self.scale, 0.0, 1.0, []
        for k in told:
            above, reach, counts = float(runs.above[k]), float(runs.reach[k]), float(runs.weight[k])
            off = math.log((above + small) / (reach + small)) / float(runs.spread[k])
            weight += counts * min(math.erfc(off / math.sqrt(2.0)), 1.0)
            counted += counts
            levels.append(self.limit - float(runs.room[k]) + reach)
        weight, level = weight / (counted * (1.0 + self.suspects)), median(levels)
        text = f"{who} stopped at {units.size(level)}"
        return (GrowthFact(name=name, source=who, weight=weight, level_bytes=level, text=text),)

    def words(self, windows: Windows, index: int, *, beyond: bool = False) -> str:
        """Return how the growth of a window compares with earlier runs; "" where they say nothing.

        "as in 3 earlier runs", "1.2 GiB above what 3 earlier runs reached", "faster than 3 earlier
        runs grew", "3 earlier runs grew less at this age". With ``beyond`` only what is new.
        """
        runs, likelihoods = self.past, self._likelihoods(windows)
        here = likelihoods.here[index]
        usual = ~runs.climbing & (likelihoods.counts[index] > 0.0) & (here >= NORMAL)
        # Of a run that ended young nothing is known of this age.
        told = ~runs.climbing & (runs.weight > 0.0) & (usual | (likelihoods.knows[index] > 0.0))
        who = _who([kind for kind, one in zip(runs.kinds, told.tolist(), strict=True) if one])
        if usual.any() and not beyond:
            return f"as in {who or 'earlier runs'}"
        if not who:
            return ""
        higher = float((runs.above - runs.height)[told].min())
        if higher > TOLERANCE * self.scale:
            return f"{units.size(higher)} above what {who} reached"
        most, later = (
            float(values[index][told].max()) for values in (likelihoods.normal, likelihoods.after)
        )
        if min(most, later) >= float(windows.growth[index]):
            return ""
        return f"faster than {who} grew" if most <= later else f"{who} grew less at this age"

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
        # Growth that began when a run had ended is none that it knows of.
        begun = (self.age_s + windows.begin_s)[:, None]
        out = np.where(runs.aged & (begun >= SLOWER * runs.lived_s), 0.0, 1.0)
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
        begun = (self.age_s + found.begin_s)[:, None]
        rank = PROFILE_AGES_S.searchsorted(begun / runs.slower, side="right")
        after = runs.late[rank, np.arange(rank.shape[1])]
        more = (found.growth + small)[:, None] / (np.minimum(normal, after) + small)
        levels = np.array((runs.above, runs.room)) + small
        here = np.empty((found.growth.size + 1, runs.height.size))
        above, here[-1] = np.log(levels / (runs.height + small)) / runs.spread
        np.maximum(np.log(more) / SPREAD, above, out=here[:-1])
        np.minimum(here[:-1], runs.due, out=here[:-1])
        tails = upper_tail(here)
        here, limit = tails[:-1], tails[-1]
        counts = knows = np.ones(here.shape)
        # Those that were older than this one is know all of its age.
        if (runs.sibling | (runs.lived_s < self.age_s)).any():
            counts, knows = self._counts(found, here), self._knows(found)
        out = _RunLikelihoods(here, np.minimum(here, limit), counts, normal, after, knows)
        self._asked.append((found, out))
        return out


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


# Earlier runs of a program side by side, on the scale of the present one.


SPREAD = 0.25
"""σ: how much runs of one program differ, as a standard deviation of the logarithm."""
SIZE_SPREAD = 0.35
"""The same of one that follows their curve, but with larger growth."""
WORD_RUNS = 5.0
"""The user's word counts for as many runs."""
CUT_OFF = 0.25
"""A run that ended while it grew, neither alerting nor near the limit, is so much of a suspect."""
SIBLING_RUNS = 3.0
"""All siblings together count for at most as many runs: they see the same event."""
LARGEST = 2.0
"""A bigger batch or model makes a run at most so many times as large."""
IN_STEP = 0.05
"""Ranks of one job do the same at the same age, but for this share of it."""
SUSPICIOUS = 0.05
"""Share of the memory that a run must have grown by, without a stop, to be a suspect."""
_UNBOUNDED = 1e30
"""More bytes than there are; unlike infinity it can be multiplied by nothing."""


class PreviousRuns(NamedTuple):
    """Earlier runs (r,), on the scale of the present one; amounts in bytes."""

    kinds: tuple[str, ...]
    sibling: Flags
    weight: FloatArray
    """How many runs it counts for; 0: it says what may be expected, and nothing of leaks."""
    stopped: Flags
    climbing: Flags
    """A sibling that has not stopped: it counts only where the present run has left it."""
    height: FloatArray
    """Proven growth above its base."""
    grown: FloatArray
    """(look-backs, r): largest normal growth within each."""
    late: FloatArray
    """(1 + ages, r): the same after each age; infinite before the first, and where ages mean
    nothing."""
    aged: Flags
    """Whether it says what comes at which age."""
    lived_s: FloatArray
    spread: FloatArray
    """σ of its height."""
    slower: FloatArray
    """How many times as long the present run may take."""
    due: FloatArray
    """How many σ it is off at most, since it follows that run's curve; infinite where not."""
    follows: Flags
    """Whether it follows its curve, be it higher by now."""
    reach: FloatArray
    """Growth above its base that the present run has in the end, by its curve."""
    above: FloatArray = np.empty(0)
    """How far the present run is above that base."""
    room: FloatArray = np.empty(0)
    """From that base to the limit."""


class _Kept(NamedTuple):
    """What does not depend on the present run."""

    runs: PreviousRuns
    """Without what compares them with the present one."""
    largest: FloatArray
    """How many times as large the present run may be; what it did yesterday does not grow."""
    base: FloatArray
    hold_s: float
    suspects: float
    curves: Curves | None


def program_prior(series: Series, view: SeriesWindow) -> ProgramPrior | None:
    """Return what the history of a series says about it now; None without history."""
    if not series.history or not view.t_s.size:
        return None
    t, x = series.t_s, series.used_bytes
    span = float(t[-1] - t[0])
    age = max(series.age_s or span, span)
    limit = series.limit_bytes or series.total_bytes or float(view.high.max())
    scale = series.total_bytes or limit
    small = TOLERANCE * scale
    base = _base(t, x, age)
    kept = _scaled(series.history, scale, base)
    swing = np.array([max(0.05 * float(view.low.max() - view.low.min()), small)])
    hold_s = max(float(view.holds.longest_s(swing)[0]), kept.hold_s)
    hold_s = max(HOLD_MARGIN * hold_s, view.step_s)
    begin, level, runs = kept.base, _level(view, hold_s), kept.runs
    above = np.maximum(level - begin, 0.0)
    for k in runs.climbing.nonzero()[0].tolist():
        # Level with level at the same age: it may have been looked at a few minutes ago.
        ago_s = max(age - float(runs.lived_s[k]), 0.0) + IN_STEP * age
        above[k] = max(_level(view, hold_s, ago_s) - float(begin[k]), 0.0)
    changes: dict[str, Any] = {"above": above, "room": np.maximum(limit - begin, 0.0)}
    if kept.curves is not None and base is not None and level > base + small:
        seen = follow(kept.curves, view, age_s=age, base=base)
        if seen:
            own = (level - base, max(limit - base, 0.0))
            _follow(changes, runs, kept.curves, seen, own=own, small=small)
    runs = runs._replace(**changes)
    if "sibling" in runs.kinds:
        # What much younger ones do says nothing.
        left = np.flatnonzero(~runs.sibling | (runs.lived_s >= 0.8 * age)).tolist()
        kinds = tuple(runs.kinds[k] for k in left)
        runs = PreviousRuns._make((kinds, *(column[..., left] for column in runs[1:])))
    return ProgramPrior(past=runs, suspects=kept.suspects, age_s=age, scale=scale, limit=limit)


def _follow(
    changes: dict[str, Any],
    runs: PreviousRuns,
    known: Curves,
    seen: list[Followed],
    *,
    own: tuple[float, float],
    small: float,
) -> None:
    """Enter what changes of runs whose curve the present one follows at its pace and size.

    ``own``: bytes above its base, and from there to the limit.
    """
    spread, count = known.spread, runs.height.size
    # Where the levels are well known, the next stair is no part of their spread.
    slack, more = (AHEAD, small) if spread is None else (1.0 + spread, 0.5 * small)
    size, due, follows = np.ones(count), np.full(count, np.inf), np.zeros(count, dtype=np.bool_)
    for one in seen:
        size[one.run], follows[one.run] = one.size, True
        if own[0] <= slack * one.due + more:
            due[one.run] = math.log(max(one.size, 1.0)) / SIZE_SPREAD
    changes.update(due=due, follows=follows, reach=size * runs.height)
    if spread is None:
        return
    larger, spreads, slower = np.maximum(size, 1.0), runs.spread.copy(), runs.slower.copy()
    for one in seen:
        spreads[one.run], slower[one.run] = spread, known.delay * one.pace
        changes["above"][one.run], changes["room"][one.run] = own
    changes.update(
        height=changes["reach"],
        grown=larger * runs.grown,
        late=larger * runs.late,
        spread=spreads,
        slower=slower,
    )


def _base(t: FloatArray, x: FloatArray, age_s: float) -> float | None:
    """Return the lowest value of minutes 2 to 6; None when the beginning was not seen."""
    first, last = t.searchsorted((t[-1] - age_s + 120.0, t[-1] - age_s + 360.0)).tolist()
    if first == last:
        first = 0
    return float(x[first:last].min()) if last > first else None


def _level(view: SeriesWindow, hold_s: float, ago_s: float = 0.0) -> float:
    """Return what the present run retained so long ago, bytes."""
    edges = view.t_s.searchsorted((-hold_s - ago_s, -ago_s)).tolist()
    last = max(min(edges[1], view.low.size - 1), 0)
    return float(view.low[min(edges[0], last) : last + 1].min())


@lru_cache(maxsize=128)
def _scaled(history: tuple[Profile, ...], scale: float, base: float | None) -> _Kept:
    """Return what is kept of a history for a run of that base, None where it was not seen."""
    kept = _kept(history, scale)
    if base is None:
        return kept
    # A bigger batch, a bigger model: everything is larger.
    small, runs = TOLERANCE * scale, kept.runs
    larger = np.minimum(np.maximum((base + small) / (kept.base + small), 1.0), kept.largest)
    height = larger * runs.height
    return kept._replace(
        runs=runs._replace(
            height=height, reach=height, grown=larger * runs.grown, late=larger * runs.late
        ),
        base=larger * kept.base,
        curves=None if kept.curves is None else kept.curves.scaled(larger),
    )


@lru_cache(maxsize=512)
def _kept(history: tuple[Profile, ...], scale: float) -> _Kept:
    siblings = sum(profile.kind == "sibling" for profile in history)
    share = min(1.0, SIBLING_RUNS / max(siblings, 1))
    # Of a run that the user calls a leak only what it proved before is known.
    runs = [
        profile
        for profile in history
        if profile.word != "leak" or profile.proven_bytes < profile.top_bytes - SUSPICIOUS * scale
    ]
    weight = [
        WORD_RUNS if run.word == "normal" else share if run.kind == "sibling" else 1.0
        for run in runs
    ]
    # What two runs did may be expected of a third, stop or no stop. It proves no stop.
    alike = _alike(history, scale)
    more = [_whole(profile) for profile in alike]
    runs += more
    weight += [0.0] * len(more)
    climbing = [run.kind == "sibling" and not stopped(run, scale) for run in runs]
    height, grown = [], np.empty((PROFILE_LOOKBACKS_S.size, len(runs)))
    late = np.full((PROFILE_AGES_S.size + 1, len(runs)), np.inf)
    for k, profile in enumerate(runs):
        top = profile.top_bytes if profile.word == "normal" else profile.proven_bytes
        height.append(max(top - profile.base_bytes, 0.0))
        rows = profile.rose_bytes if profile.word == "normal" else profile.grown_bytes
        # Nothing is known, or a version with other look-backs kept it: then the height.
        grown[:, k] = rows if len(rows) == PROFILE_LOOKBACKS_S.size else height[-1]
        if climbing[k]:
            height[-1] = max(profile.top_bytes - profile.base_bytes, *profile.rose_bytes, 0.0)
            grown[:, k] = _UNBOUNDED
        ages = profile.late_bytes[: PROFILE_AGES_S.size]
        if ages and profile.word != "normal" and profile.kind == "run":
            late[1 : len(ages) + 1, k] = ages
            late[len(ages) + 1 :, k] = ages[-1]
    columns = PreviousRuns(
        kinds=tuple(run.kind for run in runs),
        sibling=np.array([run.kind == "sibling" for run in runs], dtype=np.bool_),
        weight=np.array(weight),
        stopped=np.array([stopped(run, scale) for run in runs], dtype=np.bool_),
        climbing=np.array(climbing, dtype=np.bool_),
        height=np.array(height),
        grown=np.minimum(grown, _UNBOUNDED),
        late=late,
        aged=np.isfinite(late[-1]),
        lived_s=np.array([np.inf if run.kind == "yesterday" else run.run_s for run in runs]),
        spread=np.full(len(runs), SPREAD),
        slower=np.full(len(runs), SLOWER),
        due=np.full(len(runs), np.inf),
        follows=np.zeros(len(runs), dtype=np.bool_),
        reach=np.array(height),
    )
    # What leaked, or was not seen to stop, has no curve to follow.
    drawn = [
        run.stages
        if calm and one and run.kind == "run" and not (run.alerted or run.near_limit)
        else ()
        for run, calm, one in zip(runs, columns.stopped.tolist(), weight, strict=True)
    ]
    return _Kept(
        runs=columns,
        largest=np.array([1.0 if run.kind == "yesterday" else LARGEST for run in runs]),
        base=np.array([run.base_bytes for run in runs]),
        hold_s=max([profile.hold_s for profile in history], default=0.0),
        suspects=_suspects(history, alike, scale),
        curves=curves(drawn, height),
    )


def stopped(profile: Profile, scale: float) -> bool:
    """Say whether a run was seen to stop at its highest level."""
    return profile.word == "normal" or profile.top_bytes <= profile.proven_bytes + TOLERANCE * scale


def _alike(history: Sequence[Profile], scale: float) -> list[Profile]:
    """Return runs that ended while they climbed, where another one got as far without any harm."""
    calm = [
        profile
        for profile in history
        if profile.kind == "run"
        and profile.word is None
        and not profile.alerted
        and not profile.near_limit
    ]
    out = []
    for profile in calm:
        rose = [other.top_bytes - other.base_bytes for other in calm if other is not profile]
        most = (1.0 + SPREAD) * max(rose, default=-np.inf)
        if not stopped(profile, scale) and profile.top_bytes - profile.base_bytes <= most:
            out.append(profile)
    return out


def _whole(profile: Profile) -> Profile:
    """Return a run as if all that it did were proven."""
    more = profile.top_bytes - profile.proven_bytes
    return msgspec.structs.replace(
        profile,
        proven_bytes=profile.top_bytes,
        grown_bytes=profile.rose_bytes,
        late_bytes=tuple(grown + more for grown in profile.late_bytes),
    )


def _suspects(history: Sequence[Profile], alike: list[Profile], scale: float) -> float:
    """Return how many earlier runs may have leaked.

    Those that were still climbing, ended near the limit or alerting, and grew beyond what any
    other run has shown to be normal: an unfinished climb is explained by a run that shows its end,
    or by one (``alike``) that ended as it did.
    """
    runs = [profile for profile in history if profile.kind == "run"]
    out = 0.0
    for run in runs:
        if run.word is not None:
            out += WORD_RUNS if run.word == "leak" else 0.0
            continue
        calm = stopped(run, scale) or any(run is other for other in alike)
        if calm and not run.near_limit and not run.alerted:
            continue
        others = [
            (other.top_bytes if other.word == "normal" else other.proven_bytes) - other.base_bytes
            for other in runs
            if other is not run and other.word != "leak" and stopped(other, scale)
        ]
        if run.top_bytes - run.base_bytes > max(
            (1.0 + SPREAD) * max(others, default=0.0), SUSPICIOUS * scale
        ):
            out += 1.0 if run.near_limit or run.alerted else CUT_OFF
    return out
