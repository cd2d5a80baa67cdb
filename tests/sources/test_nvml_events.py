"""XIDs: told once, sorted by whose doing they are, and given back before NVML is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import ONE, TWO, UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

WATCH = """
import pynvml
from collections import deque
from gpuwatchd.collect.nvml.events import EventWatch

wall, happened = [5e8], deque()
def begin():
    s = source()
    s._events.poll = lambda: None  # a second one is asked here
    s.read()
    watch = EventWatch(pynvml, happened, lambda: wall[0], lambda: now[0])
    watch.watch(s._life.cards.values())
    return s, watch
def poll(watch):
    watch.poll()
    return [happened.popleft() for _ in range(len(happened))]
def short(events):
    return [[e.kind, e.device_uid, e.code, e.hardware, e.text] for e in events]
"""


@pytest.fixture
def fake(fake: Nvml) -> Nvml:
    """Let each script begin with what asks for events."""
    fake.prelude += WATCH
    return fake


def test_an_xid_is_told_once_with_whose_doing_it_is(fake: Nvml) -> None:
    fake.write(*TWO, "event 0 type=8 data=79", "event 1 type=8 data=31", "event 1 type=8 data=4711")
    (got,) = fake.play("""
s, w = begin()
out(short([*poll(w), *poll(w)]))
""")
    assert got == [
        ["xid", UID(0), 79, True, "XID 79: the GPU has fallen off the bus"],
        ["xid", UID(1), 31, False, "XID 31: a program used memory that is not its own"],
        ["xid", UID(1), 4711, None, "XID 4711"],
    ]


def test_the_same_again_is_told_once_in_a_minute(fake: Nvml) -> None:
    fake.write(ONE, *["event 0 type=8 data=31"] * 5)
    (got,) = fake.play("""
s, w = begin()
first, more = poll(w), poll(w)
now[0] += 61
wall[0] -= 3600  # a clock that is set back hides nothing
put("gpu 0 total=24G", *["event 0 type=8 data=31"] * 6)
out([len(first), len(more), len(poll(w))])
""")
    assert got == [1, 0, 1]


def test_a_double_bit_error_is_told_where_cards_report_it(fake: Nvml) -> None:
    fake.write(
        "gpu 0 total=24G ecc=1",
        "event 0 type=2 data=0",
    )
    (got,) = fake.play("s, w = begin()\nout(short(poll(w)))")
    assert got == [["ecc", UID(0), None, True, "an uncorrected (double bit) memory error"]]


def test_what_a_program_did_is_of_its_instance_what_breaks_of_the_card(fake: Nvml) -> None:
    fake.write(
        "gpu 0 total=80G mig=1",
        "mig 0 gi=1 total=20G uuid=MIG-a",
        "mig 0 gi=2 total=20G uuid=MIG-b",
        "event 0 type=8 data=31 gi=2 ci=0",
        "event 0 type=8 data=79 gi=2 ci=0",
    )
    (got,) = fake.play("s, w = begin()\nout([[e.code, e.device_uid] for e in poll(w)])")
    assert got == [[31, "MIG-b"], [79, UID(0)]]


@pytest.mark.parametrize(
    "rule",
    [
        "fail nvmlEventSetCreate - 3",
        "fail nvmlDeviceGetSupportedEventTypes 0 3",
        "fail nvmlDeviceRegisterEvents 0 4",
        "fail nvmlEventSetWait_v2 - 13",
    ],
)
def test_a_driver_without_events_is_no_trouble(fake: Nvml, rule: str) -> None:
    fake.write(ONE, "event 0 type=8 data=79", rule)
    got = fake.play("""
s, w = begin()
out(len([*poll(w), *poll(w)]), len(s.read().readings))
""")
    assert got == [0, 1]
    assert fake.stats().get("nvmlEventSetWait_v2", 0) <= 2


def test_one_card_without_events_hides_no_other(fake: Nvml) -> None:
    fake.write(*TWO, "fail nvmlDeviceRegisterEvents 0 999", "event 1 type=8 data=79")
    (got,) = fake.play("s, w = begin()\nout([e.device_uid for e in poll(w)])")
    assert got == [UID(1)]


def test_a_card_is_known_again_by_its_uuid(fake: Nvml) -> None:
    fake.write(*TWO)
    (got,) = fake.play("""
s, w = begin()
w.poll()
w._places = {number: place for number, place in enumerate(w._places.values(), 1)}
put("gpu 0 total=24G", "gpu 1 total=24G", "event 1 type=8 data=79")
out([e.device_uid for e in poll(w)])
""")
    assert got == [UID(1)]


def test_the_set_of_events_is_given_back_before_nvml_is_ended(fake: Nvml) -> None:
    fake.write(ONE, "event 0 type=8 data=31")
    codes, state, again = fake.play("""
s = source()
codes = [e.code for e in s.read().events]
s.release_driver(60)
state = s.read().readings[0].state
put("gpu 0 total=24G", "event 0 type=8 data=31", "event 0 type=8 data=79")
now[0] += 61
out(codes, state, [e.code for e in s.read().events if e.code])
""")
    assert (codes, state, again) == ([31], "released", [79])
    calls = fake.stats()
    assert calls["nvmlEventSetCreate"] == calls["nvmlEventSetFree"] == 2
    assert "shutdown_in_wait" not in calls


def test_a_card_that_appears_later_is_waited_for(fake: Nvml) -> None:
    fake.write(ONE)
    (got,) = fake.play("""
s, w = begin()
put("gpu 0 total=24G", "gpu 1 total=24G", "event 1 type=8 data=79")
now[0] += 61
s.read()
w.watch(s._life.cards.values())
out([e.device_uid for e in poll(w)])
""")
    assert got == [UID(1)]
