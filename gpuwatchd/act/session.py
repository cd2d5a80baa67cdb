"""The graphical session of the user, as a program without one finds it.

A service of the user's systemd has no display in its environment, since it may be older than the
session; but every desktop tells its display to systemd, which gives it to whoever asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from gpuwatchd.core.config import SECRET_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES: Final = (
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_SESSION_TYPE",
    "XDG_CURRENT_DESKTOP",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "TERMINAL",
    "LANG",
    "LC_ALL",
)
"""All that is ever taken from there."""
_ASK_S: Final = 3.0


def has_display(environ: Mapping[str, str]) -> bool:
    """Say whether windows can be opened with this environment."""
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment without secrets, with the session's display where we have none.

    May take some seconds; never raises.
    """
    given = os.environ if environ is None else environ
    own = {name: value for name, value in given.items() if name not in SECRET_VARIABLES}
    if has_display(own):
        return own
    values = parse(_ask())
    return own | values if has_display(values) else own


def parse(text: str) -> dict[str, str]:
    r"""Return what is wanted of ``systemctl --user show-environment``.

    Examples
    --------
    >>> parse("HOME=/home/a\nDISPLAY=:1\nXAUTHORITY=$'/run/a b'\nSECRET=x\n")
    {'DISPLAY': ':1'}
    """
    pairs = (line.partition("=") for line in text.splitlines())
    # A value in quotes has odd characters; none of those that are needed has.
    return {k: v for k, _, v in pairs if k in NAMES and v and not v.startswith("$'")}


def _ask() -> str:
    """Ask the user's service manager. Not verified with one that runs."""
    program = shutil.which("systemctl")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--user", "show-environment"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
