"""What cards say of their own health: what is due is told, since whenever it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import UID, one_read, several

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        (
            ["3 remap_pending=1"] * 2 + ["3 remap_failure=1"] * 2 + ["3"],
            [
                "3 rows of memory out of use; the GPU has to be reset",
                "3 rows of memory out of use; no spare rows are left, exchange the GPU",
            ],
        ),
        (["3"] * 3, []),  # replaced long ago: no news
        (
            ["1", "1", "2 remap_pending=1", "3 remap_failure=1"],
            [
                "1 row of memory taken out of use, 2 in all; the GPU has to be reset",
                (
                    "1 row of memory taken out of use, 3 in all; "
                    "no spare rows are left, exchange the GPU"
                ),
            ],
        ),
    ],
)
def test_rows_that_are_replaced_are_told_once_with_what_is_due(
    fake: Nvml, looks: list[str], told: list[str]
) -> None:
    fake.write(f"gpu 0 total=24G remapped={looks[0]}")
    texts = fake.play(f"""
s = source()
texts = []
for rows in {looks!r}:
    put(f"gpu 0 total=24G remapped={{rows}}")
    texts += [event.text for event in s.read().events]
    now[0] += 61
out(*texts)
""")
    assert texts == told


def test_why_clocks_are_held_down_is_told_in_words(fake: Nvml) -> None:
    readings, _, _ = one_read(
        fake, f"gpu 0 total=24G reasons={0x4 | 0x40}", "gpu 1 total=24G reasons=1"
    )
    assert readings[0]["throttle"] == ["software power cap", "hardware thermal slowdown"]
    assert readings[1]["throttle"] == []


def test_an_older_driver_tells_it_under_the_older_name(fake: Nvml) -> None:
    readings, _, _ = one_read(
        fake, "gpu 0 total=24G reasons=128", "fail nvmlDeviceGetCurrentClocksEventReasons 0 13"
    )
    assert readings[0]["throttle"] == ["hardware power brake"]


def test_a_library_without_the_older_question_tells_the_temperature(fake: Nvml) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G temp=61", "fail nvmlDeviceGetTemperature 0 13")
    assert readings[0]["temp_c"] == 61


def test_a_slowdown_that_lasts_is_told_once(fake: Nvml) -> None:
    _, events, _ = several(fake, 40, "gpu 0 total=24G reasons=64")
    assert [(e["kind"], e["hardware"], e["device_uid"]) for e in events] == [
        ("throttle", True, UID(0))
    ]
    assert events[0]["text"] == "clocks held down for 60 s: hardware thermal slowdown"


@pytest.mark.parametrize("reasons", [1, 4, 32])
def test_idle_and_a_power_cap_are_no_event(fake: Nvml, reasons: int) -> None:
    _, events, _ = several(fake, 40, f"gpu 0 total=24G reasons={reasons}")
    assert events == []


def test_errors_of_the_memory_are_told_when_they_rise(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G ecc_errors=2 retired=1")
    readings, texts = fake.play("""
s = source()
readings, texts = [], []
def look(*more):
    put("gpu 0 total=24G " + " ".join(more))
    now[0] += 61
    sample = s.read()
    readings.append([sample.readings[0].ecc_errors, sample.readings[0].retired_pages])
    texts.extend(event.text for event in sample.events)
look("ecc_errors=2", "retired=1")
look("ecc_errors=2", "retired=1")
look("ecc_errors=3", "retired=1")
look("ecc_errors=3", "retired=4")
look("ecc_errors=0", "retired=4")
look("ecc_errors=0", "remapped=9", "remap_pending=1")
out(readings, texts)
""")
    assert readings == [[2, 1], [2, 1], [3, 1], [3, 4], [0, 4], [0, None]]
    assert texts == [
        "1 uncorrected memory error, 3 since the driver was loaded",
        "3 pages of memory taken out of use, 4 in all",
    ]


def test_what_a_card_does_not_count_is_unknown_and_asked_once(fake: Nvml) -> None:
    readings, _, _ = several(fake, 5, "gpu 0 total=24G", step_s=61)
    assert {(r["ecc_errors"], r["retired_pages"]) for r in readings} == {(None, None)}
    calls = fake.stats()
    assert calls["nvmlDeviceGetTotalEccErrors"] == 1
    assert calls["nvmlDeviceGetRemappedRows"] == calls["nvmlDeviceGetRetiredPages"] == 1
