"""What a subject's own earlier rises say of the present one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import forecast, numerics
from gpuwatchd.analysis.forecast.rises import EarlierRises, earlier_rises
from tests.making import series
from tests.scenarios.replay import make, replay

Array = npt.NDArray[np.float64]

GIB, MINUTE = 2.0**30, 60.0


def teeth(*shapes: tuple[float, float], cut: float = 0.0) -> tuple[Array, Array]:
    """Return samples every five seconds of straight rises (minutes, GiB), each given back.

    ``cut``: the minutes of the first one that nobody has seen.
    """
    t = np.arange(0.0, MINUTE * sum(minutes for minutes, _ in shapes), 5.0)
    x, begun_s = np.full(t.size, 4 * GIB), 0.0
    for minutes, height in shapes:
        here = (t >= begun_s) & (t < begun_s + MINUTE * minutes)
        x[here] += height * GIB * (t[here] - begun_s) / (MINUTE * minutes)
        begun_s += MINUTE * minutes
    seen = t >= MINUTE * cut
    return t[seen], x[seen]


def alerted_min(shape: tuple[Array, Array], total_gib: float) -> float | None:
    t, x = shape
    at_s = replay(make(t + 1.7e9, x, total_gib * GIB), stop_at_alert=True).alert_s
    return None if at_s is None else at_s / MINUTE


def now(t: Array, x: Array) -> tuple[EarlierRises | None, forecast.Windows]:
    view = numerics.prepare(series(t, x))
    windows = forecast.joined(forecast.windows(view, 64 * 2.0**20))
    return earlier_rises(view, windows), windows


def least(rises: EarlierRises, windows: forecast.Windows, headroom_gib: float) -> float:
    """Return what is left of an even chance in the window in which least is."""
    room, even = np.full(windows.growth.size, headroom_gib * GIB), np.array([[0.5]])
    return float(rises.chance(windows, room, even).min())


@pytest.mark.parametrize(("minutes", "height"), [(20, 8.0), (30, 10.0)])
def test_a_rise_to_where_the_one_before_was_given_back_does_not_alert(
    minutes: float, height: float
) -> None:
    """The record begins shortly before a release: nothing is known yet of holds or of a period."""
    assert alerted_min(teeth((minutes, height), (minutes, height), cut=0.9 * minutes), 24) is None


def test_the_highest_of_many_rises_does_not_alert() -> None:
    many = [(minutes, 0.5 * minutes) for minutes in (4, 5, 4, 6, 5, 4, 6, 5)]
    assert alerted_min(teeth(*many, (24, 6.0)), 14) is None


def test_growth_beyond_the_earlier_rises_is_found_as_if_there_were_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = teeth((10, 2.0), (12, 2.4), (110, 19.8))
    after = alerted_min(shape, 24)
    monkeypatch.setattr(forecast, "earlier_rises", lambda _view, _windows: None)
    alone = alerted_min(shape, 24)
    assert after is not None
    assert alone is not None
    assert after <= alone + 1.0


def test_the_more_often_it_was_given_back_the_more_is_explained() -> None:
    once, windows = now(*teeth((20, 8.0), (18, 7.2), cut=18))
    assert once is not None
    assert once.heights == pytest.approx([8 * GIB], rel=0.02)
    assert once.since_s == pytest.approx(-18 * MINUTE, abs=30.0)
    assert once.level == pytest.approx(7.2 * GIB, rel=0.02)
    assert 0.1 < least(once, windows, 12.8) < 0.25
    often = once._replace(heights=np.full(5, 8 * GIB))
    assert least(often, windows, 12.8) < 0.06


def test_rises_that_are_left_behind_explain_nothing() -> None:
    rises, windows = now(*teeth((12, 5.0), (44, 18.3)))
    assert rises is not None
    assert least(rises, windows, 2.0) > 0.49


def test_another_pace_or_a_crash_explains_nothing() -> None:
    jump, _ = now(*teeth((1, 8.0), (20, 8.0)))
    assert jump is None
    crash, windows = now(*teeth((20, 18.0), (18, 15.0), cut=18))
    assert crash is not None
    assert least(crash, windows, 4.0) == 0.5
    assert least(crash, windows, 40.0) < 0.25


def test_a_floor_that_creeps_under_swings_is_judged_as_without_them() -> None:
    t, x = teeth(*[(10, 4.0)] * 12)
    rises, windows = now(t, x + 0.6e6 * t)
    assert rises is not None
    long = windows.age_s > 3000.0
    assert long.any()
    even = np.full((windows.growth.size, 1), 0.5)
    assert (rises.chance(windows, np.full(windows.growth.size, 9 * GIB), even)[long] == 0.5).all()
