"""What the tests of the host share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuwatchd.collect.host import Host
from tests.children import Child
from tests.host.world import Clock, FakeProc

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(clock: Clock) -> Iterator[Host]:
    """Return one that looks at this machine, by a clock that stands still."""
    host = Host(contained=False, monotonic=clock)
    yield host
    host.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with Child[bytes](["sleep", "600"]) as process:
        # A program that has just begun may not have its arguments yet.
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).cmdline() and time.monotonic() < deadline:
            time.sleep(0.001)
        yield process
        process.kill()
