"""``doctor``: what works here, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import doctor
from gpuwatchd.cli.doctor import gpus, places
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import EndpointsSection
from gpuwatchd.core.model import Availability, Event, ServerReading
from tests.cli import world
from tests.cli.sick import Card, Machine, Well

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.cli.doctor import Check
    from gpuwatchd.core.model import DeviceState
    from gpuwatchd.store.live import LiveState
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


def _state(**changes: Any) -> LiveState:
    return msgspec.structs.replace(world.odd(), **changes)


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
    answers = told(gpus.servers(Config(), _state().servers, now_s=time.time()))
    assert [(name, level) for name, level, _, _ in answers] == [
        ("server Ollama", "ok"), ("server vLLM", "ok"), ("server SGLang", "warning"),
    ]  # fmt: skip
    assert "does not answer: train" in answers[2][2]
    off = msgspec.structs.replace(Config(), endpoints=EndpointsSection(enabled=False))
    ((_, _, said, _),) = told(gpus.servers(off, ()))
    assert "not asked" in said


def test_a_dead_daemon_says_nothing_of_now(machine: Machine) -> None:
    around = machine.around()
    around.state = _state(servers=(ServerReading(kind="vLLM", url="u", at_s=0.0),)), []
    around.alive = True
    live = {check.name for check in gpus.surroundings(around)}
    around.alive = False
    dead = {check.name for check in gpus.surroundings(around)}
    assert live - dead == {"GPU 0", "GPU 1", "server vLLM"}
