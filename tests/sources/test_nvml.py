"""The NVML source against the stand-in library, through the real nvidia-ml-py: what is read.

Each case runs in a process of its own, since the library is found once per process; what the
stand-in says is changed by rewriting its file, and time is a number that the case moves.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import GIB, MIB, ONE, TWO, UID, one_read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sources.nvml_case import Nvml


@pytest.mark.requirement("W12")
def test_a_card_is_read_completely(fake: Nvml, child: int) -> None:
    readings, devices, faults = one_read(
        fake,
        "gpu 0 name=NVIDIA_A100 bus=00000000:0A:00.0 total=80G base=1G reserved=600M util=57 "
        "memutil=12 temp=61 power=250 clock=1410",
        f"proc 0 pid={child} mem=9216M",
    )
    (reading,), (device,) = readings, devices
    assert reading["total_bytes"] == 80 * GIB
    assert reading["used_bytes"] == GIB + 9216 * MIB
    assert reading["free_bytes"] == 80 * GIB - GIB - 9216 * MIB - 600 * MIB
    assert reading["reserved_bytes"] == 600 * MIB
    assert (reading["util_pct"], reading["memory_util_pct"]) == (57, 12)
    assert (reading["temp_c"], reading["power_w"], reading["clock_mhz"]) == (61, 250, 1410)
    (use,) = reading["uses"]
    assert use["key"] == {"pid": child, "started_at_s": None}
    assert (use["used_bytes"], use["kind"]) == (9216 * MIB, "C")
    assert reading["state"] == "ok"
    assert faults == []
    assert device["uid"] == reading["device_uid"] == UID(0)
    assert (device["name"], device["pci_bus"]) == ("NVIDIA A100", "0000:0a:00.0")
    assert (device["memory_total_bytes"], device["memory_kind"]) == (80 * GIB, "dedicated")


def test_a_pid_in_three_lists_counts_once(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G", f"proc 0 pid={child} mem=2G type=CGM")
    (use,) = readings[0]["uses"]
    assert (use["used_bytes"], use["kind"]) == (2 * GIB, "C+G+M")


@pytest.mark.parametrize("variant", [[], ["v2_inclusive"]])
def test_used_never_holds_the_reserve(fake: Nvml, variant: list[str]) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G used=3G reserved=500M", *variant)
    assert readings[0]["used_bytes"] == 3 * GIB
    assert readings[0]["reserved_bytes"] == 500 * MIB


def test_a_hostile_name_is_made_safe(fake: Nvml) -> None:
    _, devices, _ = one_read(fake, "gpu 0 total=24G name=Evil\x1b[2J<b>\u202e")
    assert devices[0]["name"] == "Evil<b>"


def test_a_name_that_is_no_text_costs_only_the_name(fake: Nvml) -> None:
    readings, devices, _ = one_read(fake, "gpu 0 total=24G name=A\udcffB", "gpu 1 total=24G")
    assert [device["name"] for device in devices] == ["NVIDIA GPU", "NVIDIA Test GPU"]
    assert [reading["state"] for reading in readings] == ["ok", "ok"]


def test_a_lost_card_hides_no_other(fake: Nvml, child: int) -> None:
    readings, _, faults = one_read(
        fake,
        *(f"gpu {index} total=24G" for index in range(3)),
        f"proc 2 pid={child} mem=1G",
        "fail * 0 15",
    )
    by_state = {reading["device_uid"]: reading["state"] for reading in readings}
    assert sorted(by_state.values()) == ["lost", "ok", "ok"]
    assert by_state[UID(1)] == by_state[UID(2)] == "ok"
    assert readings[2]["uses"][0]["used_bytes"] == GIB
    assert [fault["where"] for fault in faults] == ["nvml/0"]


def test_a_forbidden_card_hides_no_other(fake: Nvml) -> None:
    readings, devices, _ = one_read(
        fake,
        ONE,
        "gpu 1 total=48G",
        "fail nvmlDeviceGetHandleByIndex_v2 0 4",
        "fail nvmlDeviceGetHandleByUUID * 4",
    )
    assert [reading["state"] for reading in readings] == ["no-permission", "ok"]
    assert readings[0]["used_bytes"] is None
    assert readings[0]["uses"] is None
    assert readings[1]["total_bytes"] == 48 * GIB
    assert [device["index"] for device in devices] == [0, 1]


@pytest.mark.parametrize(
    ("code", "state"), [(4, "no-permission"), (10, "hung"), (16, "reset-required"), (15, "lost")]
)
def test_a_memory_error_gives_a_state_and_no_number(fake: Nvml, code: int, state: str) -> None:
    readings, devices, faults = one_read(fake, *TWO, f"fail nvmlDeviceGetMemoryInfo* 0 {code}")
    assert readings[0]["state"] == state
    assert readings[0]["used_bytes"] is None
    assert devices[0]["memory_kind"] == "dedicated"
    assert readings[1]["state"] == "ok"
    assert faults[0]["device_uid"] == UID(0)


def test_an_unknown_error_keeps_the_rest_of_the_card(fake: Nvml, child: int) -> None:
    readings, devices, faults = one_read(
        fake,
        "gpu 0 total=24G util=9",
        f"proc 0 pid={child} mem=1G",
        "fail nvmlDeviceGetMemoryInfo* 0 999",
    )
    assert readings[0]["used_bytes"] is None
    assert readings[0]["util_pct"] == 9
    assert readings[0]["uses"][0]["used_bytes"] == GIB
    assert devices[0]["memory_kind"] == "dedicated"
    assert faults[0]["where"] == "nvml/0/memory"
    assert "999" in faults[0]["why"]


def test_one_refused_gauge_is_one_fault(fake: Nvml) -> None:
    readings, _, faults = one_read(
        fake, "gpu 0 total=24G temp=50 power=99", "fail nvmlDeviceGetPowerUsage 0 4"
    )
    assert readings[0]["power_w"] is None
    assert readings[0]["temp_c"] == 50
    assert [fault["where"] for fault in faults] == ["nvml/0/power"]


def test_a_fault_is_one_line_and_its_end_another(fake: Nvml) -> None:
    """The gauges are asked for in each third look: between two of them a fault is not over."""
    fake.write("gpu 0 total=24G temp=50", "fail nvmlDeviceGetTemperature* 0 2")
    (lines,) = fake.play("""
