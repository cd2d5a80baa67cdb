"""Laws of the shared parts: clock, amounts, sanity, runs, header words, places."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.fields import Clock, memory_role
from gpuwatchd.collect.logs.reader import contradicts
from gpuwatchd.collect.logs.series_builder import Repairs, split
from tests.conftest import present

MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1))  # noqa: DTZ001 - naive on purpose
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
LEVELS = st.one_of(st.floats(0, 1e11), st.just(math.nan))


@given(st.lists(MOMENTS, min_size=1, max_size=30), ZONES)
def test_a_column_of_times_reads_as_its_cells(moments: list[datetime], zone: str | None) -> None:
    for form in ("%Y/%m/%d %H:%M:%S.{ms}", "%Y-%m-%dT%H:%M:%S.{ms}", "%Y-%m-%d %H:%M:%S"):
        texts = [
            moment.strftime(form).replace("{ms}", f"{moment.microsecond // 1000:03d}")
            for moment in moments
        ]
        column = present(Clock(zone).column(texts))
        single = [Clock(zone).parse(text) for text in texts]
        assert column.tolist() == pytest.approx(single, abs=1e-6)


@given(MOMENTS)
def test_a_time_is_what_the_standard_library_says(moment: datetime) -> None:
    text = moment.isoformat(timespec="milliseconds")
    want = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    assert Clock().parse(text) == pytest.approx(want, abs=1e-4)
    assert Clock().parse(f"{text}+02:00") == pytest.approx(want - 7200, abs=1e-4)


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_nan(text: str) -> None:
    value = Clock().parse(text)
    assert math.isnan(value) or math.isfinite(value)


@given(st.text(max_size=20))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    try:
        value = fields.amount(text)
    except ValueError:
        return
    assert math.isnan(value) or 0 <= value <= fields.MAX_BYTES


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]", "-", "", "null", "nan",
                                  "[Unknown Error]", "ERR!", "None",
                                  "[Requested functionality has been deprecated]"])  # fmt: skip
def test_not_available_is_never_zero(text: str) -> None:
    assert math.isnan(fields.amount(text))


@given(LEVELS, LEVELS, LEVELS, LEVELS)
def test_one_row_and_many_are_judged_alike(
    used: float, total: float, free: float, reserved: float
) -> None:
    row = {"used": used, "total": total, "free": free, "reserved": reserved}
    for names in (("used", "total"), ("used", "total", "free"), tuple(row)):
        some = {name: row[name] for name in names}
        many = {name: np.array([value]) for name, value in some.items()}
        assert bool(contradicts(some)) == np.any(contradicts(many))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), min_size=1, max_size=60))
def test_runs_ascend_and_invent_nothing(rows: list[tuple[int, int]]) -> None:
    t = np.array([float(at) for at, _ in rows])
    used = np.array([float(level) for _, level in rows])
    repairs = Repairs()
    runs = split(t, used, repairs)
    kept = 0
    for run in runs:
        assert (np.diff(run.t) > 0).all()
        assert set(zip(run.t.tolist(), run.used.tolist(), strict=True)) <= set(
            zip(t.tolist(), used.tolist(), strict=True)
        )
        kept += run.t.size
    assert kept + repairs.doubles + repairs.strays == t.size


@pytest.mark.parametrize("name", [
    "memory", "utilization_memory", "bar1_memory_used", "protected_memory_used", "cpu_memory_used",
    "max_memory_usage", "memory_bandwidth_used", "ram_used", "temperature_memory",
])  # fmt: skip
def test_what_is_no_gpu_memory(name: str) -> None:
    assert memory_role(name) is None
