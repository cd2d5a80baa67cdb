"""``doctor``: what works here, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import doctor
from gpuwatchd.cli.doctor import gpus, places, running
from gpuwatchd.core import config
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import EndpointsSection
from gpuwatchd.core.model import Availability, Event, ServerReading
from gpuwatchd.service.unit_files import TIMED_OUT, Done
from gpuwatchd.view.queries import state_location
from tests.cli import sick, world
from tests.cli.sick import Card, Machine, Well
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.cli.doctor import Check
    from gpuwatchd.core.model import DeviceState
    from tests.cli.calls import Ctl


def _answers(ctl: Ctl, code: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for check in ctl.data("doctor", code=code):
        found.setdefault(check["name"], []).append(check)
    return found


def test_doctor_is_0_when_nothing_is_missing(
    card: None, well: type[Well], monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("GPUWATCHD_POLICY_CHANNELS", "command")
    monkeypatch.setenv("GPUWATCHD_NOTIFY_COMMAND_ARGV", "true")
    first, second = world.state().devices
    known = msgspec.structs.replace(second, processes=())
    world.write(taken_at_s=time.time(), devices=(first, known))
    found = _answers(ctl, 0)
    assert found["source nvml"][0]["text"].startswith("1 GPU;")
    assert found["daemon"][0]["level"] == "ok"
    assert found["channel command"][0]["level"] == "ok"


def test_doctor_is_3_for_warnings_and_1_without_a_gpu(
    card: None, well: type[Well], monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    silent = Availability(ok=False, reason="nobody home", hint="log in")
    monkeypatch.setattr(well, "probe", lambda _: silent)
    found = _answers(ctl, 3)
    assert found["daemon"][0]["hint"] == "gpuwatchctl service install"
    assert found["service"][0] == {
        "name": "service", "level": "warning", "text": "nobody home", "hint": "log in",
        "id": "service-none", "page": "troubleshoot#service-none",
    }  # fmt: skip
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    assert _answers(ctl, 1)["gpu"][0]["level"] == "failed"


def test_doctor_goes_on_with_a_broken_configuration(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[[", encoding="utf-8")
    shown = ctl("doctor --config", str(file), code=1)
    assert "not valid TOML" in shown
    assert "history directory" in shown
    for name in ("metrics", "mail"):  # what they would look at is not known
        answers = ctl.data(f"doctor {name} --config", str(file), code=1)
        assert "config-error" in {one["id"] for one in answers}


def test_doctor_leaves_a_hanging_driver_behind(
    card: None, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.05)
    monkeypatch.setattr(Card, "read", lambda _: time.sleep(2))
    found = _answers(ctl, 1)
    assert "hangs" in found["source nvml"][0]["text"]


@pytest.mark.parametrize(
    ("states", "level", "words", "code"),
    [
        (("ok", "hung"), "ok", "2 GPUs, 1 of them cannot be read", 3),
        (("lost", "asleep"), "ok", "2 GPUs, 1 of them cannot be read", 3),
        (("lost", "hung"), "warning", "2 GPUs, 2 of them cannot be read", 1),
        (("released", "asleep"), "ok", "2 GPUs; 1 GPU", 3),
    ],
)
def test_doctor_does_not_call_a_gpu_well_that_is_not_read(
    card: None,
    monkeypatch: pytest.MonkeyPatch,
    ctl: Ctl,
    states: tuple[DeviceState, DeviceState],
    level: str,
    words: str,
    code: int,
) -> None:
    (first,), sample = Card().devices(), Card().read()
    devices = (first, msgspec.structs.replace(first, uid="GPU-2", index=1))
    readings = tuple(
        msgspec.structs.replace(sample.readings[0], device_uid=device.uid, state=state)
        for device, state in zip(devices, states, strict=True)
    )
    sample = msgspec.structs.replace(sample, readings=readings)
    monkeypatch.setattr(Card, "devices", lambda _: devices)
    monkeypatch.setattr(Card, "read", lambda _: sample)
    found = _answers(ctl, code)
    (source,) = found["source nvml"]
    assert source["level"] == level
    assert source["text"].startswith(words)
    for device, state in zip(devices, states, strict=True):
        said = [check["text"] for check in found.get(device.label, [])]
        assert bool(said) == (state in {"lost", "hung"}), said
        assert all(state in text for text in said)


def test_a_check_that_breaks_is_not_called_a_driver_that_hangs(
    card: None, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setattr(Card, "read", lambda _: 1 // 0)
    (source,) = _answers(ctl, 1)["source nvml"]
    assert source["level"] == "failed"
    assert source["text"].startswith("breaks with ZeroDivisionError")


def test_a_network_file_system_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    mounts = tmp_path / "mountinfo"
    home = tmp_path.resolve()
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"30 22 0:40 / {home} rw shared:1 - nfs4 server:/home rw\n"
        f"31 30 0:41 / {home}/run rw - tmpfs tmpfs rw\n"
        "bad line\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(places, "MOUNTINFO", mounts)
    assert places.file_system(tmp_path / "state") == "nfs4"
    assert places.file_system(tmp_path / "run") == "tmpfs"
    assert places.file_system(Path("/elsewhere")) == "ext4"
    shown = ctl("doctor", code=None).replace("\n" + " " * 9, " ")
    assert "network file system (nfs4)" in shown
    assert "export GPUWATCHD_STATE_DIR=" in shown


TAB = "share/bash-completion/completions/gpuwatchctl"
PAGE = "share/man/man1/gpuwatchctl.1"


@pytest.mark.parametrize(
    ("prefix", "completion", "pages"),
    [
        ("root/usr", True, True),
        ("home/.local", True, True),
        ("brew", True, True),
        ("venv", False, True),
        ("elsewhere", False, False),
    ],
)
def test_only_what_is_found_is_called_installed(
    prefix: str, completion: bool, pages: bool, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    for name in (TAB, PAGE):
        (tmp_path / prefix / name).parent.mkdir(parents=True)
        (tmp_path / prefix / name).touch()
    for name in ("home/.local", "brew", "venv"):
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    machine.environ["PATH"] = f":{tmp_path}/home/.local/bin:{tmp_path}/brew/bin:{tmp_path}/venv/bin"
    (said,) = (check.text for check in machine.ask("program") if check.name == "shell")
    assert ("no completion" not in said, "no man pages" not in said) == (completion, pages)


MOUNT = "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw{}\n"


def _proc(root: Path, options: str = "", *, namespace: str = "pid:[4026531836]") -> None:
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(MOUNT.format(options))
    (root / "proc/self/ns/pid").symlink_to(namespace)


def told(checks: Iterable[Check]) -> list[tuple[str, str, str, str]]:
    """Return name, level, text and hint of checks."""
    return [(check.name, check.level, check.text, check.hint) for check in checks]


def test_without_device_files_nothing_is_said(tmp_path: Path) -> None:
    assert list(gpus.device_files(tmp_path)) == []


def test_files_that_may_not_be_opened_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    ((name, level, said, _),) = told(gpus.device_files(tmp_path))
    assert (name, level) == ("device files", "ok")
    assert "nvidia0" in said
    monkeypatch.setattr(os, "access", lambda path, _: not str(path).endswith("nvidia1"))
    ((_, level, said, hint),) = told(gpus.device_files(tmp_path))
    assert level == "warning"
    assert "nvidia1" in said
    assert "nvidia0" not in said
    assert hint


@pytest.mark.parametrize(
    ("options", "user", "expected"),
    [
        ("", 1000, False), (",hidepid=2", 1000, True), (",hidepid=invisible,gid=5", 1000, True),
        (",hidepid=0", 1000, False), (",hidepid=off", 1000, False), (",hidepid=2", 0, False),
    ],
)  # fmt: skip
def test_hidepid_is_seen(
    options: str, user: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _proc(tmp_path, options)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert gpus.hidden(tmp_path) is expected
    ((_, level, said, hint),) = told(gpus.processes(tmp_path))
    assert level == ("warning" if expected else "ok")
    assert bool(hint) is expected
    assert ("guesses" in said) == (user != 0 and not expected)


def test_without_proc_nothing_is_said_of_processes(tmp_path: Path) -> None:
    assert gpus.hidden(tmp_path) is None
    assert list(gpus.processes(tmp_path)) == []
    assert list(gpus.container(tmp_path)) == []


@pytest.mark.parametrize(
    ("namespace", "inside"), [("pid:[4026531836]", False), ("pid:[4026532999]", True)]
)
def test_a_container_is_told(namespace: str, inside: bool, tmp_path: Path) -> None:
    _proc(tmp_path, namespace=namespace)
    answers = told(gpus.container(tmp_path))
    assert bool(answers) is inside
    assert all("stay unnamed" in said for _, _, said, _ in answers)


def test_what_cannot_be_read_has_its_state_and_what_mends_it() -> None:
    first, lost = world.odd().devices
    ((name, level, said, hint),) = told(gpus.device_state(lost, now_s=time.time()))
    assert (name, level) == ("GPU 1", "warning")
    assert said.startswith("lost since")
    assert "dmesg" in hint
    ((_, level, said, hint),) = told(gpus.device_state(first, now_s=time.time()))
    assert (level, said) == ("warning", "processes unknown: train; last known 40 s ago")
    assert hint


def test_memory_that_is_unknown_has_the_reason() -> None:
    first, _ = world.odd().devices
    assert first.reading is not None
    unknown = msgspec.structs.replace(first.reading, used_bytes=None)
    why = ("the figures contradict each other",)
    item = msgspec.structs.replace(first, reading=unknown, faults=why)
    ((_, level, said, hint),) = told(gpus.device_state(item, now_s=time.time()))
    assert (level, said.endswith(why[0]), bool(hint)) == ("warning", True, True)


def test_a_gpu_that_sleeps_is_no_trouble() -> None:
    _, lost = world.odd().devices
    assert lost.reading is not None
    asleep = msgspec.structs.replace(
        lost,
        reading=msgspec.structs.replace(lost.reading, state="asleep"),
        events=(Event(at_s=1.0, kind="throttle", text="x"),),
    )
    ((_, level, said, _),) = told(gpus.device_state(asleep, now_s=time.time()))
    assert level == "ok"
    assert said.startswith("asleep")


def test_servers_answer_or_say_why_not() -> None:
    answers = told(gpus.servers(Config(), world.odd().servers, now_s=time.time()))
    assert [(name, level) for name, level, _, _ in answers] == [
        ("server Ollama", "ok"), ("server vLLM", "ok"), ("server SGLang", "warning"),
    ]  # fmt: skip
    assert "does not answer: train" in answers[2][2]
    off = msgspec.structs.replace(Config(), endpoints=EndpointsSection(enabled=False))
    ((_, _, said, _),) = told(gpus.servers(off, ()))
    assert "not asked" in said


def test_a_dead_daemon_says_nothing_of_now(machine: Machine) -> None:
    around = machine.around()
    servers = (ServerReading(kind="vLLM", url="u", at_s=0.0),)
    around.state = msgspec.structs.replace(world.odd(), servers=servers), []
    around.alive = True
    live = {check.name for check in gpus.surroundings(around)}
    around.alive = False
    dead = {check.name for check in gpus.surroundings(around)}
    assert live - dead == {"GPU 0", "GPU 1", "server vLLM"}


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
    machine.systemd(ActiveState="inactive", UnitFileState="disabled")  # a package's, unused
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


@ON_LINUX
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
    monkeypatch.setattr(running, "is_held", lambda *_: True)
    (newer,) = machine.faults("daemon").values()
    assert (newer.id, "restart" in newer.hint) == ("daemon-newer", False)
    told.clear()
    assert list(machine.faults("daemon")) == ["daemon-late"]
