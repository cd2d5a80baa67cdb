"""Where configuration, history and live state are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from platformdirs.macos import MacOS

SYSTEM_FILE = Path("/etc/gpuwatchd/config.toml")
SYSTEM_STATE_DIR = Path("/var/lib/gpuwatchd")
"""Where the service of a whole machine keeps its history."""
SYSTEM_RUNTIME_DIR = Path("/run/gpuwatchd")
"""Where it keeps its live state."""
HOMELESS = Path("/nonexistent")
"""The home of who has none, as systems themselves call it."""
SYSTEM_GROUP = "gpuwatchd"
"""Whose members read both; its user has the same name."""


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the user's configuration file is, whether it exists or not."""
    environ = os.environ if environ is None else environ
    if _on_macos():
        return Path(_macos().user_config_dir) / "config.toml"
    base = environ.get("XDG_CONFIG_HOME") or str(_home() / ".config")
    return Path(base) / "gpuwatchd" / "config.toml"


def expanded(path: str) -> Path:
    """Return a path of the configuration with "~" filled in; as it is where nobody's home is meant.

    Then it is no file that is there, and whoever opens it says so.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the history."""
    environ = os.environ if environ is None else environ
    if environ.get("GPUWATCHD_STATE_DIR"):
        return Path(environ["GPUWATCHD_STATE_DIR"])
    if _on_macos():
        return Path(_macos().user_state_dir)
    return Path(environ.get("XDG_STATE_HOME") or str(_home() / ".local" / "state")) / "gpuwatchd"


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the live state and the lock.

    Without ``XDG_RUNTIME_DIR`` it lies in the state directory: a guessable folder in the
    temporary directory could be planted by another user.
    """
    environ = os.environ if environ is None else environ
    if environ.get("GPUWATCHD_RUNTIME_DIR"):
        return Path(environ["GPUWATCHD_RUNTIME_DIR"])
    if _on_macos():
        return Path(_macos().user_runtime_dir)
    base = environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "gpuwatchd"
    # From su or cron the variable is missing, but the service that we ask has the directory.
    usual = Path(f"/run/user/{os.getuid()}")
    return usual / "gpuwatchd" if usual.is_dir() else state_dir(environ) / "run"


def _home() -> Path:
    """Return the user's home; where there is none (a bare uid in a container) one nobody has."""
    try:
        return Path.home()
    except RuntimeError:
        return HOMELESS


def _on_macos() -> bool:
    return sys.platform == "darwin"


def _macos() -> MacOS:
    # On Linux three variables say it all, and status must start quickly; hence only here.
    from platformdirs.macos import MacOS  # noqa: PLC0415

    return MacOS("gpuwatchd", appauthor=False)
