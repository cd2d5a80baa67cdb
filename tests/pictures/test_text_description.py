"""Pictures in words and numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.charts import text_description
from gpuwatchd.charts.chart_model import Curve, Forecast, Picture
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


def test_a_gap_is_a_row_and_no_number() -> None:
    rows = text_description.rows(picture([GIB, None, 2 * GIB]))
    assert [row[1:] for row in rows] == [("1.0 GiB",), ("no data",), ("2.0 GiB",)]


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


def test_a_fit_begins_at_its_onset_also_where_that_is_0() -> None:
    judged = {"judged_at_s": 9.0, "level_bytes": 9.0, "rate_bytes_per_s": 1.0, "onset_at_s": 0.0}
    forecast = Forecast(**judged, limit_bytes=None, low_s=None, mid_s=None, high_s=None)
    assert forecast.fit() == [(0.0, 0.0), (9.0, 9.0)]
