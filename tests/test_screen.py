"""The first look never hides what the verdict would watch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd import screen, verdict
from gpuwatchd.config import DetectionSection
from gpuwatchd.model import Series, Subject

Array = npt.NDArray[np.floating[Any]]
GIB = 2.0**30
SETTINGS = DetectionSection()


def one(t: Array, x: Array, total: float | None = 24 * GIB) -> Series:
    return Series(
        subject=Subject(device_uid="G"),
        t_s=np.asarray(t, dtype=np.float64),
        used_bytes=np.asarray(x, dtype=np.float64),
        limit_bytes=total,
        total_bytes=total,
    )


def test_nothing_in_nothing_out() -> None:
    assert screen.first_look([], SETTINGS) == []


def test_each_kind_in_one_call() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    batch = [
        one(t, np.full(t.size, 4e9)),
        one(t[:0], t[:0]),
        one(t, 4e9 + 1e6 * t),
        one(t[:3], t[:3]),
        one(t, np.full(t.size, 20e9)),
        one(t[:10], np.full(10, 4e9)),
        one(t, np.full(t.size, 4e9), None),
    ]
    assert screen.first_look(batch, SETTINGS) == [
        "stable", "unknown", None, "unknown", None, None, "stable",
    ]  # fmt: skip


def test_neighbours_do_not_change_the_answer() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    rng = np.random.default_rng(1)
    batch = [
        one(t[: rng.integers(1, 360)], rng.uniform(4e9, 4e9 + s, 360)[:1].repeat(1))
        for s in (1e6, 1e8)
    ]
    batch = [one(t, rng.uniform(4e9, 4e9 + s, t.size)) for s in (1e6, 1e7, 1e8, 1e9)]
    alone = [screen.first_look([series], SETTINGS)[0] for series in batch]
    assert screen.first_look(batch, SETTINGS) == alone


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 24 * GIB), min_size=1, max_size=60),
    st.floats(1.0, 60.0),
)
def test_what_is_screened_out_is_not_watched(levels: list[float], interval_s: float) -> None:
    series = one(np.arange(len(levels)) * interval_s, np.array(levels))
    if screen.first_look([series], SETTINGS)[0] is not None:
        assert verdict.judge(series, SETTINGS).tier == "none"


@pytest.mark.parametrize("level", [0.0, 4e9])
def test_inputs_stay_untouched(level: float) -> None:
    series = one(np.arange(0.0, 600.0, 5.0), np.full(120, level))
    series.used_bytes.setflags(write=False)
    assert screen.first_look([series], SETTINGS) == ["stable"]
