"""XIDs: told once, sorted by whose doing they are, and never in the way of letting go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import ONE, TWO, UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

WATCH = """
import threading
import time
import pynvml
from gpuwatchd.collect.nvml.events import EventWatch

WAIT_MS = 100
wall = [5e8]
begun, codes = [], []  # when each wait in the driver began, and what those that ended said
def begin():
    s = source()
    s.read()
    really = pynvml.nvmlLib.nvmlEventSetWait_v2
    def counted(*arguments):
        begun.append(time.monotonic())
        codes.append(really(*arguments))
        return codes[-1]
    pynvml.nvmlLib.nvmlEventSetWait_v2 = counted
    watch = EventWatch(pynvml, lambda: wall[0], wait_ms=WAIT_MS, monotonic=lambda: now[0])
    watch.watch(s._life.cards.values())
    return s, watch
def wait_for(watch, count, most_s=30.0):
    found, until = [], time.monotonic() + most_s
    while len(found) < count and time.monotonic() < until:
        found += watch.happened()
        time.sleep(0.02)
    return found
def until(condition, most_s=30.0):
    end = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end, (begun, codes)
        time.sleep(0.01)
def quiet():
    # A wait that began after now has ended without an event: what was there has been handed out.
    have = len(begun)
    until(lambda: len(codes) >= have + 2 and codes[-1] == 10)
def short(events):
    return [[e.kind, e.device_uid, e.code, e.hardware, e.text] for e in events]
"""


@pytest.fixture
def fake(fake: Nvml) -> Nvml:
    """Let each script begin with what waits for events."""
    fake.prelude += WATCH
    return fake


def test_an_xid_is_told_once_with_whose_doing_it_is(fake: Nvml) -> None:
    fake.write(*TWO, "event 0 type=8 data=79", "event 1 type=8 data=31", "event 1 type=8 data=4711")
    (got,) = fake.play("""
s, w = begin()
found = wait_for(w, 3)
quiet()
out(short([*found, *w.happened()]))
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
first = wait_for(w, 1)
quiet()
more = w.happened()
assert codes.count(0) == 5, "the driver told it five times"
now[0] += 61
wall[0] -= 3600  # a clock that is set back hides nothing
put("gpu 0 total=24G", *["event 0 type=8 data=31"] * 6)
out([len(first), len(more), len(wait_for(w, 1))])
""")
    assert got == [1, 0, 1]


def test_a_double_bit_error_is_told_where_cards_report_it(fake: Nvml) -> None:
    fake.write(
        "gpu 0 total=24G ecc=1",
        "event 0 type=2 data=0",
    )
    (got,) = fake.play("s, w = begin()\nout(short(wait_for(w, 1)))")
    assert got == [["ecc", UID(0), None, True, "an uncorrected (double bit) memory error"]]


def test_what_a_program_did_is_of_its_instance_what_breaks_of_the_card(fake: Nvml) -> None:
    fake.write(
        "gpu 0 total=80G mig=1",
        "mig 0 gi=1 total=20G uuid=MIG-a",
        "mig 0 gi=2 total=20G uuid=MIG-b",
        "event 0 type=8 data=31 gi=2 ci=0",
        "event 0 type=8 data=79 gi=2 ci=0",
    )
    (got,) = fake.play("s, w = begin()\nout([[e.code, e.device_uid] for e in wait_for(w, 2)])")
    assert got == [[31, "MIG-b"], [79, UID(0)]]


@pytest.mark.parametrize("code", [999, 15, 3, 10])
def test_a_driver_that_refuses_at_once_keeps_nobody_busy(fake: Nvml, code: int) -> None:
    fake.write(ONE, f"fail nvmlEventSetWait_v2 - {code}")
    spent_ms, pause_s = fake.play("""
s, w = begin()
until(lambda: codes)
began, have = time.process_time(), len(begun)
until(lambda: len(begun) > have)
out(1000 * (time.process_time() - began), begun[have] - begun[have - 1])
""")
    assert fake.stats()["nvmlEventSetWait_v2"] <= 20
    assert pause_s >= 0.09
    assert spent_ms < 100


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
waiter = w._waiter
until(lambda: waiter._registered or not waiter.is_alive())
ended = w.let_go(3.0)  # nothing more can come from a thread that has ended
out(len(w.happened()), ended, len(s.read().readings))
""")
    assert got == [0, True, 1]


def test_one_card_without_events_hides_no_other(fake: Nvml) -> None:
    fake.write(*TWO, "fail nvmlDeviceRegisterEvents 0 999", "event 1 type=8 data=79")
    (got,) = fake.play("s, w = begin()\nout([e.device_uid for e in wait_for(w, 1)])")
    assert got == [UID(1)]


def test_a_card_is_known_again_by_its_uuid(fake: Nvml) -> None:
    fake.write(*TWO)
    (got,) = fake.play("""
s, w = begin()
waiter = w._waiter
waiter.places = {number: place for number, place in enumerate(waiter.places.values(), 1)}
put("gpu 0 total=24G", "gpu 1 total=24G", "event 1 type=8 data=79")
out([e.device_uid for e in wait_for(w, 1)])
""")
    assert got == [UID(1)]


def test_letting_go_waits_for_nobody_and_pulls_nothing_away(fake: Nvml) -> None:
    fake.write(ONE)
    closing_s, gone, initialised = fake.play("""
WAIT_MS = 1000
s, w = begin()
until(lambda: begun)
began = time.monotonic()
w.stop()
s.close()
closing = time.monotonic() - began
gone = w.let_go(3.0)
try:
    pynvml.nvmlDeviceGetCount()
    initialised = True
except pynvml.NVMLError:
    initialised = False
out(closing, gone, initialised)
""")
    assert closing_s < 0.5
    assert (gone, initialised) == (True, False)
    calls = fake.stats()
    assert calls["nvmlShutdown"] == calls["nvmlInitWithFlags"] == 2
    # The reader's reference went while the thread waited; the thread's own came last.
    assert calls["nvmlEventSetFree"] == 1
    assert "shutdown_in_wait" not in calls


def test_it_begins_again_after_a_new_start(fake: Nvml) -> None:
    fake.write(ONE, "event 0 type=8 data=31")
    (got,) = fake.play("""
s, w = begin()
first = wait_for(w, 1)
assert w.let_go(3.0)
assert not [t for t in threading.enumerate() if t.name == "nvml-events"]
put("gpu 0 total=24G", "event 0 type=8 data=31", "event 0 type=8 data=79")
meanwhile = w.happened()
w.watch(s._life.cards.values())
out([[e.code for e in part] for part in (first, meanwhile, wait_for(w, 1))])
""")
    assert got == [[31], [], [79]]


def test_a_card_that_appears_later_is_waited_for(fake: Nvml) -> None:
    fake.write(ONE)
    (got,) = fake.play("""
s, w = begin()
put("gpu 0 total=24G", "gpu 1 total=24G", "event 1 type=8 data=79")
now[0] += 61
s.read()
w.watch(s._life.cards.values())
out([e.device_uid for e in wait_for(w, 1)])
""")
    assert got == [UID(1)]
