"""What doctor tells to do about directories and files works, and harms nothing else."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli.doctor import places, program
from gpuwatchd.core import config
from gpuwatchd.notify.channels.desktop import session_bus
from gpuwatchd.store import schema
from tests.cli import world
from tests.conftest import need, only_where
from tests.fakenvml import FakeNvml
from tests.store import damage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.sick import Machine

ELSEWHERE = 'export GPUWATCHD_STATE_DIR="$HOME/gpuwatchd"'


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be somebody who may write nowhere, also where the tests run as root."""
    access = os.access

    def refused(path: Path, mode: int) -> bool:
        return not mode & os.W_OK and access(path, mode)

    monkeypatch.setattr(os, "access", refused)


def _hint(directory: Path) -> str:
    return places._directory(directory, variable="GPUWATCHD_STATE_DIR").hint


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("path", ["/", "/var/lib", "/nonexistent", "/run"])
def test_nobody_is_told_to_take_what_is_the_systems(path: str) -> None:
    hint = _hint(config.expanded(path))
    assert "chown" not in hint
    assert hint.startswith(ELSEWHERE)


@pytest.mark.usefixtures("weak")
def test_a_directory_in_a_place_of_the_system_is_made_there(tmp_path: Path) -> None:
    (hint, other) = _hint(tmp_path / "x y" / "gpuwatchd").split(", or ")
    assert other.startswith(ELSEWHERE)
    subprocess.run(shlex.split(hint.removeprefix("sudo ")), check=True)
    about = (tmp_path / "x y" / "gpuwatchd").stat()
    assert (about.st_uid, about.st_mode & 0o777) == (os.geteuid(), 0o700)


def test_what_is_ours_by_name_is_made_ours_with_all_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "gpuwatchd"
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert _hint(directory) == f"sudo chown -R 12345 {directory}"


@pytest.mark.usefixtures("weak")
def test_a_directory_that_we_locked_ourselves_is_opened(tmp_path: Path) -> None:
    directory = tmp_path / "gpuwatchd of me"
    directory.mkdir(mode=0o500)
    subprocess.run(shlex.split(_hint(directory)), check=True)
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["file", "dangling", "loop"])
def test_what_is_no_directory_is_put_aside(kind: str, machine: Machine, tmp_path: Path) -> None:
    place = config.state_dir()
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "nowhere" if kind == "dangling" else place)
    found = machine.faults("disk")["directory-none"]
    assert found.level == "failed"
    subprocess.run(shlex.split(found.hint), check=True)
    assert "directory-none" not in machine.faults("disk")


def test_a_directory_that_is_open_is_closed_whatever_its_name(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "it's $(mine)"
    directory.mkdir(mode=0o755)
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(directory))
    subprocess.run(["sh", "-c", machine.faults("disk")["directory-open"].hint], check=True)
    assert "directory-open" not in machine.faults("disk")


def test_a_remount_names_the_mount_and_not_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 8:1 / / rw - ext4 a rw\n30 22 0:40 / {tmp_path.parent} ro - ext4 b ro")
    monkeypatch.setattr(places, "MOUNTINFO", mounts)
    found = places._access_problem(OSError(30, "no"), tmp_path / "a" / "b")
    assert found is not None
    assert found[2].startswith(f"sudo mount -o remount,rw {tmp_path.parent}, or ")


