"""What ``doctor`` says of the service, of second daemons and of programs that hide others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import doctor
from gpuwatchd.cli.doctor import running
from gpuwatchd.core import config
from gpuwatchd.core.model import Availability
from gpuwatchd.service.unit_files import TIMED_OUT, Done
from gpuwatchd.view.queries import state_location
from tests.cli import sick, world
from tests.cli.sick import Machine, Well

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        ({"ActiveState": "failed", "Result": "exit-code"}, "service-failed"),
        ({"ActiveState": "failed", "Result": "oom-kill"}, "service-memory"),
        ({"MemoryCurrent": "530000000"}, "service-memory"),
        ({"NRestarts": "7"}, "service-restarts"),
        ({"NeedDaemonReload": "yes"}, "service-reload"),
        ({"UnitFileState": "disabled"}, "service-disabled"),
        ({}, "linger-missing"),
    ],
)
def test_what_systemd_knows_of_the_service(
    shown: dict[str, str], fault: str, machine: Machine, well: type[Well]
) -> None:
    machine.systemd(**shown)
    found = machine.faults("service")
    assert set(found) == {fault, "linger-missing"}
    assert found[fault].hint
    machine.environ["WAYLAND_DISPLAY"] = "wayland-0"  # a desktop: logging out is meant
    assert set(machine.faults("service")) == {fault} - {"linger-missing"}


def test_the_machines_own_service_is_looked_at_too(machine: Machine, well: type[Well]) -> None:
    machine.systemd(LoadState="not-found")
    machine.shown["system"] = {**sick.UNIT_SHOWN, "ActiveState": "failed"}
    found = machine.faults("service")
    assert list(found) == ["service-failed"]
    assert "sudo" in found["service-failed"].hint


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (Well.unit, None),
        (Well.unit + "Environment=GPUWATCHD_STATE_DIR=/x\n", None),
        (Well.unit + "MemoryMax=1G\n", "service-old"),
        (Well.unit.replace("/usr/bin", "/opt"), "service-other"),
        ("[Service]\nExecStart=/mine\n", None),
    ],
)
def test_a_unit_of_another_version_is_written_anew(
    written: str, fault: str | None, machine: Machine
) -> None:
    unit = machine.put("home/unit", written)
    found = [check.id for check in running._stale(str(unit), Well())]  # type: ignore[arg-type]
    assert found == ([fault] if fault else [])


def test_a_packages_unit_starts_the_daemon_by_a_link(machine: Machine) -> None:
    program, other = machine.put("usr/lib/gpuwatchd/bin/gpuwatchd"), machine.put("opt/gpuwatchd")
    link = program.parents[3] / "bin/gpuwatchd"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(program)

    class Packaged(Well):
        unit = Well.unit.replace("/usr/bin/gpuwatchd", f'"{program}"')

    def found(started: Path) -> list[str]:
        unit = machine.put("usr/unit", Packaged.unit.replace(str(program), str(started)))
        return [check.id for check in running._stale(str(unit), Packaged())]  # type: ignore[arg-type]

    assert found(link) == []
    assert found(other) == ["service-other"]


def test_two_daemons_are_seen_by_their_locks(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [config.runtime_dir(), tmp_path / "xdg/gpuwatchd"]
    monkeypatch.setattr(running, "_runtime_dirs", lambda _: folders)
    lines, found = "", {}
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        lock = folder / "gpuwatchd.lock"
        lock.write_text(f"{100 + number}\n")
        machine.put("proc/locks", lines := lines + sick.lock_line(lock))
        found = machine.faults("instances")
        assert set(found) == ({"instance-second"} if number else set())
    assert "pid 100" in found["instance-second"].text
    assert "pid 101" in found["instance-second"].text


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks is of Linux")
def test_a_real_lock_is_seen_and_its_end_too(tmp_path: Path) -> None:
    from gpuwatchd.store import private_files as place

    handle = place.hold_lock(tmp_path)
    lock = tmp_path / place.LOCK_NAME
    held = running.is_held(lock, Path("/"))
    os.close(handle)
    assert held
    assert not running.is_held(lock, Path("/"))


def test_services_that_are_there_twice(machine: Machine) -> None:
    home = Path(machine.environ["HOME"])
    wants = home / ".config/systemd/user/default.target.wants"
    wants.mkdir(parents=True)
    (wants / "gpuwatchd.service").symlink_to("../gpuwatchd.service")
    assert machine.faults("instances") == {}
    (home / ".config/systemd/user/homebrew.gpuwatchd.service").touch()
    system = machine.root / "etc/systemd/system/multi-user.target.wants"
    system.mkdir(parents=True)
    (system / "gpuwatchd.service").symlink_to("/usr/lib/systemd/system/gpuwatchd.service")
    assert set(machine.faults("instances")) == {"instance-homebrew", "instance-system"}


def test_programs_that_hide_others(machine: Machine, tmp_path: Path) -> None:
    for folder, names in (("a", ("gpuwatchctl", "gpuwatchd")), ("b", ("gpuwatchd",))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("#!/bin/sh\n")
            (tmp_path / folder / name).chmod(0o755)
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    machine.environ["PATH"] = f"{tmp_path}/a:{tmp_path}/linked:/nowhere"
    assert machine.faults("instances") == {}
    machine.environ["PATH"] += f":{tmp_path}/b"
    assert "hides" in machine.faults("instances")["path-several"].text
    (tmp_path / "a/gpuwatchd").unlink()
    assert set(machine.faults("instances")) == {"path-differs"}


def test_a_manager_that_hangs_is_named_in_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session bus that accepts and never answers: doctor waits no longer than it says."""
    waited: list[float] = []

    def hang(_: object, __: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        waited.append(timeout_s)
        return Done(TIMED_OUT, f"no answer within {timeout_s:g} s")

    monkeypatch.setattr("gpuwatchd.service.unit_files.CommandRunner.__call__", hang)
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")
    machine.systemd()
    (found,) = machine.faults("service").values()
    assert (found.id, "no answer within" in found.text) == ("service-none", True)
    assert sum(waited) + running._ASK_S < doctor.DEADLINE_S + doctor._SLACK_S


def test_who_may_not_read_the_machines_service_is_not_told_that_nothing_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, well: type[Well]
) -> None:
    refused = ("system-denied", "a service watches; only its group may read")
    monkeypatch.setattr(
        "gpuwatchd.view.queries.current_state.read_state", lambda: (None, [refused])
    )
    silent = Availability(ok=False, reason="no user manager", hint="log in")
    monkeypatch.setattr(well, "probe", lambda _: silent)
    found = machine.faults("daemon", "service")
    assert set(found) == {"daemon-denied"}
    assert found["daemon-denied"].hint == state_location.access_instructions()


