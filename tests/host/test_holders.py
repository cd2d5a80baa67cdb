"""Who has device files open: read from links, as far as they may be followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuwatchd.collect.host import procfs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def put(proc: Path, pid: int, *targets: str, name: str = "python", cmdline: bytes = b"x\0") -> Path:
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    (proc / str(pid) / "cmdline").write_bytes(cmdline)
    return folder


def test_open_device_files_are_found_each_once(tmp_path: Path) -> None:
    put(tmp_path, 7, "/dev/nvidia1", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null")
    put(tmp_path, 8, "/dev/nvidiactl", "/dev/nvidia0", name="nvitop")
    put(tmp_path, 9, "/home/a/dev/nvidia0", "socket:[1]", "/dev/dri/card0")
    put(tmp_path, 10, "/dev/kfd", "/dev/dri/renderD128")
    (tmp_path / "meminfo").write_text("x")
    seen = procfs.scan(tmp_path)
    assert [(one.pid, one.name, one.computes) for one in seen.found] == [
        (7, "python", True),
        (8, "nvitop", False),
        (10, "python", True),
    ]
    assert seen.found[0].nodes == ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    assert (seen.looked, seen.unreadable, seen.whole, seen.possible) == (4, 0, True, True)


def test_names_are_made_safe(tmp_path: Path) -> None:
    put(tmp_path, 7, "/dev/nvidia0", name="\x1b[2Jevil")
    assert procfs.scan(tmp_path).found[0].name == "evil"


def test_a_file_that_is_closed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 7, "/dev/nvidia0", "/dev/nvidia1")
    real = os.readlink

    def closed(path: str) -> str:
        if path.endswith("/0"):
            raise FileNotFoundError(2, "closed")
        return real(path)

    monkeypatch.setattr(os, "readlink", closed)
    assert [one.nodes for one in procfs.scan(tmp_path).found] == [("/dev/nvidia1",)]


def test_what_may_not_be_read_is_counted_but_threads_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 7, "/dev/nvidia0")
    put(tmp_path, 8, "/dev/nvidia0")
    put(tmp_path, 2, "/dev/nvidia0", cmdline=b"")
    real = os.scandir

    def denied(path: object) -> object:
        if "/7/" not in str(path):
            raise PermissionError(13, "denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", denied)
    seen = procfs.scan(tmp_path)
    assert [one.pid for one in seen.found] == [7]
    assert (seen.looked, seen.unreadable) == (1, 1)


def test_it_ends_in_time(tmp_path: Path) -> None:
    for pid in range(1, 6):
        put(tmp_path, pid, "/dev/nvidia0")
    moments = iter([0.0, 0.1, 0.2, 99.0])
    seen = procfs.scan(tmp_path, clock=lambda: next(moments))
    assert ([one.pid for one in seen.found], seen.whole) == ([1, 2], False)


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    assert not procfs.scan(tmp_path / "none").possible
    assert not procfs.scan(tmp_path).possible
