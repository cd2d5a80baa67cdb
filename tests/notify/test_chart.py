"""The picture of a growth: what it spans, what stands in it, and how its process behaves."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.charts import chart_model, drawing_process, matplotlib_renderer, text_description
from gpuwatchd.core import design
from gpuwatchd.core.model import Chart
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.channels.email.message import as_html, compose
from tests.conftest import need
from tests.making import present

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from gpuwatchd.core.model import Message

GIB = 1024.0**3
NOW_S = 1_795_313_220.0
"""Sunday, 22 November 2026, 02:07 UTC."""


@pytest.fixture(autouse=True)
def _zone(live_in: Callable[[str], None]) -> None:
    live_in("UTC")


@pytest.fixture
def drawn_here() -> None:
    need(drawing_process.available(), "the extra charts is not installed")


def leak(**changes: Any) -> Chart:
    """Return 20 calm minutes, 40 of growth from 12 to 16 GiB, full in an hour and a half."""
    at_s = tuple(NOW_S - 3600.0 + 36.0 * k for k in range(101))
    values: dict[str, Any] = {
        "at_s": at_s,
        "used_bytes": tuple(
            12 * GIB + 4 * GIB * max(0.0, at - at_s[0] - 1200.0) / 2400 for at in at_s
        ),
        "limit_bytes": 22 * GIB,
        "onset_at_s": NOW_S - 2400.0,
        "judged_at_s": NOW_S,
        "rate_bytes_per_s": 4 * GIB / 2400,
        "level_bytes": 16 * GIB,
        "low_s": 4500.0,
        "mid_s": 5400.0,
        "high_s": 7200.0,
    }
    return Chart(**(values | changes))


def pixels(png: bytes) -> npt.NDArray[np.uint8]:
    """Return a picture as (height, width, 3)."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def places(image: npt.NDArray[np.uint8], colour: str) -> npt.NDArray[Any]:
    """Return where a colour is, (n, 2) of row and column."""
    import numpy as np

    wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    near = np.abs(image.astype(int) - wanted).max(axis=2) <= 12
    return np.argwhere(near)


