"""The agent's property list before our own judge, and the judge before lists that are wrong."""

from __future__ import annotations

import plistlib
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.service.launchd import HOMEBREW_LABEL, LABEL, Launchd
from tests.service.plist import complaints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.conftest import Tools


def _ours(tools: Tools) -> dict[str, Any]:
    wanted: dict[str, Any] = plistlib.loads(Launchd(environ=tools.environ).render().encode())
    return wanted


def _write(folder: Path, wanted: dict[str, Any], label: str = LABEL) -> Path:
    file = folder / f"{label}.plist"
    file.write_bytes(plistlib.dumps(wanted))
    return file


def test_ours_is_in_order(tools: Tools, tmp_path: Path) -> None:
    assert complaints(_write(tmp_path, _ours(tools))) == []


def test_what_homebrew_writes_from_a_service_block_is_in_order(tmp_path: Path) -> None:
    generated = {
        "KeepAlive": True,
        "Label": HOMEBREW_LABEL,
        "LimitLoadToSessionType": ["Aqua", "Background", "LoginWindow", "StandardIO", "System"],
        "ProcessType": "Background",
        "ProgramArguments": ["/opt/homebrew/opt/gpuwatchd/bin/gpuwatchd"],
        "RunAtLoad": True,
        "StandardErrorPath": "/opt/homebrew/var/log/gpuwatchd.log",
        "StandardOutPath": "/opt/homebrew/var/log/gpuwatchd.log",
    }
    assert complaints(_write(tmp_path, generated, HOMEBREW_LABEL)) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"Label": "other"}, "Label: not the name of the file"),
        ({"ProgramArguments": ["gpuwatchd"]}, "ProgramArguments: the program is not absolute"),
        ({"ProgramArguments": ["/bin/sh", "$HOME"]}, "ProgramArguments: no shell fills in ~ or $"),
        ({"ProgramArguments": ["/bin/sh", 1]}, "ProgramArguments: not all words"),
        ({"RunAtLoad": False}, "RunAtLoad: it would not start at login"),
        ({"KeepAlive": False}, "KeepAlive: it would not come back"),
        ({"KeepAlive": {"Sometimes": True}}, "KeepAlive: unknown condition"),
        ({"KeepAlive": {"SuccessfulExit": 0}}, "KeepAlive: a condition is true or false"),
        ({"ThrottleInterval": "30"}, "ThrottleInterval: str"),
        ({"ThrottleInterval": True}, "ThrottleInterval: bool"),
        ({"ThrottleInterval": 1}, "ThrottleInterval: launchd takes no less than 10"),
        ({"ProcessType": "Slow"}, "ProcessType: unknown"),
        ({"LimitLoadToSessionType": "Desktop"}, "LimitLoadToSessionType: unknown"),
        ({"StandardOutPath": "~/log"}, "StandardOutPath: not absolute"),
        ({"EnvironmentVariables": {"N": 1}}, "EnvironmentVariables: N is no text"),
        (
            {"EnvironmentVariables": {"GPUWATCHD_SMTP_PASSWORD": "x"}},
            "EnvironmentVariables: GPUWATCHD_SMTP_PASSWORD looks like a secret",
        ),
        ({"Umask": 0o7777}, "Umask: no mode"),
        ({"KeepAlives": True}, "KeepAlives: unknown key"),
    ],
)
def test_the_judge_can_say_no(
    change: dict[str, Any], complaint: str, tools: Tools, tmp_path: Path
) -> None:
    assert complaints(_write(tmp_path, _ours(tools) | change)) == [complaint]


def test_what_is_no_property_list(tmp_path: Path) -> None:
    file = tmp_path / "x.plist"
    file.write_text("{not this}")
    assert complaints(file)[0].startswith("no property list")