lines = []
listen(lines)
s = source()
def reads():
    for _ in range(60):
        s.read()
        now[0] += 5.0
reads()
put("gpu 0 total=24G temp=50")
reads()
out(lines)
""")
    found = []
    for level, line in lines:
        first, *words = shlex.split(line)
        if first == "fault":
            keys = dict(word.split("=", 1) for word in words if "=" in word)
            found.append((level, "over" in words, keys["where"], "why" in keys, "after_s" in keys))
    assert found == [
        ("WARNING", False, "nvml/0/temp", True, False),
        ("INFO", True, "nvml/0/temp", False, True),
    ]


def test_unsupported_gauges_are_no_faults_and_are_not_asked_for_again(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G util=na temp=na power=na clock=na")
    readings, faults = fake.play("""
s = source(slow_every=1)
for _ in range(5):
    sample = s.read()
out(plain(sample.readings[0]), plain(sample.faults))
""")
    assert faults == []
    names = ("util_pct", "temp_c", "power_w", "clock_mhz")
    assert [readings[name] for name in names] == [None] * 4
    calls = fake.stats()
    assert calls["nvmlDeviceGetUtilizationRates"] == 1
    assert calls["nvmlDeviceGetTemperature"] == 1
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == 5


@pytest.mark.parametrize("line", ["proc 0 pid={} mem=na", "fail *RunningProcesses* 0 4"])
def test_unified_without_process_memory_is_unknown(fake: Nvml, child: int, line: str) -> None:
    readings, _, _ = one_read(fake, "gpu 0 name=NVIDIA_Thor total=na", line.format(child))
    assert readings[0]["used_bytes"] is None


def test_neither_memory_nor_processes_is_unsupported(fake: Nvml) -> None:
    readings, _, _ = one_read(
        fake, "gpu 0 name=NVIDIA_Thor total=na", "fail *RunningProcesses* 0 3"
    )
    assert readings[0]["state"] == "unsupported"
    assert readings[0]["used_bytes"] is None


def test_the_two_versions_are_never_mixed(fake: Nvml) -> None:
    fake.write("gpu 0 total=24G used=3G reserved=500M", "fail nvmlDeviceGetMemoryInfo_v2 * 13")
    used = fake.play("""
s = source()
first = s.read().readings[0].used_bytes
put("gpu 0 total=24G used=3G reserved=500M")
second = s.read().readings[0].used_bytes
put("gpu 0 total=24G used=3G reserved=500M", "fail nvmlDeviceGetMemoryInfo * 3")
third = s.read()
out(first, second, third.readings[0].used_bytes, s.devices()[0].memory_kind,
    third.faults[0].where)
