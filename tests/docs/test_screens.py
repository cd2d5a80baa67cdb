"""The pictures of the program are what it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from gpuwatchd.charts import child_process
from tests.conftest import ROOT, need
from tests.docs import plots, screens

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*screens.SCREENS, *screens.LIVE])
def test_a_picture_is_what_the_program_shows(name: str) -> None:
    there = (screens.FOLDER / name).read_text(encoding="utf-8")
    assert there == screens.picture(name), "run make docs"


@pytest.mark.parametrize("name", [*screens.SCREENS, *screens.LIVE])
def test_a_picture_is_sound_and_loads_nothing(name: str) -> None:
    text = (screens.FOLDER / name).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    words = {child.tag.rpartition("}")[2]: child.text for child in root}
    assert (words["title"] or "").startswith("gpuwatchctl")
    assert len(words["desc"] or "") > 40
    assert re.findall(r"(?:href|url|@import|@font-face)", text) == []
    assert len(text) < 30_000
    assert "daemon was stopped" not in text


def test_the_picture_of_the_mail_is_of_the_message_that_is_sent() -> None:
    file = screens.FOLDER / "alert-mail.png"
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert file.stat().st_size <= 150_000
    shown = re.search(
        r'alert-mail\.png"[^>]*alt="A mail: ([^;]*);', (ROOT / "README.md").read_text("utf-8")
    )
    assert shown
    sent = screens.message()
    assert sent.subject == f"{shown[1]} (lab3)", "draw the mail anew, see tests/docs/screens.py"
    assert sent.chart is not None


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_file_says_what_the_program_draws(name: str) -> None:
    need(child_process.available(), "the extra charts is not installed")
    there = (plots.FOLDER / name).read_text(encoding="utf-8")
    assert plots.said(there) == plots.said(plots.picture(name)), "run make docs"
    assert re.findall(r"href=\"(?!#)|@import|@font-face|<script", there) == []
    assert len(there) < 80_000
