"""A daemon notices that another version was put in its place, and only when that is complete."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.own_process import SETTLED_S, Installed

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


@pytest.mark.parametrize("which", [0, 1])
def test_a_removal_that_is_half_done_is_no_new_version(files: list[Path], which: int) -> None:
    installed = Installed(files)
    files[which].unlink()
    assert not installed.replaced(later())


def brewed(tmp_path: Path, version: str) -> Path:
    """Install as Homebrew does: a folder for each version, and a link to the newest."""
    program = tmp_path / "Cellar" / version / "bin" / "gpuwatchd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (program.parent / "__init__.py").write_text(version)
    link = tmp_path / "opt"
    link.unlink(missing_ok=True)
    link.symlink_to(program.parent.parent)
    return link / "bin" / "gpuwatchd"


def test_a_new_version_in_another_folder_is_seen_and_started(tmp_path: Path) -> None:
    program = brewed(tmp_path, "1.0.0")
    old = program.resolve().parent
    installed = Installed([old / "__init__.py"], program)
    assert not installed.replaced(later())
    assert installed.moved_to() is None
    for file in old.iterdir():
        file.unlink()
    assert not installed.replaced(later()), "nothing to go on as"
    brewed(tmp_path, "2.0.0")
    assert not installed.replaced(time.time())
    assert installed.replaced(later())
    assert installed.moved_to() == str(program), "by its link, not by a folder that will vanish"


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
