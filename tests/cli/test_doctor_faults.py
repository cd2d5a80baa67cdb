"""Every fault planted for real, and machines that are well and must not be warned of anything."""

from __future__ import annotations

import ast
import ctypes
import os
import pwd
import re
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import doctor
from gpuwatchd.cli.doctor import channels, checks, gpus, places, running
from gpuwatchd.cli.doctor import program as program_check
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.cli.verbs.doctor import command
from gpuwatchd.core import config
from gpuwatchd.core import directories as where
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Availability
from gpuwatchd.view.queries import current_state
from tests.cli import sick, world
from tests.conftest import ON_LINUX, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.calls import Ctl
    from tests.cli.sick import Machine, Well


MAIL_ONLY = '[policy]\nchannels = ["command"]\n[notify.command]\nargv = ["true"]\n'
PAGE = ROOT / "docs/how-to/troubleshoot.md"
OTHER = b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x08\x00"
"""The beginning of a library for a 32-bit MIPS processor, which nobody runs this on."""


def _named() -> set[str]:
    """Return every fault that the code can name."""
    found: set[str] = set()
    files = [
        *(ROOT / "gpuwatchd/cli/doctor").glob("*.py"),
        ROOT / "gpuwatchd/notify/channels/email/channel.py",
    ]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"warning", "failed"}:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    source = "\n".join(file.read_text() for file in files)
    found |= set(re.findall(r'"(mail-[a-z]+)"', source))
    found |= set(running._BROKEN.values())
    found |= {listener.fault for listener in (channels._WEB, channels._METRICS)}
    found |= {f"disk-{word}" for word in ("quota", "full", "read-only")}
    found |= {f"channel-{name}" for name in ("desktop", "email", "chat", "command")}
    return found | {"device-files", "processes-hidden", "server-silent"}


def test_every_fault_has_its_place_in_the_manual_and_no_other_has() -> None:
    written = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(written) == sorted(_named())


def test_every_check_is_in_the_help() -> None:
    words = world.run("doctor", "--help").stdout
    assert all(re.search(rf"\b{name}\b", words) for name in doctor.CHECKS)


def test_a_machine_that_is_well_is_warned_of_nothing(machine: Machine, well: type[Well]) -> None:
    """A headless server with systemd, its daemon, no desktop, linger on."""
    machine.settings = MAIL_ONLY
    machine.systemd()
    machine.put("run/systemd/timesync/synchronized")
    machine.put(f"var/lib/systemd/linger/{pwd.getpwuid(os.geteuid()).pw_name}")
    world.write()
    config.state_dir().mkdir(mode=0o700)
    quiet = [name for name in doctor.CHECKS if name not in {"gpus", "host"}]
    assert machine.faults(*quiet) == {}


def test_a_machine_without_systemd_is_not_told_of_it_while_the_daemon_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, well: type[Well]
) -> None:
    machine.settings = MAIL_ONLY
    monkeypatch.setattr(well, "probe", lambda _: Availability(ok=False, reason="no systemctl"))
    assert "service-none" in machine.faults("service", "session", "clock")
    world.write()
    assert machine.faults("service", "session", "clock") == {}


@pytest.mark.parametrize(
    ("about", "container", "nouveau", "fault"),
    [
        ({}, False, False, "driver-not-loaded"),
        ({}, False, True, "driver-nouveau"),
        ({"module": "535.104.05"}, False, False, "driver-library"),
        ({"module": "535.104.05"}, True, False, "driver-container"),
        ({"module": "535.104.05", "library": "550.54.14"}, True, False, "driver-container"),
        ({"module": "535.104.05", "library": "535.54.03"}, False, False, "driver-mismatch"),
        (
            {"module": "535.104.05", "library": "535.104.05", "head": OTHER, "node": True},
            *(False, False, "driver-library-unusable"),
        ),
        (
            {"module": "535.104.05", "library": "535.54.03", "head": b"", "node": True},
            *(False, False, "driver-library-unusable"),
        ),
        ({"module": "535.104.05", "library": "535.104.05"}, False, False, "driver-nodes"),
        ({"module": "535.104.05", "library": "535.104.05", "node": True}, False, False, None),
    ],
)
def test_the_driver_is_explained(
    about: dict[str, Any], container: bool, nouveau: bool, fault: str | None, machine: Machine
) -> None:
    sick.nvidia(machine, **about)
    if container:
        machine.put("run/.containerenv")
    if nouveau:
        machine.put("sys/module/nouveau/refcnt")
    found = list(gpus.explain(machine.around(), works=False))
    assert [check.id for check in found] == ([fault] if fault else [])
    assert all(check.hint for check in found)
    # What works is never doubted, whatever the files look like.
    assert all(check.level == "ok" for check in gpus.explain(machine.around(), works=True))


