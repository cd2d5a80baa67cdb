"""The variables that make the daemon of a service and the command line agree on directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core import config
from gpuwatchd.service.unit import OWN_RUNTIME, escape

if TYPE_CHECKING:
    from collections.abc import Mapping


def of_a_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a user's unit, as systemd reads them.

    Raises
    ------
    ServiceError
        When a path holds a control character.
    """
    runtime = str(config.runtime_dir(environ))
    own = environ.get("XDG_RUNTIME_DIR")
    made = own and runtime == str(Path(own) / "gpuwatchd")
    paths = {
        "GPUWATCHD_STATE_DIR": escape(_absolute(str(config.state_dir(environ)))),
        "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME if made else escape(_absolute(runtime)),
    }
    for name in ("GPUWATCHD_CONFIG", "XDG_CONFIG_HOME"):
        if environ.get(name):
            paths[name] = escape(_absolute(environ[name]))
    return paths


def unusual(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a user's unit that a service does not have by itself."""
    usual = {
        "GPUWATCHD_STATE_DIR": escape(str(config.state_dir({}))),
        "GPUWATCHD_RUNTIME_DIR": OWN_RUNTIME,
        "XDG_CONFIG_HOME": escape(str(Path.home() / ".config")),
    }
    values = of_a_user(environ)
    return {name: value for name, value in values.items() if usual.get(name) != value}


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links


def with_runtime_dir(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the usual XDG_RUNTIME_DIR: a shell of cron or su has none."""
    usual = Path(f"/run/user/{os.getuid()}")
    if environ.get("XDG_RUNTIME_DIR") or not usual.is_dir():
        return dict(environ)
    return {**environ, "XDG_RUNTIME_DIR": str(usual)}
