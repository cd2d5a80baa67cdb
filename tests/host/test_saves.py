"""Files that hold saved work: of the owner, since the start, and never an endless look."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from gpuwatchd.collect.host import checkpoint_files
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from tests.conftest import present

NOW_S = 1_700_000_000.0
JOB = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=NOW_S - 3600.0),
    name="python",
    user="alice",
    uid=os.getuid(),
    job="slurm 42",
)


def file(path: Path, ago_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (NOW_S - ago_s, NOW_S - ago_s))
    return path


def find(*patterns: str, info: ProcessInfo = JOB, cwd: str | None = None, most: int = 1000):  # type: ignore[no-untyped-def]
    return checkpoint_files.newest(
        patterns, info, now_s=NOW_S, most_entries=most, cwd=lambda _: cwd
    )


def test_the_newest_that_fits_counts(tmp_path: Path) -> None:
    file(tmp_path / "a" / "1.ckpt", 900.0)
    newest = file(tmp_path / "b" / "2.ckpt", 300.0)
    file(tmp_path / "b" / "log.txt", 60.0)
    found = find(f"{tmp_path}/*/*.ckpt")
    assert found == checkpoint_files.Saved(NOW_S - 300.0, str(newest))


def test_two_stars_are_any_number_of_directories(tmp_path: Path) -> None:
    deep = file(tmp_path / "x" / "y" / "z" / "m.pt", 100.0)
    file(tmp_path / "m.pt", 200.0)
    assert find(f"{tmp_path}/**/*.pt") == checkpoint_files.Saved(NOW_S - 100.0, str(deep))
    assert find(f"{tmp_path}/**") == checkpoint_files.Saved(NOW_S - 100.0, str(deep))


@pytest.mark.parametrize("ago_s", [3601.0, 5.0, -100.0])
def test_what_is_older_than_the_process_or_still_written_does_not_count(
    tmp_path: Path, ago_s: float
) -> None:
    file(tmp_path / "1.ckpt", ago_s)
    assert find(f"{tmp_path}/*.ckpt") is None


def test_only_files_of_the_owner_count(tmp_path: Path) -> None:
    file(tmp_path / "1.ckpt", 60.0)
    other = msgspec.structs.replace(JOB, uid=os.getuid() + 1)
    assert find(f"{tmp_path}/*.ckpt", info=other) is None
    nobody = msgspec.structs.replace(JOB, uid=None)
    assert find(f"{tmp_path}/*.ckpt", info=nobody) is None


def test_nothing_is_known_of_a_process_without_a_start() -> None:
    info = msgspec.structs.replace(JOB, key=ProcessKey(pid=4711, started_at_s=None))
    assert find("/etc/*", info=info) is None


def test_what_is_filled_in_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "we[i]rd *"
    wanted = file(odd / "1.ckpt", 60.0)
    file(tmp_path / "weird x" / "2.ckpt", 30.0)
    found = present(find("{cwd}/*.ckpt", cwd=str(odd)))
    assert found.path == str(wanted)


def test_names_fill_in_and_never_lead_elsewhere(tmp_path: Path) -> None:
    wanted = file(tmp_path / "alice" / "slurm 42" / "4711.ckpt", 60.0)
    pattern = f"{tmp_path}/{{user}}/{{job}}/{{pid}}.ckpt"
    found = present(find(pattern))
    assert found.path == str(wanted)
    for bad in ("../../etc", "..", "", "a/b"):
        assert find(pattern, info=msgspec.structs.replace(JOB, job=bad)) is None


@pytest.mark.parametrize("pattern", ["{cwd}/x", "relative/*", "~nobody/x"])
def test_a_pattern_that_cannot_be_filled_in_finds_nothing(pattern: str) -> None:
    assert find(pattern) is None


def test_home_is_that_of_the_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint_files, "_home", lambda _: str(tmp_path))
    wanted = file(tmp_path / "runs" / "1.ckpt", 60.0)
    found = present(find("~/runs/*.ckpt"))
    assert found.path == str(wanted)


def test_links_are_not_followed(tmp_path: Path) -> None:
    far = file(tmp_path / "far" / "1.ckpt", 60.0)
    near = tmp_path / "near"
    near.mkdir()
    (near / "loop").symlink_to(near)
    (near / "away").symlink_to(far.parent)
    (near / "2.ckpt").symlink_to(far)
    assert find(f"{near}/**/*.ckpt") is None


def test_a_look_into_a_huge_tree_ends(tmp_path: Path) -> None:
    for number in range(300):
        file(tmp_path / f"{number:03}" / "1.ckpt", 60.0)
    seen = 0

    def counted(path: str) -> object:
        nonlocal seen
        seen += 1
        return real(path)

    real = os.scandir
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(os, "scandir", counted)
        find(f"{tmp_path}/**/*.ckpt", most=50)
    assert seen < 60


def test_a_look_has_a_deadline(tmp_path: Path) -> None:
    for number in range(300):
        file(tmp_path / f"{number:03}.ckpt", 60.0)
    clock = iter(range(0, 10_000_000, 3))
    begun = time.monotonic()
    found = checkpoint_files.newest(
        (f"{tmp_path}/*.ckpt", f"{tmp_path}/*"), JOB, now_s=NOW_S, mono=lambda: float(next(clock))
    )
    assert time.monotonic() - begun < 5.0
    assert found is not None  # what was seen until then counts


def test_the_directory_that_this_process_works_in() -> None:
    assert checkpoint_files.working_directory(os.getpid()) == str(Path.cwd())
    assert checkpoint_files.working_directory(2**22 + 1) is None


def test_without_proc_the_system_is_asked_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Path) -> Path:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "readlink", none)
    assert checkpoint_files.working_directory(os.getpid()) is None  # there is a /proc: it said no
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert checkpoint_files.working_directory(os.getpid()) == os.getcwd()  # noqa: PTH109 - Path is patched


@pytest.mark.parametrize("part", ["a/", "*/", "**/", "./", "../"])
def test_a_pattern_of_very_many_parts_is_only_one_that_nothing_fits(
    tmp_path: Path, part: str
) -> None:
    here = file(tmp_path / "here.ckpt", 60.0)
    found = find(f"{tmp_path}/{part * 1900}x", f"{tmp_path}/here.ckpt")
    assert found == checkpoint_files.Saved(NOW_S - 60.0, str(here))
