"""AMD and Intel cards, read from trees of plain files: what they are and what they hold."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import SourceUnavailable
from tests.conftest import present
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
    from collections.abc import Callable, Iterator
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


def test_a_sleeping_card_is_not_read(tree: Tree) -> None:
    folder = tree.navi(power__runtime_status="suspended")
    # Whoever opened these would stop here for ever.
    for name in ("mem_info_vram_used", "gpu_busy_percent", "hwmon/hwmon4/temp1_input"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    source = tree.source()
    sample = source.read()
    reading = only(sample)
    assert (reading.state, reading.used_bytes, reading.uses) == ("asleep", None, None)
    assert sample.faults == ()
    assert source.devices()[0].uid == "amd-5a1b2c3d4e5f6071"


def test_it_wakes_and_falls_asleep_under_one_identity(tree: Tree) -> None:
    folder = tree.navi(power__runtime_status="suspended")
    source = tree.source()
    states = []
    for status in ("suspended", "active", "suspended"):
        tree.put(folder / "power/runtime_status", status)
        states.append(only(source.read()).state)
        tree.now_s += 5
    assert states == ["asleep", "ok", "asleep"]
    assert len(source.devices()) == 1


def test_a_card_that_vanishes_is_lost_once_and_comes_back_once(tree: Tree) -> None:
    folder = tree.navi()
    source = tree.source()
    assert source.read().events == ()
    hidden = folder.with_name("gone")
    folder.rename(hidden)
    first, second = source.read(), source.read()
    assert only(first).state == only(second).state == "lost"
    assert only(first).used_bytes is None
    assert [event.kind for event in first.events] == ["gpu-lost"]
    assert first.events[0].hardware is True
    assert second.events == ()
    assert "no longer lists it" in second.faults[0].why
    hidden.rename(folder)
    back = source.read()
    assert [event.kind for event in back.events] == ["gpu-back"]
    assert only(back).used_bytes == 2 * GIB


def test_a_card_that_does_not_answer_hides_no_other(tree: Tree) -> None:
    folder = tree.navi()
    tree.card(2, "0000:0a:00.0", "amdgpu", mem_info_vram_total=GIB, mem_info_vram_used=MIB)
    (folder / "mem_info_vram_used").unlink()
    sample = tree.source().read()
    assert [reading.state for reading in sample.readings] == ["lost", "ok"]
    assert sample.readings[1].used_bytes == MIB
    assert [fault.device_uid for fault in sample.faults] == ["amd-5a1b2c3d4e5f6071"]


def test_a_card_that_may_not_be_read_is_called_so(
    tree: Tree, forbid: Callable[[Path], None]
) -> None:
    tree.navi()
    forbid(tree.sys / "class/drm/card1/device/mem_info_vram_used")
    assert only(tree.source().read()).state == "no-permission"


@pytest.mark.slow
def test_a_card_that_hangs_delays_no_other_and_is_not_asked_again(tree: Tree) -> None:
    folder = tree.navi()
    tree.card(2, "0000:0a:00.0", "amdgpu", mem_info_vram_total=GIB, mem_info_vram_used=MIB)
    source = tree.source()
    source.read()
    pipe = folder / "mem_info_vram_used"
    pipe.unlink()
    os.mkfifo(pipe)
    began_s = time.monotonic()
    first = source.read()
    assert time.monotonic() - began_s < 3
    assert [reading.state for reading in first.readings] == ["hung", "ok"]
    assert [event.kind for event in first.events] == ["gpu-hung"]
    threads = threading.active_count()
    again = source.read()
    assert [reading.state for reading in again.readings] == ["hung", "ok"]
    assert again.events == ()
    assert threading.active_count() == threads
    with pipe.open("w") as writer:  # the driver lets go
        writer.write("4096\n")
    pipe.unlink()
    tree.put(pipe, 3 * MIB)
    until_s = time.monotonic() + 60
    while (back := source.read()).readings[0].state != "ok" and time.monotonic() < until_s:
        time.sleep(0.02)
    assert back.readings[0].used_bytes == 3 * MIB
    assert [event.kind for event in back.events] == ["gpu-back"]
    source.close()


@pytest.mark.slow
def test_open_files_that_hang_leave_the_memory_known(tree: Tree) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(5, 1024))
    source = tree.source()
    source.read()
    pipe = tree.proc / "500/fdinfo/7"
    pipe.unlink()
    os.mkfifo(pipe)
    reading = only(source.read())
    assert (reading.state, reading.used_bytes, reading.uses) == ("ok", 2 * GIB, None)
    assert "could not be read in time" in str(reading.uses_reason)
    with pipe.open("w") as writer:
        writer.write("drm-driver: amdgpu\n")
    source.close()


def test_one_client_counts_once_however_many_descriptors_show_it(tree: Tree) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(21, 1024 * 1024))
    tree.open(500, 9, amd_fdinfo(21, 1024 * 1024))  # dup()
    tree.open(612, 7, amd_fdinfo(21, 1024 * 1024))  # a fork
    tree.open(500, 11, amd_fdinfo(22, 1024))
    assert held(only(tree.source().read())) == {500: GIB + MIB}


def test_the_same_number_on_another_card_is_another_client(tree: Tree) -> None:
    tree.navi()
    other = "0000:0a:00.0"
    tree.card(2, other, "amdgpu", mem_info_vram_total=8 * GIB, mem_info_vram_used=GIB)
    tree.open(500, 7, amd_fdinfo(21, 1024))
    tree.open(501, 7, amd_fdinfo(21, 2048, pdev=other), "/dev/dri/renderD129")
    first, second = tree.source().read().readings
    assert held(first) == {500: MIB}
    assert held(second) == {501: 2 * MIB}


OLD = f"drm-driver:\tamdgpu\ndrm-pdev:\t{NAVI}\ndrm-client-id:\t5\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{OLD}drm-memory-vram:\t3 MiB\n", {500: 3 * MIB}),  # an old kernel has the old word only
        (f"{OLD}drm-engine-gfx:\t9 ns\n", {500: None}),  # without a figure it is not nothing
        (amd_fdinfo(5, 0), {}),  # who holds nothing is not listed
    ],
)
def test_what_a_client_holds(tree: Tree, text: str, expected: dict[int, int | None]) -> None:
    tree.navi()
    tree.open(500, 7, text)
    assert held(only(tree.source().read())) == expected


def test_of_two_accountings_the_larger_counts(tree: Tree) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(5, 1024))
    tree.kfd(500, 3 * GIB)
    tree.open(501, 7, amd_fdinfo(6, 4 * 1024 * 1024))
    tree.kfd(501, 2 * GIB)
    tree.kfd(777, 512 * MIB)  # of another user: only KFD tells
    reading = only(tree.source().read())
    assert held(reading) == {500: 3 * GIB, 501: 4 * GIB, 777: 512 * MIB}
    assert {use.kind for use in reading.uses or ()} == {"C"}


def test_cards_that_a_process_does_not_use_are_asked_for_now_and_then(tree: Tree) -> None:
    tree.navi()
    tree.kfd(777, 0)
    tree.kfd(778, GIB)
    source = tree.source(rescan_s=30.0)
    assert held(only(source.read())) == {778: GIB}
    tree.kfd(777, GIB)
    tree.kfd(778, 2 * GIB)
    tree.now_s += 5
    assert held(only(source.read())) == {778: 2 * GIB}
    tree.now_s += 30
    assert held(only(source.read())) == {777: GIB, 778: 2 * GIB}


def test_in_a_container_the_pids_of_kfd_are_others(tree: Tree) -> None:
    tree.navi()
    tree.kfd(500, 3 * GIB)
    tree.contain()
    assert held(only(tree.source().read())) == {}


def test_in_a_container_its_own_processes_are_named_by_the_source(tree: Tree) -> None:
    tree.navi()
    tree.contain()
    tree.put(tree.proc / "stat", f"cpu 1 2 3\nintr {'0 ' * 9000}\nbtime 1700000000")
    for pid in (12, 13):
        tree.open(pid, 7, amd_fdinfo(pid, 1024))
    tree.process(12, "python", "python\0-m\0vllm.entrypoints.openai.api_server\0--api-key=hunter2")
    source = tree.source()
    sample = source.read()
    (info,) = sample.processes
    (use,) = only(sample).uses or ()
    assert use.key == info.key
    assert info.key.started_at_s == 1700000000 + 4242 / os.sysconf("SC_CLK_TCK")
    assert (info.name, info.parent_pid, info.framework) == ("python", 1, "vLLM")
    assert "hunter2" not in str(info.argv)
    tree.process(12, "other", "other", born=99000)
    (later,) = source.read().processes
    assert later.name == "other", "a reused number is another process"


def test_on_a_host_nobody_is_named_twice(tree: Tree) -> None:
    tree.navi()
    tree.open(12, 7, amd_fdinfo(12, 1024))
    sample = tree.source().read()
    assert sample.processes == ()
    assert [use.key.started_at_s for use in only(sample).uses or ()] == [None]


def test_files_of_others_that_cannot_be_read_are_said(
    tree: Tree, forbid: Callable[[Path], None]
) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(5, 1024))
    for pid, flags in ((600, 0x400100), (2, 0x208040)):  # a program, and a thread of the kernel
        tree.put(tree.proc / f"{pid}/stat", f"{pid} (a) b) S 1 1 1 0 -1 {flags} 0 0")
        forbid(tree.proc / f"{pid}/fd")
    reading = only(tree.source().read())
    assert held(reading) == {500: MIB}
    assert "the open files of 1 process of other users cannot be read" in present(
        reading.uses_reason
    )


@pytest.mark.parametrize("what", ["500/fd", ""])
def test_what_could_not_be_looked_through_is_unknown_and_not_idle(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(21, 1024))
    really = os.scandir

    def scandir(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if str(path) == str(tree.proc / what):
            raise OSError(errno.EMFILE, "too many open files")
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    reading = only(tree.source().read())
    assert reading.uses_reason is not None
    assert (reading.uses is None) == (what == "")


def test_open_files_are_looked_through_now_and_then_but_read_each_time(tree: Tree) -> None:
    tree.navi()
    tree.open(500, 7, amd_fdinfo(5, 1024))
    source = tree.source(rescan_s=30.0)
    assert held(only(source.read())) == {500: MIB}
    tree.open(500, 7, amd_fdinfo(5, 2048))
    tree.open(501, 7, amd_fdinfo(6, 1024))
    tree.now_s += 5
    assert held(only(source.read())) == {500: 2 * MIB}
    tree.now_s += 30
    assert held(only(source.read())) == {500: 2 * MIB, 501: MIB}
    shutil.rmtree(tree.proc / "500")
    tree.now_s += 5
    assert held(only(source.read())) == {501: MIB}


def test_a_new_process_of_kfd_is_looked_at_at_once(tree: Tree) -> None:
    tree.navi()
    source = tree.source()
    source.read()
    tree.open(500, 7, amd_fdinfo(5, 2 * 1024 * 1024))
    tree.kfd(500, GIB)
    tree.now_s += 5
    assert held(only(source.read())) == {500: 2 * GIB}


def test_a_number_that_runs_backwards_is_held(tree: Tree) -> None:
    tree.navi()
    source = tree.source()
    shares = []
    for gfx in (10**9, 6 * 10**9, 5 * 10**9, 7 * 10**9):
        tree.open(500, 7, amd_fdinfo(5, 1024, gfx=gfx))
        reading = only(source.read())
        shares.append((reading.uses or ())[0].sm_pct)
        tree.now_s += 10
    assert shares == [None, 50.0, 0.0, 10.0]
