"""Local time over a span, for readers elsewhere."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from gpuwatchd.charts import scales

if TYPE_CHECKING:
    from collections.abc import Iterator

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def test_a_span_without_a_change_has_one_row(berlin: None) -> None:
    begin_s = at("2026-11-01T00:00")
    assert scales.zone_rows(begin_s, begin_s + 86400) == [(begin_s, 3600.0, "CET")]


def test_the_end_of_summer_is_found_to_the_second(berlin: None) -> None:
    begin_s = at("2026-10-20T12:00")
    change_s = datetime.fromisoformat("2026-10-25T01:00+00:00").timestamp()
    rows = scales.zone_rows(begin_s, begin_s + 30 * 86400)
    assert rows == [(begin_s, 7200.0, "CEST"), (change_s, 3600.0, "CET")]


def test_a_year_has_both_changes(berlin: None) -> None:
    begin_s = at("2026-01-10T00:00")
    names = [name for _, _, name in scales.zone_rows(begin_s, begin_s + 364 * 86400)]
    assert names == ["CET", "CEST", "CET"]


def test_an_instant_beyond_the_calendar_is_no_fault() -> None:
    assert scales.zone_rows(1e18, 1e18) == [(1e18, 0.0, "local time")]
