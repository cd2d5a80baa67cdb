"""The text of the systemd units: of one user, and of a whole machine."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from gpuwatchd.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNIT = "gpuwatchd.service"
MARK = 'Written by "gpuwatchctl service install'
"""In the first lines of every unit of ours."""
OWN_RUNTIME = "%t/gpuwatchd"
"""The runtime directory that systemd makes for the service."""
SYSTEM_VARIABLES = {
    "GPUWATCHD_STATE_DIR": "%S/gpuwatchd",
    "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME,
    "GPUWATCHD_DAEMON_READERS": "group",
}
# No state directory: %S of a user manager is ~/.config in systemd 252 and ~/.local/state in 257,
# whereas the daemon's own choice is the same everywhere.
PACKAGED_VARIABLES = {"GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME}
_NOT_A_PROGRAM = set("$'\"\\")
"""What systemd refuses in the path of a program, or keeps doubled, even where it is quoted."""
_THROUGH_A_SHELL = ("/bin/sh", "-c", 'exec "$0" "$@"')
_PAGES = "Documentation=man:gpuwatchd(8) man:gpuwatchctl(1)\n"
_RUNTIME = (
    "\n# The live state outlives a restart: gpuwatchctl reads it also while nothing runs.\n"
    "RuntimeDirectory=gpuwatchd\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n"
)


def render(
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    system: bool = False,
    packaged: bool = False,
) -> str:
    """Return a unit.

    Parameters
    ----------
    argv
        Absolute command of the daemon.
    variables
        Variables for the service, values as systemd reads them (``%t`` allowed, see
        :func:`escape`). A runtime directory below ``%t`` is made by systemd.
    system
        The unit of the machine instead of one user's.
    packaged
        For a package: it brings the manual pages along that the unit names.

    Raises
    ------
    ServiceError
        When the command is not absolute, or a word holds a control character.
    """
    if not argv or not argv[0].startswith("/"):
        raise ServiceError("systemd", "rendering the unit", "the daemon needs an absolute path")
    name = "gpuwatchd-system.service.in" if system else "gpuwatchd.service.in"
    template = resources.files("gpuwatchd.service").joinpath(name).read_text("utf-8")
    made = variables.get("GPUWATCHD_RUNTIME_DIR", OWN_RUNTIME) == OWN_RUNTIME
    environment = "\n".join(f'Environment="{name}={value}"' for name, value in variables.items())
    words = (*_THROUGH_A_SHELL, *argv) if set(argv[0]) & _NOT_A_PROGRAM else argv
    command = " ".join(f'"{escape(word).replace("$", "$$")}"' for word in words)
    return (
        template.replace("@DOCUMENTATION@", _PAGES if packaged else "")
        .replace("@EXEC_START@", command)
        .replace("@ENVIRONMENT@", environment)
        .replace("@RUNTIME@", _RUNTIME if made else "")
    )


def for_package(command: str, *, system: bool) -> str:
    """Return the unit that a package brings: it names no directory of one user.

    Parameters
    ----------
    command
        Absolute path of the daemon.
    system
        The unit of the machine instead of one user's.
    """
    variables = SYSTEM_VARIABLES if system else PACKAGED_VARIABLES
    return render((command,), variables, system=system, packaged=True)


def escape(value: str) -> str:
    r"""Return a value for the inside of double quotes in a unit.

    Raises
    ------
    ServiceError
        When it holds a line break or another control character.

    Examples
    --------
    >>> escape('/a b/100%/"x"')
    '/a b/100%%/\\"x\\"'
    """
    if not value.isprintable():
        raise ServiceError("systemd", "rendering the unit", "a path holds a control character")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
