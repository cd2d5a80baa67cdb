"""Dots in the cells of a terminal."""

from __future__ import annotations

import pytest

from gpuwatchd.charts.raster import CHECKED, FAINT, SPARSE, Canvas


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


def test_the_uppermost_layer_has_the_cell() -> None:
    canvas = Canvas(2, 1, ["range", "curve"])
    canvas.fill("range", 0, 0, 3)
    canvas.fill("range", 2, 0, 3)
    canvas.fill("curve", 1, 3, 3)
    assert canvas.cells() == [[("⢀", "curve"), ("⡇", "range")]]


@pytest.mark.parametrize(("pattern", "dots"), [(CHECKED, 32), (SPARSE, 16), (FAINT, 8)])
def test_patterns_are_as_dense_as_they_say(pattern: tuple[int, int], dots: int) -> None:
    canvas = Canvas(2, 4, ["band"])
    for x in range(4):
        canvas.fill("band", x, 0, 15, pattern)
    said = "".join(text(canvas)).replace(" ", chr(0x2800))
    assert sum((ord(one) - 0x2800).bit_count() for one in said) == dots


def test_plain_characters_tell_three_heights() -> None:
    canvas = Canvas(3, 1, ["curve"], ascii_only=True)
    for x in range(3):
        canvas.fill("curve", x, x, x)
    assert text(canvas) == ["'-_"]


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
