"""Who has AMD and Intel cards open, and what each holds."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.conftest import present
from tests.sources.drm_case import (
    GIB,
    MIB,
    NAVI,
    Tree,
    amd_fdinfo,
    held,
    only,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
