"""Earlier runs of a program side by side, on the scale of the present one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gpuwatchd.analysis.forecast.profile import PROFILE_AGES_S, PROFILE_LOOKBACKS_S, TOLERANCE
from gpuwatchd.analysis.forecast.windows import HOLD_MARGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, Profile, Series

    Flags = npt.NDArray[np.bool_]

SPREAD = 0.25
"""σ: how much runs of one program differ, as a standard deviation of the logarithm."""
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
    above: FloatArray
    """How far the present run is above that base."""
    room: FloatArray
    """From that base to the limit."""
    grown: FloatArray
    """(look-backs, r): largest normal growth within each."""
    late: FloatArray
    """(1 + ages, r): the same after each age; infinite before the first, and where ages mean
    nothing."""
    aged: Flags
    """Whether it says what comes at which age."""
    lived_s: FloatArray


class _Kept(NamedTuple):
    """What does not depend on the present run."""

    kinds: tuple[str, ...]
    sibling: Flags
    weight: FloatArray
    stopped: Flags
    climbing: Flags
    largest: FloatArray
    """How many times as large the present run may be; what it did yesterday does not grow."""
    base: FloatArray
    height: FloatArray
    grown: FloatArray
    late: FloatArray
    aged: Flags
    run_s: FloatArray
    hold_s: float
    suspects: float


def previous_runs(series: Series, view: SeriesWindow) -> tuple[PreviousRuns, float, float, float]:
    """Return the earlier runs, how many are suspects, and the age and scale of the present one."""
    t, x = series.t_s, series.used_bytes
    span = float(t[-1] - t[0])
    age = max(series.age_s or span, span)
    limit = series.limit_bytes or series.total_bytes or float(view.high.max())
    scale = series.total_bytes or limit
    small = TOLERANCE * scale
    kept = _kept(series.history, scale)
    base = _base(t, x, age)
    swing = np.array([max(0.05 * float(view.low.max() - view.low.min()), small)])
    hold_s = max(float(view.holds.longest_s(swing)[0]), kept.hold_s)
    hold_s = max(HOLD_MARGIN * hold_s, view.step_s)
    begin, larger = kept.base, np.ones(kept.base.size)
    if base is not None:
        # A bigger batch, a bigger model: everything is larger.
        larger = np.minimum(np.maximum((base + small) / (begin + small), 1.0), kept.largest)
        begin = larger * begin
    above = np.maximum(_level(view, hold_s) - begin, 0.0)
    for k in kept.climbing.nonzero()[0].tolist():
        # Level with level at the same age: it may have been looked at a few minutes ago.
        ago_s = max(age - float(kept.run_s[k]), 0.0) + IN_STEP * age
        above[k] = max(_level(view, hold_s, ago_s) - float(begin[k]), 0.0)
    out = PreviousRuns(
        kinds=kept.kinds,
        sibling=kept.sibling,
        weight=kept.weight,
        stopped=kept.stopped,
        climbing=kept.climbing,
        height=larger * kept.height,
        above=above,
        room=np.maximum(limit - begin, 0.0),
        grown=larger * kept.grown,
        late=larger * kept.late,
        aged=kept.aged,
        lived_s=kept.run_s,
    )
    young = [k for k, kind in enumerate(kept.kinds) if kind == "sibling"]
    young = [k for k in young if kept.run_s[k] < 0.8 * age]
    return (_without(out, young) if young else out), kept.suspects, age, scale


def _without(every: PreviousRuns, rows: list[int]) -> PreviousRuns:
    """Return all but some rows: what much younger siblings do says nothing."""
    left = [k for k in range(len(every.kinds)) if k not in rows]
    kinds = tuple(every.kinds[k] for k in left)
    return PreviousRuns._make((kinds, *(column[..., left] for column in every[1:])))


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
    return _Kept(
        kinds=tuple(run.kind for run in runs),
        sibling=np.array([run.kind == "sibling" for run in runs], dtype=np.bool_),
        weight=np.array(weight),
        stopped=np.array([stopped(run, scale) for run in runs], dtype=np.bool_),
        climbing=np.array(climbing, dtype=np.bool_),
        largest=np.array([1.0 if run.kind == "yesterday" else LARGEST for run in runs]),
        base=np.array([run.base_bytes for run in runs]),
        height=np.array(height),
        grown=np.minimum(grown, _UNBOUNDED),
        late=late,
        aged=np.isfinite(late[-1]),
        run_s=np.array([np.inf if run.kind == "yesterday" else run.run_s for run in runs]),
        hold_s=max([profile.hold_s for profile in history], default=0.0),
        suspects=_suspects(history, alike, scale),
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
