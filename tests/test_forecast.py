"""Growth laws, stop prior, score, time to the limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from gpuwatchd.analysis import forecast, numerics
from gpuwatchd.analysis.forecast.eta import LAWS
from gpuwatchd.analysis.forecast.windows import BINS, _stall, _stall_now
from tests.making import series

Array = npt.NDArray[np.float64]

MIB, GIB = 2.0**20, 2.0**30


def view(t: Array, x: Array) -> numerics.SeriesWindow:
    return numerics.prepare(series(t, x))


def best(found: forecast.Windows, headroom: float) -> tuple[forecast.Weights, int]:
    weights = forecast.weigh(found, np.full(found.growth.size, headroom))
    return weights, int(weights.score.argmax())


def test_priors_and_shares_are_probabilities() -> None:
    assert LAWS.prior.sum() == pytest.approx(1.0)
    assert LAWS.prior.size == LAWS.log_odds.shape[1] == 32
    shares = np.exp(LAWS.log_odds) / BINS
    assert shares.sum(axis=0) == pytest.approx(np.ones(32))
    assert shares.min() >= 0.03 / BINS * 0.999


def test_each_inverse_inverts_its_law() -> None:
    """What a law predicts at the instant it names is the limit."""
    ratio = 0.4
    reach = LAWS.reach(np.array([ratio])).T
    target = LAWS.first + LAWS.rise * (1.0 + ratio)
    at = LAWS.exponents.size
    assert reach[:at] ** LAWS.exponents == pytest.approx(target[:at])
    logs = slice(at, at + 6)
    assert np.log(reach[logs] + LAWS.log) == pytest.approx(target[logs])
    hyper = slice(at + 6, at + 11)
    finite = np.isfinite(reach[hyper])
    assert finite.any()
    assert (-1.0 / (reach[hyper] + LAWS.hyper))[finite] == pytest.approx(target[hyper][finite])
    roots = slice(at + 11, at + 14)
    assert np.sqrt(reach[roots] + LAWS.shifted) == pytest.approx(target[roots])
    decay = slice(at + 14, at + 19)
    finite = np.isfinite(reach[decay])
    assert finite.any()
    assert not finite.all()
    grown = 1.0 - np.exp(-reach[decay] / LAWS.decay)
    assert grown[finite] == pytest.approx(target[decay][finite])
    assert np.all(np.isinf(reach[at + 19 : at + 23]))


def test_the_straight_law_needs_headroom_over_growth() -> None:
    assert LAWS.reach(np.array([3.0]))[0, 0] == pytest.approx(4.0)


def test_a_line_is_seen_as_a_line() -> None:
    t = np.arange(0.0, 3600.0, 5.0)
    (found,) = forecast.windows(view(t, 4e9 + 1e6 * t), 16 * MIB)
    assert found.growth.size >= 10
    assert found.growth == pytest.approx(1e6 * found.age_s, rel=0.01)
    assert found.excess.max() < 0.02
    assert found.stall.max() < 0.1
    weights, index = best(found, 5e9)
    assert found.age_s[index] > 3000
    assert weights.law[index].argmax() == 0
    assert weights.reach_s[index, 0] == pytest.approx(5000.0, rel=0.01)
    assert 0.5 < weights.reaches[index] < 1.0


def test_a_warm_up_scores_far_below_a_line() -> None:
    t = np.arange(0.0, 3600.0, 5.0)
    line, warm = 4e9 + 1e6 * t, 4e9 + 3.6e9 * (1 - np.exp(-t / 600))
    scores = []
    for x in (line, warm):
        groups = forecast.windows(view(t, x), 16 * MIB)
        scored = [best(found, 8e9) for found in groups]
        scores.append(max(float(weights.score[index]) for weights, index in scored))
    assert scores[0] > scores[1] + 1.5


def test_older_growth_and_nearer_limits_score_higher() -> None:
    def score(length_s: float, headroom: float) -> float:
        t = np.arange(0.0, length_s, 5.0)
        (found,) = forecast.windows(view(t, 4e9 + 5e5 * t), 16 * MIB)
        weights, index = best(found, headroom)
        return float(weights.score[index])

    assert score(7200.0, 8e9) > score(1800.0, 8e9)
    assert score(3600.0, 2e9) > score(3600.0, 20e9)


def test_flat_and_too_small_growth_have_no_window() -> None:
    t = np.arange(0.0, 3600.0, 5.0)
    assert forecast.windows(view(t, np.full(t.size, 4e9)), 16 * MIB) == []
    assert forecast.windows(view(t, 4e9 + 1e3 * t), 16 * MIB) == []
    assert forecast.windows(view(t[:2], t[:2]), 16 * MIB) == []


def test_a_sawtooth_is_looked_at_behind_its_release() -> None:
    t = np.arange(0.0, 7200.0, 5.0)
    tooth = 2e9 * ((t / 600) % 1.0)
    for found in forecast.windows(view(t, 4e9 + tooth), 16 * MIB):
        assert np.all(found.growth < 1e9)
    creeping = forecast.windows(view(t, 4e9 + tooth + np.floor(t / 600) * 2e8), 16 * MIB)
    assert max(float(found.age_s.max()) for found in creeping) > 3600
    assert max(float(found.growth.max()) for found in creeping) > 1e9


def test_a_late_onset_gets_its_own_window() -> None:
    t = np.arange(0.0, 7200.0, 5.0)
    (found,) = forecast.windows(view(t, 4e9 + 1e6 * np.maximum(t - 5000.0, 0.0)), 16 * MIB)
    weights, index = best(found, 8e9)
    assert found.age_s[index] == pytest.approx(2195.0, abs=40.0)
    assert found.deficit[index] < 0.02
    assert weights.score[index] > 0.0


def test_windows_that_end_now_stall_like_any_other() -> None:
    rng = np.random.default_rng(3)
    begin = -np.geomspace(30.0, 20_000.0, 21)
    now = np.zeros(begin.size)
    for number in (0, 1, 2, 3, 50):
        at = np.sort(rng.uniform(-20_000.0, 0.0, number))
        assert _stall_now(at, begin) == pytest.approx(_stall(at, begin, now))


def test_windows_of_several_views_are_handed_on_in_one_piece() -> None:
    t = np.arange(0.0, 20_000.0, 10.0)
    noisy = 8e9 + 3e5 * t + np.random.default_rng(1).normal(0.0, 50 * MIB, t.size)
    groups = forecast.windows(view(t, noisy), 256 * MIB)
    assert len(groups) > 1
    whole = forecast.joined(groups)
    again = forecast.joined([replace(one, whole=None) for one in groups])
    assert whole.growth.size == sum(one.growth.size for one in groups)
    for name in ("begin_s", "growth", "shares", "stall", "calm", "noise_bytes"):
        assert np.array_equal(getattr(whole, name), getattr(again, name))
    assert forecast.joined(groups[:1]) is groups[0]
