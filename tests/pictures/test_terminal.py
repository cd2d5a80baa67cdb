"""Pictures in the cells of a terminal: every size, every case; no gap is bridged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatchd.charts import terminal
from gpuwatchd.charts.drawing import Mark
from gpuwatchd.cli.output import width_of
from gpuwatchd.core import design
from tests.browser import gallery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.charts.drawing import Picture
    from gpuwatchd.charts.raster import Cell

KINDS = {one.key: one for one in gallery.everything()}


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def plain(rows: list[list[Cell]]) -> list[str]:
    return ["".join(words for words, _ in row) for row in rows]


def inside(picture: Picture, width: int, height: int, part: str) -> set[tuple[int, int]]:
    """Return the cells, column and row within the plot, that have a part."""
    place = terminal.plot(picture, width, height)
    found = set()
    for y, row in enumerate(terminal.draw(picture, width, height)[place.top : place.bottom]):
        at = 0
        for words, of in row:
            if of == part:
                found |= {(x - place.left, y) for x in range(at, at + len(words))}
            at += len(words)
    return found


@pytest.mark.parametrize("key", KINDS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_fills_its_cells_exactly(key: str, *, ascii_only: bool) -> None:
    for width, height in ((1, 1), (7, 2), (20, 4), (24, 4), (40, 10), (80, 17), (200, 60)):
        rows = terminal.draw(KINDS[key], width, height, ascii_only=ascii_only, numbered=True)
        assert len(rows) == height
        assert {width_of(row) for row in plain(rows)} == {width}
        if ascii_only:
            assert "".join(plain(rows)).isascii()


@pytest.mark.parametrize("key", KINDS)
def test_every_part_has_a_colour(key: str) -> None:
    picture = KINDS[key]
    rows = [
        *terminal.draw(picture, 90, 20, numbered=True),
        *terminal.legend(picture, 90),
        *(list(pair) for pair in terminal.keys([picture])),
    ]
    named = {part for row in rows for _, part in row}
    assert named <= {"", *design.PARTS, *design.LOOKS}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)), st.integers(1, 130), st.integers(1, 40),
    st.floats(-1e5, 1e5), st.floats(0.0, 1e7),
)  # fmt: skip
def test_any_window_in_any_size_is_drawn(
    key: str, width: int, height: int, shift_s: float, span_s: float
) -> None:
    picture = KINDS[key]
    window = (picture.begin_s + shift_s, picture.begin_s + shift_s + span_s)
    rows = terminal.draw(picture, width, height, window=window, numbered=True)
    assert len(rows) == height
    assert all(len(row) == width for row in plain(rows))
    place = terminal.plot(picture, width, height, window=window)
    assert 0 <= place.left < place.right
    assert place.bottom <= height or height == 0
    assert len(terminal.legend(picture, width, window=window)) <= 12


def test_the_curve_is_where_its_numbers_are() -> None:
    picture = gallery.leak()
    width, height = 120, 30
    place = terminal.plot(picture, width, height)
    curve = inside(picture, width, height, "curve")
    per_s = (place.right - place.left) / (place.end_s - place.begin_s)
    columns = [x for x, _ in curve]
    assert max(columns) == pytest.approx((picture.curve.at_s[-1] - place.begin_s) * per_s, abs=1.1)
    first = min(y for x, y in curve if x == min(columns))
    last = min(y for x, y in curve if x == max(columns))
    assert last < first  # it grows, and rows are counted from the top


def test_gaps_are_not_bridged() -> None:
    picture = gallery.gaps()
    place = terminal.plot(picture, 120, 20)
    per_s = (place.right - place.left) / (place.end_s - place.begin_s)
    columns = {x for x, _ in inside(picture, 120, 20, "curve")}
    shaded = {x for x, _ in inside(picture, 120, 20, "gap")}
    for gap in picture.gaps:
        first, last = (int((at - place.begin_s) * per_s) for at in (gap.begin_s, gap.end_s))
        between = set(range(first + 2, last - 1))
        assert between
        assert not between & columns
        assert between <= shaded


def test_a_forecast_has_its_window_on_the_limit() -> None:
    picture = gallery.leak()
    told = picture.forecast
    assert told is not None
    assert told.low_s is not None
    assert told.high_s is not None
    place = terminal.plot(picture, 120, 20)
    per_s = (place.right - place.left) / (place.end_s - place.begin_s)
    rows = terminal.draw(picture, 120, 20)
    line = next(row for row in plain(rows) if "━" in row)
    ends = [(told.judged_at_s + s - place.begin_s) * per_s for s in (told.low_s, told.high_s)]
    assert [line.index("━") - place.left, line.rindex("━") - place.left] == pytest.approx(
        ends, abs=1.1
    )
    assert "╳" in line
    assert any("full in 0h 47m (0h 39m - 1h 02m)" in row for row in plain(rows))
    assert (
        min(x for x, _ in inside(picture, 120, 20, "band"))
        >= (told.judged_at_s - place.begin_s) * per_s - 1
    )


def test_an_open_end_fades_and_has_no_window() -> None:
    picture = gallery.open_ended()
    rows = plain(terminal.draw(picture, 120, 20))
    assert not any("━" in row for row in rows)
    assert any("- open)" in row for row in rows)
    band = inside(picture, 120, 20, "band")
    last = max(x for x, _ in band)
    place = terminal.plot(picture, 120, 20)
    assert last == place.right - place.left - 1

    def dots(x: int) -> int:
        return sum((ord(row[place.left + x]) - 0x2800).bit_count() for row in rows
                   if 0x2800 <= ord(row[place.left + x]) < 0x2900)  # fmt: skip

    nearer = dots(last - 40) / sum(x == last - 40 for x, _ in band)
    assert dots(last) / sum(x == last for x, _ in band) < nearer


def test_one_sample_can_be_seen_and_none_is_said() -> None:
    assert inside(gallery.one_sample(), 80, 14, "curve")
    assert not inside(gallery.empty(), 80, 14, "curve")
    assert any("nothing recorded" in row for row in plain(terminal.draw(gallery.empty(), 80, 14)))


def test_marks_at_one_place_share_a_number_and_show_the_worst() -> None:
    picture = gallery.leak()
    at_s = picture.begin_s + 600.0
    marks = (
        Mark(at_s=at_s, kind="restart", text="the daemon began to record"),
        Mark(at_s=at_s + 1, kind="alert", text="one", severity="warning"),
        Mark(at_s=at_s + 2, kind="alert", text="two", severity="critical"),
    )
    rows = terminal.draw(replace(picture, marks=marks), 90, 14, numbered=True)
    assert ("▲1", "critical") in rows[-2]
    told = plain(terminal.legend(replace(picture, marks=marks), 90))
    assert [row[1] for row in told] == ["1", "1", "1"]


def test_a_long_legend_says_how_much_is_left_out() -> None:
    picture = gallery.leak()
    marks = tuple(
        Mark(at_s=picture.begin_s + 60.0 * k, kind="event", text=f"event {k}") for k in range(50)
    )
    told = plain(terminal.legend(replace(picture, marks=marks), 90))
    assert len(told) == 12
    assert told[-1] == "and 39 more"
    alert = Mark(at_s=marks[-1].at_s + 60, kind="alert", text="the last", severity="warning")
    told = plain(terminal.legend(replace(picture, marks=(*marks, alert)), 90))
    assert "the last" in told[-2]  # what matters least is left out, whenever it was
    assert told[-1] == "and 40 more"
