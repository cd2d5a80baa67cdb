"""The NVML source while calls do not return: the others are read, nothing is asked twice.

A hung driver is a delay of the stand-in; the deadline is short, so that a case takes no longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

FOUR = tuple(f"gpu {index} total=24G" for index in range(4))

SCENE = """
import threading, time
s = source(deadline_s=0.3)
def took():
    began = time.monotonic()
    sample = s.read()
    return time.monotonic() - began, sample
def states(sample):
    return [r.state for r in sample.readings]
def looks():
    now[0] += 61
    slowest, words = 0.0, set()
    s.read()
    for _ in range(10):
        t, sample = took()
        words.add(tuple(states(sample)))
        slowest = max(slowest, t)
        now[0] += 61
        time.sleep(0.03)
    return slowest, sorted(words), [f.why for f in sample.faults]
"""


@pytest.fixture
def fake(fake: Nvml) -> Nvml:
    """Let each script begin with a source that waits for a moment only."""
    fake.prelude += SCENE
    return fake


def test_a_hung_card_delays_no_other(fake: Nvml) -> None:
    fake.write(*FOUR)
    first_s, first, later_s, later, fault, threads = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo* 1 3000000")
first_s, sample = took()
first = states(sample)
threads = threading.active_count()
later_s, later = 0.0, []
for _ in range(20):
    t, sample = took()
    later_s, later = max(later_s, t), states(sample)
    now[0] += 5
out(first_s, first, later_s, later, plain(sample.faults), threading.active_count() - threads)
os._exit(0)
""")
    assert first == later == ["ok", "hung", "ok", "ok"]
    assert 0.3 <= first_s < 1.5
    assert later_s < 0.25, "a card that is known to hang is not waited for again"
    assert [item["where"] for item in fault] == ["nvml/1"]
    assert fault[0]["why"].startswith("no answer for ")
    assert threads == 0


def test_a_card_that_begins_to_hang_makes_no_sample_late(fake: Nvml) -> None:
    fake.write(*FOUR)
    kinds, states = fake.play(f"""
from gpuwatchd.core.model import Sample
from gpuwatchd.pipeline.source_workers import SourceWorker
s = source()
s.read()
worker = SourceWorker(s, deadline_s=0.6)
kinds = [type(worker.read(0.0)).__name__]
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo* 1 3000000")
sample = worker.read(1.0)
kinds.append(type(sample).__name__)
out(kinds, [r.state for r in sample.readings] if isinstance(sample, Sample) else [])
os._exit(0)
""")
    assert kinds == ["Sample", "Sample"]
    assert states == ["ok", "hung", "ok", "ok"]


def test_nothing_is_asked_of_a_hung_card_and_its_late_answer_is_dropped(fake: Nvml) -> None:
    fake.write(*FOUR)
    hung, back, meanwhile = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo_v2 2 900000")
hung = [states(s.read())[2]]
put(*{FOUR!r})
while s._lanes.busy:
    hung.append(states(s.read())[2])
    time.sleep(0.02)
back = states(s.read())
out(sorted(set(hung)), back, len(hung) - 1)
""")
    assert hung == ["hung"]
    assert back == ["ok"] * 4
    calls = fake.stats()
    # Three reads of four cards, one of them the call that hung; in between only the other three.
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == 3 * 4 + 3 * meanwhile


def test_all_cards_hung_at_once_cost_one_deadline(fake: Nvml) -> None:
    fake.write(*FOUR)
    first_s, first, later_s = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo* * 3000000")
first_s, sample = took()
later_s, _ = took()
out(first_s, states(sample), later_s)
os._exit(0)
""")
    assert first == ["hung"] * 4
    assert first_s < 1.5
    assert later_s < 0.25


def test_hung_lost_and_back_are_told_once(fake: Nvml) -> None:
    fake.write(*FOUR)
    events = fake.play(f"""
told = []
def turn(count=3, step=5):
    for _ in range(count):
        told.extend([e.kind, e.device_uid] for e in s.read().events)
        now[0] += step
turn()
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo_v2 1 500000")
turn(1)
put(*{FOUR!r}, "fail nvmlDevice* 3 15")
turn()
while s._lanes.busy:
    time.sleep(0.02)
turn()
put(*{FOUR!r})
now[0] += 60
turn(6)
out(*told)
""")
    assert events == [
        ["gpu-hung", UID(1)],
        ["gpu-lost", UID(3)],
        ["gpu-back", UID(1)],
        ["gpu-back", UID(3)],
    ]


def test_a_look_for_cards_that_hangs_at_one_holds_up_no_other(fake: Nvml) -> None:
    fake.write(*FOUR)
    slowest_s, words, _ = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetHandleByIndex_v2 2 3000000")
