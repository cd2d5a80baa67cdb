"""A lost card is looked for again, and no card is out of view in silence meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.nvml.lifecycle import RetryTimer

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState
    from tests.sources.nvml_case import Nvml

THREE = tuple(f"gpu {index} total=24G" for index in range(3))


def test_a_lost_card_is_asked_for_by_uuid_and_costs_the_others_nothing(fake: Nvml) -> None:
    fake.write(*THREE)
    others, away, back = fake.play(f"""
s = source(rescan_s=1e9)
s.read()
put(*{THREE!r}, "fail nvmlDevice* 1 15")
others, away = set(), set()
for _ in range(12):
    sample = s.read()
    states = [r.state for r in sample.readings]
    assert all(sample.readings[n].used_bytes is not None for n in (0, 2))
    others.update(states[::2])
    away.add(states[1])
    now[0] += 1
put(*{THREE!r})
now[0] += 4
back = [r.state for r in s.read().readings]
s.close()
out(sorted(others), sorted(away), back)
""")
    assert (others, away, back) == (["ok"], ["lost"], ["ok"] * 3)
    calls = fake.stats()
    assert calls["nvmlInitWithFlags"] == 1
    # After 1, 3 and 7 s in vain, after 15 s well.
    assert calls["nvmlDeviceGetHandleByUUID"] == 4


def test_nvml_is_started_anew_for_a_lost_card_late_and_rarely(fake: Nvml) -> None:
    fake.write(*THREE)
    starts = fake.play(f"""
import pynvml
begun = []
init = pynvml.nvmlInitWithFlags
def counted(flags):
    begun.append(now[0] - 1000.0)
    return init(flags)
pynvml.nvmlInitWithFlags = counted
s = source()
s.read()
put(*{THREE!r}, "fail nvmlDevice* 1 15")
for _ in range(400):
    sample = s.read()
    assert [r.state for r in sample.readings] == ["ok", "lost", "ok"]
    now[0] += 5
s.close()
out(*begun)
""")
    assert starts == [0, 30, 630, 1230, 1830]


def test_a_start_that_outlasts_its_wait_leaves_no_card_out(fake: Nvml) -> None:
    fake.write(*THREE)
    seen, faults, reasons, back = fake.play(f"""
import time
s = source(deadline_s=0.2)
s.read()
put(*{THREE!r}, "fail nvmlDevice* 1 15", "delay nvmlInit* * 700000")
s.read()
now[0] += 31
seen, faults, reasons = [], [], set()
while True:
    sample = s.read()
    states = [r.state for r in sample.readings]
    if states == ["ok", "lost", "ok"]:
        break
    seen.append(states)
    faults.append([f.why for f in sample.faults if f.device_uid is None])
    reasons.update(r.uses_reason for r in sample.readings)
    assert all(r.used_bytes is None and r.uses is None for r in sample.readings)
    time.sleep(0.02)
out(seen, faults, sorted(reasons), states)
""")
    assert seen
    assert all(states == ["hung", "lost", "hung"] for states in seen)
    assert all(len(why) == 1 and "being started anew" in why[0] for why in faults)
    assert all("being started anew" in why for why in reasons)
    assert back == ["ok", "lost", "ok"]


@pytest.mark.parametrize("code", [1, 9, 18])
def test_nvml_gone_while_a_card_hangs_leaves_no_card_out(fake: Nvml, code: int) -> None:
    fake.write(*THREE)
    first, states, reasons, faults = fake.play(f"""
import time
s = source(deadline_s=0.2)
s.read()
put(*{THREE!r}, "delay nvmlDeviceGetMemoryInfo* 1 1500000")
first = [r.state for r in s.read().readings]
put(*{THREE!r}, "fail nvmlDevice* 0 {code}", "fail nvmlDevice* 2 {code}", "init_error {code}")
states, reasons, faults = [], set(), []
for turn in range(8):
    now[0] += 5
    sample = s.read()
    states.append([r.state for r in sample.readings])
    faults.append([f.why for f in sample.faults if f.device_uid is None])
    if turn:
        reasons.update(r.uses_reason for r in sample.readings)
out(first, states, sorted(reasons), faults)
os._exit(0)
""")
    assert first == ["ok", "hung", "ok"]
    assert all(len(three) == 3 and "ok" not in three for three in states)
    assert all(faults)
    assert reasons
    assert all("a call to the driver has not answered for" in why for why in reasons)


@pytest.mark.parametrize(
    ("others", "lost_s", "expected"),
    [
        # Alone, a card is not kept waiting for minutes.
        ([], 60, [30, 90, 210, 450, 930]),
        # One that flickers beside another brings no start after another.
        (["ok"], 50, [30, 630]),
    ],
)
def test_starts_come_ever_more_rarely(
    others: list[DeviceState], lost_s: int, expected: list[int]
) -> None:
    again = RetryTimer()
    begun = []
    for second in range(1200):
        again.saw([*others, "lost" if second % 60 < lost_s else "ok"], float(second))
        if again.restart_is_due(float(second)):
            again.restarted(float(second))
            begun.append(second)
    assert begun == expected