def test_a_service_of_the_machine_that_was_stopped_is_started_by_its_own_name(
    machine: Machine,
) -> None:
    assert machine.faults("daemon")["daemon-absent"].hint == "gpuwatchctl service install"
    wants = machine.put("etc/systemd/system/multi-user.target.wants/x").parent
    (wants / "gpuwatchd.service").symlink_to("/usr/lib/systemd/system/gpuwatchd.service")
    assert machine.faults("daemon")["daemon-absent"].hint == "sudo systemctl restart gpuwatchd"


@pytest.mark.parametrize(
    ("scope", "again"),
    [("user", "gpuwatchctl service restart"), ("system", "sudo systemctl restart gpuwatchd")],
)
def test_the_daemon_that_is_looked_at_is_the_one_to_be_restarted(
    scope: state_location.Scope, again: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(version="0.0.1")
    place = state_location.Place(scope, config.state_dir(), config.runtime_dir())
    monkeypatch.setattr(state_location, "chosen", lambda: place)
    assert machine.faults("daemon")["daemon-version"].hint == again


def test_a_state_of_a_later_version_wants_a_later_program(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restarting the daemon would leave it as new as it is."""
    told = [("state-newer", "written by a later version")]
    monkeypatch.setattr("gpuwatchd.view.queries.current_state.read_state", lambda: (None, told))
    assert "restart" not in machine.faults("daemon")["daemon-newer"].hint
