"""The growth of a subject that most deserves a verdict: which window, how sure, since when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gpuwatchd.analysis import forecast, numerics
from gpuwatchd.analysis.detectors.cycle import Cycle
from gpuwatchd.analysis.detectors.step import Step, risers
from gpuwatchd.analysis.detectors.trend import Trend
from gpuwatchd.analysis.numerics.deceleration import slowing

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.numerics.deceleration import Slowing
    from gpuwatchd.core.model import FloatArray, GrowthFact, Pattern, Series, Signal


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
MANY = 60
"""More events than so many are not told apart."""


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
        if step.n > growth.most_events:
            fewer = msgspec.structs.replace(step, n=growth.most_events)
            signals, step = tuple([fewer if one is step else one for one in signals]), fewer
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
    if proof is None:
        return None
    sure = proof.explained >= 0.85 and proof.rate_now <= 0.6 * proof.rate_before
    if growth.confidence >= LIKELY and not (proof.stopped or sure):
        return None  # Laws that call it a leak by themselves outweigh what is not beyond doubt.
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


SHIFT = math.log(0.8 / 0.2) - math.log(0.75 / 0.25)
"""Log odds by which the score is lowered to the confidence that is shown: 0.80 reads 0.75."""
PEAK_SHARE = 0.25
"""The limit must hold the highest level of the last quarter of the growth."""
LEAST_AGE_S = 30.0
"""Growth younger than this is not even watched."""


class Growth(NamedTuple):
    """The growth that scores best, and what is known about it."""

    found: forecast.Windows
    law: FloatArray
    """(laws,) what each growth law weighs, and ``reach_s`` when it says that memory is full."""
    reach_s: FloatArray
    best: int
    """Index of the window."""
    confidence: float
    onset_s: float
    """Seconds before now, <= 0."""
    headroom: float | None
    """Bytes from the recent peak to the limit."""
    plain: bool
    """Whether some window shows steady growth that is plain to see, though it may still end."""
    expected: bool
    """Whether this growth is what earlier runs of the same program did as well."""
    personal: forecast.ProgramPrior | None = None
    """What these say; None without any."""
    whole: forecast.Windows | None = None
    """The windows that they were asked about, and the index of this one among them."""
    rank: int = 0
    bounds: forecast.Bounds | None = None
    """What else is known of where it ends."""
    most_events: int = MANY
    """It is no more events than this: epochs of the job, where it grows between them."""

    def facts(self, series: Series) -> tuple[GrowthFact, ...]:
        """Return what counted beside the curve."""
        counted = () if self.bounds is None else self.bounds.facts
        counted += () if self.personal is None else self.personal.facts
        shown = [f for f in series.facts if f.level_bytes is None and f.part_bytes is None]
        return (*counted, *shown)

    def compared(self, *, beyond: bool = False) -> str:
        """Return how it compares with what is known beside the curve, in words.

        ``beyond``: only what is new.
        """
        if self.bounds is not None and not beyond:
            return self.bounds.words()
        if self.personal is None or self.whole is None:
            return ""
        return self.personal.words(self.whole, self.rank, beyond=beyond)


class Candidates(NamedTuple):
    """Every growth that may be the one."""

    groups: list[forecast.Windows]
    whole: forecast.Windows
    """The windows of all groups as one: most of the cost of weighing is by call, not by window."""
    headroom: FloatArray | None
    """Of these (k,) in bytes; None without a limit."""
    weights: forecast.Weights
    """What the laws say about them."""
    plain: bool
    steady_s: float
    """Length of the longest rise that is steady under the noise, 0 without one."""
    youngest_s: float
    """Windows younger than this do not count."""
    personal: forecast.ProgramPrior | None
    """What earlier runs of the same program say."""
    expected: npt.NDArray[np.bool_] | None
    """Of each window of all groups: whether it is what these did as well."""
    bounds: forecast.Bounds | None = None
    """What else is known of where growth ends."""


def candidates(
    series: Series, view: SeriesWindow, least: float, most_events: int = MANY
) -> Candidates | None:
    """Return the windows that grew by ``least`` bytes or more; None without any."""
    groups = forecast.windows(view, least)
    if most_events < MANY:
        counted = [np.minimum(group.events, float(most_events)) for group in groups]
        groups = [replace(g, events=n, whole=None) for g, n in zip(groups, counted, strict=True)]
    if not groups:
        return None
    personal = forecast.program_prior(series, view) if series.history else None
    whole = forecast.joined(groups)
    headroom = _headroom(series, view, whole)
    expected = None if personal is None else personal.expects(whole, headroom)
    steady_s = 0.0
    if view.noise_bytes > 0.0:
        steady_s = numerics.steady_rise(view, forecast.LOOKBACKS_S[5:], least)
    bounds = forecast.bounds(series, view) if series.facts else None
    if bounds is not None and bounds.expected:
        expected = np.ones(whole.growth.size, dtype=np.bool_)
    # Without a limit nothing is known about the time that is left; the level stands in for room.
    room = np.full(whole.growth.size, float(view.mean[-1])) if headroom is None else headroom
    rises = forecast.earlier_rises(view, whole)
    weights = forecast.weigh(
        whole, room + _taken(series, whole), personal=personal, bounds=bounds, rises=rises
    )
    # A rise that is steady over its length is not to be judged by a lucky moment of it.
    youngest_s = min(0.5 * steady_s, float(whole.age_s.max()))
    plain = _plain(whole, expected)
    return Candidates(
        groups, whole, headroom, weights, plain, steady_s, youngest_s, personal, expected, bounds
    )


def find(
    series: Series, view: SeriesWindow, least: float, most_events: int = MANY
) -> Growth | None:
    """Return the growth of ``least`` bytes or more that scores best; None without any."""
    every = candidates(series, view, least, most_events)
    if every is None:
        return None
    scored, first = [], 0
    for k, windows in enumerate(every.groups):
        score = every.weights.score[first : first + windows.growth.size]
        scores = np.where(windows.age_s >= every.youngest_s, score, -np.inf)
        scored.append((float(scores.max()), k, int(scores.argmax()), first))
        first += windows.growth.size
    confidence, k, best, first = max(scored)
    windows, headroom, rank = every.groups[k], every.headroom, first + best
    onset_s = _onset(windows.view, windows, best)
    expected = every.expected is not None and bool(every.expected[rank])
    return Growth(
        found=windows,
        law=every.weights.law[rank],
        reach_s=every.weights.reach_s[rank],
        best=best,
        confidence=1.0 / (1.0 + math.exp(SHIFT - confidence)),
        onset_s=onset_s if onset_s <= -0.5 * every.steady_s else -every.steady_s,
        headroom=float(headroom[rank]) if headroom is not None else None,
        plain=every.plain or (every.steady_s > 0.0 and not expected),
        expected=expected,
        personal=every.personal,
        whole=every.whole,
        rank=rank,
        bounds=every.bounds,
        most_events=most_events,
    )


FASTER = 4.0
"""Who leaks more than so many times as fast is to blame for the room that is gone."""


def _taken(series: Series, windows: forecast.Windows) -> FloatArray | float:
    """Return bytes (k,) that much faster leaks of others took while each window grew.

    That so little is free is their doing, and no evidence that this growth goes on to the end: it
    is weighed by the room that it would have. Alike leaks share what they do: they count in full.
    """
    if not series.neighbours_bytes_per_s:
        return 0.0
    rates = np.array(series.neighbours_bytes_per_s)
    pace = windows.growth / windows.age_s
    faster = np.where(rates > FASTER * pace[:, None], rates, 0.0)
    out: FloatArray = faster.sum(axis=1) * windows.age_s
    return out


def _headroom(series: Series, view: SeriesWindow, windows: forecast.Windows) -> FloatArray | None:
    """Return bytes (k,) from the recent peak to the limit; None without a limit."""
    if series.limit_bytes is None:
        return None
    # What a subject needed lately at its peak it will need again before it runs out.
    recent = np.maximum(forecast.HOLD_MARGIN * windows.lag_s, PEAK_SHARE * windows.age_s)
    reach = view.t_s.searchsorted(-np.maximum(recent, 60.0))
    tops = np.maximum.accumulate(view.high[::-1])[::-1]
    return series.limit_bytes - tops[np.minimum(reach, tops.size - 1)]


def _plain(windows: forecast.Windows, expected: npt.NDArray[np.bool_] | None) -> bool:
    """Say whether one window is steady growth well above noise and drawdowns, going on now.

    What is ``expected``, because earlier runs of the same program did as well, does not count.
    """
    if expected is not None and expected.all():
        return False
    plain = (
        ((windows.shares > 0.01).sum(axis=1) >= 10)
        & (windows.excess <= 0.1)
        & (windows.deficit <= 0.17)
        & (windows.stall <= 1.5)
        & (windows.calm >= 1.0)
        & (windows.events >= 3.0)
        & (windows.growth >= 4.0 * windows.noise_bytes)
        & (windows.begin_s <= -LEAST_AGE_S)
    )
    if expected is not None:
        plain &= ~expected
    return bool(plain.any())


def _onset(view: SeriesWindow, windows: forecast.Windows, index: int) -> float:
    """Return when the growth of a window began, seconds before now.

    Longer windows are taken as long as they bring more growth at a similar rate and stay near
    their chord; then the knee of the next longer one, if it has one.
    """
    order = windows.age_s.argsort().tolist()
    best = index
    for longer in order[order.index(index) + 1 :]:
        rate = windows.growth[longer] / windows.age_s[longer]
        usual = windows.growth[best] / windows.age_s[best]
        bent = max(windows.deficit[longer], windows.excess[longer])
        if not (0.6 * usual <= rate <= 1.7 * usual and bent <= 0.15):
            break
        best = longer
    begin, end = float(windows.begin_s[best]), float(windows.end_s[best])
    oldest = float(view.t_s[view.start])
    before = max(oldest, end - 2.5 * (end - begin))
    if before >= begin - view.step_s:
        return _knee(view, begin, end)
    level = np.interp([before, begin, end], view.t_s, view.floor)
    # What came before is another story when it is faster (a load, a warm-up), not a slow start.
    if level[1] - level[0] > 0.7 * (level[2] - level[1]):
        return begin
    return _knee(view, before, end)


def after_load(view: SeriesWindow, onset_s: float) -> float:
    """Return where a load ended that growth of one pace has followed; ``onset_s`` without one.

    Look-backs are √2 apart: the longest one that lies after the load may be much younger than the
    growth. What is judged is the growth of the window; this says since when it has gone on.
    """
    t, x = view.t_s[view.start :], view.floor[view.start :]
    if t.size < 3 or x[-1] <= x[0]:
        return onset_s
    above = (x - x[0]) / (x[-1] - x[0]) - (t - t[0]) / (t[-1] - t[0])
    bend = int(above.argmax())
    since_s = float(t[bend])
    if above[bend] <= 0.1 or since_s >= onset_s - view.step_s:
        return onset_s
    at_onset = float(np.interp(onset_s, t, x))
    pace = (float(x[-1]) - at_onset) / -onset_s
    alike = 0.6 * pace <= (at_onset - float(x[bend])) / (onset_s - since_s) <= 1.7 * pace
    return since_s if alike else onset_s


def _knee(view: SeriesWindow, begin: float, end: float) -> float:
    """Return where the floor is furthest below its chord, if that is a bend at all."""
    first, last = view.t_s.searchsorted((begin - 1e-6, end + 1e-6)).tolist()
    t, x = view.t_s[first:last], view.floor[first:last]
    if t.size < 3 or x[-1] <= x[0]:
        return begin
    below = (t - t[0]) / (t[-1] - t[0]) - (x - x[0]) / (x[-1] - x[0])
    knee = int(below.argmax())
    return float(t[knee]) if below[knee] > 0.1 else begin
