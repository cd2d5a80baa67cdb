"""``doctor``: what works here, what is missing, and the command that mends it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import main
from gpuwatchd.cli.doctor import answer, places
from gpuwatchd.core.model import Availability
from tests.cli import world
from tests.cli.test_look import Card

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceState
    from tests.cli.calls import Ctl


class FakeManager:
    """A service manager that is there, or is not."""

    name = "systemd"
    present = True

    def probe(self) -> Availability:
        return Availability(ok=self.present, reason="nobody home", hint="log in")

    def render(self) -> str:
        return "[Unit]\n"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> type[FakeManager]:
    """Let every service manager be the fake one."""
    table = dict.fromkeys(("systemd", "launchd"), f"{__name__}:FakeManager")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[FakeManager.__module__])
    monkeypatch.setattr("gpuwatchd.service.MANAGERS", table)
    monkeypatch.setattr(FakeManager, "present", True)
    return FakeManager


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the source nvml have a GPU."""
    monkeypatch.setitem(sys.modules, Card.__module__, sys.modules[Card.__module__])
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", {"nvml": f"{Card.__module__}:Card"})


def _answers(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, list[dict[str, Any]]]:
    assert main(["doctor", "--json"]) == code
    found: dict[str, list[dict[str, Any]]] = {}
    for check in json.loads(capsys.readouterr().out)["data"]:
        found.setdefault(check["name"], []).append(check)
    return found


def test_doctor_is_0_when_nothing_is_missing(
    card: None,
    manager: type[FakeManager],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPUWATCHD_POLICY_CHANNELS", "command")
    monkeypatch.setenv("GPUWATCHD_NOTIFY_COMMAND_ARGV", "true")
    first, second = world.state().devices
    known = msgspec.structs.replace(second, processes=())
    world.write(taken_at_s=time.time(), devices=(first, known))
    found = _answers(capsys, 0)
    assert found["source nvml"][0]["text"].startswith("1 GPU;")
    assert found["daemon"][0]["level"] == "ok"
    assert found["channel command"][0]["level"] == "ok"


def test_doctor_is_3_for_warnings_and_1_without_a_gpu(
    card: None,
    manager: type[FakeManager],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(manager, "present", False)
    found = _answers(capsys, 3)
    assert found["daemon"][0]["hint"] == "gpuwatchctl service install"
    assert found["service"][0] == {
        "name": "service", "level": "warning", "text": "nobody home", "hint": "log in",
        "id": "service-none", "page": "troubleshoot#service-none",
    }  # fmt: skip
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    assert _answers(capsys, 1)["gpu"][0]["level"] == "failed"


def test_every_failure_and_warning_names_what_mends_it(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    answers = ctl.data("doctor", code=1)
    for check in answers:
        if check["level"] != "ok" and check["name"] != "config":
            assert check["hint"], check


def test_doctor_goes_on_with_a_broken_configuration(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[[", encoding="utf-8")
    shown = ctl("doctor --config", str(file), code=1)
    assert "not valid TOML" in shown
    assert "history directory" in shown


def test_doctor_leaves_a_hanging_driver_behind(
    card: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answer, "DEADLINE_S", 0.05)
    monkeypatch.setattr(Card, "read", lambda _: time.sleep(2))
    found = _answers(capsys, 1)
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
    capsys: pytest.CaptureFixture[str],
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
    found = _answers(capsys, code)
    (source,) = found["source nvml"]
    assert source["level"] == level
    assert source["text"].startswith(words)
    for device, state in zip(devices, states, strict=True):
        said = [check["text"] for check in found.get(device.label, [])]
        assert bool(said) == (state in {"lost", "hung"}), said
        assert all(state in text for text in said)


def test_a_check_that_breaks_is_not_called_a_driver_that_hangs(
    card: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Card, "read", lambda _: 1 // 0)
    (source,) = _answers(capsys, 1)["source nvml"]
    assert source["level"] == "failed"
    assert source["text"].startswith("breaks with ZeroDivisionError")


def test_a_network_file_system_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    monkeypatch.setattr(places, "MOUNTINFO", str(mounts))
    assert places.file_system(tmp_path / "state") == "nfs4"
    assert places.file_system(tmp_path / "run") == "tmpfs"
    assert places.file_system(Path("/elsewhere")) == "ext4"
    assert main(["doctor"]) in {1, 3}
    shown = capsys.readouterr().out.replace("\n" + " " * 9, " ")
    assert "network file system (nfs4)" in shown
    assert "export GPUWATCHD_STATE_DIR=" in shown
