"""The NVML source against the stand-in library, through the real nvidia-ml-py: its life.

Each case runs in a process of its own, since the library is found once per process; what the
stand-in says is changed by rewriting its file, and time is a number that the case moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.nvml.lifecycle import RetryTimer
from tests.sources.nvml_case import GIB, MIB, UID, one_read

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import DeviceState
    from tests.sources.nvml_case import Nvml


def test_every_mig_instance_is_a_device(fake: Nvml, child: int) -> None:
    readings, devices, _ = one_read(
        fake,
        "gpu 0 total=80G base=2G mig=1",
        "mig 0 gi=1 ci=0 total=20G base=100M uuid=MIG-a",
        "mig 0 gi=2 ci=0 total=40G base=100M uuid=MIG-b",
        f"proc 0 pid={child} mem=9G gi=2 ci=0",
        "gpu 1 total=24G",
    )
    assert [device["uid"] for device in devices] == [UID(0), "MIG-a", "MIG-b", UID(1)]
    assert [device["parent_uid"] for device in devices] == [None, UID(0), UID(0), None]
    assert [device["memory_total_bytes"] for device in devices] == [
        80 * GIB,
        20 * GIB,
        40 * GIB,
        24 * GIB,
    ]
    parent, small, large, other = readings
    assert parent["uses"] is None
    assert "MIG" in parent["uses_reason"]
    assert small["uses"] == []
    assert [use["key"]["pid"] for use in large["uses"]] == [child]
    assert large["used_bytes"] == 9 * GIB + 100 * MIB
    assert large["util_pct"] is None
    assert other["state"] == "ok"


def test_mig_instances_come_and_go(fake: Nvml) -> None:
    fake.write("gpu 0 total=80G")
    devices = fake.play("""
s = source(rescan_s=60)
def uids():
    s.read()
    return [device.uid for device in s.devices()]
before = uids()
put("gpu 0 total=80G mig=1", "mig 0 gi=1 total=20G uuid=MIG-a")
at_once = uids()
now[0] += 61
after = uids()
put("gpu 0 total=80G mig=1")
now[0] += 61
out(before, at_once, after, uids())
""")
    assert devices == [[UID(0)], [UID(0)], [UID(0), "MIG-a"], [UID(0)]]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["init_error 9"], "not loaded"),
        (["init_error 999"], "code 999"),
        (["driver 550.54.15"], "no GPU"),
    ],
)
def test_what_is_missing_is_said(fake: Nvml, lines: list[str], words: str) -> None:
    fake.write(*lines)
    probe, error, hint = fake.play("""
s = source()
probe = s.probe()
now[0] += 1000
try:
    s.read()
except SourceUnavailable as error:
    out(plain(probe), str(error), error.hint)
""")
    assert probe["ok"] is False
    assert words in probe["reason"]
    assert probe["reason"] == error
    assert hint


def test_a_version_mismatch_names_both_versions(fake: Nvml, tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build\n"
    )
    fake.write("gpu 0 total=24G", "nvml 12.550.54.15", "init_error 18")
    (probe,) = fake.play(f"out(plain(source(proc_root={str(tmp_path)!r}).probe()))")
    assert "550.54.15" in probe["reason"]
    assert "535.129.03" in probe["reason"]
    assert probe["hint"]


def test_a_driver_that_comes_later_is_found(fake: Nvml) -> None:
    fake.write("init_error 9")
    state, ok = fake.play("""
s = source()
for _ in range(600):
    try:
        s.read()
    except SourceUnavailable:
        pass
    now[0] += 1
put("gpu 0 total=24G")
now[0] += 300
out(s.read().readings[0].state, s.probe().ok)
""")
    assert (state, ok) == ("ok", True)
    calls = fake.stats()
    # At most one try in five seconds, whoever reads how often, then the one that works.
    assert 100 <= calls["nvmlInitWithFlags"] <= 121
    assert calls["nvmlShutdown"] == 1


@pytest.mark.parametrize("code", [1, 9, 18])
def test_nvml_gone_is_started_again_with_growing_pauses(fake: Nvml, code: int) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G")
    before, states, after = fake.play(f"""
