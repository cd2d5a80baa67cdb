"""The stop prior of one program: where its earlier runs stopped is normal, growth beyond is new.

Without history the growth of a benign ramp is taken to stop as a Lomax law says. A program that
has run before says it better: each earlier run gives a chance that a run like it gets to the
present level, with the present growth, at the present age; and the chance to get from there to the
limit. Siblings of the same job and the same hour of yesterday are earlier runs in the same sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.forecast.profile import PROFILE_AGES_S, PROFILE_LOOKBACKS_S, TOLERANCE
from gpuwatchd.forecast.weigh import LEAK_PRIOR, STOP_SCALE_S, STOP_SHAPE
from gpuwatchd.forecast.windows import HOLD_MARGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.forecast.windows import Windows
    from gpuwatchd.model import FloatArray, Profile, Series
    from gpuwatchd.robust import View

ORDINARY = 0.05
"""κ: how many earlier runs the ordinary stop prior counts for."""
SPREAD = 0.25
"""σ: how much runs of one program differ, as a standard deviation of the logarithm."""
DOUBT = 1.0
"""β: weight of the ordinary prior of a leak against suspicious earlier runs."""
WORD_RUNS = 5.0
"""The user's word counts for as many runs."""
CUT_OFF = 0.25
"""A run that ended while it grew, neither alerting nor near the limit, is so much of a suspect."""
SIBLING_RUNS = 3.0
"""All siblings together count for at most as many runs: they see the same event."""
SLOWER = 1.5
"""A run may take this much longer for the same growth."""
FASTER = 1.25
"""Or be this much faster."""
SUSPICIOUS = 0.05
"""Share of the memory that a run must have grown by, without a stop, to be a suspect."""
LAST_RESORT = 0.08
"""With less than this share of the memory left, history silences nothing."""
EXPECTED = 0.2
"""Growth that an earlier run reaches with this chance is what is expected of the program."""
_LOG_LOOKBACKS = np.log(PROFILE_LOOKBACKS_S)
_LOG_STEP = float(_LOG_LOOKBACKS[1] - _LOG_LOOKBACKS[0])
_UNBOUNDED = 1e30
"""More bytes than there are; unlike infinity it can be multiplied by nothing."""


class _Past(NamedTuple):
    """One earlier run, on the scale of the present one."""

    weight: float
    stopped: bool
    climbing: bool
    """A sibling that has not stopped: it counts only where the present run has left it."""
    height: float
    """Proven growth above its base, bytes."""
    above: float
    """How far the present run is above that base, bytes."""
    room: float
    """From that base to the limit, bytes."""
    grown: FloatArray
    """Largest normal growth per look-back."""
    late: FloatArray
    """The same per age at which it begins; empty when ages mean nothing."""
    run_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Personal:
    """What history says about the growth of one subject at one instant."""

    past: tuple[_Past, ...]
    suspects: float
    """λ: earlier runs that may have leaked; a run of which the user said so counts for five."""
    age_s: float
    scale: float
    """Memory of the card, bytes."""

    def chance(self, found: Windows, headroom: FloatArray, reach_s: FloatArray) -> FloatArray:
        """Return the chance (k, laws) that growth goes on until the limit.

        Parameters
        ----------
        found
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
        g = min(1, S_R / S); π = (0.1 β + λ) / (β + λ); ω = π / (π + (1 - π) S); ω + (1 - ω) g.
        λ fades where another run is known to have stood: there it explains nothing. Where none
        has, the chance is at least the ordinary one.
        """
        here, further = self._chances(found)
        weight = np.array([one.weight for one in self.past])
        stopped = np.array([one.stopped for one in self.past], dtype=np.bool_)
        climbing = np.array([one.climbing for one in self.past], dtype=np.bool_)
        # A sibling that is level with this run, or ahead, knows no more than this run does.
        left = np.where(climbing, np.maximum(1.0 - here / EXPECTED, 0.0), 1.0) * weight
        age = found.age_s
        until = np.maximum(self.age_s + found.end_s, 1.0)[:, None]
        lived = np.array([one.run_s for one in self.past])
        # A run that ended young does not know what comes later; at half the age it knows nothing.
        knows = np.clip(2.0 * lived / until - 1.0, 0.0, 1.0)
        knows = here + (1.0 - here) * np.where(stopped, knows, climbing)
        seen = ORDINARY + (knows * left).sum(axis=1)
        before = (1.0 + age / STOP_SCALE_S) ** -STOP_SHAPE
        after = (1.0 + (age[:, None] + reach_s) / STOP_SCALE_S) ** -STOP_SHAPE
        survive = (ORDINARY * before + (here * left).sum(axis=1)) / seen
        reached = (ORDINARY * after + (further * left).sum(axis=1)[:, None]) / seen[:, None]
        in_time = np.minimum(1.0, reached / survive[:, None])
        known = np.max(here, axis=1, where=~climbing, initial=0.0)
        new = np.maximum(1.0 - known / EXPECTED, 0.0)
        prior = (LEAK_PRIOR * DOUBT + self.suspects * new) / (DOUBT + self.suspects * new)
        leak = (prior / (prior + (1.0 - prior) * survive))[:, None]
        leak_usually = (LEAK_PRIOR / (LEAK_PRIOR + (1.0 - LEAK_PRIOR) * before))[:, None]
        usual = leak_usually + (1.0 - leak_usually) * after / before[:, None]
        # What no run has proved, and what leaves little memory, is no calmer than without history.
        new[headroom < LAST_RESORT * self.scale] = 1.0
        chance: FloatArray = np.maximum(leak + (1.0 - leak) * in_time, new[:, None] * usual)
        return chance

    def expects(self, found: Windows, headroom: FloatArray | None = None) -> npt.NDArray[np.bool_]:
        """Say of each window (k,) whether its growth is what earlier runs proved to be normal."""
        here, _ = self._chances(found)
        known = np.array([not one.climbing for one in self.past], dtype=np.bool_)
        normal = np.max(here, axis=1, where=known, initial=0.0) >= EXPECTED
        if headroom is not None:
            normal &= headroom >= LAST_RESORT * self.scale
        out: npt.NDArray[np.bool_] = normal
        return out

    @cached_property
    def _tables(self) -> _Tables:
        return _Tables.of(self.past, TOLERANCE * self.scale)

    def _chances(self, found: Windows) -> tuple[FloatArray, FloatArray]:
        """Return the chance (k, runs) of each earlier run to get here, and on to the limit."""
        known = self._tables
        # Between two look-backs of the table, on the logarithm of time.
        at = np.log(FASTER * found.age_s) - _LOG_LOOKBACKS[0]
        at = np.minimum(np.maximum(at / _LOG_STEP, 0.0), PROFILE_LOOKBACKS_S.size - 1.0)
        first = np.minimum(at.astype(np.intp), PROFILE_LOOKBACKS_S.size - 2)
        part = (at - first)[:, None]
        normal = known.grown[first] * (1.0 - part) + known.grown[first + 1] * part
        begun = self.age_s + found.begin_s
        rank = PROFILE_AGES_S.searchsorted(begun / SLOWER, side="right")
        after = np.where(begun[:, None] < known.lived, known.late[rank], np.inf)
        normal = np.minimum(normal, after)
        small = TOLERANCE * self.scale
        excess = np.log((found.growth[:, None] + small) / (normal + small))
        here = _tail(np.maximum(excess, known.above) / SPREAD)
        return here, np.minimum(here, known.limit)


