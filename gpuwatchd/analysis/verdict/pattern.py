"""Which pattern a growth is, at which rate, and how straight."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.detectors.cycle import Cycle
from gpuwatchd.analysis.detectors.step import Step, risers
from gpuwatchd.analysis.detectors.trend import Trend
from gpuwatchd.analysis.numerics.deceleration import slowing

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.numerics.deceleration import Slowing
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.model import Pattern, Signal

_TREND, _STEP, _CYCLE = Trend(), Step(), Cycle()
LEAST_CYCLES = 3
"""Swings that the growth must have lived through to be called cyclic."""
LIKE_BEFORE = 1.5
"""A rise within a sawtooth lasts at most this many times the longest one before it."""
HIGHER = 0.05
"""A peak higher than all before it by this share of the swing is higher."""
SHORT_BUSY = 0.25
"""Swings that take less of the time than this are spikes on something else."""
UNRELATED = 1.6
"""Risers and spikes whose periods differ by this factor have nothing to do with each other."""
LEAST_R_SQUARED = 0.4
"""The line through the troughs explains this share of their variance when they seem to rise."""
LEAST_SLOPE = 0.15
"""Troughs that rise at less than this share of a likely leak's rate give it the lie."""
UNPROVEN = 0.25
"""Confidence of a cycle whose troughs alone do not prove that they rise."""
LEAST_JUMP = 64.0 * numerics.MIB
JUMPS_SHARE = 0.8
"""One or two jumps that bring this share of a growth are all there was to it."""
MANY_RISERS = 6
"""Fewer stairs than this cannot be said to slow down."""


LIKELY = 0.7
"""From this confidence on, a proof that growth slows down must be beyond doubt."""
SAFE_SHARE = 0.5
"""What slowing growth still brings is harmless when it is less than this share of the room."""
LEAST_ROOM = 0.05
"""With less room than this share of what has grown, no law is trusted to stop in time."""


class PatternMatch(NamedTuple):
    """The pattern of a growth, the detector's signal behind it, and its rate in bytes/s.

    Besides the leak patterns it may be "plateau" (the growth slows down: ``slows`` holds the
    proof), "sawtooth" (a rise like those before it, which were given back: no leak) or "spike"
    (one or two jumps, nothing since: no leak yet).
    """

    pattern: Pattern
    signal: Signal | None
    signals: tuple[Signal, ...]
    rate: float
    slows: Slowing | None = None


def classify_pattern(view: SeriesWindow, growth: Growth) -> PatternMatch:
    """Name the pattern: swings first, then slowing down, then stairs, then a slope."""
    trend = _TREND.look_at(growth.found.view, growth.onset_s)
    step, cycle = _STEP.look_at(view), _CYCLE.look_at(view)
    signals = tuple(signal for signal in (trend, step, cycle) if signal is not None)
    if cycle is not None:
        swinging = _swinging(view, growth, cycle, step, signals)
        if swinging is not None:
            return swinging
    if step is None or step.n >= MANY_RISERS:
        slows = decelerates(view, growth)
        if slows is not None:
            return PatternMatch("plateau", None, signals, slows.rate_now, slows)
    if step is not None and step.facts["stall"] <= 2.5:
        return PatternMatch("step", step, signals, step.rate_bytes_per_s)
    if one_or_two(view, growth.onset_s):
        return PatternMatch("spike", None, signals, 0.0)
    if trend is not None:
        return PatternMatch("gradual", trend, signals, trend.rate_bytes_per_s)
    slope, _, _ = line(growth.found.view, growth.onset_s)
    return PatternMatch("gradual", None, signals, slope)


def _swinging(
    view: SeriesWindow,
    growth: Growth,
    cycle: Signal,
    step: Signal | None,
    signals: tuple[Signal, ...],
) -> PatternMatch | None:
    """Name a growth among swings; None when it has nothing to do with them."""
    if creeps(cycle, growth):
        if step is not None and _apart(step, cycle):
            return PatternMatch("step", step, signals, step.rate_bytes_per_s)
        if cycle.pattern == "sawtooth":
            # The growth proves it, not the troughs: that counts for a name, no more.
            slope = line(growth.found.view, growth.onset_s)[0]
            cycle = msgspec.structs.replace(
                cycle, pattern="cyclic", rate_bytes_per_s=slope, confidence=UNPROVEN
            )
        return PatternMatch("cyclic", cycle, signals, cycle.rate_bytes_per_s)
    if seen_before(view, cycle):
        return PatternMatch("sawtooth", cycle, signals, cycle.rate_bytes_per_s)
    return None


