"""The one design: what is written can be read, what differs can be told apart, by everybody."""

from __future__ import annotations

from itertools import combinations
from typing import Any, get_args

import pytest

from gpuwatchd.charts.chart_model import MarkKind
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
APART = 10.0
"""Distance in CIE L*a*b* at which two colours that lie apart are plainly not the same; some 2.3
is what can just be seen side by side."""
WRITTEN = ("ink", "faint", "limit", "curve")
SEEN = ("curve", "floor", "fit", "limit", "now")

# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes: A Physiologically-based Model for Simulation
# of Color Vision Deficiency, IEEE TVCG 15(6), 2009; severity 1.0, of linear RGB.
SIGHT = {
    "everybody": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


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


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    """Return CIE L*a*b* (D65) of linear RGB."""
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = (sum(k * c for k, c in zip(row, rgb, strict=True)) for row in to_xyz)

    def curve(share: float) -> float:
        return share ** (1 / 3) if share > 216 / 24389 else (24389 / 27 * share + 16) / 116

    x, y, z = (curve(v / w) for v, w in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, sight: str) -> float:
    """Return how far apart two colours are for somebody, in CIE L*a*b*."""

    def seen(colour: str) -> tuple[float, float, float]:
        rgb = linear(colour)
        rows = (sum(k * c for k, c in zip(row, rgb, strict=True)) for row in SIGHT[sight])
        return lab(tuple(min(max(part, 0.0), 1.0) for part in rows))

    pairs = zip(seen(one), seen(other), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


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


@pytest.mark.parametrize("sight", SIGHT)
def test_badges_can_be_told_apart(sight: str) -> None:
    pairs = combinations(LOOKS, 2)
    found = {(a, b): distance(LOOKS[a].fill, LOOKS[b].fill, sight) for a, b in pairs}
    assert {pair: d for pair, d in found.items() if d < APART} == {}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_can_be_told_apart(sight: str, scheme: str) -> None:
    lines = ("curve", "floor", "fit", "limit", "band")
    pairs = combinations(lines, 2)
    found = {
        (a, b): distance(getattr(PARTS[a], scheme), getattr(PARTS[b], scheme), sight)
        for a, b in pairs
    }
    assert {pair: d for pair, d in found.items() if d < APART} == {}


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
