"""What cards say of their own health: what is due is told, since whenever it is so."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.nvml.calls import Calls, Card, placeholder
from gpuwatchd.collect.nvml.events import BACK_AFTER_S, StateChanges
from gpuwatchd.core.model import Device, Event
from tests.sources.nvml_case import UID, one_read, several

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState
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


@pytest.mark.parametrize(
    ("counted", "question"), [("remapped", "RemappedRows"), ("retired", "RetiredPages")]
)
def test_an_error_beside_one_refused_answer_is_told_once(
    fake: Nvml, counted: str, question: str
) -> None:
    fake.write("gpu 0 total=24G")
    shown, told = fake.play(f"""
s = source()
shown, told = [], []
for number, refused in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 0)):
    refuse = [f"fail nvmlDeviceGet{{name}} 0 999" for name in ("TotalEccErrors", "{question}")]
    put(f"gpu 0 total=24G ecc_errors={{number}} {counted}={{number}}", *refuse * refused)
    now[0] += 61
    sample = s.read()
    shown.append([sample.readings[0].ecc_errors, sample.readings[0].retired_pages])
    told.append(len(sample.events))
out(shown, told)
""")
    assert shown == [[1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]
    assert told == [0, 0, 2, 0, 0]


def test_errors_of_the_memory_are_asked_for_once_a_minute(fake: Nvml) -> None:
    readings, _, _ = several(fake, 25, "gpu 0 total=24G ecc_errors=2 retired=1")
    assert [(r["ecc_errors"], r["retired_pages"]) for r in readings] == [(2, 1)] * 25
    assert fake.stats()["nvmlDeviceGetTotalEccErrors"] == 3  # at 0, 60 and 120 s


def test_what_a_card_does_not_count_is_unknown_and_asked_once(fake: Nvml) -> None:
    readings, _, _ = several(fake, 5, "gpu 0 total=24G", step_s=61)
    assert {(r["ecc_errors"], r["retired_pages"]) for r in readings} == {(None, None)}
    calls = fake.stats()
    assert calls["nvmlDeviceGetTotalEccErrors"] == 1
    assert calls["nvmlDeviceGetRemappedRows"] == calls["nvmlDeviceGetRetiredPages"] == 1


NAME = "GPU-1"
CALLS = Calls(SimpleNamespace(nvmlLib=None, NVMLError=OSError))


def play(*states: DeviceState, every_s: float = 5.0) -> list[Event]:
    """Return what is told while a card has these states, one after the other."""
    device = Device(uid=NAME, vendor="nvidia", index=0, name="A", memory_total_bytes=None)
    told = deque[Event]()
    card, news = Card(NAME, device), StateChanges(CALLS, told, time.time)
    for turn, state in enumerate(states):
        card.state = state
        news.update([card], 1000.0 + turn * every_s, turn * every_s)
        assert not news.all_well or state == "ok"
    return [*told]


def kinds(*states: DeviceState, every_s: float = 5.0) -> list[str]:
    return [event.kind for event in play(*states, every_s=every_s)]


@pytest.mark.parametrize(
    ("state", "kind", "hardware"),
    [
        ("lost", "gpu-lost", True),
        ("no-permission", "gpu-lost", None),
        ("hung", "gpu-hung", True),
        ("reset-required", "reset-required", True),
    ],
)
def test_what_ends_is_told_once_and_what_returns_too(
    state: DeviceState, kind: str, hardware: bool | None
) -> None:
    told = play("ok", state, state, state, "ok", "ok", "ok", "ok")
    assert [event.kind for event in told] == [kind, "gpu-back"]
    assert told[0].hardware is hardware
    assert told[0].at_s == 1005.0
    assert told[1].text == "the GPU answers again after 15 s"
    assert {event.device_uid for event in told} == {NAME}


def test_worse_after_bad_is_news_and_the_time_counts_from_the_first() -> None:
    told = play("ok", "hung", "lost", "reset-required", "ok", "ok", "ok")
    assert [event.kind for event in told] == ["gpu-hung", "gpu-lost", "reset-required", "gpu-back"]
    assert told[-1].text.endswith("after 15 s")


def test_coming_and_going_is_one_incident() -> None:
    turns: list[DeviceState] = ["lost", "ok"]
    assert kinds("ok", *turns * 20) == ["gpu-lost"]
    assert BACK_AFTER_S > 5.0
    assert kinds("ok", *turns * 3, "ok", "ok") == ["gpu-lost", "gpu-back"]


@pytest.mark.parametrize("state", ["asleep", "released", "unsupported"])
def test_letting_go_is_no_loss(state: DeviceState) -> None:
    assert kinds("ok", state, state, "ok", "ok", "ok") == []
    assert kinds("ok", "lost", state, "ok", "ok", "ok") == ["gpu-lost", "gpu-back"]


def test_what_never_answered_is_not_lost_but_may_need_a_reset() -> None:
    assert kinds("lost", "lost", "hung") == []
    assert kinds("reset-required", "reset-required") == ["reset-required"]


def test_a_stand_in_is_no_card() -> None:
    told = deque[Event]()
    news, card = StateChanges(CALLS, told, time.time), placeholder(0, "ok")
    states: list[DeviceState] = ["ok", "lost"]
    for state in states:
        card.state = state
        news.update([card], 0.0, 0.0)
        assert not told
        assert not news.all_well
