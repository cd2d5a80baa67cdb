"""The one design: what is written can be read, what differs can be told apart, by everybody."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from gpuwatchd.charts.drawing import MarkKind
from gpuwatchd.core.design import (
    BADGE_INK,
    FIT_DASH,
    FLAGS,
    FLOOR_DASH,
    LEGEND,
    LOOKS,
    NIGHT,
    PAPER,
    PARTS,
    SEVERITY_KINDS,
    Kind,
)
from gpuwatchd.core.model.base import Severity

TEXT = 4.5
"""WCAG 2.2, 1.4.3: contrast of text with its ground."""
GRAPHICS = 3.0
"""WCAG 2.2, 1.4.11: contrast of what has to be seen."""
WRITTEN = ("ink", "faint", "limit", "curve")
SEEN = ("curve", "floor", "fit", "limit", "now")


def linear(colour: str) -> tuple[float, ...]:
    """Return linear RGB, 0-1, of ``#rrggbb``."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG, 1-21."""

    def light(colour: str) -> float:
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", [*LOOKS, *WRITTEN])
def test_what_is_written_in_a_colour_can_be_read(name: str) -> None:
    paints: dict[Any, Any] = {**PARTS, **LOOKS}
    paint, surface = paints[name], PARTS["surface"]
    assert min(contrast(paint.light, ground) for ground in (PAPER, surface.light)) >= TEXT
    assert min(contrast(paint.dark, ground) for ground in (NIGHT, surface.dark)) >= TEXT


@pytest.mark.parametrize("kind", LOOKS)
def test_what_is_written_on_a_badge_can_be_read(kind: Kind) -> None:
    assert contrast(BADGE_INK, LOOKS[kind].fill) >= TEXT


@pytest.mark.parametrize("part", SEEN)
def test_lines_stand_out_from_their_ground(part: str) -> None:
    assert contrast(PARTS[part].light, PAPER) >= GRAPHICS
    assert contrast(PARTS[part].dark, NIGHT) >= GRAPHICS


def test_nothing_depends_on_colour_alone() -> None:
    words = [look.word for look in LOOKS.values()]
    assert len(set(words)) == len(words)
    # The two that are leaks share their mark and differ by word.
    rest = [look for kind, look in LOOKS.items() if kind != "critical"]
    assert len({look.mark for look in rest}) == len(rest)
    assert len({look.ascii_mark for look in rest}) == len(rest)
    assert FIT_DASH != FLOOR_DASH
    assert len(set(LEGEND.values())) == len(LEGEND)


def test_every_mark_on_a_chart_has_a_look_of_its_own() -> None:
    assert set(FLAGS) == set(get_args(MarkKind))
    for name in ("mark", "word", "ascii_mark"):
        assert len({getattr(flag, name) for flag in FLAGS.values()}) == len(FLAGS), name
    assert all(len(flag.mark) == 1 and flag.ascii_mark.isascii() for flag in FLAGS.values())
    assert {flag.colour for flag in FLAGS.values()} <= {*LOOKS, *PARTS}


def test_every_kind_and_severity_has_a_look() -> None:
    assert set(LOOKS) == set(get_args(Kind))
    assert set(SEVERITY_KINDS) == set(get_args(Severity))
    assert all(len(look.mark) == 1 and len(look.ascii_mark) == 1 for look in LOOKS.values())
    assert all(look.ascii_mark.isascii() for look in LOOKS.values())
    assert set(LEGEND) <= set(PARTS)
