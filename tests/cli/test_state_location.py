"""Whose state is shown: that of the environment, of one's own daemon, or of the machine's."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli.doctor import CheckContext
from gpuwatchd.cli.doctor import places as checked
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import config, directories
from gpuwatchd.core.errors import NotAllowed, StoreError
from gpuwatchd.store import live
from gpuwatchd.store.private_files import private_directory
from gpuwatchd.view.queries import state_location
from tests.cli import world
from tests.conftest import need
from tests.others import SERVICE, STRANGER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

NOBODY_RUNS = 2**22 + 1
"""A pid that Linux never gives."""


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose service has directories of the test's; the user's own are in a home."""
    base = tmp_path / "system"
    base.mkdir()
    monkeypatch.setattr(directories, "SYSTEM_STATE_DIR", base / "state")
    monkeypatch.setattr(directories, "SYSTEM_RUNTIME_DIR", base / "run")
    monkeypatch.delenv("GPUWATCHD_STATE_DIR")
    monkeypatch.delenv("GPUWATCHD_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "home" / "run"))
    return base


def serve(base: Path, **changes: object) -> None:
    """Leave the live state of the machine's service."""
    live.write(private_directory(base / "run", "group"), world.state(**changes))


def scope(ctl: Ctl) -> str:
    found: str = ctl.json("status", code=None)["daemon"]["scope"]
    return found


@pytest.mark.parametrize(
    ("left", "of"),
    [
        ({}, "user"),
        ({"stopped": True}, "system"),
        ({"pid": NOBODY_RUNS}, "system"),
        ({"taken_at_s": 1.0}, "system"),  # its pid was given to another process
    ],
)
def test_the_machines_daemon_comes_after_one_of_ones_own_that_runs(
    left: dict[str, Any], of: str, system: Path, ctl: Ctl
) -> None:
    serve(system)
    world.write(**left)
    assert scope(ctl) == of


@pytest.mark.parametrize(
    ("source", "stopped", "ahead_s"),
    [("simulate", False, 9000), ("nvml", False, 0), ("simulate", True, 9000)],
)
def test_now_is_ahead_of_the_clock_only_in_a_simulation(
    source: str, stopped: bool, ahead_s: float
) -> None:
    (one, *_) = world.state().devices
    card = msgspec.structs.replace(one.device, source=source)
    devices = (msgspec.structs.replace(one, device=card),)
    world.write(stopped=stopped, devices=devices, taken_at_s=time.time() + 9000)
    assert state_location.now_s() - time.time() == pytest.approx(ahead_s, abs=60)


def test_the_environment_wins(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    serve(system)
    monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path / "mine"))
    world.write(stopped=True)
    assert scope(ctl) == "user"


def test_without_a_service_of_the_machine_it_is_ones_own(ctl: Ctl) -> None:
    world.write(stopped=True)
    assert scope(ctl) == "user"
    assert state_location.access_error() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid":"x"}', b"\xff" * 20])
def test_a_broken_state_of_ones_own_is_no_daemon(system: Path, content: bytes, ctl: Ctl) -> None:
    serve(system)
    world.write_raw(content)
    assert scope(ctl) == "system"


def test_a_pipe_in_the_place_of_a_state_holds_nobody_up(system: Path) -> None:
    serve(system)
    config.runtime_dir().mkdir(parents=True)
    os.mkfifo(config.runtime_dir() / live.FILE_NAME)
    assert state_location.chosen().scope == "system"


def test_who_may_not_read_it_is_told_the_command(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(system)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(state_location, "name_of", lambda _: "carol")
    found = state_location.access_error()
    assert found is not None
    assert found[1].endswith("sudo usermod -aG gpuwatchd carol, then log in again")
    with pytest.raises(StoreError, match="only members of its group") as caught:
        state_location.require_read_access()
    assert caught.value.hint == "sudo usermod -aG gpuwatchd carol, then log in again"
    world.write()  # with a daemon of his own he needs no other
    assert state_location.access_error() is None


def test_a_closed_service_of_the_machine_is_nobodys_business(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_directory(system / "run", "user")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert state_location.access_error() is None
    state_location.require_read_access()


def test_there_is_nothing_to_join_where_its_user_runs_nothing(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(system)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert state_location.is_denied()  # these tests are a process of its user
    monkeypatch.setattr(state_location, "_has_processes", lambda _: False)
    assert not state_location.is_denied()


def test_a_reader_who_writes_is_refused_before_anything_is_done(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(system)
    private_directory(system / "state", "group")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4711)
    done = []
    with pytest.raises(NotAllowed, match="only its user and root"), state_location.writing():
        done.append(1)
    assert not done


def test_ones_own_history_is_written_as_oneself(tmp_path: Path) -> None:
    (tmp_path / "home" / "state" / "gpuwatchd").mkdir(parents=True)
    with state_location.writing() as place:
        assert (place.scope, place.state_dir) == ("user", config.state_dir())
        assert os.geteuid() == os.getuid()


def test_root_has_the_rights_of_the_owner_while_it_writes_and_no_others(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "only root may act as somebody else")
    state = tmp_path / "home" / "state" / "gpuwatchd"
    state.mkdir(parents=True)
    os.chown(state, SERVICE, SERVICE + 1)

    def rights() -> tuple[int, int, list[int]]:
        return os.geteuid(), os.getegid(), os.getgroups()

    before = rights()
    os.setgroups([*before[2], 4])
    try:
        with state_location.writing():
            assert rights() == (SERVICE, SERVICE + 1, [])
        assert rights() == (0, before[1], [*before[2], 4])
    finally:
        os.setgroups(before[2])


def test_the_refusal_names_the_place_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(os.geteuid() == 0, "only root can make a directory of somebody else")
    state = tmp_path / "a b"
    state.mkdir()
    os.chown(state, SERVICE, SERVICE)
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(state))
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    monkeypatch.setattr(sys, "argv", ["/opt/x/bin/gpuwatchctl", "snooze", "latest", "1h"])
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(NotAllowed, match="only that user and root") as caught,
        state_location.writing(),
    ):
        pass
    words = f"env 'GPUWATCHD_STATE_DIR={state}' /opt/x/bin/gpuwatchctl snooze latest 1h"
    assert caught.value.hint == f"an administrator may: sudo {words}"
    monkeypatch.setattr(sys, "argv", ["/opt/x/bin/gpuwatchctl", "web", "--port", "0"])
    with (
        pytest.raises(NotAllowed) as asked,
        state_location.writing("snooze", "latest", "1h"),
    ):
        pass
    assert asked.value.hint == caught.value.hint


@pytest.mark.parametrize(
    ("mode", "readers", "level"),
    [(0o750, "group", "ok"), (0o750, "user", "warning"), (0o755, "group", "warning")],
)
def test_doctor_knows_who_may_read(
    mode: int, readers: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_DAEMON_READERS", readers)
    for directory in (config.state_dir(), config.runtime_dir()):
        directory.mkdir(parents=True)
        directory.chmod(mode)
    flags = Globals()
    found = list(checked.check(CheckContext(flags, flags.load_config())))
    assert [one.level for one in found if "directory" in one.name] == [level, level]


def test_doctor_says_when_everybody_can_look_into_the_machines(system: Path) -> None:
    serve(system)
    (system / "run").chmod(0o755)
    flags = Globals()
    history, state = checked.check(CheckContext(flags, flags.load_config()))
    assert (history.level, state.level) == ("ok", "warning")
    assert state.hint == f"sudo chmod 750 {system / 'run'}"
