"""What macOS prints, parsed; recordings of others where they are."""

from __future__ import annotations

import csv
import struct
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.metal import calls
from gpuwatchd.collect.metal.calls import ACCELERATORS, GIB, MIB, Ceiling, System
from tests.conftest import present
from tests.sources.metal_case import AVAILABLE, PAGE, FakeMac, text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["ioreg_m2.plist", "ioreg_m2.txt"])
def test_both_forms_say_the_same(name: str) -> None:
    (node,) = calls.parse(text(name))
    assert (node.kind, node.model, node.vendor) == ("AGXAcceleratorG14G", "Apple M2", "apple")
    assert node.stats["Alloc system memory"] == 6 * GIB, "not the legend's 1 or 11"
    assert node.stats["In use system memory"] == 5 * GIB, "not (driver), which is always 0"
    assert node.stats["lastRecoveryTime"] == 9007199254740995, "beyond what a float can hold"
    assert "TiledSceneBytes" not in node.stats, "negative: no number of bytes"
    assert node.busy_pct == 97.0


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n", b"<?xml version='1.0'?><plist><array>", b"<?xml version='1.0'?><plist/>",
        b"<plist version='1.0'><array><string>x</string></array></plist>",
        b"<plist version='1.0'><dict><key>a</key><integer>x</integer></dict></plist>",
        b"<plist version='1.0'><dict><key>a</key><data>!</data></dict></plist>",
        b"<plist version='1.0'><dict><string>a</string></dict></plist>",
        b"<plist version='1.0'><date>x</date></plist>",
        b"bplist00garbage", b"bplist00" + bytes(64), bytes(range(256)), b"+-o <class >",
    ],
)  # fmt: skip
def test_what_is_no_accelerator_is_none(raw: bytes) -> None:
    assert calls.parse(raw) == []


@pytest.mark.parametrize("name", ["ioreg_m2.plist", "ioreg_m2.txt", "ioreg_clients.txt"])
def test_output_that_is_cut_anywhere_hurts_nobody(name: str) -> None:
    raw = text(name)
    for end in range(0, len(raw), 7):
        nodes = calls.parse(raw[:end])
        clients = calls.parse_clients(raw[:end].decode())
        assert len(nodes) <= 1
        assert len(clients) <= 4


def test_clients_are_summed_per_program() -> None:
    found = calls.parse_clients(text("ioreg_clients.txt").decode())
    assert {pid: client.gpu_time_ns for pid, client in found.items()} == {
        310: 5_000_000_000, 4100: 9_500_000_000, 4200: 0, 9999: 123,
    }  # fmt: skip
    assert found[310].name == "WindowServer"


def test_sysctl_and_vm_stat() -> None:
    sysctl = calls.parse_sysctl(text("sysctl.txt").decode())
    system = calls.system_of(sysctl, text("vm_stat.txt").decode())
    assert system == System(
        ram_bytes=24 * GIB,
        limit_bytes=None,
        pressure=1,
        swap_bytes=512 * MIB + MIB // 2,
        available_bytes=AVAILABLE,
    )
    assert calls.system_of({}, "") == System()


def test_an_older_name_of_the_limit_counts() -> None:
    assert calls.system_of({"debug.iogpu.wired_limit": "20480"}, "").limit_bytes == 20 * GIB
    newer = {"iogpu.wired_limit_mb": "0", "debug.iogpu.wired_limit": "20480"}
    assert calls.system_of(newer, "").limit_bytes is None


@pytest.mark.parametrize(
    ("system", "recommended", "want"),
    [
        (System(ram_bytes=24 * GIB, limit_bytes=20 * GIB), 17 * GIB, Ceiling(20 * GIB, "set")),
        (System(ram_bytes=24 * GIB), 17 * GIB, Ceiling(17 * GIB, "Metal")),
        (System(ram_bytes=24 * GIB), None, Ceiling(16 * GIB, "estimate")),
        (System(ram_bytes=36 * GIB), None, Ceiling(24 * GIB, "estimate")),
        (System(ram_bytes=64 * GIB), None, Ceiling(48 * GIB, "estimate")),
        (System(), None, None),
    ],
)
def test_the_ceiling_is_what_is_surest(
    system: System, recommended: int | None, want: Ceiling | None
) -> None:
    assert calls.ceiling(system, recommended) == want


