"""The service of a whole machine: root, an account, and a program that only root can change."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service import account
from gpuwatchd.service.systemctl import Systemctl
from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import SYSTEM_VARIABLES, UNIT, Done, for_package, render
from tests.service.conftest import NOT_FOUND, RUNNING, STOPPED, changes, refused

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.conftest import Tools

EXEC = "/opt/venv/bin/python3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def machine(tools: Tools, root: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """The machine's service below another root, for root itself, with a safe program."""
    tools.answer(f"systemctl --no-ask-password show {UNIT}", NOT_FOUND)
    tools.answer("systemctl --no-ask-password is-active", "inactive", code=3)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account, "unsafe", lambda _: "")
    monkeypatch.setattr(account, "exists", (tools.folder / "account").exists)
    return Systemd(environ=tools.environ, executable=EXEC, system=True, root=root)


def test_only_root_installs_it(
    machine: Systemd, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in (machine.start, machine.stop, machine.restart):
        refused("only root", verb)
    caught = refused("only root", machine.uninstall, dry_run=False)
    assert caught.hint.endswith("service uninstall --system")
    caught = refused("only root may change", machine.install, dry_run=False)
    assert caught.hint.startswith("sudo ")
    assert caught.hint.endswith("gpuwatchctl service install --system")
    assert machine.install(dry_run=True)
    assert not root.exists()


def test_sudo_finds_what_lies_in_its_path_only(tmp_path: Path) -> None:
    program = tmp_path / "gpuwatchctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert account.ourselves(str(tmp_path)) == str(program)
    ctl = Systemctl(lambda *_, **__: Done(0, ""), system=True, path=str(tmp_path))
    assert ctl.own("start") == f"sudo {program} service start --system"
    assert account.ourselves("/nowhere").endswith("gpuwatchctl")


def test_install_makes_the_account_and_starts(machine: Systemd, tools: Tools, root: Path) -> None:
    said = machine.install(dry_run=False)
    unit = root / "etc/systemd/system" / UNIT
    assert unit.read_text() == render((EXEC, "-m", "gpuwatchd"), SYSTEM_VARIABLES, system=True)
    settings = root / "etc/gpuwatchd"
    assert settings.stat().st_mode & 0o777 == 0o755
    assert changes(tools) == [
        'systemd-sysusers --inline u gpuwatchd - "GPU memory leak watchdog" /var/lib/gpuwatchd',
        *(f"systemctl --no-ask-password {words}"
          for words in ("daemon-reload", f"enable {UNIT}", f"restart {UNIT}")),
    ]  # fmt: skip
    assert said[0] == "made the user and the group gpuwatchd"
    assert said[-1].startswith("to let NAME read it: sudo usermod -aG gpuwatchd NAME")
    assert not any("linger" in line for line in said)


def test_a_second_install_makes_no_account(machine: Systemd, tools: Tools) -> None:
    (tools.folder / "account").touch()
    machine.install(dry_run=False)
    tools.answer(f"systemctl --no-ask-password show {UNIT}", RUNNING)
    tools.forget()
    assert "already running" in machine.install(dry_run=False)
    assert changes(tools) == [f"systemctl --no-ask-password enable {UNIT}"]


def test_a_dry_run_names_every_command(machine: Systemd, root: Path) -> None:
    said = machine.install(dry_run=True)
    assert said[0].startswith("would run systemd-sysusers --inline u gpuwatchd")
    assert said[1] == f"would write {root}/etc/systemd/system/{UNIT}"
    assert said[-1] == f"would run systemctl restart {UNIT}"
    assert not root.exists()


def test_without_sysusers_there_is_useradd() -> None:
    [argv] = account.commands(lambda _: None)
    assert argv[:3] == ["useradd", "--system", "--user-group"]
    assert argv[-1] == "gpuwatchd"
    assert argv[argv.index("--home-dir") + 1] == "/var/lib/gpuwatchd"
    assert argv[argv.index("--shell") + 1].endswith("nologin")


def test_an_account_that_cannot_be_made_is_told(machine: Systemd, tools: Tools) -> None:
    tools.answer("systemd-sysusers", "Failed to take /etc/passwd lock\n", code=1)
    refused("Failed to take /etc/passwd lock", machine.install, dry_run=False)


def test_a_purge_removes_the_account_too(machine: Systemd, tools: Tools, root: Path) -> None:
    machine.install(dry_run=False)
    (tools.folder / "account").touch()
    for place in ("var/lib/gpuwatchd", "run/gpuwatchd"):
        (root / place).mkdir(parents=True)
    assert "would remove the user and the group gpuwatchd" in machine.uninstall(
        dry_run=True, purge=True
    )
    tools.forget()
    machine.uninstall(dry_run=False, purge=True)
    assert "userdel gpuwatchd" in tools.calls
    left = [root / place for place in ("var/lib/gpuwatchd", "run/gpuwatchd", "etc/gpuwatchd")]
    assert not [place for place in left if place.exists()]


def test_a_package_keeps_its_account_and_configuration(
    machine: Systemd, tools: Tools, root: Path
) -> None:
    (tools.folder / "account").touch()
    brought = root / "usr/lib/systemd/system" / UNIT
    brought.parent.mkdir(parents=True)
    brought.write_text(for_package(EXEC, system=True))
    for place in ("var/lib/gpuwatchd", "etc/gpuwatchd"):
        (root / place).mkdir(parents=True)
    tools.answer(f"systemctl --no-ask-password show {UNIT}", RUNNING)
    said = machine.uninstall(dry_run=False, purge=True)
    assert not (root / "var/lib/gpuwatchd").exists()
    assert (root / "etc/gpuwatchd").exists()
    assert "userdel gpuwatchd" not in tools.calls
    assert said[-1].endswith("sudo apt purge gpuwatchd")
    tools.answer(f"systemctl --no-ask-password show {UNIT}", f"{STOPPED}\nUnitFileState=disabled")
    assert machine.uninstall(dry_run=False) == ["not installed"]


def _mode(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (_mode(0o100755), ""),
        (_mode(0o100775), ""),  # root's own group
        (_mode(0o041777), ""),  # a sticky directory
        (_mode(0o040777), "others can write"),
        (_mode(0o100775, gid=50), "others can write"),
        (_mode(0o100755, uid=4_000_000), "belongs to user 4000000, who could change it"),
    ],
)
def test_a_program_that_others_can_change_is_refused(status: os.stat_result, why: str) -> None:
    found = account.unsafe((EXEC,), look=lambda _: status, homes=())
    assert why in found
    assert bool(found) == bool(why)


