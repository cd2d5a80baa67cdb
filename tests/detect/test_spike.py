"""One jump."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwatchd.analysis.detectors.spike import GROWING, SETTLED, TOO_EARLY, Spike
from tests.detect import Floats, T, fires, one


@pytest.mark.parametrize(
    ("x", "after"),
    [
        (np.where(T < 1800, 4e9, 8e9), SETTLED),
        (np.where(T < 1800, 4e9, 8e9 + 1e6 * (T - 1800)), GROWING),
        (np.where(T < 3550, 4e9, 8e9), TOO_EARLY),
    ],
)
@pytest.mark.requirement("G8", "G19")
def test_what_came_after(x: Floats, after: float) -> None:
    signal = fires(Spike(), x)
    assert signal.facts["after"] == after
    assert signal.facts["jump_bytes"] == pytest.approx(4e9, rel=0.05)
    assert signal.rate_bytes_per_s == 0.0


def test_what_was_given_back_is_not_kept() -> None:
    signal = fires(Spike(), np.where((T > 1800) & (T < 2000), 8e9, 4e9))
    assert signal.facts["kept"] == 0.0
    kept = fires(Spike(), np.where(T > 1800, 8e9, 4e9))
    assert kept.facts["kept"] == 1.0


@pytest.mark.requirement("G9", "G10")
def test_settings_move_the_threshold() -> None:
    x = np.where(T < 1800, 4e9, 4.6e9)
    assert Spike().detect(one(x)) is None
    assert Spike(percent=10.0).detect(one(x)) is not None
    slow = 4e9 + 3e9 * np.clip((T - 1800) / 120, 0, 1)
    assert Spike().detect(one(slow)) is None
    assert Spike(window_s=120.0).detect(one(slow)) is not None


@pytest.mark.requirement("M30")
def test_small_jumps_and_growth_are_no_spike() -> None:
    assert Spike().detect(one(np.where(T < 1800, 0.2e9, 0.4e9))) is None
    assert Spike().detect(one(4e9 + 3e6 * T)) is None


@pytest.mark.requirement("M31")
def test_it_says_how_many_jumps_there_are_like_it() -> None:
    alone = fires(Spike(), np.where(T < 1800, 4e9, 8e9))
    many = fires(Spike(), np.where(T % 600 > 500, 7e9, 4e9))
    assert alone.facts["alike"] == 1.0
    assert many.facts["alike"] == 6.0
