"""The pictures that ``plot`` has written are what it writes."""

from __future__ import annotations

import re

import pytest

from gpuwatchd.charts import child_process
from tests.conftest import need
from tests.docs import plots

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_file_says_what_the_program_draws(name: str) -> None:
    need(child_process.available(), "the extra charts is not installed")
    there = (plots.FOLDER / name).read_text(encoding="utf-8")
    assert plots.said(there) == plots.said(plots.picture(name)), "run make docs"
    assert re.findall(r"href=\"(?!#)|@import|@font-face|<script", there) == []
    assert len(there) < 80_000
