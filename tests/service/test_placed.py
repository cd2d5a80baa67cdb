"""Unit files of ours, of packages and of people; drop-ins and credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import UNIT, daemon_argv, for_package
from tests.service.conftest import NOT_FOUND, Tools, changes, refused, unit_file

if TYPE_CHECKING:
    from pathlib import Path


def packaged(tools: Tools, folder: Path, program: str = "") -> None:
    """Let a package have brought a unit, of this program or of another one."""
    mine = daemon_argv("/opt/venv/bin/python3")[0]
    (folder / UNIT).write_text(for_package(program or mine, system=False))
    tools.answer("systemctl --user show --property=UnitPath", str(folder))


@pytest.fixture
def plain(manager: Systemd, tools: Tools) -> Systemd:
    """A manager for a shell that sets no directories."""
    environ = {name: value for name, value in tools.environ.items() if name != "XDG_STATE_HOME"}
    return Systemd(environ=environ, executable="/opt/venv/bin/python3")


def test_a_package_s_unit_is_used_and_none_written(
    plain: Systemd, tools: Tools, tmp_path: Path
) -> None:
    folder = tmp_path / "usr lib" / "user"
    folder.mkdir(parents=True)
    packaged(tools, folder)
    # A folder with a blank would be two for systemd itself, which has none of them.
    (tmp_path / "lib").symlink_to(folder)
    tools.answer("systemctl --user show --property=UnitPath", f"/nowhere {tmp_path}/lib")
    said = plain.install(dry_run=False)
    assert said[0] == f"{tmp_path}/lib/{UNIT} exists already and is not overwritten"
    assert not unit_file(tools).exists()
    assert changes(tools) == [
        f"systemctl --user enable {UNIT}", f"systemctl --user restart {UNIT}"
    ]  # fmt: skip


def test_a_package_that_came_later_takes_over(plain: Systemd, tools: Tools, tmp_path: Path) -> None:
    plain.install(dry_run=False)
    packaged(tools, tmp_path)
    tools.forget()
    assert f"would remove {unit_file(tools)}" in plain.install(dry_run=True)
    plain.install(dry_run=False)
    assert not unit_file(tools).exists()
    # The link of the old unit goes before the new one is made.
    assert changes(tools) == [
        f"systemctl --user {words}"
        for words in (f"disable {UNIT}", "daemon-reload", f"enable {UNIT}", f"restart {UNIT}")
    ]


def test_a_package_s_unit_of_another_daemon_is_not_ours(
    manager: Systemd, tools: Tools, tmp_path: Path
) -> None:
    packaged(tools, tmp_path, "/usr/bin/gpuwatchd")
    manager.install(dry_run=False)
    assert unit_file(tools).read_text() == manager.render()


def test_what_people_wrote_is_left_alone(manager: Systemd, tools: Tools) -> None:
    unit_file(tools).parent.mkdir(parents=True)
    unit_file(tools).write_text("[Service]\nExecStart=/my/own\n")
    caught = refused("not written by gpuwatchctl", manager.install, dry_run=False)
    assert "systemctl --user edit gpuwatchd" in caught.hint
    assert unit_file(tools).read_text() == "[Service]\nExecStart=/my/own\n"
    unit_file(tools).unlink()
    unit_file(tools).symlink_to("/dev/null")
    caught = refused("masked", manager.install, dry_run=False)
    assert caught.hint == f"systemctl --user unmask {UNIT}"
    assert unit_file(tools).is_symlink()


def test_drop_ins_of_the_user_stay(manager: Systemd, tools: Tools) -> None:
    override = unit_file(tools).with_name(f"{UNIT}.d") / "override.conf"
    override.parent.mkdir(parents=True)
    override.write_text("[Service]\nMemoryMax=1G\n")
    assert f"{override} stays in force" in manager.install(dry_run=False)
    said = manager.uninstall(dry_run=False)
    assert f"{override} is yours and is kept" in said
    assert override.read_text() == "[Service]\nMemoryMax=1G\n"


def test_a_credential_is_a_drop_in_that_goes_with_the_service(
    manager: Systemd, tools: Tools
) -> None:
    secret = tools.home / "a secret 100%"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    wanted = [("smtp-password", str(secret))]
    readable = r"others can read it \(mode 0644\)"
    caught = refused(readable, manager.install, dry_run=False, credentials=wanted)
    assert caught.hint == f"chmod 600 {secret}"
    secret.chmod(0o600)
    manager.install(dry_run=False, credentials=wanted)
    file = unit_file(tools).with_name(f"{UNIT}.d") / "credentials.conf"
    assert file.read_text().splitlines()[1:] == [
        "[Service]", f"LoadCredential=smtp-password:{tools.home}/a secret 100%%"
    ]  # fmt: skip
    assert "hunter2" not in file.read_text()
    manager.install(dry_run=False)  # an upgrade names none, and keeps them
    assert file.exists()
    manager.uninstall(dry_run=False)
    assert not file.parent.exists()
    assert secret.exists()


def test_a_credential_that_is_not_there(manager: Systemd, tools: Tools) -> None:
    wanted = [("smtp-password", "/nowhere/secret")]
    refused("No such file", manager.install, dry_run=False, credentials=wanted)
    assert not unit_file(tools).exists()


def test_a_package_s_unit_gets_the_directories_of_the_shell(
    plain: Systemd, tools: Tools, tmp_path: Path
) -> None:
    packaged(tools, tmp_path)
    tools.answer(f"systemctl --user show {UNIT}", NOT_FOUND)
    file = unit_file(tools).with_name(f"{UNIT}.d") / "directories.conf"
    Systemd(environ=tools.environ, executable="/opt/venv/bin/python3").install(dry_run=False)
    assert file.read_text().splitlines()[1:] == [
        "[Service]", f'Environment="GPUWATCHD_STATE_DIR={tools.folder}/state home/gpuwatchd"'
    ]  # fmt: skip
    assert f"removed {file}" in plain.install(dry_run=False)
    assert not unit_file(tools).exists()