def creeps(cycle: Signal, growth: Growth) -> bool:
    """Say whether a growth is the creeping floor of these swings.

    Either the troughs prove it by themselves (pattern "cyclic"), or the growth that was found in
    the floor lived through three swings and is a likely leak by itself to which the troughs do
    not give the lie, or the swings went on until lately and the troughs rise too: by their own
    line, or at half the rate of the growth.
    """
    if cycle.pattern == "cyclic":
        return True
    facts, windows = cycle.facts, growth.found
    age_s = float(windows.age_s[growth.best])
    if age_s - facts["last_fall_s"] < LEAST_CYCLES * facts["period_s"]:
        return False
    rate = float(windows.growth[growth.best]) / age_s
    if growth.confidence >= LIKELY and facts["slope_bytes_per_s"] >= LEAST_SLOPE * rate:
        return True
    return facts["last_fall_s"] <= 2.0 * facts["period_s"] and (
        seems_to_rise(cycle) or facts["slope_bytes_per_s"] >= 0.5 * rate
    )


def seems_to_rise(cycle: Signal) -> bool:
    """Say whether the troughs seem to rise: too little to prove a leak, too much to deny one."""
    facts = cycle.facts
    return (
        facts["slope_bytes_per_s"] > 0.0
        and facts["floor_growth_bytes"] >= 0.02 * facts["swing_bytes"]
        and (facts["r_squared"] >= LEAST_R_SQUARED or facts["rising_share"] == 1.0)
    )


def seen_before(view: SeriesWindow, cycle: Signal) -> bool:
    """Say whether the present rise is one of a sawtooth's, no higher and no longer.

    A rise that passes every earlier peak, or lasts half as long again as the longest before it,
    is news; what is neither has been given back every time so far. Troughs that seem to rise are
    news as well.
    """
    facts = cycle.facts
    longest = LIKE_BEFORE * max(facts["longest_rise_s"], facts["period_s"])
    margin = max(HIGHER * facts["swing_bytes"], 4.0 * view.noise_bytes)
    return (
        not seems_to_rise(cycle)
        and float(view.mean[-1]) <= facts["peak_bytes"] + margin
        and facts["last_fall_s"] <= longest
    )


def one_or_two(view: SeriesWindow, onset_s: float) -> bool:
    """Say whether one or two sharp jumps made up the growth since ``onset_s``, and no more.

    They are events, not a leak: stairs are from the third on.
    """
    begin_s = onset_s - 2.0 * max(view.step_s, 5.0)
    first = int(view.t_s.searchsorted(begin_s))
    grown = float(view.floor[-1] - view.floor[min(first, view.t_s.size - 1)])
    at, size, _ = risers(view, max(LEAST_JUMP, JUMPS_SHARE / 2.0 * grown))
    late = size[at >= begin_s]
    return 0 < late.size <= 2 and float(late.sum()) >= JUMPS_SHARE * grown


def _apart(step: Signal, cycle: Signal) -> bool:
    """Say whether short spikes stand on stairs that have nothing to do with them."""
    ratio = cycle.facts["period_s"] / step.facts["pause_s"]
    return cycle.facts["busy_share"] < SHORT_BUSY and not 1.0 / UNRELATED < ratio < UNRELATED


def decelerates(view: SeriesWindow, growth: Growth) -> Slowing | None:
    """Return the proof that a growth slows down and will not reach the limit, or None.

    Looked at since memory was lowest, and since the growth's own onset where that is much later
    (something else may have come before). A law that would still reach the limit within three
    times the age of the growth is no harmless plateau: then None. Bytes are those of the subject;
    ``Slowing.level_bytes`` is where it would level off, where the law has such a level.
    """
    proof = slowing(view)
    onset_s = min(growth.onset_s, float(growth.found.begin_s[growth.best]))
    if proof is None and onset_s > 0.6 * float(view.t_s[view.start]):
        proof = slowing(view, onset_s)
    if proof is None or (growth.confidence >= LIKELY and not _beyond_doubt(proof)):
        return None
    if growth.headroom is None:
        return proof
    now = float(view.mean[-1])
    if proof.level_bytes is not None:
        more = proof.level_bytes - now
    else:
        # A logarithm brings as much from age 1 to 2 as from 2 to 4.
        more = 2.0 * (proof.ahead_bytes - now)
    room = growth.headroom
    return proof if max(more, LEAST_ROOM * proof.growth_bytes) < SAFE_SHARE * room else None


def _beyond_doubt(proof: Slowing) -> bool:
    """Say whether a proof outweighs laws that call the growth a leak by themselves."""
    return proof.stopped or (proof.explained >= 0.85 and proof.rate_now <= 0.6 * proof.rate_before)


def line(view: SeriesWindow, onset_s: float) -> tuple[float, float, float]:
    """Return slope, value at now and R² of the least-squares line since ``onset_s`` (<= 0)."""
    first = min(int(view.t_s.searchsorted(onset_s - 1e-6)), view.t_s.size - 2)
    return numerics.least_squares(view.t_s[first:], view.mean[first:])


def p_value_since(view: SeriesWindow, onset_s: float) -> float | None:
    """Return the one-sided p-value of "it rises", by batch means; None with too few points."""
    first = int(view.t_s.searchsorted(onset_s - 1e-6))
    if view.t_s.size - first < 16:
        return None
    return numerics.batch_means_p(view.t_s[first:], view.mean[first:])[1]