class _Tables(NamedTuple):
    """The earlier runs (r,) side by side."""

    grown: FloatArray
    """(look-backs, r)"""
    late: FloatArray
    """(1 + ages, r): infinite before the first age, and where ages mean nothing."""
    lived: FloatArray
    above: FloatArray
    """Logarithm of the present level over the proven one."""
    limit: FloatArray
    """Chance to get to the limit."""

    @classmethod
    def of(cls, past: tuple[_Past, ...], small: float) -> _Tables:
        late = np.full((PROFILE_AGES_S.size + 1, len(past)), np.inf)
        for k, one in enumerate(past):
            if one.late.size:
                late[1 : one.late.size + 1, k] = one.late
                late[one.late.size + 1 :, k] = one.late[-1]
        height = np.array([one.height for one in past]) + small
        above = np.array([one.above for one in past]) + small
        room = np.array([one.room for one in past]) + small
        grown = np.array([one.grown for one in past]).reshape(-1, PROFILE_LOOKBACKS_S.size).T
        return cls(
            grown=np.minimum(grown, _UNBOUNDED), late=late,
            lived=np.array([one.run_s for one in past]), above=np.log(above / height),
            limit=_tail(np.log(room / height) / SPREAD),
        )  # fmt: skip


def personal(series: Series, view: View) -> Personal | None:
    """Return what the history of a series says about it now; None without history.

    Parameters
    ----------
    series
        Everything known about the subject; ``history`` holds its earlier runs.
    view
        What :func:`gpuwatchd.robust.prepare` made of it.
    """
    if not series.history or not view.t_s.size:
        return None
    t, x = series.t_s, series.used_bytes
    span = float(t[-1] - t[0])
    age = max(series.age_s or span, span)
    limit = series.limit_bytes or series.total_bytes or float(view.high.max())
    scale = series.total_bytes or limit
    early = x[: int(np.searchsorted(t, t[-1] - age + 360.0))]
    settled = x[int(np.searchsorted(t, t[-1] - age + 120.0)) : early.size]
    base = float(settled.min()) if settled.size else float(early.min()) if early.size else None
    swing = np.array([max(0.05 * float(view.low.max() - view.low.min()), TOLERANCE * scale)])
    siblings = sum(one.kind == "sibling" for one in series.history)
    hold = max(float(view.holds.longest_s(swing)[0]), *(one.hold_s for one in series.history), 0.0)
    now = _Now(view, base, limit, scale, age, max(HOLD_MARGIN * hold, view.step_s))
    past = [
        _past(one, now, min(1.0, SIBLING_RUNS / max(siblings, 1)))
        for one in series.history
        if one.kind != "sibling" or one.run_s >= 0.8 * age
        # Of a run that the user calls a leak only what it proved before is known.
        if one.word != "leak" or one.proven_bytes < one.top_bytes - SUSPICIOUS * scale
    ]
    suspects = _suspects(series.history, scale)
    return Personal(past=tuple(past), suspects=suspects, age_s=age, scale=scale)


