"""The bell: a wait that a signal or another program ends."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.service import own_process
from gpuwatchd.service.own_process import Wakeup

if TYPE_CHECKING:
    import pytest


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def waited(one: Wakeup, seconds: float) -> float:
    began = time.monotonic()
    one.wait(seconds)
    return time.monotonic() - began


def test_ringing_ends_the_wait_once(tmp_path: Path) -> None:
    one = Wakeup()
    one.hang_up(tmp_path)
    assert own_process.ring(tmp_path)
    assert waited(one, 10.0) < 1.0
    assert waited(one, 0.1) >= 0.09
    one.take_down()


def test_nobody_rings_where_nobody_listens(tmp_path: Path) -> None:
    assert not own_process.ring(tmp_path)
    one = Wakeup()
    one.hang_up(tmp_path)
    one.take_down()
    assert not own_process.ring(tmp_path)
    (tmp_path / "gone").mkdir()
    one.hang_up(tmp_path / "gone" / "nowhere")
    assert waited(one, 0.05) >= 0.04


def test_a_full_pipe_has_rung(tmp_path: Path) -> None:
    one = Wakeup()
    one.hang_up(tmp_path)
    handle = os.open(tmp_path / own_process.BELL_FILE, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except BlockingIOError:
        pass
    assert own_process.ring(tmp_path)
    assert waited(one, 10.0) < 1.0
    os.close(handle)
    one.take_down()


def test_what_lies_in_its_place_is_replaced_and_only_ours_may_ring(tmp_path: Path) -> None:
    path = tmp_path / own_process.BELL_FILE
    path.write_text("a file")
    assert not own_process.ring(tmp_path)
    assert path.read_text() == "a file"
    one = Wakeup()
    one.hang_up(tmp_path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Hung up again, as after the directory was made anew, it holds no more descriptors.
    before = descriptors()
    for _ in range(5):
        one.hang_up(tmp_path)
    assert descriptors() == before
    assert own_process.ring(tmp_path)
    one.take_down()


def test_a_pipe_with_a_large_number_rings_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    one = Wakeup()
    others = [os.dup(0) for _ in range(1100)]  # as many processes that are watched
    try:
        one.hang_up(tmp_path)
        assert own_process.ring(tmp_path)
        assert waited(one, 10.0) < 1.0
    finally:
        for handle in others:
            os.close(handle)
        one.take_down()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pipe_that_cannot_be_hung_up_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Wakeup()
    before = descriptors()
    really = os.open

    def open_(path: object, flags: int, *more: object) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EMFILE, "too many")
        return really(path, flags, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    one.hang_up(tmp_path)
    monkeypatch.undo()
    assert not own_process.ring(tmp_path)
    assert descriptors() == before
