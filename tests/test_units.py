"""Quantities in and out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0", 0),
        ("512MiB", 512 * 1024**2),
        ("24 GiB", 24 * 1024**3),
        ("1.5GB", 1_500_000_000),
        ("1e3", 1000),
    ],
)
def test_sizes(written: str, value: int) -> None:
    assert units.parse_size(written) == value


@pytest.mark.parametrize(
    "written", ["", "GiB", "12 parsecs", "-1GiB", "1 2GiB", "nan", "1e999", "1e19"]
)
def test_what_is_no_size_says_how_to_write_one(written: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write for example"):
        units.parse_size(written)


@pytest.mark.parametrize(
    ("written", "value_s"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("7d", 604800),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("5", 5),
    ],
)
def test_durations(written: str, value_s: float) -> None:
    assert units.parse_duration(written) == value_s


@pytest.mark.parametrize("written", ["", "h", "5 lightyears", "-5s", "1h xm", "inf", "nan"])
def test_what_is_no_duration_says_how_to_write_one(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write for example"):
        units.parse_duration(written)


@given(st.floats(min_value=0.001, max_value=1e9))
def test_a_written_duration_reads_back(value_s: float) -> None:
    rounded = float(f"{value_s:g}")
    assert math.isclose(units.parse_duration(units.short_duration(rounded)), rounded, rel_tol=1e-4)


@given(st.floats())
def test_nothing_that_formats_ever_fails_or_lies(value: float) -> None:
    for form in (units.size, units.rate, units.duration, units.percent):
        words = form(value)
        assert words
        if not math.isfinite(value):
            assert words == "?"


def test_unknown_is_a_question_mark_never_zero() -> None:
    assert {form(None) for form in (units.size, units.rate, units.duration, units.percent)} == {"?"}


def test_instants_are_rfc_3339_in_utc() -> None:
    assert units.instant(1_764_000_000.25) == "2025-11-24T16:00:00.250Z"
    assert units.instant(None) is None
    assert units.instant(1e20) is None


@pytest.mark.parametrize("written", ["yesterday", "today"])
def test_days_begin_at_local_midnight(written: str) -> None:
    now_s = 1_764_000_000.0
    assert 0 <= now_s - units.parse_instant(written, now_s=now_s) <= 2 * 86400


def test_what_is_no_time_says_how_to_write_one() -> None:
    with pytest.raises(ValueError, match="write 2h, today"):
        units.parse_instant("last christmas", now_s=0.0)


@pytest.mark.parametrize("written", ["99999999999999d", "1e18", "0001-01-01", "9999999d"])
def test_no_time_is_beyond_every_calendar(written: str) -> None:
    with pytest.raises(ValueError, match=r"is beyond every calendar|is not a time"):
        units.parse_instant(written, now_s=1_764_000_000.0)


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=40))
def test_a_sparkline_has_one_character_per_value(values: list[float | None]) -> None:
    line = units.spark(values, low=0, high=100)
    assert len(line) == len(values)
    assert all((mark == " ") == (value is None) for mark, value in zip(line, values, strict=True))


@pytest.mark.parametrize("at_s", [1e300, -1e300, float("nan"), float("inf"), 1e15])
def test_an_instant_that_no_calendar_has_is_unknown(at_s: float) -> None:
    assert units.clock(at_s) == "?"
    assert units.instant(at_s) is None
    assert units.moment(at_s, now_s=0.0) == "?"
    assert units.zone(at_s) == "local time"


@pytest.mark.parametrize(
    ("zone", "later_s", "words"),
    [
        ("UTC", 0.0, "02:07"),
        ("UTC", 79_200.0, "Mon 00:07"),
        ("UTC", -10_800.0, "Sat 23:07"),
        ("UTC", 6 * 86_400.0, "Sat 02:07"),
        ("UTC", 7 * 86_400.0, "Sun 2026-11-29 02:07"),
        ("Asia/Kolkata", 0.0, "07:37"),
    ],
)
def test_a_moment_says_its_day_when_it_is_another(
    zone: str, later_s: float, words: str, live_in: Callable[[str], None]
) -> None:
    live_in(zone)
    now_s = 1_795_313_220.0  # Sunday, 22 November 2026, 02:07 UTC
    assert units.moment(now_s + later_s, now_s=now_s) == words
    named = units.moment(now_s + later_s, now_s=now_s, zone=True)
    assert named == f"{words} {'IST' if zone == 'Asia/Kolkata' else 'UTC'}"


def test_a_zone_without_letters_is_said_by_its_distance(live_in: Callable[[str], None]) -> None:
    live_in("<+0330>-3:30")
    assert units.moment(0.0, now_s=0.0, zone=True) == "03:30 UTC+03:30"


def test_a_tick_is_as_short_as_it_can_be(live_in: Callable[[str], None]) -> None:
    live_in("Europe/Berlin")
    noon_s = units.parse_instant("2026-11-21T12:00+01:00", now_s=0.0)
    midnight_s = noon_s - 12 * 3600
    assert units.tick(noon_s, step_s=3600) == "12:00"
    assert units.tick(noon_s + 5, step_s=5) == "12:00:05"
    assert units.tick(noon_s, step_s=5) == "12:00"
    assert units.tick(midnight_s, step_s=3600) == "Sat 21"
    assert units.tick(midnight_s, step_s=7 * 86400) == "11-21"
    assert units.tick(midnight_s, step_s=91 * 86400) == "2026-11-21"
    assert units.tick(1e20, step_s=60) == "?"


@given(st.floats(min_value=0.0, max_value=30 * 86400.0))
def test_a_duration_that_was_printed_can_be_typed(value_s: float) -> None:
    step_s = 1.0 if value_s < 120 else 60.0 if value_s < 86_370 else 3600.0
    assert units.parse_duration(units.duration(value_s)) == pytest.approx(value_s, abs=step_s / 2)


def test_a_duration_stays_narrow() -> None:
    assert max(len(units.duration(value_s)) for value_s in range(0, 9 * 86400, 7)) <= 11
