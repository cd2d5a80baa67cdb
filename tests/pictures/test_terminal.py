"""Pictures in the cells of a terminal: every size, every case; no gap is bridged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatchd.charts import terminal
from gpuwatchd.charts.chart_model import Mark
from gpuwatchd.charts.terminal import CHECKED, FAINT, SPARSE, Canvas
from gpuwatchd.core import design
from gpuwatchd.view.blocks import width_of
from tests.browser import gallery

if TYPE_CHECKING:
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.charts.terminal import Cell


KINDS = {one.key: one for one in gallery.everything()}


def plain(rows: list[list[Cell]]) -> list[str]:
    return ["".join(words for words, _ in row) for row in rows]


def inside(picture: Picture, width: int, height: int, part: str) -> set[tuple[int, int]]:
    """Return the cells, column and row within the plot, that have a part."""
    place = terminal.plot(picture, width, height)
    found = set()
    for y, row in enumerate(terminal.draw(picture, width, height)[: place.bottom]):
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
    assert len(terminal.legend(picture, width)) <= 12


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
    assert any("full in 47 min (39 to 62 min)" in row for row in plain(rows))
    assert (
        min(x for x, _ in inside(picture, 120, 20, "band"))
        >= (told.judged_at_s - place.begin_s) * per_s - 1
    )


def test_an_open_end_fades_and_has_no_window() -> None:
    picture = gallery.open_ended()
    rows = plain(terminal.draw(picture, 120, 20))
    assert not any("━" in row for row in rows)
    assert any("(at least " in row for row in rows)
    band = inside(picture, 120, 20, "band")
    last = max(x for x, _ in band)
    place = terminal.plot(picture, 120, 20)
    assert last == place.right - place.left - 1

    def dots(x: int) -> int:
        return sum((ord(row[place.left + x]) - 0x2800).bit_count() for row in rows
                   if 0x2800 <= ord(row[place.left + x]) < 0x2900)  # fmt: skip

    nearer = dots(last - 40) / sum(x == last - 40 for x, _ in band)
    assert dots(last) / sum(x == last for x, _ in band) < nearer


def test_marks_at_one_place_share_a_number_and_show_the_worst() -> None:
    picture = gallery.leak()
    at_s = picture.begin_s + 600.0
    marks = (
        Mark(at_s=at_s, kind="restart", text="the daemon started to record"),
        Mark(at_s=at_s + 1, kind="alert", text="one"),
        Mark(at_s=at_s + 2, kind="critical", text="two"),
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


def text(canvas: Canvas) -> list[str]:
    return ["".join(words for words, _ in row) for row in canvas.cells()]


def test_a_line_goes_through_its_dots() -> None:
    canvas = Canvas(2, 1, ["curve"])
    assert (canvas.wide, canvas.high) == (4, 4)
    canvas.line("curve", [(0.5, 3.5), (3.5, 0.5)])
    assert text(canvas) == ["⣀⠜"]


def test_a_line_that_begins_and_ends_outside_is_where_it_should_be() -> None:
    whole, part = Canvas(30, 5, ["curve"]), Canvas(10, 5, ["curve"])
    whole.line("curve", [(0.0, 20.0), (59.9, 0.0)])
    part.line("curve", [(-20.0, 20.0), (39.9, 0.0)])
    assert [row[10:20] for row in text(whole)] == text(part)


def test_a_steep_line_has_no_holes() -> None:
    canvas = Canvas(1, 6, ["curve"])
    canvas.line("curve", [(0.0, 23.9), (0.4, 0.0)])
    assert text(canvas) == ["⡇"] * 6


@pytest.mark.parametrize(("pattern", "dots"), [(CHECKED, 32), (SPARSE, 16), (FAINT, 8)])
def test_patterns_are_as_dense_as_they_say(pattern: tuple[int, int], dots: int) -> None:
    canvas = Canvas(2, 4, ["band"])
    for x in range(4):
        canvas.fill("band", x, 0, 15, pattern)
    said = "".join(text(canvas)).replace(" ", chr(0x2800))
    assert sum((ord(one) - 0x2800).bit_count() for one in said) == dots


def test_what_is_outside_is_left_out() -> None:
    canvas = Canvas(2, 2, ["curve"])
    canvas.fill("curve", -1, 0, 3)
    canvas.fill("curve", 4, 0, 3)
    canvas.fill("curve", 0, -90, -5)
    canvas.line("curve", [(-9.0, 0.0), (-5.0, 0.0)])
    canvas.line("curve", [(50.0, 0.0), (90.0, 0.0)])
    canvas.line("curve", [(0.0, 1e6), (3.0, 1e6)])
    canvas.write(-3, 0, "ab", "now")
    canvas.write(0, 7, "ab", "now")
    assert text(canvas) == ["  ", "  "]
