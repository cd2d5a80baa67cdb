"""The text of the units: one user's, the machine's, and those of a package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service.systemd import Systemd
from gpuwatchd.service.unit_files import MARK, escape, for_package, render
from tests.service.conftest import refused

if TYPE_CHECKING:
    from tests.service.conftest import Tools

EXEC = "/usr/bin/gpuwatchd"
HIDES_GPUS = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"}
HIDES_OTHERS = {"PrivateUsers", "ProtectProc", "ProcSubset", "PrivateNetwork"}


def directives(unit: str) -> list[tuple[str, str]]:
    """Return (name, value) of every line that sets something."""
    lines = [line for line in unit.splitlines() if line and line[0] not in "#["]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


@pytest.fixture
def user_unit(tools: Tools) -> str:
    return Systemd(environ=tools.environ, executable="/opt/venv/bin/python3").render()


@pytest.fixture(params=["user", "system", "packaged user", "packaged system"])
def unit(request: pytest.FixtureRequest, user_unit: str, tools: Tools) -> str:
    """Every unit that is ever printed."""
    name = str(request.param)
    system = name.endswith("system")
    if name.startswith("packaged"):
        return for_package(EXEC, system=system)
    return user_unit if not system else Systemd(environ=tools.environ, system=True).render()


def test_credentials_of_the_machine_are_not_needed() -> None:
    credentials = [
        value for name, value in directives(for_package(EXEC, system=True))
        if name == "LoadCredential"
    ]  # fmt: skip
    assert credentials == [
        "smtp-password:gpuwatchd.smtp-password", "chat-urls:gpuwatchd.chat-urls"
    ]  # fmt: skip
    # A path would have to exist: the service would not start without it.
    assert not any("/" in one for one in credentials)


def test_nothing_hides_gpus_or_other_users_processes(unit: str) -> None:
    assert not {name for name, _ in directives(unit)} & (HIDES_GPUS | HIDES_OTHERS)


@pytest.mark.parametrize("packaged", [False, True])
def test_a_user_s_manager_can_apply_all_of_it(user_unit: str, packaged: bool) -> None:
    unit = for_package(EXEC, system=False) if packaged else user_unit
    # Those with mounts need a user namespace, in which other users' processes have no owner;
    # the state directory is another one in each version of systemd.
    assert not {name for name, _ in directives(unit)} & {
        "ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectKernelModules",
        "SupplementaryGroups", "MemoryDenyWriteExecute", "StateDirectory", "User",
        "CapabilityBoundingSet", "AmbientCapabilities", "LoadCredential",
    }  # fmt: skip


@pytest.mark.parametrize("system", [False, True])
def test_a_package_s_unit_names_nobody_s_directory(system: bool) -> None:
    unit = for_package(EXEC, system=system)
    assert dict(directives(unit))["ExecStart"] == f'"{EXEC}"'
    assert "RuntimeDirectory=gpuwatchd" in unit
    settings = "\n".join(line for line in unit.splitlines() if not line.startswith("#"))
    assert not re.search(r"/home/|/root|/run/user|\.local|\.config", settings)
    assert "Documentation=man:gpuwatchd(8)" in settings
    assert "STATE_DIR=/" not in settings
    refused("absolute path", for_package, "gpuwatchd", system=system)


def test_the_killer_for_lack_of_memory_takes_others_first(
    unit: str, request: pytest.FixtureRequest
) -> None:
    scores = [int(value) for name, value in directives(unit) if name == "OOMScoreAdjust"]
    system = request.node.callspec.params["unit"].endswith("system")
    # Less than 0 would promise what a manager of a user cannot keep.
    assert scores == ([-500] if system else [0])


def test_it_is_known_as_ours_and_no_placeholder_is_left(unit: str) -> None:
    assert MARK in unit
    assert not re.search(r"@[A-Z_]+@", unit)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_what_is_quoted_is_read_back(value: str) -> None:
    if not value.isprintable():
        with pytest.raises(ServiceError):
            escape(value)
        return
    inside = escape(value)
    assert not re.search(r'(?<!\\)(?:\\\\)*"', inside)
    unquoted = re.sub(r"\\(.)", r"\1", inside).replace("%%", "%")
    assert unquoted == value


def test_a_line_break_cannot_add_a_directive(tools: Tools) -> None:
    environ = tools.environ | {"GPUWATCHD_STATE_DIR": "/x\nExecStartPre=/bin/evil"}
    refused("control character", Systemd(environ=environ).render)


def test_a_dollar_sign_in_the_command_is_no_variable() -> None:
    unit = render(["/opt/gpuwatchd/bin/python", "-m", "$HOME"], {})
    assert 'ExecStart="/opt/gpuwatchd/bin/python" "-m" "$$HOME"\n' in unit


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/home/o'brien/gpuwatchd", "/home/o'brien/gpuwatchd"),
        ("/opt/$HOME/gpuwatchd", "/opt/$$HOME/gpuwatchd"),
        ('/opt/"x"/gpuwatchd', '/opt/\\"x\\"/gpuwatchd'),
        ("/opt/a\\b/gpuwatchd", "/opt/a\\\\b/gpuwatchd"),
    ],
)
def test_a_program_that_systemd_cannot_name_is_started_by_a_shell(path: str, written: str) -> None:
    shell = r'ExecStart="/bin/sh" "-c" "exec \"$$0\" \"$$@\"" '
    assert f'{shell}"{written}"\n' in render([path], {})
