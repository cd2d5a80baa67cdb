"""Opening the user's terminal with one of our commands in it.

Nothing that came from elsewhere is ever part of a shell's text: what is run goes as arguments.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text
from gpuwatchd.core.config import SECRET_VARIABLES, expanded
from gpuwatchd.core.errors import NotAllowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TERMINALS: Final[tuple[tuple[str, ...], ...]] = (
    ("xdg-terminal-exec",),
    ("x-terminal-emulator", "-e"),
    ("gnome-terminal", "--"),
    ("kgx", "--"),
    ("ptyxis", "--"),
    ("konsole", "-e"),
    ("xfce4-terminal", "-x"),
    ("mate-terminal", "-x"),
    ("lxterminal", "-e"),
    ("kitty",),
    ("alacritty", "-e"),
    ("foot",),
    ("xterm", "-e"),
)
"""Terminals, and how each is told what to run: as the arguments that follow."""
_HOLD: Final = '"$@"; printf "\\n[Enter closes this window] "; read -r _'
"""A text of ours; the command is in its arguments."""
_NAME: Final = "gpuwatchctl"
_START: Final = "import sys; from gpuwatchd.cli import main; sys.exit(main())"
_SETTLE_S: Final = 1.0
"""A terminal that cannot reach the display ends within this."""


def resolve(command: Sequence[str]) -> list[str]:
    """Return one of our commands as it can be run wherever we were installed."""
    if not command or command[0] != _NAME:
        return list(command)
    beside = Path(sys.executable).with_name(_NAME)
    program = str(beside) if beside.exists() else shutil.which(_NAME)
    own = [program] if program else [sys.executable, "-c", _START]
    return [*own, *command[1:]]


def candidates(chosen: Sequence[str], environ: Mapping[str, str]) -> list[list[str]]:
    """Return the terminals that are here, the user's choice first."""
    wanted = [tuple(chosen)] if chosen else []
    if named := environ.get("TERMINAL"):
        known = (rest for value, *rest in _TERMINALS if value == Path(named).name)
        wanted.append((named, *next(known, ("-e",))))
    groups = []
    for program, *options in [*wanted, *_TERMINALS]:
        path = shutil.which(str(expanded(program)), path=environ.get("PATH"))
        if path is not None:
            groups.append([path, *options])
    return groups


def outside(argv: Sequence[str], environ: Mapping[str, str], *, service: bool) -> list[str]:
    """Return how a terminal is started: from a service of systemd by systemd itself.

    In our own unit it would have our limits of memory and rights, and end with us.
    """
    if not service:
        return list(argv)
    given = [f"--setenv={name}={environ[name]}" for name in NAMES if name in environ]
    given += [
        f"--setenv={name}={value}"
        for name, value in environ.items()
        if name.startswith("GPUWATCHD_") and name not in SECRET_VARIABLES
    ]
    return ["systemd-run", "--user", "--collect", "--quiet", *given, "--", *argv]


def show(command: Sequence[str], chosen: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Open a terminal that runs a command of ours and stays open; return it, to be waited for.

    May take some seconds.

    Raises
    ------
    NotAllowed
        There is no display, or no terminal that starts.
    """
    environ = environment()
    if not has_display(environ):
        raise NotAllowed("no display to open a terminal on", page="errors#no-terminal")
    inner = ["sh", "-c", _HOLD, "gpuwatchd", *resolve(command)]
    service = "INVOCATION_ID" in environ and shutil.which("systemd-run") is not None
    why, home = "no terminal was found", expanded("~")
    for terminal in candidates(chosen, environ):
        argv = [*terminal, *inner]
        ways = [outside(argv, environ, service=True)] if service else []
        for way in [*ways, argv]:
            try:
                process = subprocess.Popen(
                    way,
                    env=environ,
                    cwd=home if home.is_dir() else "/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                why = text.clean(f"{Path(terminal[0]).name}: {error}")
                continue
            if _stays(process):
                return process
            why = f"{text.clean(Path(terminal[0]).name)} ended with {process.returncode}"
    raise NotAllowed(
        why,
        hint='set [notify.desktop] terminal, for example ["xterm", "-e"]',
        page="errors#no-terminal",
    )


def _stays(process: subprocess.Popen[bytes]) -> bool:
    """Say whether it has opened: it runs, or has handed the window to a server and ended well."""
    end_s = time.monotonic() + _SETTLE_S
    while process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    return not process.returncode


# The graphical session of the user, as a program without one finds it.
# A service of the user's systemd has no display in its environment, since it may be older than
# the session; but every desktop tells its display to systemd, which gives it to whoever asks.

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
