"""Laws that every detector and the verdict obey."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuwatchd.analysis.detectors
from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.detectors import DETECTORS
from gpuwatchd.core import registry
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Series, Subject
from tests.conftest import present

if TYPE_CHECKING:
    from gpuwatchd.core.model import Signal
    from gpuwatchd.core.ports import Detector

Array = npt.NDArray[np.float64]
MIB, GIB = 2.0**20, 2.0**30


def one(t: Array, x: Array, total: float = 24 * GIB) -> Series:
    return Series(
        subject=Subject(device_uid="G"), t_s=t, used_bytes=x, limit_bytes=total, total_bytes=total
    )


def shape(name: str, t: Array) -> Array:
    """Return a series that the detector of this name fires on."""
    shapes: dict[str, Array] = {
        "trend": 4e9 + 1e6 * t,
        "step": 4e9 + np.floor(t / 500) * 4e8,
        "cycle": 4e9 + np.floor(t / 300) * 1e8 + 2e9 * ((t / 300) % 1.0),
        "spike": np.where(t < 1500, 4e9, 9e9),
        "plateau": 4e9 + 3e9 * (1 - np.exp(-t / 300)),
    }
    assert name in shapes, f"no shape here on which {name} fires"
    return shapes[name]


def load(name: str) -> Detector:
    detector: Detector = registry.load(DETECTORS, name)()
    return detector


def fires(name: str, t: Array, x: Array, total: float = 24 * GIB) -> Signal:
    """Return what a detector says of these bytes; it has to say something."""
    return present(load(name).detect(one(t, x, total)))


CLOCK = np.arange(0.0, 3600.0, 5.0)
SETTINGS = DetectionSection()
every = pytest.mark.parametrize("name", sorted(DETECTORS))


@every
@pytest.mark.requirement("G2")
def test_table_and_file_and_class_agree(name: str) -> None:
    detector = load(name)
    assert detector.name == name
    assert DETECTORS[name] == f"gpuwatchd.analysis.detectors.{name}:{type(detector).__name__}"


def test_every_file_is_in_the_table() -> None:
    folder = Path(gpuwatchd.analysis.detectors.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(DETECTORS)


@every
def test_fires_on_its_shape(name: str) -> None:
    signal = fires(name, CLOCK, shape(name, CLOCK))
    assert signal.detector == name
    assert 0.0 <= signal.confidence <= 1.0


@every
def test_inputs_stay_untouched_and_the_answer_is_the_same_twice(name: str) -> None:
    t, x = CLOCK.copy(), shape(name, CLOCK)
    t.setflags(write=False)
    x.setflags(write=False)
    series = one(t, x)
    assert load(name).detect(series) == load(name).detect(series)
    assert verdict.judge(series, SETTINGS) == verdict.judge(series, SETTINGS)


@every
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_short_series_are_none(name: str, length: int) -> None:
    assert load(name).detect(one(CLOCK[:length], shape(name, CLOCK)[:length])) is None


@every
@pytest.mark.parametrize("level", [0.0, 4e9, 20e9])
@pytest.mark.parametrize("length", [0, 1, 2, 19, 720])
def test_constant_and_short_series_are_no_leak(name: str, level: float, length: int) -> None:
    series = one(CLOCK[:length], np.full(length, level))
    assert load(name).detect(series) is None
    found = verdict.judge(series, SETTINGS)
    assert (found.tier, found.confidence) == ("none", 0.0)


@every
@pytest.mark.parametrize("seed", range(3))
def test_irregular_sampling_is_tolerated(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.5, 12.0, 600))
    signal = fires(name, t, shape(name, t))
    regular = fires(name, CLOCK, shape(name, CLOCK))
    assert signal.pattern == regular.pattern


@every
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_never_raises_and_stays_in_range(name: str, data: st.DataObject) -> None:
    pauses = data.draw(st.lists(st.floats(0.01, 400.0), min_size=0, max_size=80))
    t = np.cumsum(np.array(pauses, dtype=np.float64))
    levels = data.draw(
        st.lists(st.floats(0.0, 80 * GIB), min_size=len(pauses), max_size=len(pauses))
    )
    series = one(t, np.array(levels, dtype=np.float64), 80 * GIB)
    signal = load(name).detect(series)
    if signal is not None:
        assert 0.0 <= signal.confidence <= 1.0
        assert np.isfinite(signal.rate_bytes_per_s)
        assert all(np.isfinite(value) for value in signal.facts.values())
    finding = verdict.judge(series, SETTINGS)
    assert 0.0 <= finding.confidence <= 1.0
    assert finding.reason
    if finding.eta is not None:
        assert 0.0 <= finding.eta.low_s <= finding.eta.mid_s
        assert finding.eta.high_s is None or finding.eta.high_s >= finding.eta.mid_s


def test_verdict_scales_with_the_bytes() -> None:
    x = shape("trend", CLOCK)
    small = verdict.judge(one(CLOCK, x), SETTINGS)
    large = verdict.judge(one(CLOCK, 3 * x, 72 * GIB), SETTINGS)
    assert large.rate_bytes_per_s == pytest.approx(3 * present(small.rate_bytes_per_s), rel=0.01)
    assert present(large.eta).mid_s == pytest.approx(present(small.eta).mid_s, rel=0.01)


@pytest.mark.requirement("B14")
def test_a_flat_tail_never_raises_the_verdict() -> None:
    confidence = []
    for flat_s in (0.0, 120.0, 600.0, 1800.0):
        t = np.arange(0.0, 3600.0 + flat_s, 5.0)
        x = 4e9 + 1e6 * np.minimum(t, 3600.0)
        found = verdict.judge(one(t, x), SETTINGS)
        confidence.append(found.confidence if found.tier != "none" else 0.0)
    assert confidence == sorted(confidence, reverse=True)
    assert confidence[0] > 0.7
    assert confidence[-1] < 0.5


# Laws over drawn leaks. ``TOLERANCE`` is what a grid that ends elsewhere may move a confidence by;
# a watch or an alert is fifty times as far from nothing.
TOLERANCE = 0.02
LEAKING = ("trend", "step", "cycle")
leaking = pytest.mark.parametrize("name", LEAKING)
WHOLE = np.arange(0.0, 3600.1, 5.0)
"""Ends where a stair and a cycle begin: what is held then was kept, not borrowed."""
few = settings(max_examples=15, deadline=None)
intervals = st.sampled_from([1.0, 2.0, 5.0, 10.0, 30.0])


def drawn(name: str, t: Array, scale: float) -> Array:
    """Return a leak of this kind, ``scale`` times as fast."""
    x = shape(name, t)
    scaled: Array = x[0] + scale * (x - x[0])
    return scaled


def confidence_of(name: str, t: Array, x: Array) -> float:
    signal = load(name).detect(one(t, x))
    grows = signal is not None and signal.pattern != "sawtooth"
    return signal.confidence if signal is not None and grows else 0.0


def verdict_on(name: str, t: Array, x: Array) -> float:
    """Return the confidence of the verdict, 0 where it is not even a watch.

    For swings, everything below the level of a watch is one: a trough that lasts shows better what
    is kept, and moves a low confidence up.
    """
    found = verdict.judge(one(t, x, 200 * GIB), SETTINGS)
    least = verdict.WATCH_CONFIDENCE if name == "cycle" else 0.0
    return max(found.confidence if found.tier != "none" else 0.0, least)


@every
@few
@given(factor=st.floats(1.0, 20.0), interval=intervals)
def test_any_factor_of_the_bytes_is_a_factor_of_the_rate(
    name: str, factor: float, interval: float
) -> None:
    t = np.arange(0.0, 7200.0, interval)
    x = shape(name, t)
    small, large = fires(name, t, x), fires(name, t, factor * x, factor * 24 * GIB)
    assert large.rate_bytes_per_s == pytest.approx(factor * small.rate_bytes_per_s, rel=0.02)


@every
@few
@given(shift=st.integers(-(2**20), 2**33), interval=intervals)
def test_any_shift_of_the_clock_changes_nothing(name: str, shift: int, interval: float) -> None:
    t = np.arange(0.0, 5400.0, interval)
    x = shape(name, t)
    here, there = fires(name, t, x), fires(name, t + float(shift), x)
    for field in ("confidence", "rate_bytes_per_s", "n", "facts"):
        assert getattr(there, field) == getattr(here, field)
    assert there.since_s - shift == here.since_s
    now = verdict.judge(one(t, x), SETTINGS)
    later = verdict.judge(one(t + float(shift), x), SETTINGS)
    for field in ("pattern", "tier", "confidence", "reason", "eta"):
        assert getattr(later, field) == getattr(now, field)


@leaking
@few
@given(flat_s=st.floats(60.0, 7200.0), scale=st.floats(0.3, 2.0))
def test_no_flat_tail_raises_confidence(name: str, flat_s: float, scale: float) -> None:
    if name == "step":
        flat_s += 500.0  # Up to the length of a stair it is the same leak at another phase.
    whole = np.arange(0.0, 3600.0 + flat_s, 5.0)
    x = drawn(name, np.minimum(whole, WHOLE[-1]), scale)
    before = drawn(name, WHOLE, scale)
    assert confidence_of(name, whole, x) <= confidence_of(name, WHOLE, before) + TOLERANCE
    assert verdict_on(name, whole, x) <= verdict_on(name, WHOLE, before) + TOLERANCE


@leaking
@few
@given(more=st.integers(1, 6), scale=st.floats(0.3, 2.0))
def test_more_of_the_same_leak_never_lowers_confidence(name: str, more: int, scale: float) -> None:
    # Whole cycles and stairs: the same leak, not the same leak cut at another phase.
    long = np.arange(0.0, 3000.0 + more * 1500.0, 5.0)
    short = long[long < 3000.0]
    x = drawn(name, long, scale)
    before = x[: short.size]
    assert confidence_of(name, long, x) >= confidence_of(name, short, before) - TOLERANCE
    assert verdict_on(name, long, x) >= verdict_on(name, short, before) - TOLERANCE


@leaking
@few
@given(share=st.floats(0.25, 1.0), then_s=st.floats(120.0, 3600.0))
def test_memory_given_back_never_raises_confidence(name: str, share: float, then_s: float) -> None:
    x = shape(name, WHOLE)
    whole = np.arange(0.0, 3600.1 + then_s, 5.0)
    tail = np.full(whole.size - x.size, x[-1] - share * (x[-1] - x[0]))
    after = np.concatenate((x, tail))
    assert confidence_of(name, whole, after) <= confidence_of(name, WHOLE, x) + TOLERANCE
    assert verdict_on(name, whole, after) <= verdict_on(name, WHOLE, x) + TOLERANCE


@leaking
@few
@given(seed=st.integers(0, 2**16), lost=st.floats(0.0, 0.5))
def test_lost_samples_are_tolerated(name: str, seed: int, lost: float) -> None:
    """At least seven draws of nine: one may lose the very samples that make a trough."""
    x = shape(name, CLOCK)
    whole = fires(name, CLOCK, x)
    rates = []
    for draw in range(9):
        keep = np.random.default_rng((seed, draw)).random(CLOCK.size) >= lost
        keep[[0, -1]] = True
        holed = load(name).detect(one(CLOCK[keep], x[keep]))
        if holed is not None and holed.pattern == whole.pattern:
            rates.append(holed.rate_bytes_per_s / whole.rate_bytes_per_s)
    assert np.count_nonzero(np.abs(np.array(rates) - 1.0) <= 0.1) >= 7
    assert np.median(rates) == pytest.approx(1.0, abs=0.1)


@every
@pytest.mark.parametrize("gap_s", [30.0, 300.0, 7200.0])
def test_a_gap_is_no_growth(name: str, gap_s: float) -> None:
    """What happened while nobody looked is not called a leak that was seen."""
    t = np.concatenate((CLOCK, CLOCK + 3600.0 + gap_s))
    x = np.where(t < 3600.0, 4e9, 9e9)
    signal = load(name).detect(one(t, x))
    assert signal is None or signal.pattern in {"spike", "plateau"}
    assert verdict.judge(one(t, x), SETTINGS).tier == "none"


@leaking
@few
@given(begin_s=st.floats(0.0, 3000.0), gap_s=st.floats(61.0, 3000.0))
def test_a_gap_is_tolerated(name: str, begin_s: float, gap_s: float) -> None:
    t = np.arange(0.0, 9000.0, 5.0)
    seen = (t < begin_s) | (t > begin_s + gap_s)
    x = shape(name, t)
    whole, holed = fires(name, t, x), fires(name, t[seen], x[seen])
    assert holed.pattern == whole.pattern
    assert holed.rate_bytes_per_s == pytest.approx(whole.rate_bytes_per_s, rel=0.1)
    # Before a gap of over half an hour, what lies there counts for nothing: it may have been
    # somebody else. Over a shorter one the level goes on.
    assert gap_s <= 1810.0 or holed.since_s >= begin_s + gap_s - 10.0
