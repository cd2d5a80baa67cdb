"""Odd machines: memory that is the host's or a NUMA node's, lists that lie, slow cards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import GIB, MIB, ONE, Nvml, one_read, several

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "figures",
    [
        "GB10 used=na",
        "GB10 total=0",
        "GB10 used=0",
        "GB10 total=300M used=90M",
        "Thor total=na",
        "GB10 answer=0/0/0",
        "GB10 total=9T",
        "Thor answer=80G/0/3G",
    ],
)
def test_a_chip_that_shares_the_hosts_memory_counts_its_processes(
    fake: Nvml, child: int, figures: str
) -> None:
    readings, devices, _ = one_read(
        fake, f"gpu 0 name=NVIDIA_{figures}", f"proc 0 pid={child} mem=9G"
    )
    assert readings[0]["used_bytes"] == 9 * GIB
    assert readings[0]["memory_api"] == "unified"
    assert readings[0]["state"] == "ok"
    assert devices[0]["memory_kind"] == "unified"
    assert 0 < readings[0]["free_bytes"] < readings[0]["total_bytes"]


def test_memory_of_the_host_is_never_the_cards(fake: Nvml) -> None:
    readings, _, _ = one_read(fake, "gpu 0 name=NVIDIA_GB10 used=na")
    assert readings[0]["used_bytes"] == 0


def test_the_call_that_a_series_rests_on_is_told(fake: Nvml) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G")
    assert readings[0]["memory_api"] == "v2"
    readings, _, _ = one_read(fake, "gpu 0 total=24G", "fail nvmlDeviceGetMemoryInfo_v2 0 13")
    assert (readings[0]["memory_api"], readings[0]["reserved_bytes"]) == ("v1", None)


@pytest.mark.parametrize(
    ("gpu", "rules", "kind"),
    [
        ("name=NVIDIA_GH200_480GB numa=1", [], "coherent"),
        ("name=NVIDIA_GH200_480GB", [], "dedicated"),  # the driver manages the memory itself
        ("name=NVIDIA_GH200_480GB addressing=2", ["fail nvmlDeviceGetNumaNodeId 0 13"], "coherent"),
        (
            "name=NVIDIA_GH200_480GB addressing=0",
            ["fail nvmlDeviceGetNumaNodeId 0 13"],
            "dedicated",
        ),
        ("name=NVIDIA_A100", ["fail nvmlDeviceGetNumaNodeId 0 13"], "dedicated"),
        ("name=NVIDIA_A100 addressing=1", [], "dedicated"),
    ],
)
def test_memory_that_the_kernel_manages_is_marked(
    fake: Nvml, gpu: str, rules: list[str], kind: str
) -> None:
    readings, devices, _ = one_read(fake, f"gpu 0 total=96G used=3G {gpu}", *rules)
    assert devices[0]["memory_kind"] == kind
    assert readings[0]["memory_api"] == ("coherent" if kind == "coherent" else "v2")
    assert readings[0]["used_bytes"] == 3 * GIB


def test_the_drivers_file_tells_it_to_older_libraries(fake: Nvml, tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_status").write_text("Node: 1\nStatus: online\n")
    _, _, devices = several(
        fake,
        1,
        "gpu 0 total=96G name=Tesla_V100",
        "fail nvmlDeviceGetNumaNodeId 0 13",
        proc_root=str(tmp_path / "proc"),
    )
    assert devices[0]["memory_kind"] == "coherent"


def test_widened_entries_are_read_by_the_older_call(fake: Nvml, child: int) -> None:
    pids = [child, os.getpid(), os.getppid()]
    readings, _, faults = one_read(
        fake, ONE, *(f"proc 0 pid={pid} mem=1G" for pid in pids), "procs_widened"
    )
    assert [use["key"]["pid"] for use in readings[0]["uses"]] == pids
    assert {use["used_bytes"] for use in readings[0]["uses"]} == {GIB}
    assert faults == []


def test_a_driver_that_is_known_to_widen_is_asked_the_older_way_at_once(tmp_path: Path) -> None:
    fake = Nvml(tmp_path, "-DNO_DETAIL_LIST")
    readings, _, _ = one_read(fake, "gpu 0 total=24G", "proc 0 pid=77 mem=1G", "procs_widened")
    assert readings[0]["uses"][0]["key"]["pid"] == 77
    calls = fake.stats()
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in calls
    assert calls["nvmlDeviceGetComputeRunningProcesses_v2"] == 1


def test_processes_without_memory_are_listed_with_the_reason(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(fake, "gpu 0 total=24G", f"proc 0 pid={child} mem=na")
    assert readings[0]["uses"][0]["used_bytes"] is None
    assert readings[0]["uses_reason"].startswith("the driver lists processes without their memory")


def test_a_list_that_was_empty_is_asked_for_every_third_time(fake: Nvml, child: int) -> None:
    several(fake, 9, "gpu 0 total=24G", f"proc 0 pid={child} mem=1G")
    calls = fake.stats()
    assert calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 9
    assert calls["nvmlDeviceGetGraphicsRunningProcesses_v3"] == 3
    several(fake, 9, "gpu 0 total=24G", f"proc 0 pid={child} mem=1G type=G")
    assert fake.stats()["nvmlDeviceGetGraphicsRunningProcesses_v3"] == 9


def test_a_process_that_comes_and_goes_is_seen_at_once(fake: Nvml, child: int) -> None:
    fake.write("gpu 0 total=24G")
    found = fake.play(f"""
