"""Fixtures of the source tests."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.children import Child
from tests.conftest import need, not_here
from tests.fakenvml import FakeNvml
from tests.sources.drm_case import Tree
from tests.sources.metal_case import FakeMac
from tests.sources.nvml_case import ForkServer, Nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer | None]:
    """Begin before the first file of tests: what a file has begun is ended with it."""
    if not FakeNvml.available():
        yield None
        return
    started = ForkServer(FakeNvml(tmp_path_factory.mktemp("fakenvml")))
    with started.child:
        yield started


@pytest.fixture
def fake(server: ForkServer | None, tmp_path: Path) -> Nvml:
    if not sys.platform.startswith("linux"):
        not_here("the stand-in library is for Linux")
    need(server, "a C compiler builds the stand-in library")
    made = Nvml(tmp_path)
    made.server = server
    return made


@pytest.fixture
def child() -> Iterator[int]:
    """Return the pid of a live process."""
    with Child(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Refuse to open a file or a folder, even to root."""
    forbidden: set[str] = set()
    scandir, opened = os.scandir, os.open

    def checked_scandir(path: str | Path) -> object:
        if str(path) in forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    def checked_open(path: str | Path, *arguments: Any, **named: Any) -> Any:
        if str(path) in forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr("os.scandir", checked_scandir)
    monkeypatch.setattr("os.open", checked_open)
    return lambda path: forbidden.add(str(path))


@pytest.fixture
def mac() -> FakeMac:
    """Return a Mac of recorded texts."""
    return FakeMac()


@pytest.fixture
def recorded(shared_data: Path) -> Path:
    """Return the folder of recordings of others' Macs."""
    return shared_data / "platforms/macos"
