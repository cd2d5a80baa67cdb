"""Fixtures of the source tests."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import need
from tests.fakenvml import FakeNvml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    return FakeNvml(tmp_path)


@pytest.fixture
def child() -> Iterator[int]:
    """Return the pid of a live process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()
