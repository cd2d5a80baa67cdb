"""Who may read the files of the store: the user alone, or the group too, as the directory says."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.config import Config, DaemonSection
from gpuwatchd.service.own_process import takes_restart
from gpuwatchd.store import live, private_files
from gpuwatchd.store.private_files import hold_lock, private_directory
from tests.cli.world import state
from tests.store.world import CARDS, KNOWN, T0, opened, sample
from tests.test_daemon import SIMULATED, once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.store.writer import History


_LEFT_OPEN: list[History] = []
"""Histories with their side files; closed when the test is over."""


@pytest.fixture(autouse=True, params=[0o000, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    while _LEFT_OPEN:
        _LEFT_OPEN.pop().close()
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def fill(directory: Path) -> None:
    """Leave every file there that a daemon leaves, side files of the history included."""
    live.write(directory, state())
    live.ask_release(directory, 60.0, 1000.0)
    os.close(hold_lock(directory))
    for name in ("popups.json", "smtp-password"):
        os.close(os.open(directory / name, os.O_CREAT | os.O_WRONLY, 0o600))
    history = opened(directory)
    _LEFT_OPEN.append(history)
    history.record(sample(T0), CARDS, KNOWN)
    history.flush(T0)
    for name in ("history.db", "history.db-wal", "history.db-shm"):
        kept = directory / name.replace("history.db", "history.db.bak-v1")
        os.close(os.open(kept, os.O_CREAT | os.O_WRONLY, 0o600))
        assert (directory / name).exists()
    private_files.settle(directory)


READ = {"state.json", "release.json", "history.db", "history.db-wal", "history.db-shm",
        "history.db.bak-v1"}  # fmt: skip
CLOSED = {"gpuwatchd.lock", "popups.json", "smtp-password"}


def test_a_group_reads_state_and_history_and_writes_nothing(tmp_path: Path) -> None:
    directory = private_directory(tmp_path / "shared", "group")
    fill(directory)
    assert mode_of(directory) == 0o750
    found = {path.name: mode_of(path) for path in directory.iterdir()}
    assert {name: found[name] for name in READ} == dict.fromkeys(READ, 0o640)
    assert {name: found[name] for name in CLOSED} == dict.fromkeys(CLOSED, 0o600)


def test_switching_back_closes_everything_again(tmp_path: Path) -> None:
    directory = private_directory(tmp_path / "shared", "group")
    fill(directory)
    private_directory(directory, "user")
    assert mode_of(directory) == 0o700
    assert {mode_of(path) for path in directory.iterdir()} == {0o600}


def test_switching_over_opens_what_was_there(tmp_path: Path) -> None:
    directory = private_directory(tmp_path / "own", "user")
    fill(directory)
    assert {mode_of(path) for path in directory.iterdir()} == {0o600}
    private_directory(directory, "group")
    assert mode_of(directory / "history.db-wal") == 0o640
    assert mode_of(directory / "popups.json") == 0o600


@pytest.mark.parametrize(
    ("found", "readers", "wanted"),
    [
        (0o755, "group", 0o750), (0o770, "group", 0o750), (0o777, "user", 0o700),
        (0o750, "user", 0o700), (0o750, None, 0o750), (0o755, None, 0o700), (0o700, None, 0o700),
        (0o2750, None, 0o2750), (0o2775, "group", 0o2750), (0o700, "group", 0o750),
    ],
)  # fmt: skip
def test_what_is_open_to_everybody_is_closed_always(
    tmp_path: Path, found: int, readers: private_files.Readers | None, wanted: int
) -> None:
    directory = tmp_path / "found"
    directory.mkdir()
    directory.chmod(found)
    private_directory(directory, readers)
    assert mode_of(directory) == wanted


def test_a_history_opened_later_follows_its_directory(tmp_path: Path) -> None:
    directory = private_directory(tmp_path / "shared", "group")
    opened(directory).close()
    (directory / "history.db").chmod(0o644)
    opened(directory).close()
    assert (mode_of(directory), mode_of(directory / "history.db")) == (0o750, 0o640)


def test_a_link_in_the_directory_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    os.close(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600))
    directory = private_directory(tmp_path / "own", "user")
    (directory / "history.db.bak-v9").symlink_to(secret)
    private_directory(directory, "group")
    assert mode_of(secret) == 0o600


def test_a_file_in_no_directory_is_private(tmp_path: Path) -> None:
    assert private_files.file_mode(tmp_path / "absent") == 0o600


def test_a_change_of_readers_takes_a_restart() -> None:
    begun, fresh = Config(), Config(daemon=DaemonSection(readers="group"))
    assert takes_restart(begun, begun) == []
    assert takes_restart(begun, fresh) == [
        "[daemon] readers has changed: restart gpuwatchd to use it"
    ]


@pytest.mark.slow
def test_what_a_daemon_leaves_for_its_group_and_then_for_itself(tmp_path: Path) -> None:
    for readers, folder, file in (("group", 0o750, 0o640), ("user", 0o700, 0o600)):
        done = once(tmp_path, *SIMULATED, "--once", GPUWATCHD_DAEMON_READERS=readers)
        assert done.returncode == 0, done.stderr
        for name in ("state", "run"):
            assert mode_of(tmp_path / name) == folder
        for path in (tmp_path / "state" / "history.db", tmp_path / "run" / "state.json"):
            assert mode_of(path) == file
        assert mode_of(tmp_path / "run" / "gpuwatchd.lock") == 0o600