s = source()
def pids():
    now[0] += 5
    return [(use.key.pid, use.used_bytes) for use in s.read().readings[0].uses]
first = pids()
put("gpu 0 total=24G", "proc 0 pid={child} mem=1M")
second = pids()
put("gpu 0 total=24G", "proc 0 pid={child} mem=2M")
third = pids()
put("gpu 0 total=24G")
out(first, second, third, pids())
""")
    assert found == [[], [[child, MIB]], [[child, 2 * MIB]], []]


def test_each_process_says_how_busy_it_is(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(
        fake,
        "gpu 0 total=24G util=70",
        f"proc 0 pid={child} mem=1G sm=70",
        "proc 0 pid=1 mem=1M sm=na",
    )
    assert {use["key"]["pid"]: use["sm_pct"] for use in readings[0]["uses"]} == {child: 70, 1: 0}


@pytest.mark.parametrize("room", [1, 100, 1000])
def test_room_is_made_for_as_many_samples_as_the_driver_wants(
    fake: Nvml, child: int, room: int
) -> None:
    readings, _, _ = one_read(
        fake,
        "gpu 0 total=24G util=70",
        f"proc 0 pid={child} mem=1G sm=70",
        f"procutil_room {room}",
    )
    assert readings[0]["uses"][0]["sm_pct"] == 70


@pytest.mark.parametrize("quirk", [[], ["procutil_success"]])
@pytest.mark.parametrize(("util", "sm_pct"), [(0, 0), (90, None)])
def test_no_sample_at_all_is_idle_only_on_an_idle_card(
    fake: Nvml, child: int, util: int, sm_pct: int | None, quirk: list[str]
) -> None:
    readings, _, faults = one_read(
        fake, f"gpu 0 total=24G util={util}", f"proc 0 pid={child} mem=1G sm=na", *quirk
    )
    assert readings[0]["uses"][0]["sm_pct"] == sm_pct
    assert faults == []


def test_idle_by_the_card_alone_is_believed_only_while_the_card_is_idle(
    fake: Nvml, child: int
) -> None:
    (found,) = fake.play(f"""
seen = []
s = source(slow_every=1000)
for util in (0, 0, 80, 80, 0):
    put(f"gpu 0 total=24G util={{util}}", "proc 0 pid={child} mem=1G sm=na")
    seen.append(plain(s.read().readings)[0]["uses"][0]["sm_pct"])
    now[0] += 1
out(seen)
""")
    # Whoever works in bursts is not called idle on what was true between two of them.
    assert found == [0, 0, None, None, None]
    assert fake.stats()["nvmlDeviceGetProcessUtilization"] <= 4


def test_a_share_that_wobbles_is_no_news_but_work_that_begins_or_ends_is(
    fake: Nvml, child: int
) -> None:
    (found,) = fake.play(f"""
seen = []
s = source(slow_every=1)
for share in (70, 75, 62, 81, 79, 0, 3, 50):
    put("gpu 0 total=24G util=70", "proc 0 pid={child} mem=1G sm=%d" % share)
    seen.append(plain(s.read().readings)[0]["uses"][0]["sm_pct"])
    now[0] += 5
out(seen)
""")
    # Every fourth look takes over what there is.
    assert found == [70, 70, 70, 81, 81, 0, 3, 50]


@pytest.mark.parametrize("code", [3, 13, 4])
def test_who_refuses_that_is_not_asked_again(fake: Nvml, child: int, code: int) -> None:
    readings, _, _ = several(
        fake,
        6,
        "gpu 0 total=24G util=50",
        f"proc 0 pid={child} mem=1G sm=50",
        f"fail nvmlDeviceGetProcessUtilization 0 {code}",
    )
    assert {reading["uses"][0]["sm_pct"] for reading in readings} == {None}
    assert fake.stats()["nvmlDeviceGetProcessUtilization"] == 1


def test_a_virtual_gpu_that_answers_little_is_read_as_far_as_it_answers(
    fake: Nvml, child: int
) -> None:
    absent = (
        "nvmlDeviceGetTemperature*",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetMPS*",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetCurrentClocks*",
        "nvmlEventSetCreate",
    )
    readings, _, faults = one_read(
        fake,
        "gpu 0 name=GRID_A100-10C total=10G base=1G",
        f"proc 0 pid={child} mem=2G",
        *(f"fail {name} * 3" for name in absent),
    )
    (reading,) = readings
    assert (reading["state"], reading["used_bytes"]) == ("ok", 3 * GIB)
    assert reading["uses"][0]["used_bytes"] == 2 * GIB
    for field in ("util_pct", "temp_c", "power_w", "clock_mhz", "throttle", "ecc_errors"):
        assert reading[field] is None
    assert faults == []


def test_clients_behind_a_shared_server_count_once(fake: Nvml, child: int) -> None:
    readings, _, _ = one_read(
        fake, ONE, f"proc 0 pid={child} mem=2G type=M", f"proc 0 pid={os.getpid()} mem=30M type=C"
    )
    assert {use["kind"]: use["used_bytes"] for use in readings[0]["uses"]} == {
        "C": 30 * MIB,
        "M": 2 * GIB,
    }
