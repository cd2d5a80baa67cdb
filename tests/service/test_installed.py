"""A daemon notices that another version was put in its place, and only when that is complete."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.installed import SETTLED_S, Installed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    ours, theirs = tmp_path / "__init__.py", tmp_path / "pyvenv.cfg"
    ours.write_text('__version__ = "1.0.0"\n')
    theirs.write_text("gpuwatchd = 1.0.0-1\n")
    return [ours, theirs]


def put(file: Path, text: str) -> None:
    """Replace a file as package managers do: a new one under the old name."""
    fresh = file.with_suffix(".dpkg-new")
    fresh.write_text(text)
    os.utime(fresh, (0, 0))
    fresh.rename(file)


def later() -> float:
    return time.time() + SETTLED_S + 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_new_version_is_seen_when_it_has_settled(files: list[Path], which: int) -> None:
    installed = Installed(files)
    assert not installed.replaced(later())
    put(files[which], "2.0.0\n")
    assert not installed.replaced(time.time()), "files may still be on their way"
    assert installed.replaced(later())


def test_the_same_version_put_in_place_again_is_nothing_new(files: list[Path]) -> None:
    installed = Installed(files)
    put(files[0], files[0].read_text())
    assert not installed.replaced(later())
    put(files[0], "2.0.0\n")
    assert installed.replaced(later())


def test_what_is_removed_is_not_replaced(files: list[Path]) -> None:
    installed = Installed(files)
    files[0].unlink()
    files[1].unlink()
    assert not installed.replaced(later())


def test_an_installation_without_environment_is_watched_too(files: list[Path]) -> None:
    files[1].unlink()
    installed = Installed(files)
    assert not installed.replaced(later())
    put(files[0], "2.0.0\n")
    assert installed.replaced(later())


def test_the_installation_of_these_tests_is_as_it_was() -> None:
    assert not Installed().replaced(later())


def test_a_program_without_files_is_never_replaced(tmp_path: Path) -> None:
    assert not Installed([tmp_path / "gone"]).replaced(later())
