"""A mail as a browser shows it: the picture is there, where the numbers say, light and dark.

``python -m tests.real.mail_picture FOLDER`` saves the same pages for eyes.
"""

from __future__ import annotations

import email
import email.policy
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.charts import chart_model, drawing_process
from gpuwatchd.core.design import PARTS
from gpuwatchd.notify.channels.email.message import compose
from tests.conftest import need, present
from tests.real import mail_picture

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from gpuwatchd.core.model import Message

pytestmark = [pytest.mark.real_browser, pytest.mark.timeout(300)]

NOW_S = 1_795_313_220.0


@pytest.fixture(scope="module")
def message() -> Message:
    need(mail_picture.browser(), "chromium is missing")
    need(drawing_process.available(), "the extra charts is not installed")
    return mail_picture.letter(NOW_S)


@pytest.fixture(scope="module")
def png(message: Message) -> bytes:
    return present(drawing_process.draw(present(message.chart), deadline_s=120.0))


def _page(message: Message, png: bytes | None, folder: Path) -> Path:
    mail = compose(message, sender="g@example.org", to=["a@example.org"], host="lab3", picture=png)
    read = email.message_from_bytes(mail.as_bytes(), policy=email.policy.default)
    return mail_picture.unpack(read, folder)


def _seen(page: Path, *, width: int, dark: bool) -> npt.NDArray[np.uint8]:
    """Return the page as pixels of the screen, (height, 2 * width, 3)."""
    import numpy as np
    from PIL import Image

    out = page.with_name(f"{width}-{dark}.png")
    mail_picture.shoot(page, out, width=width, dark=dark)
    return np.asarray(Image.open(out).convert("RGB"))[:, : 2 * width]


def _rows(image: npt.NDArray[np.uint8], colour: str, *, off: int = 14) -> npt.NDArray[Any]:
    """Return how many pixels of a colour are in each row."""
    import numpy as np

    wanted = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    counts: npt.NDArray[Any] = (np.abs(image.astype(int) - wanted).max(axis=2) <= off).sum(axis=1)
    return counts


@pytest.mark.parametrize("width", mail_picture.WIDTHS)
def test_the_picture_is_on_the_page(
    message: Message, png: bytes, tmp_path: Path, width: int
) -> None:
    image = _seen(_page(message, png, tmp_path), width=width, dark=False)
    limit, curve = _rows(image, PARTS["limit"].light), _rows(image, PARTS["curve"].light)
    # The limit goes across the page beside the band on it, and the curve stays below it.
    assert limit.max() > 0.4 * image.shape[1]
    assert limit.argmax() < curve.nonzero()[0].min()
    assert curve.sum() > 100
    # Everything is on it: the page ends above the end of the screen, in its own colour.
    assert image[-40:].min() == 255
    assert image[:, -4:].min() == 255  # nothing is cut off at the right


def test_the_end_is_where_it_should_be(message: Message, png: bytes, tmp_path: Path) -> None:
    import numpy as np

    chart = present(message.chart)
    image = _seen(_page(message, png, tmp_path), width=640, dark=False).astype(int)
    wanted = [int(PARTS["limit"].light[k : k + 2], 16) for k in (1, 3, 5)]
    row = int(_rows(image.astype(np.uint8), PARTS["limit"].light).argmax())
    across = (np.abs(image[row] - wanted).max(axis=1) <= 14).nonzero()[0]
    left, right = int(across.min()), int(across.max())
    # Within the chart alone: the bar at the left of the page has a colour near to it.
    below = np.abs(image[row + 7 : row + 16, left : right + 1] - wanted).max(axis=2) <= 40
    cross = left + below.nonzero()[1].mean()
    begin_s, end_s, _ = chart_model.frame(drawing_process.picture_of(chart))
    share = (NOW_S + present(chart.mid_s) - begin_s) / (end_s - begin_s)
    assert cross == pytest.approx(left + share * (right - left), abs=8)


def test_in_the_dark_it_is_dark_and_the_line_is_still_there(
    message: Message, png: bytes, tmp_path: Path
) -> None:
    image = _seen(_page(message, png, tmp_path), width=640, dark=True)
    assert (image.mean(axis=2) < 80).mean() > 0.8
    # What was a white sheet is dark, and the limit is still of a warm colour, right across.
    warm = (image[:, :, 0].astype(int) - image[:, :, 2] > 90).sum(axis=1)
    assert warm.max() > 0.65 * image.shape[1]


def test_without_a_picture_the_page_has_a_line_of_text(message: Message, tmp_path: Path) -> None:
    page = _page(message, None, tmp_path)
    assert "<img" not in page.read_text(encoding="utf-8")
    image = _seen(page, width=360, dark=False)
    assert image[:, -4:].min() == 255
    assert _rows(image, PARTS["limit"].light).max() == 0


def test_the_longest_texts_stay_within_a_phone(message: Message, tmp_path: Path) -> None:
    long = msgspec.structs.replace(
        message, subject="x" * 78, facts={"Who": "y" * 230, "Also": "a b " * 57}
    )
    image = _seen(_page(long, None, tmp_path), width=360, dark=False)
    assert image[:, -4:].min() == 255
