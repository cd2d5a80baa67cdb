"""AMD and Intel cards, read from trees of plain files: what they are and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import SourceUnavailable
from tests.sources.drm_case import (
    APU,
    ARC,
    GIB,
    IGPU,
    MIB,
    NAVI,
    Tree,
    amd_fdinfo,
    held,
    only,
    xe_fdinfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_an_amd_card_gives_every_figure_it_publishes(tree: Tree) -> None:
    tree.navi(ras__umc_err_count="ue: 3\nce: 12", mem_busy_percent=12)  # codespell:ignore ue
    source = tree.source()
    assert source.probe().reason == f"the kernel lists AMD GPU 0x73bf at {NAVI} (amdgpu)"
    reading = only(source.read())
    (device,) = source.devices()
    assert device.uid == "amd-5a1b2c3d4e5f6071"
    assert (device.vendor, device.name, device.pci_bus) == ("amd", "AMD GPU 0x73bf", NAVI)
    assert device.memory_kind == "dedicated"
    assert device.memory_total_bytes == 16 * GIB
    assert (reading.used_bytes, reading.free_bytes) == (2 * GIB, 14 * GIB)
    assert (reading.util_pct, reading.temp_c, reading.power_w) == (37.0, 61.0, 143.0)
    assert (reading.clock_mhz, reading.ecc_errors) == (2105.0, 3)
    assert reading.memory_util_pct == 12.0
    assert (reading.uses, reading.uses_reason, reading.state) == ((), None, "ok")
    assert reading.memory_api == "sysfs vram"


def test_a_name_that_the_card_tells_is_taken_and_cleaned(tree: Tree) -> None:
    tree.navi(product_name="AMD Instinct\x1b[2J MI210")
    tree_source = tree.source()
    tree_source.read()
    assert tree_source.devices()[0].name == "AMD Instinct MI210"


@pytest.mark.parametrize("serial", ["", "0000000000000000", "garbage!"])
def test_without_a_serial_number_the_address_is_the_identity(tree: Tree, serial: str) -> None:
    tree.navi(unique_id=serial)
    source = tree.source()
    source.read()
    assert source.devices()[0].uid == f"amd-{NAVI}"


def test_cards_of_others_and_connectors_are_left_alone(tree: Tree) -> None:
    tree.card(0, NAVI, "nvidia")
    tree.card(1, ARC, "nouveau")
    source = tree.source()
    available = source.probe()
    assert not available.ok
    assert "here: nvidia, nouveau" in available.reason
    with pytest.raises(SourceUnavailable, match="no AMD GPU"):
        source.read()


@pytest.mark.parametrize("driver_files", [{"pdev": APU}, {"pdev": "0000:00:01.0"}])
def test_a_processors_graphics_work_in_the_hosts_memory(
    tree: Tree, driver_files: dict[str, str]
) -> None:
    pdev = driver_files["pdev"]
    tree.card(
        1, pdev, "amdgpu",
        mem_info_vram_total=512 * MIB, mem_info_vram_used=400 * MIB,
        mem_info_gtt_total=24 * GIB, mem_info_gtt_used=9 * GIB,
    )  # fmt: skip
    if pdev == APU:
        beside = tree.sys / "bus/pci/devices/0000:c4:00.2"
        tree.put(beside / "vendor", "0x1022")
        tree.put(beside / "class", "0x108000")
    tree.open(500, 7, amd_fdinfo(5, 1024, 8 * 1024 * 1024, pdev=pdev))
    tree.put(tree.proc / "meminfo", f"MemTotal: {32 * MIB} kB\nMemAvailable: {10 * MIB} kB")
    source = tree.source()
    reading = only(source.read())
    assert source.devices()[0].memory_kind == "unified"
    assert reading.used_bytes == 400 * MIB + 9 * GIB
    assert reading.free_bytes == 112 * MIB + 10 * GIB, "no more than the host can give"
    assert reading.total_bytes == 512 * MIB + 24 * GIB
    assert held(reading) == {500: MIB + 8 * GIB}
    assert reading.memory_api == "sysfs vram+gtt"


@pytest.mark.parametrize("garbage", ["", "-1", "lots", "9" * 40, "\x00\xff"])
def test_garbage_is_unknown_and_a_fault_of_that_field(tree: Tree, garbage: str) -> None:
    tree.navi(garbage, gpu_busy_percent=garbage, hwmon__hwmon4__temp1_input=garbage)
    tree.open(500, 7, f"drm-driver:\tamdgpu\ndrm-pdev:\t{NAVI}\ndrm-memory-vram:\t{garbage}\n")
    sample = tree.source().read()
    reading = only(sample)
    assert (reading.used_bytes, reading.free_bytes, reading.util_pct) == (None, None, None)
    assert (reading.temp_c, reading.power_w, reading.state) == (None, 143.0, "ok")
    assert held(reading) == {500: None}
    assert [fault.where for fault in sample.faults] == [f"drm/{NAVI}/memory"]


def test_an_intel_card_is_the_sum_of_its_processes(tree: Tree) -> None:
    tree.card(
        0, ARC, "xe",
        tile0__physical_vram_size_bytes=8 * GIB, tile1__physical_vram_size_bytes=8 * GIB,
        hwmon__hwmon2__energy1_input=1_000_000,
    )  # fmt: skip
    tree.open(500, 7, xe_fdinfo(3, 4 * 1024 * 1024, cycles=100, total=1000))
    tree.open(501, 7, xe_fdinfo(4, 1024 * 1024))
    source = tree.source(slow_every=1)
    source.read()
    tree.now_s += 10
    tree.open(500, 7, xe_fdinfo(3, 4 * 1024 * 1024, cycles=2100, total=2000))
    tree.put(tree.sys / "class/drm/card0/device/hwmon/hwmon2/energy1_input", 751_000_000)
    reading = only(source.read())
    assert held(reading) == {500: 4 * GIB, 501: GIB}
    assert (reading.used_bytes, reading.total_bytes) == (5 * GIB, 16 * GIB)
    assert reading.free_bytes == 11 * GIB
    assert reading.util_pct == 50.0, "2000 of 4 x 1000 cycles"
    assert reading.power_w == 75.0
    assert reading.memory_api == "fdinfo"
    assert {use.key.pid: use.kind for use in reading.uses or ()} == {500: "C", 501: "G"}
    assert source.devices()[0].uid == f"intel-{ARC}"


def test_what_is_left_on_an_intel_card_is_unknown_while_some_are_hidden(
    tree: Tree, forbid: Callable[[Path], None]
) -> None:
    tree.card(0, ARC, "i915", lmem_total_bytes=8 * GIB)
    tree.open(500, 7, f"drm-driver:\ti915\ndrm-pdev:\t{ARC}\ndrm-client-id:\t1\n"
                      "drm-resident-local0:\t1 GiB\ndrm-resident-system0:\t5 MiB\n")  # fmt: skip
    tree.put(tree.proc / "600/stat", "600 (a) S 1 1 1 0 -1 4194560 0 0")
    forbid(tree.proc / "600/fd")
    reading = only(tree.source().read())
    assert (reading.used_bytes, reading.free_bytes, reading.util_pct) == (GIB, None, None)
    assert "a lower bound" in (reading.uses_reason or "")


def test_integrated_graphics_only_draw_unless_asked_for(tree: Tree) -> None:
    tree.card(0, IGPU, "i915")
    available = tree.source().probe()
    assert not available.ok
    assert "integrated = true" in available.hint
    text = (
        f"drm-driver:\ti915\ndrm-pdev:\t{IGPU}\ndrm-client-id:\t1\ndrm-resident-system0:\t5 MiB\n"
    )
    tree.open(500, 7, text)
    source = tree.source(integrated=True)
    reading = only(source.read())
    assert source.devices()[0].memory_kind == "unified"
    assert held(reading) == {500: 5 * MIB}
    assert (reading.total_bytes, reading.free_bytes) == (32 * GIB, 20 * GIB)


def apu(tree: Tree) -> None:
    tree.card(0, APU, "amdgpu", mem_info_vram_total=512 * MIB, mem_info_vram_used=MIB,
              mem_info_gtt_total=GIB, mem_info_gtt_used=MIB)  # fmt: skip
    tree.put(tree.sys / "bus/pci/devices/0000:c4:00.2/vendor", "0x1022")
    tree.put(tree.sys / "bus/pci/devices/0000:c4:00.2/class", "0x108000")


@pytest.mark.parametrize("card", ["amdgpu", "nvidia", "xe"])
def test_beside_a_card_a_processors_graphics_only_draw(tree: Tree, card: str) -> None:
    apu(tree)
    assert len(tree.source().read().readings) == 1
    tree.card(1, NAVI, card, mem_info_vram_total=16 * GIB, mem_info_vram_used=GIB)
    drawing = f"amd-{APU}"
    source = tree.source()
    source.probe()
    assert drawing not in {device.uid for device in source.devices()}
    asked = tree.source(integrated=True)
    asked.read()
    assert drawing in {device.uid for device in asked.devices()}


def test_beside_cards_of_nvidia_no_number_is_given_twice(tree: Tree) -> None:
    tree.card(0, "0000:01:00.0", "nvidia")
    tree.card(1, "0000:02:00.0", "nvidia")
    tree.card(2, NAVI, "amdgpu", mem_info_vram_total=GIB, mem_info_vram_used=MIB)
    source = tree.source()
    source.read()
    assert [device.index for device in source.devices()] == [2]


def test_a_chip_for_the_console_of_a_server_is_no_card(tree: Tree) -> None:
    apu(tree)
    console = tree.sys / "bus/pci/devices/0000:05:00.0"
    tree.put(console / "vendor", "0x1a03")
    tree.put(console / "class", "0x030000")
    assert len(tree.source().read().readings) == 1


@pytest.mark.parametrize(("driver", "pdev"), [("amdgpu", "0002:00:00.0"), ("xe", "0000:00:05.0")])
def test_in_a_virtual_machine_a_card_on_bus_0_is_a_card(tree: Tree, driver: str, pdev: str) -> None:
    tree.card(0, pdev, driver, mem_info_vram_total=16 * GIB, mem_info_vram_used=GIB)
    source = tree.source()
    source.read()
    assert [device.memory_kind for device in source.devices()] == ["dedicated"]


def test_a_card_that_is_plugged_in_later_is_found(tree: Tree) -> None:
    source = tree.source()
    with pytest.raises(SourceUnavailable):
        source.read()
    tree.navi()
    tree.now_s += 30
    assert only(source.read()).used_bytes == 2 * GIB