def test_a_closed_way_to_the_history_is_told_and_breaks_no_check(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.exists", closed)
    assert "history-unreadable" in {one.id for one in places.history(machine.around())}


def test_the_configuration_of_another_is_changed_with_sudo(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = machine.around()
    around.loaded.files[0].chmod(0o666)
    (own,) = program.configuration(around)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (foreign,) = program.configuration(around)
    assert foreign.hint == f"sudo {own.hint}"


def test_who_has_no_home_has_places_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that runs as a number: no HOME, and no line in /etc/passwd."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert str(config.state_dir({})).startswith("/nonexistent/")
    assert str(config.user_file({})).startswith("/nonexistent/")
    assert config.state_dir({"GPUWATCHD_STATE_DIR": "/data"}) == config.expanded("/data")


def test_a_missing_home_is_a_missing_bus() -> None:
    assert session_bus.explain(KeyError("HOME")).message == session_bus.NO_BUS


@only_where(os.geteuid() == 0, "becomes somebody else")
def test_a_closed_way_to_the_history_is_no_internal_error(tmp_path: Path) -> None:
    """As somebody else, in a process of its own: root may look everywhere."""
    words = (
        "import os, sys; from gpuwatchd.cli import main; main(['--version']);"
        "from gpuwatchd.view.queries import state_location as whose, history_query as past;"
        "from gpuwatchd.view.queries import current_state as look;"
        "from gpuwatchd.cli.doctor import places;"
        f"from pathlib import Path; closed = Path({str(tmp_path)!r}) / 'closed' / 'x';"
        "os.seteuid(54321);"
        "print(whose.recorded(closed), places._size(closed))"
    )
    (tmp_path / "closed" / "x").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["False 0"], "")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["gpu 0 total=24G base=1G", "proc 0 pid=9 mem=1G"], ""),
        (["gpu 0 total=24G", "fail nvmlDeviceGet*RunningProcesses* 0 4"], "processes unknown"),
        (["gpu 0 total=24G", "gpu 1 total=24G", "fail nvmlDeviceGet* 1 15"], "GPU 1: lost"),
        (["init_error 18"], "NVIDIA library 550.54.15 does not fit"),
    ],
)
def test_what_the_driver_refuses_is_told(lines: list[str], said: str, tmp_path: Path) -> None:
    need(FakeNvml.available(), "no C compiler")
    fake = FakeNvml(tmp_path)
    fake.write(*lines)
    done = subprocess.run(
        [world.PROGRAM, "doctor", "gpus", "-q"], env=fake.env(), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (said in done.stdout, done.stderr) == (True, "")
    assert (done.returncode == 0) is (said == "")


def inner_pages(file: Path) -> list[int]:
    """Return the root pages of the samples and of the alerts; page 1 and the schema stay whole."""
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name IN ('gpu_raw', 'alert')"
        )
        return [page for (page,) in found]


def test_a_damaged_page_of_the_history_is_found(machine: Machine) -> None:
    directory = config.state_dir()
    directory.mkdir(parents=True, mode=0o700)
    damage.build(directory)
    file = directory / "history.db"
    whole, pages = file.read_bytes(), inner_pages(file)
    assert len(pages) == 2
    assert [(one.id, one.level) for one in machine.ask("history")] == [("history", "ok")]
    for page in pages:
        at = (page - 1) * damage.PAGE_BYTES
        file.write_bytes(whole[:at] + bytes(damage.PAGE_BYTES) + whole[at + damage.PAGE_BYTES :])
        (found,) = machine.ask("history")
        assert (found.id, found.level) == ("history-damaged", "failed")
        assert found.page == "errors#history-damaged"


def test_a_history_that_takes_too_long_to_read_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    damage.build(tmp_path)
    file = tmp_path / "history.db"
    with file.open("r+b") as content:
        content.seek((inner_pages(file)[0] - 1) * damage.PAGE_BYTES)
        content.write(bytes(damage.PAGE_BYTES))
    with closing(sqlite3.connect(file)) as connection:
        assert schema.damage_within(connection, 60.0) is not None
        assert schema.damage_within(connection, 0.0) is None
        assert schema.damage(connection) is not None


def test_of_what_was_set_aside_the_newest_database_is_named(machine: Machine) -> None:
    directory = config.state_dir()
    directory.mkdir(parents=True, mode=0o700)
    damage.build(directory)
    names = [f"history.db.corrupt-20260{month}01T000000Z" for month in (1, 2)]
    for name in names:
        for end in ("", "-wal", "-shm"):
            (directory / (name + end)).touch()
    found = machine.faults("history")["history-damaged"]
    assert found.level == "warning"
    assert found.page == "troubleshoot#history-damaged"
    assert str(directory / names[1]) in shlex.split(found.hint)


def test_the_command_that_rescues_rows_writes_them_to_a_new_file(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "it's mine"
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(directory))
    directory.mkdir(mode=0o700)
    file = directory / "history.db"
    file.write_bytes(b"no database" * 500)
    (found,) = machine.ask("history")
    command = shlex.split(found.hint[found.hint.index("sqlite3 ") :])
    assert command[:4] == ["sqlite3", str(file), ".recover", "|"]
    assert command[4] == "sqlite3"
    assert len(command) == 6
