"""The lock that lets one daemon in."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store.private_files import LOCK_NAME, hold_lock, still_locked

if TYPE_CHECKING:
    from pathlib import Path


def test_one_who_looks_whether_it_is_free_keeps_no_daemon_out(tmp_path: Path) -> None:
    looking = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(looking, fcntl.LOCK_SH)
    done = threading.Timer(0.05, os.close, [looking])
    done.start()
    handle = hold_lock(tmp_path)
    done.join()
    assert still_locked(tmp_path, handle)
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    os.close(handle)


def test_a_second_daemon_is_told_of_the_first(tmp_path: Path) -> None:
    first = hold_lock(tmp_path)
    with pytest.raises(GpuwatchdError, match=f"already running with pid {os.getpid()}"):
        hold_lock(tmp_path)
    os.close(first)
    os.close(hold_lock(tmp_path))