out(*looks())
os._exit(0)
""")
    assert slowest_s < 0.25
    assert words == [["ok", "ok", "hung", "ok"]]


def test_a_look_that_hangs_as_a_whole_holds_up_no_reading(fake: Nvml) -> None:
    fake.write(*FOUR)
    slowest_s, words, faults = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetCount_v2 * 3000000")
out(*looks())
os._exit(0)
""")
    assert slowest_s < 0.25
    assert words == [["ok"] * 4]
    assert any("search for new GPUs has not ended" in why for why in faults)


def test_a_card_that_hangs_at_the_start_hides_no_other_and_is_found_later(fake: Nvml) -> None:
    fake.write(*FOUR, "delay nvmlDeviceGetHandleByIndex_v2 1 1200000")
    first_s, first, uids, later = fake.play(f"""
import gpuwatchd.collect.nvml.driver as driver
driver.FIRST_LOOK_S = 0.3
first_s, sample = took()
first, uids = states(sample), [d.uid for d in s.devices()]
put(*{FOUR!r})
for _ in range(25):
    s.read()
    now[0] += 1
while s._lanes.busy:
    time.sleep(0.05)
now[0] += 5
out(first_s, first, uids, [[r.device_uid, r.state] for r in s.read().readings])
""")
    assert first == ["ok", "hung", "ok", "ok"]
    assert uids == [UID(0), "nvml-index-1", UID(2), UID(3)]
    assert 0.3 <= first_s < 1.0
    assert later == [[UID(index), "ok"] for index in range(4)]
    calls = fake.stats()
    assert calls["nvmlInitWithFlags"] == 1
    assert calls["nvmlDeviceGetCount_v2"] <= 8  # it is looked for every five seconds


def test_a_start_that_hangs_is_waited_for_and_not_repeated(fake: Nvml) -> None:
    fake.write(*FOUR, "delay nvmlInitWithFlags * 1500000")
    whys, states = fake.play("""
import time
import gpuwatchd.collect.nvml.source as module
module.START_S = 0.2
s = source()
whys = []
while True:
    try:
        sample = s.read()
        break
    except SourceUnavailable as error:
        whys.append(str(error))
        now[0] += 60
out(whys, [r.state for r in sample.readings])
""")
    assert len(whys) > 3
    assert all(why.startswith("the NVIDIA driver has not answered for ") for why in whys)
    assert states == ["ok"] * 4
    assert fake.stats()["nvmlInitWithFlags"] == 1


@pytest.mark.parametrize("call", ["nvmlShutdown * 5000000", "nvmlDeviceGetMemoryInfo_v2 1 5000000"])
def test_closing_does_not_wait_for_a_driver_that_hangs(fake: Nvml, call: str) -> None:
    fake.write(*FOUR)
    (took_s,) = fake.play(f"""
s.read()
put(*{FOUR!r}, "delay {call}")
s.read()
began = time.monotonic()
s.close()
out(time.monotonic() - began)
os._exit(0)
""")
    assert took_s < 1.5


def test_while_a_card_hangs_the_driver_is_not_ended_for_another(fake: Nvml) -> None:
    fake.write(*FOUR)
    fake.play(f"""
s.read()
put(*{FOUR!r}, "delay nvmlDeviceGetMemoryInfo_v2 1 1200000", "fail nvmlDevice* 3 15")
s.read()
for _ in range(5):
    now[0] += 30
    assert states(s.read()) == ["ok", "hung", "ok", "lost"]
put(*{FOUR!r})
while s._lanes.busy:
    time.sleep(0.05)
now[0] += 300
assert states(s.read()) == ["ok"] * 4
s.close()
out()
""")
    calls = fake.stats()
    assert calls["nvmlInitWithFlags"] == 2
    assert calls["nvmlShutdown"] == 2


def test_mig_instances_share_the_lane_of_their_card(fake: Nvml) -> None:
    lines = ("gpu 0 total=80G mig=1", "mig 0 gi=1 total=20G", "mig 0 gi=2 total=20G", "gpu 1")
    fake.write(*lines)
    states, threads = fake.play(f"""
s.read()
before = threading.active_count()
put(*{lines!r}, "delay nvmlDeviceGetMemoryInfo_v2 0:1 3000000")
s.read()
out(states(s.read()), threading.active_count() - before)
os._exit(0)
""")
    assert states == ["hung", "hung", "hung", "ok"]
    assert threads <= 1


def test_an_error_of_ours_costs_its_card_and_accuses_no_hardware(fake: Nvml) -> None:
    fake.write("gpu 0 total=8G", "gpu 1 total=8G")
    before, states, faults, kinds, after = fake.play("""
s = source()
before = [r.state for r in s.read().readings]
good = s._reader.read
def bad(card, *rest, **named):
    if card.device.index == 1:
        raise ValueError("a slip")
    return good(card, *rest, **named)
s._reader.read = bad
sample = s.read()
s._reader.read = good
out(before, [r.state for r in sample.readings], [f.why for f in sample.faults],
    [e.kind for e in sample.events], [r.state for r in s.read().readings])
""")
    assert before == after == ["ok", "ok"]
    assert states == ["ok", "unsupported"]
    assert faults == ["cannot be read: a slip"]
    assert kinds == []
