"""What a picture is drawn from: few points that keep the extremes, and the line that was judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.model import Alert, EtaRange, Message
from gpuwatchd.pipeline.chart_points import MOST_POINTS, chart, thinned
from gpuwatchd.store import records
from tests import making
from tests.making import finding, present

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

GIB = 1024.0**3
NOW_S = 1_800_000_000.0
RATE = 200_000.0


class Window:
    count = 0
    moves = 0
    last = None

    def __init__(self, t_s: FloatArray, used: FloatArray) -> None:
        self._points = t_s, used

    def window(self) -> tuple[FloatArray, FloatArray]:
        return self._points


def track(t_s: FloatArray, used: FloatArray) -> Any:
    return SimpleNamespace(window=Window(t_s, used))


def leak(n: int = 4000) -> Any:
    """Flat for two thirds, then a leak with noise and one spike."""
    t_s = NOW_S - 5.0 * np.arange(n, dtype=np.float64)[::-1]
    used = 12 * GIB + RATE * np.maximum(0.0, t_s - (NOW_S - 6000.0))
    used = used + np.random.default_rng(1).normal(0, 8 * 1024**2, n)
    used[-300] += 3 * GIB
    return track(t_s, used)


def alert(**changes: Any) -> Alert:
    values: dict[str, Any] = {
        "judged_at_s": NOW_S,
        "rate_bytes_per_s": RATE,
        "eta": EtaRange(low_s=40_000.0, mid_s=53_000.4, high_s=70_000.0),
        "onset_at_s": NOW_S - 6000.0,
        "limit_bytes": 24 * GIB,
    }
    judged = finding(**{**values, **changes})
    return making.alert(finding=judged, opened_at_s=NOW_S - 100.0, changed_at_s=NOW_S)


def test_a_leak_is_drawn_from_its_onset_with_its_line() -> None:
    drawn = chart(leak(), alert(eta=EtaRange(low_s=9000.0, mid_s=12_000.4, high_s=20_000.0)))
    assert drawn is not None
    assert len(drawn.at_s) == len(drawn.used_bytes) <= MOST_POINTS
    assert list(drawn.at_s) == sorted(set(drawn.at_s))
    # Some of the calm before it is shown, not all three hours of it.
    assert drawn.at_s[0] == pytest.approx(NOW_S - 6000.0 * 1.35, abs=120.0)
    assert drawn.at_s[-1] == NOW_S
    assert max(drawn.used_bytes) > 15 * GIB  # the spike
    assert drawn.level_bytes == pytest.approx(12 * GIB + RATE * 6000.0, rel=0.001)
    assert (drawn.low_s, drawn.mid_s, drawn.high_s) == (9000.0, 12_000.0, 20_000.0)
    assert drawn.limit_bytes == 24 * GIB


def test_far_ahead_more_of_the_past_is_shown() -> None:
    drawn = present(chart(leak(), alert()))
    assert drawn.at_s[0] == pytest.approx(NOW_S - 6000.0 - 0.15 * 53_000.0, abs=120.0)


def test_it_is_small_enough_to_be_kept_with_its_message() -> None:
    assert len(msgspec.json.encode(chart(leak(40_000), alert()))) < 5 * 1024


def test_without_an_onset_the_whole_window_is_shown() -> None:
    drawn = present(chart(leak(), alert(onset_at_s=None)))
    assert drawn.at_s[0] == NOW_S - 5.0 * 3999


def test_what_is_over_has_a_curve_and_no_future() -> None:
    over = msgspec.structs.replace(alert(), state="resolved")
    drawn = present(chart(leak(), over))
    assert (drawn.rate_bytes_per_s, drawn.level_bytes, drawn.mid_s) == (None, None, None)


@pytest.mark.parametrize("changes", [{"eta": None}, {"rate_bytes_per_s": -5.0}])
def test_without_an_end_none_is_drawn(changes: dict[str, Any]) -> None:
    drawn = present(chart(leak(), alert(**changes)))
    assert drawn.mid_s is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rate_bytes_per_s": float("nan")},
        {"judged_at_s": float("inf")},
        {"eta": EtaRange(low_s=float("nan"), mid_s=float("inf"), high_s=None)},
        {"onset_at_s": float("nan"), "limit_bytes": float("nan")},
    ],
)
def test_odd_numbers_cost_no_message(changes: dict[str, Any]) -> None:
    drawn = chart(leak(), alert(**changes))
    assert drawn is None or msgspec.json.decode(msgspec.json.encode(drawn)) is not None


def test_nothing_to_draw() -> None:
    assert chart(None, alert()) is None
    assert chart(track(np.array([]), np.array([])), alert()) is None
    assert chart(track(np.array([1.0, 2.0]), np.array([1.0, 2.0])), alert()) is None


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=400), st.integers(4, 60))
def test_extremes_stay(values: list[float], most: int) -> None:
    array = np.array(values)
    kept = thinned(array, most)
    assert kept.size <= max(most, 1)
    assert array[kept].max() == array.max()
    assert array[kept].min() == array.min()
    assert (kept[0], kept[-1]) == (0, array.size - 1)


def test_of_a_message_that_is_too_large_the_words_are_kept() -> None:
    drawn = chart(leak(), alert())
    said = Message(
        id="m", notice="firing", severity="warning", subject="s", body="x" * 6000,
        facts={"Who": "y" * 6000}, chart=drawn,
    )  # fmt: skip
    payload = msgspec.json.encode(records.bounded(said))
    assert len(payload) <= records.PAYLOAD_LIMIT_BYTES
    kept = msgspec.json.decode(payload, type=Message)
    assert (kept.body, kept.facts, kept.chart) == (said.body, said.facts, None)
    small = msgspec.structs.replace(said, body="x")
    assert records.bounded(small) == small