""")
    with_reserve = 3 * GIB + 500 * MIB
    assert used == [with_reserve, with_reserve, None, "dedicated", "nvml/0/memory"]


def test_a_refused_list_is_unknown_and_not_idle(fake: Nvml, child: int) -> None:
    readings, _, faults = one_read(
        fake,
        *TWO,
        f"proc 0 pid={child} mem=1G",
        f"proc 1 pid={child} mem=1G",
        "fail nvmlDeviceGetComputeRunningProcesses* 0 4",
    )
    assert readings[0]["uses"] is None
    assert "Insufficient Permissions" in readings[0]["uses_reason"]
    assert readings[0]["used_bytes"] == GIB
    assert readings[0]["state"] == "ok"
    assert len(readings[1]["uses"]) == 1
    assert faults[0]["where"] == "nvml/0/processes"


def test_a_list_that_grew_meanwhile_is_read_again(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(fake, ONE, f"proc 0 pid={child} mem=1G", "procs_v3_fail_second 3")
    assert [use["key"]["pid"] for use in readings[0]["uses"]] == [child]


def test_a_list_that_never_stops_growing_is_unknown(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(fake, ONE, f"proc 0 pid={child} mem=1G", "procs_v3_fail_second")
    assert readings[0]["uses"] is None
    assert "growing" in readings[0]["uses_reason"]
    assert fake.stats()["nvmlDeviceGetComputeRunningProcesses_v3"] == 4


def test_more_processes_than_the_first_buffer_holds(fake: Nvml) -> None:
    readings, _, _ = one_read(
        fake, "gpu 0 total=80G", *(f"proc 0 pid={1000 + n} mem=1M" for n in range(200))
    )
    assert [use["key"]["pid"] for use in readings[0]["uses"]] == list(range(1000, 1200))


@pytest.mark.parametrize("absent", [["_v3"], ["_v3", "_v2"]])
def test_older_process_calls_serve_older_drivers(fake: Nvml, child: int, absent: list[str]) -> None:
    readings, _, _ = one_read(
        fake,
        ONE,
        f"proc 0 pid={child} mem=1G",
        "proc 0 pid=77 mem=2G",
        *(f"fail nvmlDeviceGet*RunningProcesses{suffix} * 13" for suffix in absent),
    )
    held = [(use["key"]["pid"], use["used_bytes"]) for use in readings[0]["uses"]]
    assert held == [(child, GIB), (77, 2 * GIB)]


@pytest.mark.parametrize("line", ["proc 0 pid=4294967290 mem=1G", "proc 0 pid=77 mem=25G"])
def test_an_incredible_list_is_not_trusted(fake: Nvml, child: int, line: str) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G used=2G", f"proc 0 pid={child} mem=1G", line)
    assert readings[0]["uses"] is None
    assert "not credible" in readings[0]["uses_reason"]
    assert readings[0]["used_bytes"] == 2 * GIB


@pytest.mark.parametrize(("contained", "told"), [(True, [5000]), (False, None)])
def test_the_numbers_of_a_container_bound_no_pid_of_the_host(
    fake: Nvml, tmp_path: Path, contained: bool, told: list[int] | None
) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/pid_max").write_text("1000\n")
    if contained:
        (tmp_path / ".dockerenv").touch()
    fake.write("gpu 0 total=24G", "proc 0 pid=5000 mem=1G")
    (got,) = fake.play(
        """
uses = source(proc_root=sys.argv[1]).read().readings[0].uses
out(uses and [use.key.pid for use in uses])
""",
        tmp_path / "proc",
    )
    assert got == told


def test_missing_graphics_and_mps_lists_are_empty(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(
        fake,
        ONE,
        f"proc 0 pid={child} mem=1G",
        "fail nvmlDeviceGetGraphicsRunningProcesses* * 3",
        "fail nvmlDeviceGetMPSComputeRunningProcesses* * 13",
    )
    assert len(readings[0]["uses"]) == 1


def test_a_driver_without_lists_is_no_fault(fake: Nvml) -> None:
    readings, _, faults = one_read(fake, "gpu 0 total=24G base=1G", "fail *RunningProcesses* * 3")
    assert readings[0]["uses"] is None
    assert "does not list" in readings[0]["uses_reason"]
    assert (readings[0]["used_bytes"], readings[0]["state"]) == (GIB, "ok")
    assert faults == []


def test_a_dead_pid_stays_listed(fake: Nvml) -> None:
    ended = subprocess.Popen(["sleep", "600"])
    ended.kill()
    ended.wait()
    fake.write("gpu 0 total=24G", f"proc 0 pid={ended.pid} mem=9G")
    (use,), found = fake.play("""
from gpuwatchd.collect.host import Host
uses = source().read().readings[0].uses
host = Host()
out(plain(uses), [str(pid) for pid in host.processes([use.key.pid for use in uses])])
host.close()
""")
    assert use["key"]["pid"] == ended.pid
    assert use["used_bytes"] == 9 * GIB
    assert found == []