def test_a_program_in_a_home_is_refused_also_through_a_link(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "gpuwatchd"
    program.touch()
    link = tmp_path / "gpuwatchd"
    link.symlink_to(program)
    for named in (program, link):
        found = account.unsafe(
            (str(named),), look=lambda _: _mode(0o100755), homes=(f"{home.resolve()}/",)
        )
        assert found == f"{program.resolve()} lies in a directory of one user, or a temporary one"


@pytest.mark.parametrize("where", ["file", "directory", "relative"])
def test_a_link_that_its_owner_could_turn_elsewhere_is_refused(tmp_path: Path, where: str) -> None:
    safe, theirs, opt = (tmp_path / name for name in ("safe", "theirs", "opt"))
    for folder in (safe, theirs, opt):
        folder.mkdir()
    (safe / "gpuwatchd").touch()
    (theirs / "bin").symlink_to(safe)
    (theirs / "gpuwatchd").symlink_to(safe / "gpuwatchd")
    program = opt / "gpuwatchd"
    if where == "directory":
        (opt / "bin").symlink_to(theirs / "bin")
        program = opt / "bin" / "gpuwatchd"
    else:
        program.symlink_to(theirs / "gpuwatchd" if where == "file" else "../theirs/gpuwatchd")

    def look(path: Path) -> os.stat_result:
        return _mode(0o040755, uid=4_000_000 if path == theirs else 0)

    found = account.unsafe((str(program),), look=look, homes=())
    assert found == f"{theirs} belongs to user 4000000, who could change it"
    assert account.unsafe((str(safe / "gpuwatchd"),), look=look, homes=()) == ""


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises((RuntimeError, OSError)):
        (tmp_path / "a").resolve(strict=True)
    assert account.unsafe((str(tmp_path / "a"),), homes=())


def test_a_program_that_is_not_there_is_refused() -> None:
    def gone(path: Path) -> os.stat_result:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    assert account.unsafe(("/opt/x",), look=gone, homes=()).endswith("No such file or directory")