s = source()
before = [r.state for r in s.read().readings]
put("gpu 0 total=24G", "gpu 1 total=24G", "fail nvmlDevice* * {code}", "init_error {code}")
states = []
for _ in range(120):
    sample = s.read()
    states += [r.state for r in sample.readings]
    assert sample.faults and all(r.used_bytes is None for r in sample.readings)
    now[0] += 1
put("gpu 1 total=24G uuid={UID(0)}", "gpu 0 total=24G uuid={UID(1)}")
now[0] += 60
after = [(r.device_uid, r.state) for r in s.read().readings]
s.close()
out(before, sorted(set(states)), sorted(after))
""")
    assert before == ["ok", "ok"]
    assert states == ["lost"]
    assert after == [[UID(0), "ok"], [UID(1), "ok"]]
    calls = fake.stats()
    assert 6 <= calls["nvmlInitWithFlags"] <= 10
    # Two starts worked, and each was ended once.
    assert calls["nvmlShutdown"] == 2


def test_a_lost_cards_handle_is_not_used_again(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G", "fail nvmlDeviceGetMemoryInfo_v2 0 15")
    fake.play("s = source()\nfor _ in range(20): s.read()\nout()")
    calls = fake.stats()
    # What is asked before the memory, and nothing after it.
    assert calls["nvmlDeviceGetUtilizationRates"] == calls["nvmlDeviceGetMemoryInfo_v2"] == 1
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in calls


def test_a_card_that_fell_off_the_bus_stays_in_view(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G")
    states = fake.play("""
s = source()
s.read()
put("gpu 0 total=24G")
now[0] += 61
out({r.device_uid: r.state for r in s.read().readings})
""")
    assert states == [{UID(0): "ok", UID(1): "lost"}]


def test_a_card_that_was_reset_is_read_again(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G", "fail nvmlDeviceGetMemoryInfo_v2 0 16")
    states = fake.play("""
s = source()
states = [s.read().readings[0].state for _ in range(3)]
put("gpu 0 total=24G")
now[0] += 61
out(*states, s.read().readings[0].state)
""")
    assert states == ["reset-required"] * 3 + ["ok"]
    assert fake.stats()["nvmlInitWithFlags"] == 1


def test_refusals_are_forgotten_when_nvml_starts_again(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G util=na")
    utils = fake.play("""
s = source()
first = s.read().readings[0].util_pct
put("gpu 0 total=24G util=42")
second = s.read().readings[0].util_pct
s.release_driver(60)
released = s.read()
now[0] += 61
out(first, second, released.readings[0].used_bytes, s.read().readings[0].util_pct)
""")
    assert utils == [None, None, None, 42]


def test_nvml_is_started_once_for_life(fake: Nvml) -> None:
    fake.write(*(f"gpu {index} total=24G" for index in range(8)))
    fake.play("""
s = source(rescan_s=1e9)
assert s.probe().ok
for _ in range(30):
    s.read()
    now[0] += 5
s.close()
s.close()
out()
""")
    calls = fake.stats()
    assert (calls["nvmlInitWithFlags"], calls["nvmlShutdown"]) == (1, 1)
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == 8 * 30
    # One call per list: the buffer is kept, nothing is sized first.
    assert calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 8 * 30
    assert calls["nvmlDeviceGetTemperature"] <= 8 * 30 // 3 + 8
    assert calls["nvmlDeviceGetUUID"] == 8


def test_slow_gauges_are_carried_while_fresh(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G temp=50")
    temperatures = fake.play("""
s = source(slow_every=4, fresh_s=30)
def temperature():
    return s.read().readings[0].temp_c
got = [temperature()]
put("gpu 0 total=24G temp=70")
got += [temperature(), temperature()]
now[0] += 31
got.append(temperature())
put("gpu 0 total=24G temp=80")
got += [temperature()]
out(*got)
""")
    assert temperatures == [50, 50, 50, 70, 80]


PARTS = (
    "gpu 0 total=80G mig=1",
    "mig 0 gi=1 total=20G uuid=MIG-a",
    "mig 0 gi=2 total=20G uuid=MIG-b",
)


@pytest.mark.parametrize(
    "failure",
    [
        "fail nvmlDeviceGetMigMode 0 10",
        "fail nvmlDeviceGetMaxMigDeviceCount 0 999",
        "fail nvmlDeviceGetMigDeviceHandleByIndex 0 999",
        "fail nvmlDeviceGetUUID 0:1 10",
    ],
)
def test_an_instance_is_not_gone_because_a_call_failed(fake: Nvml, failure: str) -> None:
    fake.write(*PARTS)
    devices = fake.play(f"""
