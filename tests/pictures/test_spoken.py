"""Pictures in words and numbers."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.charts import scales, text_description
from gpuwatchd.charts.drawing import Curve, Picture
from gpuwatchd.core import units
from tests.browser import gallery

GIB = gallery.GIB


def picture(used: list[float | None], spread: float = 0.0) -> Picture:
    """Return a picture of one point a minute."""
    at = tuple(gallery.NOW_S - 60.0 * (len(used) - n) for n in range(len(used)))
    curve = Curve(
        at_s=at,
        used_bytes=tuple(used),
        low_bytes=tuple(None if v is None else v - spread for v in used),
        high_bytes=tuple(None if v is None else v + spread for v in used),
    )
    return Picture(
        key="k", title="GPU 0", kind="calm", verdict="stable", curve=curve,
        begin_s=gallery.NOW_S - 3600, end_s=gallery.NOW_S, now_s=gallery.NOW_S,
    )  # fmt: skip


def test_a_leak_is_told_with_its_end_and_its_interval() -> None:
    said = text_description.sentence(gallery.leak())
    assert said.startswith("python train.py[4711] of alice on GPU 0: gradual leak, confirmed")
    assert "The limit is 23.6 GiB." in said
    assert "full in 0h 47m (0h 39m - 1h 02m)." in said
    assert said.endswith("4 marks.")


@pytest.mark.parametrize(
    ("late_s", "said"), [(59.0, "full in 0h 47m (0h 39m - 1h 02m)"), (1200.0, "full in 0h 27m")]
)
def test_a_judgement_of_now_has_the_figures_that_stand_beside_it(late_s: float, said: str) -> None:
    told = gallery.leak()
    assert told.forecast is not None
    now_s = told.forecast.judged_at_s + late_s
    assert said in text_description.sentence(msgspec.structs.replace(told, now_s=now_s))
    assert scales.limit_texts(told.forecast, now_s)[0].startswith(said)


def test_what_is_marked_can_be_read() -> None:
    rows = text_description.mark_rows(gallery.leak())
    assert [row[1] for row in rows] == ["began", "alert", "checkpoint saved", "alert"]
    assert rows[-1][2] == "full in under an hour"


def test_an_end_that_is_open_is_said_to_be() -> None:
    assert "(5h 00m - open)." in text_description.sentence(gallery.open_ended())


def test_gaps_and_one_sample_and_nothing() -> None:
    assert "3 gaps." in text_description.sentence(gallery.gaps())
    assert "One sample from " in text_description.sentence(gallery.one_sample())
    assert "2.5 GiB used." in text_description.sentence(gallery.one_sample())
    nothing = text_description.sentence(gallery.empty())
    assert nothing.startswith("GPU 4  NVIDIA GB10: lost. Nothing is recorded from ")
    assert text_description.rows(gallery.empty()) == []


def test_what_does_not_change_is_said_once() -> None:
    assert "8.0 GiB throughout." in text_description.sentence(picture([8 * GIB] * 5))


def test_a_gap_is_a_row_and_no_number() -> None:
    rows = text_description.rows(picture([GIB, None, 2 * GIB]))
    assert [row[1:] for row in rows] == [("1.0 GiB",), ("nothing recorded",), ("2.0 GiB",)]


def test_a_row_of_many_points_has_their_extremes() -> None:
    shown = picture([float(n) * GIB for n in range(500)])
    rows = text_description.rows(shown)
    assert len(rows) == text_description.MOST_ROWS
    assert len(text_description.heads(shown)) == len(rows[0]) == 4
    assert rows[0][1:] == ("4.5 GiB", "0 MiB", "9.0 GiB")
    assert rows[-1][3] == units.size(499 * GIB)


@given(st.lists(st.none() | st.floats(0, 1e12), min_size=1, max_size=300))
def test_rows_are_few_and_miss_no_extreme(used: list[float | None]) -> None:
    shown = picture(used, spread=1.0)
    rows = text_description.rows(shown)
    breaks = sum((a is None) != (b is None) for a, b in pairwise(used))
    assert (
        len(rows)
        <= text_description.MOST_ROWS + breaks + len(used) // text_description.MOST_ROWS + 1
    )
    assert {len(row) for row in rows} == {len(text_description.heads(shown))}
    known = [v for v in used if v is not None]
    low, high = text_description.extremes(shown.curve)
    if not known:
        assert low is None
        assert high is None
        return
    assert low == min(known) - 1.0
    assert high == max(known) + 1.0
    assert units.size(low) in {row[2] for row in rows}
    assert units.size(high) in {row[3] for row in rows}


@pytest.mark.parametrize("shown", gallery.everything(), ids=lambda one: one.key)
def test_the_legend_names_what_is_there(shown: Picture) -> None:
    parts = text_description.parts(shown)
    assert ("gap" in parts) == bool(shown.gaps)
    assert ("limit" in parts) == (shown.limit_bytes is not None)
    assert ("band" in parts) == (shown.forecast is not None)
    assert ("curve" in parts) == (not shown.empty)