def on_paper(colour: str, opacity: float) -> str:
    """Return how a colour that is let through looks on white."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(255 - opacity * (255 - part)):02x}" for part in parts)


def test_a_line_of_text_has_its_scale() -> None:
    marks, scale = text_description.sparkline(leak()).splitlines()
    assert (len(marks), marks[0], marks[-1]) == (text_description.SPARK_CHARS, "▁", "█")
    assert list(marks) == sorted(marks)
    assert scale == "12.0 GiB to 16.0 GiB of 22.0 GiB, 01:07 to 02:07 UTC"


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, "12.0 01:27 16.0 02:07 22.0 03:37 03:22 04:07"),
        ({"high_s": None}, "12.0 01:27 16.0 02:07 22.0 03:37 03:22"),
        ({"mid_s": None}, "12.0 01:27 16.0 02:07 22.0"),
        ({"limit_bytes": None}, "12.0 01:27 16.0 02:07"),
    ],
)
def test_the_words_say_what_the_picture_shows(changes: dict[str, Any], numbers: str) -> None:
    said = text_description.words(leak(**changes))
    assert re.findall(r"\d+[.:]\d+", said) == numbers.split()
    falls = {"used_bytes": leak().used_bytes[::-1], "onset_at_s": None}
    nothing = dict.fromkeys(("rate_bytes_per_s", "level_bytes", "mid_s"))
    fallen = text_description.words(leak(**falls, **nothing))
    assert re.findall(r"\d+[.:]\d+", fallen)[:3] == ["16.0", "01:07", "12.0"]


@pytest.mark.slow
def test_the_lines_are_where_the_numbers_say(drawn_here: None) -> None:
    file = drawing_process.draw(leak(), deadline_s=30.0)
    assert file is not None
    image = pixels(file)
    height, width, _ = image.shape
    assert (width, height) == drawing_process.SIZE_PX
    begin_s, end_s, _ = chart_model.frame(drawing_process.picture_of(leak()))
    left, right = (0.82 / 5.33), 1.0 - 0.3 / 5.33

    def column(at_s: float) -> float:
        """Where an instant is."""
        share = (at_s - begin_s) / (end_s - begin_s)
        return float((left + (right - left) * share) * width)

    limit = places(image, design.PARTS["limit"].light)
    rows, counts = _most_common(limit[:, 0])
    limit_row = float(rows[counts.argmax()])
    assert counts.max() > 0.6 * width  # across the picture, but for the band on it
    # The cross at the end: the limit's colour well below and above the line.
    cross = limit[(limit[:, 0] > limit_row + 6) & (limit[:, 0] < limit_row + 20)]
    assert cross[:, 1].mean() == pytest.approx(column(NOW_S + 5400.0), abs=6)
    # The curve ends now, and rises.
    line = places(image, design.PARTS["curve"].light)
    assert line[:, 1].min() == pytest.approx(column(begin_s), abs=8)
    assert line[:, 1].max() == pytest.approx(column(NOW_S), abs=8)
    assert line[line[:, 1].argmax(), 0] < line[line[:, 1].argmin(), 0]
    # 4 of the 10 GiB up to the limit are gone.
    low, high = line[:, 0].max(), line[:, 0].min()
    assert (low - high) / (low - limit_row) == pytest.approx(0.4, abs=0.03)
    # The shade lies after now, and not beyond the last of its cases.
    shade = places(image, on_paper(design.PARTS["band"].light, design.BAND_OPACITY))
    assert len(shade) > 2000
    assert shade[:, 1].min() > column(NOW_S)
    # Its tip is thinner than the band on the limit.
    assert column(NOW_S + 5400.0) < shade[:, 1].max() <= column(NOW_S + 7200.0)


def _most_common(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    import numpy as np

    return np.unique(values, return_counts=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"limit_bytes": None, "mid_s": None},
        {"mid_s": None, "rate_bytes_per_s": None, "level_bytes": None},
        {"high_s": None},
        {"low_s": 0.0, "mid_s": 0.0, "high_s": 0.0},
        {"used_bytes": (16 * GIB,) * 101, "limit_bytes": 16 * GIB},
        {"used_bytes": (0.0,) * 101, "limit_bytes": None},
        {"judged_at_s": None, "onset_at_s": None},
        {"mid_s": 1e12, "high_s": None},
    ],
)
def test_every_shape_can_be_drawn(drawn_here: None, changes: dict[str, Any]) -> None:
    odd = leak(**changes)
    order = drawing_process.order_of(odd)
    assert pixels(matplotlib_renderer.draw(order)).std() > 5


@pytest.mark.slow
def test_the_process_is_bounded_and_leaves_nothing(
    drawn_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("GPUWATCHD_SMTP_PASSWORD", "hush")
    assert drawing_process.draw(leak(), deadline_s=30.0) is not None
    assert list(tmp_path.iterdir()) == []
    kept = drawing_process.environment(os.environ, "/nowhere")
    assert "hush" not in kept.values()
    assert kept["TZ"] == "UTC"


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(60)",
        "raise SystemExit(1)",
        "print('no picture')",
        "import os; os.abort()",
    ],
)
def test_no_picture_is_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(drawing_process, "PROGRAM", ("-c", program))
    monkeypatch.setattr(drawing_process, "available", lambda: True)
    begun_s = time.monotonic()
    assert drawing_process.draw(leak(), deadline_s=0.5) is None
    assert time.monotonic() - begun_s < 3.0
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_nobody_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing_process, "available", lambda: False)
    monkeypatch.setattr(drawing_process, "PROGRAM", ("-c", "raise SystemExit('started')"))
    assert drawing_process.draw(leak()) is None


def test_the_channel_itself_never_imports_matplotlib() -> None:
    code = (
        "import sys; import gpuwatchd.notify.channels.email.channel;"
        "import gpuwatchd.charts.drawing_process;"
        "print([n for n in ('matplotlib', 'keyring', 'PIL') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_broken_chart_costs_nothing_but_itself(message: Message) -> None:
    for odd in (
        Chart(at_s=(), used_bytes=()),
        Chart(at_s=(1.0,), used_bytes=(5.0,)),
        Chart(at_s=(1.0, 2.0), used_bytes=(5.0,)),
        Chart(at_s=(2.0, 2.0), used_bytes=(5.0, 6.0)),
    ):
        broken = msgspec.structs.replace(message, chart=odd)
        assert drawing_process.draw(odd) is None
        assert plain_text.plain(broken) == plain_text.plain(message)
        assert as_html(broken) == as_html(message)


@pytest.mark.parametrize(
    "odd", [{"used_bytes": (float("nan"),) * 101}, {"rate_bytes_per_s": float("inf")}]
)
def test_odd_numbers_lose_no_mail(message: Message, odd: dict[str, Any]) -> None:
    broken = msgspec.structs.replace(message, chart=leak(**odd))
    mail = compose(broken, sender="g@example.org", to=["a@example.org"], host="h", picture=b"png")
    said = present(mail.get_body(("plain",)))
    assert message.command in said.get_content()


@pytest.mark.slow
def test_who_draws_cleans_up_also_when_nobody_waits_any_more(
    drawn_here: None, tmp_path: Path
) -> None:
    folder = tmp_path / f"{drawing_process.FOLDER}x"
    folder.mkdir()
    order = msgspec.json.encode(drawing_process.order_of(leak()))
    done = subprocess.run(
        [sys.executable, *drawing_process.PROGRAM], input=order, capture_output=True, check=True,
        env=drawing_process.environment(os.environ, str(folder)), timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith(b"\x89PNG")
    assert not folder.exists()