s = source(rescan_s=60)
def uids():
    s.read()
    return [device.uid for device in s.devices()]
before = uids()
put(*{PARTS!r}, {failure!r})
now[0] += 61
during = uids()
put(*{PARTS!r})
now[0] += 61
out(before, during, uids())
""")
    assert devices == [[UID(0), "MIG-a", "MIG-b"]] * 3


def test_an_instance_knows_which_card_it_is_on(fake: Nvml) -> None:
    fake.write("gpu 0 total=80G", "gpu 1 total=80G mig=1", "mig 1 gi=1 total=20G uuid=MIG-a")
    labels = fake.play("""
s = source()
s.read()
out([device.label for device in s.devices()])
""")
    assert labels == [["GPU 0", "GPU 1", "MIG 1:0"]]


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
    assert [fault.where for fault in sample.faults] == ["nvml/1"]
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
    assert all(len(why) == 1 and "being restarted" in why[0] for why in faults)
    assert all("being restarted" in why for why in reasons)
    assert back == ["ok", "lost", "ok"]


@pytest.mark.slow
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
        if second >= again.restart_at_s:
            again.restarted(float(second))
            begun.append(second)
    assert begun == expected


def test_doubt_about_a_busy_card_comes_to_rest(fake: Nvml, child: int) -> None:
    (found,) = fake.play(f"""
put("gpu 0 total=24G util=90", "proc 0 pid={child} mem=1G sm=0")
s = source(slow_every=1000)
seen = []
for tick in range(200):
    seen.append(plain(s.read().readings)[0]["uses"][0]["sm_pct"])
    now[0] += 1
out([seen[0], seen[-1]])
""")
    assert found == [0, 0]
    # Once per doubt and then in turn only; without an end to doubt it would be 200.
    assert fake.stats()["nvmlDeviceGetProcessUtilization"] <= 12


@pytest.mark.parametrize(("taken_s", "left_s"), [(0.25, 0.75), (0.875, 0.25), (2.0, 0.25)])
def test_cards_that_are_found_again_are_read_in_what_is_left_of_the_time(
    fake: Nvml, taken_s: float, left_s: float
) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G")
    deadlines, states = fake.play(f"""
from types import SimpleNamespace
from gpuwatchd.collect.nvml import source as module
s = source(deadline_s=1.0)
s.read()
put("gpu 0 total=24G", "gpu 1 total=24G", "fail nvmlDeviceGetMemoryInfo* 1 15")
s.read()
put("gpu 0 total=24G", "gpu 1 total=24G")
now[0] += 5
spent, deadlines, run = [0.0], [], s._lanes.run
def timed(jobs, deadline_s):
    deadlines.append(deadline_s)
    spent[0] += {taken_s}
    return run(jobs, 30.0)
s._lanes.run = timed
module.time = SimpleNamespace(monotonic=lambda: spent[0])
out(deadlines, [reading.state for reading in s.read().readings])
""")
    assert deadlines == [1.0, left_s]
    assert states == ["ok", "ok"]


def test_another_uuid_order_or_name_is_seen_while_a_card_is_read(fake: Nvml) -> None:
    first, second = (f"gpu {i} total=24G uuid=GPU-{i} name=A" for i in (0, 1))
    fake.write(first, second)
    found = fake.play("""
s = source(rescan_s=60)
def look(*lines):
    put(*lines)
    s.read()
    now[0] += 61
    states = {r.device_uid: r.state for r in s.read().readings}
    return [[d.index, d.uid, d.name, d.pci_bus, states[d.uid]] for d in s.devices()]
out(look("gpu 0 uuid=GPU-9 name=A", "gpu 1 uuid=GPU-1 name=A"),
    look("gpu 0 uuid=GPU-1 name=A", "gpu 1 uuid=GPU-9 name=B"))
""")
    bus = "0000:0{}:00.0".format
    assert found == [
        [[0, "GPU-9", "A", bus(1), "ok"], [1, "GPU-1", "A", bus(2), "ok"]],
        [[0, "GPU-1", "A", bus(1), "ok"], [1, "GPU-9", "B", bus(2), "ok"]],
    ]