@pytest.mark.parametrize(("version", "count"), [("610.43.02", 1), ("615.10", 2), ("", 0)])
def test_a_driver_that_can_limit_control_groups_is_told_with_its_command(
    version: str, count: int, tmp_path: Path
) -> None:
    if version:
        (tmp_path / "sys/module/nvidia").mkdir(parents=True)
        (tmp_path / "sys/module/nvidia/version").write_text(f"{version}\n")
    around: Any = SimpleNamespace(root=tmp_path, environ={})
    checks = [*gpus.explain(around, works=True)]
    assert [check.level for check in checks] == ["ok"] * count
    assert any("memory-limits --set" in check.text for check in checks) is (count == 2)


def test_without_a_gpu_nothing_is_said_of_its_driver(machine: Machine) -> None:
    machine.put("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    machine.put("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")
    assert list(gpus.explain(machine.around(), works=False)) == []


def test_a_driver_that_does_not_answer_is_explained_after_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mute:
        def probe(self) -> Availability:
            return Availability(ok=False, reason="Driver/library version mismatch", hint="reboot")

    monkeypatch.setattr("gpuwatchd.collect.selection.make", lambda *_: Mute())
    machine.settings = '[sources]\nenabled = ["nvml"]\n'
    sick.nvidia(machine, module="535.104.05", library="535.54.03")
    assert {"source-unusable", "driver-mismatch", "gpu-none"} <= set(machine.faults("gpus"))


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({}, "session-none"),
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere/bus"}, "session-dead"),
        ({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, "session-foreign"),
        ({"SUDO_USER": "alice"}, "session-foreign"),
        ({"XDG_RUNTIME_DIR": "/run/user/99999"}, "session-foreign"),
    ],
)
def test_why_there_is_no_desktop_session(
    environ: dict[str, str], fault: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    machine.environ |= environ
    found = machine.faults("session")
    assert list(found) == [fault]
    machine.settings = MAIL_ONLY
    assert machine.ask("session") == []


def test_a_bus_that_listens_is_enough(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "bus"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        machine.environ["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path=/x;unix:path={path},guid=1"
        assert machine.faults("session") == {}
    assert "session-dead" in machine.faults("session")
    assert channels.answers("unix:path=" + "x" * 500) is False


@pytest.mark.parametrize(
    ("free_mib", "fault"), [(100, "disk-low"), (600, "disk-small"), (5000, None)]
)
def test_a_disk_without_room(
    free_mib: int, fault: str | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs("/")
    values = list(real)
    values[1], values[4] = 1 << 20, free_mib
    shown = os.statvfs_result(values)
    monkeypatch.setattr(os, "statvfs", lambda _: shown)
    assert set(machine.faults("disk")) == ({fault} if fault else set())


@pytest.mark.parametrize(
    ("number", "fault"), [(28, "disk-full"), (122, "disk-quota"), (30, "disk-read-only")]
)
def test_what_the_disk_refuses(
    number: int, fault: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.state_dir().mkdir(mode=0o700)
    config.runtime_dir().mkdir(mode=0o700)

    def refuse(*_: object) -> int:
        raise OSError(number, "no")

    with monkeypatch.context() as patched:
        patched.setattr(places.os, "write", refuse)  # type: ignore[attr-defined]
        found = machine.faults("disk")
    assert found[fault].level == "failed"
    assert os.listdir(config.state_dir()) == []  # noqa: PTH208


def test_a_history_at_its_bound_is_no_trouble(machine: Machine) -> None:
    machine.settings = "[store]\nmax-db-mib = 8\n"
    config.state_dir().mkdir(mode=0o700)
    (config.state_dir() / "history.db").write_bytes(b"\0" * (8 << 20))
    (room,) = [check for check in machine.ask("disk") if check.name == "disk"]
    assert (room.level, "oldest samples go first" in room.text) == ("ok", True)


def test_a_clock_that_nobody_sets(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_check, "disciplined", lambda: False)
    assert machine.faults("clock") == {}  # not where systemd is not: a container, say
    machine.systemd()
    assert set(machine.faults("clock")) == {"clock-unsynchronised"}
    monkeypatch.setattr(program_check, "disciplined", lambda: None)
    assert machine.faults("clock") == {}
    monkeypatch.setattr(program_check, "disciplined", lambda: False)
    machine.put("run/systemd/timesync/synchronized")
    assert machine.faults("clock") == {}


@ON_LINUX
def test_the_kernel_is_asked_and_its_answer_understood() -> None:
    assert ctypes.sizeof(program_check._Timex) >= 208
    assert program_check.disciplined() in {True, False}


def test_a_zone_that_is_not_known(machine: Machine) -> None:
    machine.put("usr/share/zoneinfo/Europe/Zurich")
    machine.environ["TZ"] = "Europe/Zurich"
    assert machine.faults("clock") == {}
    machine.environ["TZ"] = "Europe/Zuerich"
    assert set(machine.faults("clock")) == {"clock-zone"}
    machine.environ["TZ"] = "CET-1CEST"
    assert machine.faults("clock") == {}


def test_what_is_recorded_in_the_future(machine: Machine) -> None:
    world.write(taken_at_s=time.time() + 7200)
    assert "2 h" in machine.faults("clock")["clock-behind"].text


def test_a_daemon_that_is_late_or_of_another_version(machine: Machine) -> None:
    world.write(taken_at_s=time.time() - 600, started_at_s=time.time(), pid=os.getpid())
    assert set(machine.faults("daemon")) <= {"daemon-late", "daemon-absent"}
    world.write(version="0.0.1", problems=("the history cannot be written",))
    assert set(machine.faults("daemon")) == {"daemon-version", "daemon-problem"}
    world.write_raw(b"{")
    assert set(machine.faults("daemon")) == {"daemon-state", "daemon-absent"}


def test_configurations_that_others_may_read_or_change(machine: Machine, tmp_path: Path) -> None:
    machine.settings = MAIL_ONLY
    around = machine.around()
    (file,) = around.loaded.files
    file.chmod(0o644)
    assert [check.level for check in doctor.ask(around, ["config"])] == ["ok"]
    hook = '[notify.command]\nargv = ["curl", "https://me:pw@host/x"]\n'
    file.write_text(MAIL_ONLY.partition("[notify")[0] + hook)
    found = [check for check in doctor.ask(around, ["config"]) if check.level != "ok"]
    assert [check.id for check in found] == ["config-readable"]
    assert "pw" not in found[0].text + found[0].hint
    file.chmod(0o666)
    assert "config-writable" in {check.id for check in doctor.ask(around, ["config"])}


def test_a_terminal_without_utf8(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        encoding = "ISO-8859-1"

    with monkeypatch.context() as patched:
        patched.setattr(program_check.sys, "stdout", Old())  # type: ignore[attr-defined]
        found = list(program_check.check(machine.around()))
    assert [check.id for check in found if check.level != "ok"] == ["terminal-encoding"]


def test_a_check_that_hangs_or_breaks_spoils_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "DEADLINE_S", 0.2)
    monkeypatch.setattr(doctor, "_SLACK_S", 0.2)

    def hang(_: object) -> Iterator[object]:
        time.sleep(5)
        yield None

    monkeypatch.setattr(program_check, "clock", hang)
    monkeypatch.setattr(running, "check", lambda _: [1 // 0])
    began_s = time.monotonic()
    found = machine.ask("daemon", "clock", "disk")
    assert time.monotonic() - began_s < 3
    assert [check.id for check in found][:2] == ["check-breaks", "disk"]
    assert "check-hangs" in {check.id for check in found}


def test_only_what_is_named_is_asked(ctl: Ctl) -> None:
    named = {one["name"] for one in ctl.data("doctor disk", code=None)}
    assert "disk" in named
    assert "sqlite" not in named
    assert "did you mean clock?" in ctl.err("doctor clok")
    with pytest.raises(GpuwatchdError):
        list(doctor.every(Globals(), ["nothing"]))


def test_the_live_state_is_decoded_before_there_are_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that let msgspec learn the same type crash the program, once in a while."""
    world.write()
    readers: list[str] = []
    read = current_state.read_state

    def noted() -> Any:
        readers.append(threading.current_thread().name)
        return read()

    monkeypatch.setattr(current_state, "read_state", noted)
    machine.ask()
    assert readers == [threading.main_thread().name]


def test_a_source_with_a_clock_of_its_own_may_be_ahead(machine: Machine) -> None:
    machine.settings = '[sources]\nenabled = ["simulate:quiet"]\n'
    world.write(taken_at_s=time.time() + 7200)
    assert machine.faults("clock") == {}


CHECKS = tuple(doctor.CHECKS)
IDS = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)


def _printed() -> set[str]:
    """Return every name that the code gives an answer in so many words."""
    found = set()
    for file in (ROOT / "gpuwatchd/cli/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            names = [word.value for word in node.keywords if word.arg == "name"]
            names += node.args[1:] if node.func.id == "named" else []
            found |= {str(name.value) for name in names if isinstance(name, ast.Constant)}
    return found


@pytest.mark.parametrize("name", sorted({*_printed(), *IDS}))
def test_what_is_printed_and_what_is_an_id_may_be_asked_for(name: str) -> None:
    assert doctor.select_checks(name)
    assert all(name in _completed(name[:length]) for length in (2, 4))


def test_no_id_is_known_that_none_answers_with() -> None:
    assert {fault for row in doctor.CHECKS.values() for fault in row.faults.split()} | {
        *doctor.ANY
    } == {*IDS}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("extras", ("program",)), ("disk", ("disk",)), ("check-hangs", CHECKS),
        ("source nvml", ("gpus",)), ("source simulate:one-leak", ("gpus",)),
        ("channel email", ("channels",)), ("GPU 0", ("gpus", "host")),
        ("MIG 3:0", ("gpus", "host")), ("server vLLM", ("host",)), ("nothing", ()), ("gpu-x", ()),
    ],
)  # fmt: skip
def test_a_name_means_its_check(name: str, meant: tuple[str, ...]) -> None:
    assert doctor.select_checks(name) == meant


def test_a_relative_directory_is_warned_of(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", "here")
    found = [one for one in machine.ask("disk") if one.name == "history directory"]
    assert [(one.level, one.id) for one in found] == [("warning", "directory-relative")]
    assert f"here it is {tmp_path}/here" in found[0].text
    assert f"export GPUWATCHD_STATE_DIR={tmp_path}/here" in found[0].hint


def test_who_has_no_home_is_told_to_set_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    directory = where.HOMELESS / ".local/state/gpuwatchd"
    found = places._directory(directory, "user", "GPUWATCHD_STATE_DIR")
    assert (found.id, found.level) == ("directory-closed", "failed")
    assert "export HOME=" in found.hint
    assert str(where.HOMELESS) not in found.hint + found.text


def _completed(incomplete: str) -> list[str]:
    (argument,) = (one for one in command.params if one.name == "names")
    found = argument.shell_complete(command.make_context("doctor", []), incomplete)
    return [item.value for item in found]
