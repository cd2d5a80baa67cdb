"""What of time and memory a chart shows."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatchd.charts import chart_model
from gpuwatchd.core import units
from tests.browser import gallery

if TYPE_CHECKING:
    from collections.abc import Iterator


GIB = 1024.0**3


@given(st.floats(0, 4e9), st.floats(1, 3e8), st.integers(1, 12))
def test_instants_are_few_ascending_and_inside(begin_s: float, span_s: float, count: int) -> None:
    found, step_s = chart_model.instants(begin_s, begin_s + span_s, count)
    assert len(found) <= count + 2
    assert found == sorted(set(found))
    assert all(begin_s <= at_s <= begin_s + span_s for at_s in found)
    assert step_s > 0


@given(st.floats(1024.0**2, 1024.0**5), st.integers(1, 8))
def test_levels_are_few_and_none_is_said_twice(top: float, count: int) -> None:
    found = chart_model.levels(top, count)
    assert found[0] == 0.0
    assert 1 <= len(found) <= count + 1
    assert found[-1] <= top
    said = [chart_model.level(one) for one in found]
    assert len(set(said)) == len(said)


def test_hours_stay_round_when_the_clocks_change(berlin: None) -> None:
    begin_s = units.parse_instant("2026-10-24T18:30+02:00", now_s=0.0)
    found, step_s = chart_model.instants(begin_s, begin_s + 20 * 3600, 5)
    assert [units.tick(at_s, step_s=step_s) for at_s in found] == ["Sun 25", "06:00", "12:00"]


def test_days_are_midnights_on_both_sides_of_a_change(berlin: None) -> None:
    begin_s = units.parse_instant("2026-10-23T12:00+02:00", now_s=0.0)
    found, step_s = chart_model.instants(begin_s, begin_s + 4 * 86400, 4)
    assert [units.tick(at_s, step_s=step_s) for at_s in found] == [
        "Sat 24", "Sun 25", "Mon 26", "Tue 27",
    ]  # fmt: skip


def test_a_forecast_reaches_into_the_future_but_not_too_far() -> None:
    leak = gallery.leak()
    told = leak.forecast
    assert told is not None
    assert told.high_s is not None
    begin_s, end_s = chart_model.span(leak)
    assert begin_s == leak.begin_s
    assert end_s == told.judged_at_s + 1.06 * told.high_s
    far = replace(leak, forecast=replace(told, low_s=8e6, mid_s=9e6, high_s=None))
    past_s = leak.end_s - leak.begin_s
    assert chart_model.span(far)[1] == told.judged_at_s + 4 * past_s
    assert chart_model.span(replace(leak, forecast=None)) == (leak.begin_s, leak.end_s)


def test_the_limit_is_shown_where_memory_is_near_it_or_leads_there() -> None:
    leak = gallery.leak()
    assert leak.limit_bytes is not None
    assert chart_model.top_bytes(leak) > leak.limit_bytes
    far = replace(leak, limit_bytes=4000 * GIB)
    assert chart_model.top_bytes(far) > 4000 * GIB
    assert chart_model.top_bytes(replace(far, forecast=None)) < 40 * GIB


def test_a_window_is_what_is_shown() -> None:
    shown = chart_model.frame(gallery.leak(), (1000.0, 2000.0))
    assert (shown.begin_s, shown.end_s) == (1000.0, 2000.0)
    assert chart_model.frame(gallery.leak(), (1000.0, 1000.0)).end_s > 1000.0


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


def test_the_end_of_summer_is_found_to_the_second(berlin: None) -> None:
    begin_s = at("2026-10-20T12:00")
    change_s = datetime.fromisoformat("2026-10-25T01:00+00:00").timestamp()
    rows = chart_model.zone_rows(begin_s, begin_s + 30 * 86400)
    assert rows == [(begin_s, 7200.0, "CEST"), (change_s, 3600.0, "CET")]


def test_an_instant_beyond_the_calendar_is_no_fault() -> None:
    assert chart_model.zone_rows(1e18, 1e18) == [(1e18, 0.0, "local time")]
