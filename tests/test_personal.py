"""The stop prior of one program: what earlier runs proved is normal, what lies beyond is new."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import forecast, numerics, verdict
from gpuwatchd.analysis.forecast.program_prior import stopped
from gpuwatchd.analysis.forecast.rises import upper_tail
from gpuwatchd.analysis.verdict import growth
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Finding, Profile, Series
from tests import making
from tests.making import present

Array = npt.NDArray[np.float64]
GB, MIB, HOUR = 1e9, 2.0**20, 3600.0
CARD = 24 * GB
SETTINGS = DetectionSection()


def clock(hours: float) -> Array:
    return np.arange(0.0, hours * HOUR, 10.0)


def series(x: Array, *past: Profile) -> Series:
    t = np.arange(0.0, 10.0 * x.size, 10.0)
    return making.series(t, x, limit_bytes=CARD, total_bytes=CARD, history=past)


def ramp(hours: float, *, top: float = 8 * GB, length_s: float = HOUR) -> Array:
    return 4 * GB + top * np.clip(clock(hours) / length_s, 0.0, 1.0)


def past(x: Array, **changes: Any) -> Profile:
    found = present(forecast.profile(series(x), ended_at_s=0.0))
    return msgspec.structs.replace(found, **changes)


KNOWN = past(ramp(4))
"""A run that filled 8 GB within an hour, and then stood for three."""
LEAKED = past(4 * GB + 12 * GB * clock(4) / (4 * HOUR), alerted=True)
"""A run that leaked to 16 GB and was stopped."""
BEYOND = 4 * GB + 16 * GB * clock(1) / HOUR
"""Twice of what is known."""


def weights(x: Array, *history: Profile) -> tuple[forecast.Windows, forecast.Weights]:
    one = series(x, *history)
    view = numerics.prepare(one)
    (found,) = forecast.windows(view, 40 * MIB)
    personal = forecast.program_prior(one, view)
    room = np.full(found.growth.size, CARD - x[-1])
    return found, forecast.weigh(found, room, personal=personal)


def chance(x: Array, *history: Profile) -> float:
    """Return the chance that the growth reaches the limit, from its longest window."""
    found, said = weights(x, *history)
    return float(said.reaches[found.age_s.argmax()])


def judged(x: Array, *history: Profile) -> Finding:
    return verdict.judge(series(x, *history), SETTINGS)


def test_without_history_nothing_changes() -> None:
    x = ramp(0.5)
    view = numerics.prepare(series(x))
    assert forecast.program_prior(series(x), view) is None
    (found,) = forecast.windows(view, 40 * MIB)
    room = np.full(found.growth.size, CARD - x[-1])
    one, two = forecast.weigh(found, room), forecast.weigh(found, room, personal=None)
    assert np.array_equal(one.score, two.score)


def test_a_history_that_knows_nothing_gives_the_ordinary_prior() -> None:
    """A run that ended at a fraction of this age says nothing of what comes later."""
    x = 4 * GB + 0.4 * GB * np.maximum(clock(3) / HOUR - 1.5, 0.0) * 5
    short = past(4 * GB + np.zeros(120))
    assert chance(x, short) == pytest.approx(chance(x), abs=0.02)


def test_growth_up_to_the_known_level_is_calm_and_beyond_it_is_not() -> None:
    inside = ramp(0.7)
    assert chance(inside, KNOWN) < chance(inside)
    assert chance(inside, KNOWN, KNOWN) < 0.2
    assert chance(BEYOND, KNOWN, KNOWN) > 0.9 > chance(BEYOND)


def test_more_runs_make_it_surer_on_both_sides() -> None:
    chances = [chance(BEYOND, *[KNOWN] * k) for k in range(4)]
    assert chances == sorted(chances)


def test_growth_after_the_known_rise_is_new_at_any_level() -> None:
    """The level is known, but earlier runs stood still at this age."""
    x = 4 * GB + 4 * GB * np.clip(clock(4) / HOUR, 0.0, 1.0)
    x = x + 0.9 * GB * np.maximum(clock(4) / HOUR - 3.0, 0.0)
    found, said = weights(x, KNOWN, KNOWN)
    late = found.begin_s > -HOUR
    _, alone = weights(x)
    assert said.reaches[late].max() > alone.reaches[late].max()


def test_the_known_ramp_is_not_even_plain_and_a_leak_on_top_is() -> None:
    inside = judged(ramp(0.7), KNOWN, KNOWN)
    assert judged(ramp(0.7)).tier != "none"
    assert inside.tier == "none"
    assert inside.pattern == "plateau"
    leak = ramp(3) + 4 * GB * np.maximum(clock(3) / HOUR - 2.0, 0.0)
    alert = judged(leak, KNOWN, KNOWN)
    assert alert.tier == "alert"


@pytest.mark.parametrize(("top", "length_s"), [(9.5, HOUR), (8.0, 0.75 * HOUR), (7.0, 1.3 * HOUR)])
def test_a_third_run_that_differs_by_its_jitter_is_not_even_watched(
    top: float, length_s: float
) -> None:
    for hours in (0.2, 0.4, 0.6, 0.72):
        x = ramp(hours, top=top * GB, length_s=length_s)
        assert judged(x, KNOWN, KNOWN).tier == "none"
    assert judged(ramp(0.7, top=24 * GB), KNOWN, KNOWN).tier != "none"


def cut(hours: float, **changes: Any) -> Profile:
    """Return a run of a program that fills 3 GB an hour, and ends while it does."""
    return past(4 * GB + 3 * GB * clock(hours) / HOUR, **changes)


def test_what_two_runs_did_before_they_ended_is_expected_of_a_third() -> None:
    """Neither showed a stop, so that the score is not calmed; but nobody wants to watch it."""
    x = 4 * GB + 3 * GB * clock(0.5) / HOUR
    assert not stopped(cut(0.8), CARD)
    assert judged(x, cut(0.8)).tier != "none" != judged(x).tier
    assert judged(x, cut(0.8), cut(0.9)).tier == "none"
    assert chance(x, cut(0.8), cut(0.9)) > 0.8 * chance(x)
    alerted = cut(0.9, alerted=True)
    assert judged(x, cut(0.8), alerted).tier != "none"
    # It goes on for longer than they did, and higher.
    assert judged(4 * GB + 3 * GB * clock(1.4) / HOUR, cut(0.8), cut(0.9)).tier != "none"


def test_a_run_says_nothing_of_growth_that_began_when_it_had_ended() -> None:
    """It stood until its end; what comes hours later is as unknown as without it."""
    short = past(ramp(1.5, top=8 * GB, length_s=0.5 * HOUR))
    x = 4 * GB + 4 * GB * np.clip(clock(4) / (0.5 * HOUR), 0.0, 1.0)
    x = x + 2.4 * GB * np.maximum(clock(4) / HOUR - 3.0, 0.0)
    found, said = weights(x, short, short)
    late = found.begin_s > -HOUR
    assert said.reaches[late].max() >= weights(x)[1].reaches[late].max() - 0.02
    assert judged(x, short, short).tier != "none"


def test_a_larger_run_of_the_same_program_is_larger_everywhere() -> None:
    larger = 1.5 * ramp(0.95)
    assert chance(larger, KNOWN, KNOWN) < 0.5
    # The same growth from the same base is beyond what is known.
    assert chance(larger - 2 * GB, KNOWN, KNOWN) > chance(larger, KNOWN, KNOWN)


def test_a_poisoned_history_neither_silences_nor_slows() -> None:
    leak = 4 * GB + 3 * GB * clock(1.5) / HOUR
    assert not stopped(LEAKED, CARD)
    assert chance(leak, LEAKED, LEAKED, LEAKED) > chance(leak)


def test_a_run_that_shows_the_end_explains_an_unfinished_one() -> None:
    cut = past(ramp(0.6), alerted=True)
    x = ramp(0.7)
    assert chance(x, cut) > chance(x)
    assert chance(x, cut, KNOWN) < chance(x)


def test_idling_after_a_leak_is_no_proof() -> None:
    x = 4 * GB + 8 * GB * np.clip(clock(4) / (2 * HOUR), 0.0, 1.0)
    busy = np.where(clock(4) < 2 * HOUR, 80.0, 0.0)
    idled = present(forecast.profile(series(x), busy=busy, alerted=True, ended_at_s=0.0))
    leak = 4 * GB + 4 * GB * clock(1.5) / HOUR
    assert chance(leak, idled) > chance(leak) > chance(leak, past(x))


def test_history_silences_nothing_when_little_memory_is_left() -> None:
    full = past(4 * GB + 18.4 * GB * np.clip(clock(4) / HOUR, 0.0, 1.0))
    near = 4 * GB + 18.4 * GB * np.clip(clock(0.99) / HOUR, 0.0, 1.0)
    assert chance(near, full, full) >= chance(near) - 1e-9
    one = series(near, full, full)
    view = numerics.prepare(one)
    (found,) = forecast.windows(view, 40 * MIB)
    personal = present(forecast.program_prior(one, view))
    assert personal.expects(found).any()
    assert not personal.expects(found, np.full(found.growth.size, CARD - near[-1])).any()


def test_what_is_plain_stays_plain_when_little_memory_is_left() -> None:
    rise = 4 * GB + 18.4 * GB * np.clip(clock(4) / HOUR, 0.0, 1.0)
    for share, plain in ((0.5, False), (0.99, True)):
        one = series(rise[: int(share * 360)], past(rise))
        found = present(growth.find(one, numerics.prepare(one), 40 * MIB))
        assert found.plain is plain


def test_the_word_normal_counts_like_five_runs_and_up_to_the_top() -> None:
    """Even a run that was cut off while it climbed."""
    climbing = past(4 * GB + 8 * GB * clock(1) / HOUR, alerted=True)
    normal = msgspec.structs.replace(climbing, word="normal")
    x = 4 * GB + 8 * GB * clock(0.9) / HOUR
    assert chance(x, climbing) > chance(x) > chance(x, normal)
    assert judged(x, normal).tier == "none"
    beyond = 4 * GB + 8 * GB * clock(1.8) / HOUR
    assert chance(beyond, normal) > chance(beyond) - 0.05
    outvoted = [LEAKED] * 3
    assert chance(x, normal, *outvoted) < chance(x)


def test_the_word_leak_makes_growth_beyond_the_others_a_leak() -> None:
    said = msgspec.structs.replace(KNOWN, word="leak")
    x = ramp(0.5)
    assert chance(x, said) > 0.8 > chance(x)
    # It never raises what is normal, nor lowers what others proved.
    assert chance(x, said, KNOWN) < chance(x)
    assert chance(BEYOND, said, KNOWN) > chance(BEYOND, KNOWN)


def rank(x: Array) -> Profile:
    return present(forecast.profile(series(x), ended_at_s=0.0, kind="sibling"))


def test_a_rank_that_leaves_its_siblings_is_a_fault() -> None:
    flat = rank(4 * GB + np.zeros(clock(1).size))
    leak = 4 * GB + 2 * GB * clock(1) / HOUR
    assert chance(leak, *[flat] * 7) > 0.8 > chance(leak)


def test_ranks_that_climb_together_are_judged_by_the_ordinary_rule() -> None:
    leak = 4 * GB + 8 * GB * clock(1) / HOUR
    others = [rank(4 * GB + (8 + 0.1 * k) * GB * clock(1) / HOUR) for k in range(-3, 4)]
    assert chance(leak, *others) == pytest.approx(chance(leak), abs=0.05)


def test_where_half_of_the_ranks_climb_the_others_are_no_proof() -> None:
    leak = 4 * GB + 8 * GB * clock(1) / HOUR
    climb = [rank(4 * GB + (8 + 0.1 * k) * GB * clock(1) / HOUR) for k in range(4)]
    stand = [rank(ramp(1, top=10 * GB, length_s=0.5 * HOUR)) for _ in range(3)]
    assert chance(leak, *climb, *stand) == pytest.approx(chance(leak), abs=0.05)
    assert chance(leak, *stand) < 0.5 * chance(leak)


def test_ranks_need_not_be_in_step_to_the_minute() -> None:
    """The others begin the same stage four minutes later: that is no leak of this one."""
    t = clock(1.6) / HOUR
    mine = 4 * GB + 12 * GB * np.maximum(t - 1.5, 0.0)
    theirs = [rank(4 * GB + 12 * GB * np.maximum(t - 1.57, 0.0)) for _ in range(4)]
    assert chance(mine, *theirs) == pytest.approx(chance(mine), abs=0.05)
    flat = [rank(4 * GB + np.zeros(t.size))] * 4
    later = np.append(mine, mine[-1] + 12 * GB * clock(0.4) / HOUR)
    much_later = [rank(4 * GB + np.zeros(later.size))] * 4
    assert chance(later, *much_later) > chance(mine, *flat)


def test_siblings_that_have_stopped_show_where_this_one_will() -> None:
    done = rank(ramp(2, length_s=0.5 * HOUR))
    slower = ramp(2, length_s=2.2 * HOUR)
    assert chance(slower, *[done] * 7) < chance(slower)


def test_a_much_younger_sibling_says_nothing() -> None:
    young = rank(4 * GB + np.zeros(clock(0.25).size))
    leak = 4 * GB + 4 * GB * clock(1) / HOUR
    assert chance(leak, young) == pytest.approx(chance(leak), abs=1e-6)


def test_yesterdays_rise_is_normal_today_and_a_leak_on_top_is_not() -> None:
    t = np.arange(0.0, 40 * HOUR, 60.0)
    hour = (t % 86400.0) / HOUR
    wave = np.clip((hour - 6.0) / 4.0, 0.0, 1.0) - np.clip((hour - 14.0) / 3.0, 0.0, 1.0)
    end = int(np.searchsorted(t, 33 * HOUR))
    yesterday = forecast.profile_of_yesterday(
        making.series(t[:end], (4 * GB + 8 * GB * wave)[:end], limit_bytes=CARD, total_bytes=CARD),
        now_s=float(t[end - 1]),
    )
    assert yesterday is not None
    today = 4 * GB + 8 * GB * np.clip((clock(3) - 1.0) / (4 * HOUR), 0.0, 1.0)
    steeper = 4 * GB + 18 * GB * np.clip((clock(1.5) - 1.0) / (1.6 * HOUR), 0.0, 1.0)
    assert chance(today, yesterday) < chance(today)
    assert chance(steeper, yesterday) > chance(steeper)


def test_all_chances_are_probabilities_for_any_history() -> None:
    every = (KNOWN, LEAKED, msgspec.structs.replace(KNOWN, word="leak"), past(ramp(0.5)))
    bare = Profile(
        ended_at_s=0.0, run_s=600.0, base_bytes=0.0, hold_s=0.0, proven_bytes=0.0, top_bytes=0.0
    )
    for hours in (0.1, 0.7, 3.0):
        for some in ((bare,), (LEAKED,), every, (*every, bare)):
            _, said = weights(4 * GB + 5 * GB * clock(hours) / (4 * HOUR), *some)
            assert np.all((said.reaches > 0.0) & (said.reaches < 1.0))


def test_a_profile_of_another_version_is_borne() -> None:
    other = msgspec.structs.replace(
        KNOWN, grown_bytes=KNOWN.grown_bytes[:5], late_bytes=(GB,) * 40, rose_bytes=()
    )
    assert chance(ramp(0.7), other) < chance(ramp(0.7))
    normal = msgspec.structs.replace(other, word="normal")
    assert chance(ramp(0.7), normal) < chance(ramp(0.7))


def test_a_series_without_any_limit_is_borne() -> None:
    one = msgspec.structs.replace(series(ramp(0.7), KNOWN), limit_bytes=None, total_bytes=None)
    assert verdict.judge(one, SETTINGS).eta is None


def test_the_tail_is_that_of_the_normal_law() -> None:
    z = np.linspace(-5.0, 5.0, 101)
    exact = np.array([0.5 * math.erfc(one / math.sqrt(2.0)) for one in z.tolist()])
    assert np.abs(upper_tail(z) - exact).max() < 3e-4
