"""AMD and Intel cards that sleep, vanish, refuse or hang."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from tests.sources.drm_case import (
    GIB,
    MIB,
    Tree,
    amd_fdinfo,
    only,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    assert "does not list it" in second.faults[0].why
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
    assert "could not be looked through" in str(reading.uses_reason)
    with pipe.open("w") as writer:
        writer.write("drm-driver: amdgpu\n")
    source.close()