@pytest.mark.parametrize(
    ("allocated", "in_use", "system", "want"),
    [
        (6 * GIB, GIB, System(available_bytes=20 * GIB), 10 * GIB),
        (6 * GIB, GIB, System(available_bytes=2 * GIB), 2 * GIB),
        (6 * GIB, GIB, System(), 10 * GIB),
        (20 * GIB, 4 * GIB, System(available_bytes=20 * GIB), 12 * GIB),
        (20 * GIB, None, System(available_bytes=20 * GIB), 0),
        (6 * GIB, GIB, System(available_bytes=2 * GIB, pressure=4), 0),
        (None, GIB, System(available_bytes=2 * GIB), None),
    ],
)
def test_the_room_is_bounded_by_the_ceiling_and_by_the_host(
    allocated: int | None, in_use: int | None, system: System, want: int | None
) -> None:
    limit = Ceiling(16 * GIB, "Metal")
    assert calls.headroom(limit, allocated, in_use, system) == want


def test_a_footprint_lies_where_every_version_has_it() -> None:
    raw = bytes(16) + struct.pack("=6Q", *range(6)) + struct.pack("=QQ", 30 * MIB, 4 * GIB)
    assert calls.parse_rusage(raw + bytes(16)) == 4 * GIB
    assert calls.parse_rusage(raw + bytes(200)) == 4 * GIB
    assert calls.parse_rusage(raw) is None


RECORDED = {
    "ioreg_m5pro_macos27_idle.plist": ("Apple M5 Pro", 6614056960, 1046872064, 12.0),
    "ioreg_m4_idle.txt": ("Apple M4", 7630618624, 550649856, 3.0),
    "ioreg_g17x_llm_busy.txt": ("AGXAcceleratorG17X", 31368167424, 28367667200, 99.0),
    "ioreg_graphics_busy.txt": ("IOAccelerator", 4272832512, 1200357376, 57.0),
    "ioreg_m4air_partial_no_inuse.txt": ("AGXAcceleratorG16G", 7524302848, None, 88.0),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.requirement("G27")
def test_recorded_accelerators(recorded: Path, mac: FakeMac, name: str) -> None:
    mac.output[ACCELERATORS] = (recorded / name).read_bytes()
    source = mac.source()
    (reading,) = source.read().readings
    model, allocated, in_use, busy = RECORDED[name]
    assert source.devices()[0].name == model
    assert source.devices()[0].memory_kind == "unified"
    assert (reading.used_bytes, reading.resident_bytes) == (allocated, in_use)
    assert reading.util_pct == busy


@pytest.mark.shared_data
def test_two_gpus_of_an_older_mac(recorded: Path, mac: FakeMac) -> None:
    name = "ioreg_intel_amd_two_nodes_SYNTHETIC.plist"
    mac.output[ACCELERATORS] = (recorded / name).read_bytes()
    source = mac.source()
    apple, amd = source.read().readings
    assert [device.vendor for device in source.devices()] == ["apple", "amd"]
    assert [device.memory_kind for device in source.devices()] == ["unified", "dedicated"]
    assert apple.util_pct == 100.0, "137 in the registry"
    assert (amd.used_bytes, amd.free_bytes, amd.total_bytes) == (2 * GIB, 6 * GIB, 8 * GIB)
    assert amd.uses is None
    assert "discrete" in str(amd.uses_reason)
    assert len({device.uid for device in source.devices()}) == 2


@pytest.mark.shared_data
def test_recorded_clients(recorded: Path) -> None:
    flat = calls.parse_clients((recorded / "ioreg_agx_userclients.txt").read_text())
    assert {pid: (one.name, one.gpu_time_ns) for pid, one in flat.items()} == {
        444: ("runningboardd", 0),
        440: ("WindowServer", 38738170958 + 76336458 + 1000000000),
    }
    nested = (recorded / "ioreg_agx_nested_with_agcinfo.txt").read_text()
    assert {one.name: one.gpu_time_ns for one in calls.parse_clients(nested).values()} == {
        "wine64-preloader": 300000000,
        "Brave Browser": 125000000,
    }
    assert calls.parse_text(nested) == []


@pytest.mark.shared_data
def test_recorded_memory_of_the_host(recorded: Path) -> None:
    sysctl = calls.parse_sysctl((recorded / "sysctl_samples.txt").read_text())
    vm_stat = (recorded / "vm_stat_sample.txt").read_text()
    system = calls.system_of(sysctl, vm_stat)
    assert (system.pressure, system.limit_bytes, system.swap_bytes) == (1, None, 5 * GIB)
    assert system.available_bytes == (57308 + 829809 + 33205) * PAGE


@pytest.mark.shared_data
def test_the_estimate_is_never_far_above_what_machines_said(recorded: Path) -> None:
    with (recorded / "recommended_max_working_set.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        estimate = present(calls.ceiling(System(ram_bytes=int(row["ram_bytes"])), None))
        assert 0.85 <= estimate.total_bytes / int(row["recommendedMaxWorkingSetSize_bytes"]) < 1.01
