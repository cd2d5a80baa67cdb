"""The drawing that is seen without scripts and on paper."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import msgspec
import pytest

from gpuwatchd.charts.drawing import Curve, Picture
from gpuwatchd.charts.scales import frame
from gpuwatchd.charts.svg import HEIGHT, draw
from tests.browser import gallery

KINDS = {one.key: one for one in gallery.everything()}


def parsed(picture: Picture) -> ET.Element:
    return ET.fromstring(draw(picture))


def texts(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter("text")]


def of(root: ET.Element, name: str) -> list[ET.Element]:
    return [node for node in root.iter() if node.get("class") == name]


@pytest.mark.parametrize("key", KINDS)
def test_it_is_well_formed_and_within_its_frame(key: str) -> None:
    root = parsed(KINDS[key])
    assert (root.get("width"), root.get("height")) == ("100%", str(HEIGHT))
    for node in root.iter("text"):
        assert 0 <= float(node.get("x", "-1").removesuffix("%")) <= 100
        assert 0 <= float(node.get("y", "-1")) <= HEIGHT
    assert not re.search(r"nan|inf\b", draw(KINDS[key]), re.IGNORECASE)


def test_gaps_are_not_bridged() -> None:
    root = parsed(gallery.gaps())
    lines = [node.get("d", "") for node in of(root, "s-curve")]
    assert len(lines) == 3
    assert ["h0.01" in line for line in lines] == [False, True, False]  # the lone sample: a dot
    assert len(of(root, "f-gap")) == 3
    assert texts(root).count("the GPU was lost") == 3


def test_text_from_elsewhere_is_text() -> None:
    root = parsed(gallery.hostile())
    assert [node.tag for node in root.iter() if node.tag in {"script", "img"}] == []


def test_levels_beyond_all_bounds_are_drawn() -> None:
    wild = Curve(
        at_s=(1.0, 2.0), used_bytes=(0.0, 2.0**62), low_bytes=(0.0, 0.0), high_bytes=(0.0, 2.0**62)
    )
    picture = Picture(
        key="k", title="t", kind="calm", verdict="v", begin_s=0.0, end_s=0.0, now_s=0.0,
        curve=wild, limit_bytes=0.0,
    )  # fmt: skip
    assert len(of(parsed(picture), "s-curve")) == 1


@pytest.mark.parametrize("high_s", [60.0 * 3600, None])
def test_a_forecast_far_away_keeps_its_slope(high_s: float | None) -> None:
    near = gallery.leak()
    told = near.forecast
    assert told is not None
    assert told.limit_bytes is not None
    width_s = near.end_s - near.begin_s
    mid_s = 60.0 * width_s
    far = msgspec.structs.replace(
        near,
        forecast=msgspec.structs.replace(
            told, low_s=0.9 * mid_s, mid_s=mid_s, high_s=None if high_s is None else 1.1 * mid_s
        ),
    )
    shown = frame(far)
    scale = (shown.end_s - shown.begin_s) / shown.top_bytes * (236 / 1000)
    root = parsed(far)

    def slope(line: str) -> float:
        (x, y), (x_far, y_far) = re.findall(r"([-\d.]+) ([-\d.]+)", line)
        return (float(y) - float(y_far)) / (float(x_far) - float(x))

    (fit,) = (node.get("d", "") for node in of(root, "s-fit") if "h0.01" not in node.get("d", ""))
    room = told.limit_bytes - told.level_bytes
    assert slope(fit[fit.index("L") :]) == pytest.approx(room / mid_s * scale, rel=0.02)
    (cone,) = (node.get("d", "") for node in root.iter("path") if node.get("fill-opacity"))
    steep = "L".join(cone.split("L")[:2])
    assert slope(steep) == pytest.approx(room / (0.9 * mid_s) * scale, rel=0.02)