class _Now(NamedTuple):
    """The present run."""

    view: View
    base: float | None
    """Where it began, bytes; None when its beginning was not seen."""
    limit: float
    scale: float
    age_s: float
    hold_s: float
    """For how long memory may be held before it is given back, with a margin."""

    def level(self, ago_s: float = 0.0) -> float:
        """Return what it retained so long ago, bytes."""
        view = self.view
        edges = np.searchsorted(view.t_s, (-self.hold_s - ago_s, -ago_s)).tolist()
        last = max(min(edges[1], view.low.size - 1), 0)
        return float(view.low[min(edges[0], last) : last + 1].min())


def _past(one: Profile, now: _Now, share: float) -> _Past:
    """Return an earlier run on the scale of the present one; ``share`` is what a sibling weighs."""
    small = TOLERANCE * now.scale
    larger = 1.0
    if now.base is not None and one.kind != "yesterday":
        # A bigger batch, a bigger model: everything is larger.
        larger = min(max((now.base + small) / (one.base_bytes + small), 1.0), 2.0)
    begin = larger * one.base_bytes
    normal = one.word == "normal"
    climbing = one.kind == "sibling" and not stopped(one, now.scale)
    top = one.top_bytes if normal else one.proven_bytes
    height = max(top - one.base_bytes, 0.0)
    grown = np.asarray(one.rose_bytes if normal else one.grown_bytes, dtype=np.float64)
    if grown.size != PROFILE_LOOKBACKS_S.size:
        # Nothing is known, or a version with other look-backs kept it.
        grown = np.full(PROFILE_LOOKBACKS_S.size, height)
    ago_s = 0.0
    if climbing:
        # Level with level at the same age: it may have been looked at a few minutes ago.
        ago_s = max(now.age_s - one.run_s, 0.0)
        height = max(one.top_bytes - one.base_bytes, *one.rose_bytes, 0.0)
        grown = np.full(PROFILE_LOOKBACKS_S.size, np.inf)
    weight = share if one.kind == "sibling" else 1.0
    ages = () if normal or one.kind != "run" else one.late_bytes[: PROFILE_AGES_S.size]
    return _Past(
        weight=WORD_RUNS if normal else weight,
        stopped=stopped(one, now.scale),
        climbing=climbing,
        height=larger * height,
        above=max(now.level(ago_s) - begin, 0.0),
        room=max(now.limit - begin, 0.0),
        grown=larger * grown,
        late=larger * np.asarray(ages, dtype=np.float64),
        run_s=np.inf if one.kind == "yesterday" else one.run_s,
    )


def stopped(one: Profile, scale: float) -> bool:
    """Say whether a run was seen to stop at its highest level."""
    return one.word == "normal" or one.top_bytes <= one.proven_bytes + TOLERANCE * scale


def _suspects(history: Sequence[Profile], scale: float) -> float:
    """Return how many earlier runs may have leaked.

    Those that were still climbing, ended near the limit or alerting, and grew beyond what any
    other run has shown to be normal: an unfinished climb is explained by a run that shows its end.
    """
    runs = [one for one in history if one.kind == "run"]
    out = 0.0
    for one in runs:
        if one.word is not None:
            out += WORD_RUNS if one.word == "leak" else 0.0
            continue
        if stopped(one, scale) and not one.near_limit and not one.alerted:
            continue
        others = [
            (other.top_bytes if other.word == "normal" else other.proven_bytes) - other.base_bytes
            for other in runs
            if other is not one and other.word != "leak" and stopped(other, scale)
        ]
        if one.top_bytes - one.base_bytes > max(
            (1.0 + SPREAD) * max(others, default=0.0), SUSPICIOUS * scale
        ):
            out += 1.0 if one.near_limit or one.alerted else CUT_OFF
    return out


def _tail(z: FloatArray) -> FloatArray:
    """Return the upper tail of the normal law, to 2e-4 (Bowling and others, 2009)."""
    bounded = np.clip(z, -8.0, 8.0)
    out: FloatArray = 1.0 / (1.0 + np.exp(bounded * (1.5976 + 0.07056 * bounded * bounded)))
    return out
