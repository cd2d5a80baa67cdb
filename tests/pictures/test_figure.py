"""Pictures as files: sound, the same every time, and where the numbers say."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from msgspec.structs import replace

from gpuwatchd.charts import drawing_process as children
from gpuwatchd.charts import matplotlib_renderer as figure
from gpuwatchd.charts import picture_file
from gpuwatchd.charts.chart_model import Curve, Order, Picture, frame
from gpuwatchd.charts.svg import HEIGHT, draw
from gpuwatchd.core import design, units
from gpuwatchd.core.errors import GpuwatchdError
from tests.browser import gallery
from tests.conftest import need

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {one.key: one for one in gallery.everything()}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def _charts() -> None:
    need(children.available(), "the extra charts is not installed")


def order(*keys: str, **changes: Any) -> Order:
    chosen = tuple(KINDS[key] for key in keys or ("gpu0/4711",))
    return Order(**{"pictures": chosen, "form": "png", **changes})


def opened(png: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(png))


@pytest.mark.usefixtures("_charts")
@pytest.mark.parametrize("key", KINDS)
def test_every_picture_is_a_sound_svg_with_its_words(key: str) -> None:
    drawn = figure.draw(order(key, form="svg"))
    root = ET.fromstring(drawn.decode())
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert (title.text or "").endswith(": memory over time")
    assert len(desc.text or "") > 30
    assert b"<script" not in drawn
    assert b'xlink:href="http' not in drawn
    assert "".join(root.itertext()).count("memory used") == (0 if KINDS[key].empty else 1)


@pytest.mark.slow
@pytest.mark.usefixtures("_charts")
def test_the_same_order_gives_the_same_file() -> None:
    for form in ("svg", "png"):
        wish = order(form=form)
        assert figure.draw(wish) == figure.draw(wish)
    assert b"dc:date" not in figure.draw(order(form="svg"))


@pytest.mark.usefixtures("_charts")
def test_a_png_has_its_size_and_its_words() -> None:
    image = opened(figure.draw(order(width_px=1200, height_px=800)))
    assert image.size == (1200, 800)
    assert image.text["Title"].endswith(": memory over time")
    assert "full in 47 min (39 to 62 min)" in image.text["Description"]
    assert opened(figure.draw(order(width_px=400, height_px=300))).size == (400, 300)


@pytest.mark.slow
@pytest.mark.usefixtures("_charts")
def test_several_subjects_are_panels_of_one_file() -> None:
    one = opened(figure.draw(order()))
    two = opened(figure.draw(order("gpu0/4711", "gpu0")))
    assert two.size[0] == one.size[0]
    assert two.size[1] > 1.8 * one.size[1]
    assert "and 1 more" in two.text["Title"]


@pytest.mark.usefixtures("_charts")
def test_dark_is_drawn_on_night() -> None:
    light = opened(figure.draw(order())).convert("RGB")
    dark = opened(figure.draw(order(dark=True))).convert("RGB")
    assert "#{:02x}{:02x}{:02x}".format(*light.getpixel((2, 2))) == design.PAPER
    assert "#{:02x}{:02x}{:02x}".format(*dark.getpixel((2, 2))) == design.NIGHT
    wanted = tuple(int(design.PARTS["curve"].dark[k : k + 2], 16) for k in (1, 3, 5))
    assert wanted in {colour for _, colour in dark.getcolors(1 << 20)}


@pytest.mark.usefixtures("_charts")
@pytest.mark.parametrize(("minutes", "said"), [(5, False), (120, True)])
def test_a_tick_leaves_its_room_to_the_day(minutes: int, said: bool) -> None:
    six_s = 1_763_618_400.0 // 86_400 * 86_400 + 6 * 3600
    begin_s, end_s = six_s - minutes * 60, six_s + 86_400 - minutes * 60
    whole = Curve(at_s=(begin_s, end_s), used_bytes=(1e9, 2e9), low_bytes=(1e9, 2e9),
                  high_bytes=(1e9, 2e9))  # fmt: skip
    shown = replace(
        KINDS["gpu3"], begin_s=begin_s, end_s=end_s, now_s=end_s, curve=whole, marks=(), gaps=()
    )
    words = ET.fromstring(figure.draw(Order(pictures=(shown,), form="svg")).decode()).itertext()
    found = [word.strip() for word in words]
    assert units.clock(begin_s)[:10] in found
    assert "12:00" in found
    assert ("06:00" in found) is said


@pytest.mark.slow
@pytest.mark.usefixtures("_charts")
def test_a_gap_has_no_curve_and_an_open_end_no_edge() -> None:
    import numpy as np

    def columns(key: str, part: str) -> Any:
        image = np.asarray(opened(figure.draw(order(key))).convert("RGB")).astype(int)
        colour = [int(design.PARTS[part].light[k : k + 2], 16) for k in (1, 3, 5)]
        plot = image[: int(0.7 * len(image))]  # below there is the legend
        return np.unique(np.argwhere(np.abs(plot - colour).max(axis=2) < 12)[:, 1])

    curve = columns("gpu2", "curve")
    assert (np.diff(curve) > 60).sum() >= 2
    assert len(columns("gpu0/4711", "band")) > 30  # the window on the limit
    assert len(columns("gpu1/99", "band")) == 0


@pytest.mark.usefixtures("_charts")
def test_foreign_text_is_text() -> None:
    drawn = figure.draw(order("gpu5/6", form="svg"))
    assert b"&lt;script&gt;" in drawn
    rude = replace(KINDS["gpu0"], title="$\\frac{$ \x1b[2J 日本 \u202e", verdict="$$")
    assert figure.draw(replace(order(), pictures=(rude,))).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("_charts")
def test_it_is_drawn_by_a_child_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"  # beside what matplotlib leaves at home where it is new
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert picture_file.draw(order()) == figure.draw(order())
    assert list(scratch.iterdir()) == []
    code = (
        "import sys; import gpuwatchd.charts.picture_file, gpuwatchd.cli.verbs.plot;"
        "print([n for n in ('matplotlib', 'PIL', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_nonsense_ends_with_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, *children.PROGRAM],
        input=b'{"pictures": 5}', capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"ValidationError" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(60)", "not drawn within 0.5 s"),
        ("raise SystemExit('no such font')", "no such font"),
        ("print('no picture')", "what came is no picture"),
    ],
)
def test_what_goes_wrong_is_said(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.setattr(children, "PROGRAM", ("-c", program))
    monkeypatch.setattr(children, "available", lambda: True)
    with pytest.raises(GpuwatchdError, match=said) as caught:
        picture_file.draw(order(), deadline_s=0.5)
    assert caught.value.hint


def test_too_many_or_too_little_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "available", lambda: True)
    with pytest.raises(GpuwatchdError, match="33 charts are too many"):
        picture_file.draw(order(*["gpu0"] * 33))
    with pytest.raises(GpuwatchdError, match="have no room in 400x300"):
        picture_file.draw(order("gpu0", "gpu1/99", width_px=400, height_px=300))


def test_an_order_survives_its_way() -> None:
    wish = order(*KINDS, dark=True, window=(1.0, 2.0))
    assert msgspec.json.decode(msgspec.json.encode(wish), type=Order) == wish


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
