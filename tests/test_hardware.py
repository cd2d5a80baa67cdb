"""Where to look first: hardware, application, or neither."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatchd.analysis import hardware
from gpuwatchd.core.model import DeviceReading, Event, EventKind

NOW_S = 1_700_000_000.0


def event(ago_s: float = 60, **fields: Any) -> Event:
    fields.setdefault("text", "XID 79: the GPU has fallen off the bus")
    return Event(at_s=NOW_S - ago_s, kind="xid", device_uid="GPU-1", **fields)


def reading(**fields: Any) -> DeviceReading:
    plain: dict[str, Any] = {"used_bytes": 1, "free_bytes": 1, "total_bytes": 2, "uses": ()}
    return DeviceReading(device_uid="GPU-1", **{**plain, **fields})


def test_every_number_stands_in_one_list() -> None:
    lists = [set(hardware._APPLICATION), set(hardware._HARDWARE), set(hardware._EITHER)]
    assert sum(map(len, lists)) == len(set.union(*lists))
    for number in (13, 31, 43, 45):
        assert hardware.application_xid(number) is True
    for number in (48, 63, 64, 74, 79, 94, 95, 119):
        assert hardware.application_xid(number) is False


def test_what_broke_comes_first_and_says_when() -> None:
    seen = hardware.diagnose([event(hardware=True, code=79)], reading(ecc_errors=0), now_s=NOW_S)
    assert seen.word == "hardware"
    assert seen.event is not None
    assert seen.event.code == 79


def test_hardware_outweighs_a_later_error_of_a_program() -> None:
    events = [event(90, hardware=True, text="XID 48"), event(10, hardware=False, text="XID 43")]
    assert hardware.diagnose(events, reading(), now_s=NOW_S).word == "hardware"
    seen = hardware.diagnose(events[1:], reading(), now_s=NOW_S)
    assert seen.word == "application"


def test_the_newest_of_several_is_told() -> None:
    events = [event(10, hardware=True, text="new"), event(90, hardware=True, text="old")]
    assert "new" in hardware.diagnose(events, reading(), now_s=NOW_S).sentence


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"state": "lost"}, "hardware"),
        ({"state": "hung"}, "hardware"),
        ({"state": "no-permission"}, "unreadable"),
        ({"state": "asleep"}, "unreadable"),
        ({"ecc_errors": 1}, "hardware"),
        ({"ecc_errors": 0}, "clean"),
        ({"ecc_errors": None}, "clean"),
        ({"retired_pages": 3, "ecc_errors": 0}, "clean"),
    ],
)
def test_without_events_the_reading_speaks(fields: dict[str, Any], word: str) -> None:
    assert hardware.diagnose([], reading(**fields), now_s=NOW_S).word == word


def test_nothing_to_look_at_is_not_clean() -> None:
    assert hardware.diagnose([], None, now_s=NOW_S).word == "unreadable"


def test_what_happened_days_ago_does_not_count() -> None:
    old = event(2 * hardware.RECENT_S, hardware=True)
    assert hardware.diagnose([old], reading(), now_s=NOW_S).word == "clean"
    assert hardware.diagnose([old], reading(), now_s=NOW_S, since_s=0).word == "hardware"


@pytest.mark.requirement("W19")
def test_an_event_of_neither_kind_blames_nobody() -> None:
    back = Event(at_s=NOW_S - 60, kind="gpu-back", device_uid="u", text="it is back")
    assert hardware.diagnose([back], reading(), now_s=NOW_S).word == "clean"


def test_an_error_of_unknown_origin_is_not_called_none() -> None:
    seen = hardware.diagnose([event(hardware=None)], reading(), now_s=NOW_S)
    assert seen.word == "unreadable"


@pytest.mark.parametrize(("ago_s", "said"), [(3000, True), (4100, True), (4300, False)])
def test_a_finding_is_told_what_broke_in_its_window(ago_s: float, *, said: bool) -> None:
    told = hardware.advice(
        [event(ago_s, hardware=True)], onset_at_s=NOW_S - 3600, judged_at_s=NOW_S
    )
    assert (told is not None) is said


def test_a_slowdown_is_mentioned_and_blames_nothing() -> None:
    slow = event(hardware=True, text="clocks held down for 60 s: hardware thermal slowdown")
    slow = msgspec.structs.replace(slow, kind="throttle")
    seen = hardware.diagnose([slow], reading(ecc_errors=0), now_s=NOW_S)
    assert seen.word == "clean"
    assert hardware.advice([slow], onset_at_s=None, judged_at_s=NOW_S) is None


def test_a_finding_is_not_told_of_a_programs_own_error() -> None:
    events = [event(hardware=False), event(hardware=None)]
    assert hardware.advice(events, onset_at_s=None, judged_at_s=NOW_S) is None


@pytest.mark.parametrize(
    ("kind", "away_s", "word"),
    [("gpu-hung", 15, "clean"), ("gpu-hung", 300, "hardware"), ("gpu-lost", 15, "hardware")],
)
def test_a_gpu_that_only_answered_late_is_not_accused(
    kind: EventKind, away_s: float, word: str
) -> None:
    hung = msgspec.structs.replace(event(400, hardware=True, code=None), kind=kind)
    back = msgspec.structs.replace(event(400 - away_s, hardware=None, code=None), kind="gpu-back")
    assert hardware.diagnose([back, hung], reading(ecc_errors=0), now_s=NOW_S).word == word
    said = hardware.advice([hung, back], onset_at_s=NOW_S - 500, judged_at_s=NOW_S)
    assert (said is not None) == (word == "hardware")
    # Without a sign that it is back it is as broken as it seems.
    assert hardware.diagnose([hung], reading(), now_s=NOW_S).word == "hardware"
