"""Which command brings the parts that are not installed with the rest."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Final

from gpuwatchd.core.errors import GpuwatchdError

PACKAGED: Final = "gpuwatchctl docs debian#charts-and-keyring"
"""Who has the package of the distribution has no pip in our environment."""
BREWED: Final = "gpuwatchctl docs install#extras"
"""What is added to Homebrew's environment is gone with the next upgrade: another way lasts."""
_WHOLE: Final = {
    "uv-receipt.toml": "uv tool install --force 'gpuwatchd[full]'",
    "pipx_metadata.json": "pipx install --force 'gpuwatchd[full]'",
    "container-image": "gpuwatchctl docs containers#build",
}
"""File in an environment -> what adds to it: it is made anew, so with all the extras; uv's and
our image's have no pip, and pipx must know what is in its own."""


def install(extra: str, prefix: str | None = None) -> str:
    """Return the command that installs an extra beside this program, or says how, for good.

    A plain ``pip`` would be that of another Python: ours is in an environment of its own.

    Examples
    --------
    >>> install("chat").endswith(" -m pip install 'gpuwatchd[chat]'")
    True
    """
    environment = Path(prefix or sys.prefix)
    if _packaged(environment):
        return PACKAGED
    if "Cellar" in environment.resolve().parts:
        return BREWED
    for note, command in _WHOLE.items():
        if (environment / note).is_file():
            return command
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install 'gpuwatchd[{extra}]'"


def need(extra: str, what: str, *modules: str, page: str) -> None:
    """Refuse to go on where modules that an extra brings are not installed.

    Raises
    ------
    GpuwatchdError
        With the command that installs them; ``what`` needs them, and ``page`` tells of it.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        why = f"{what} needs {' and '.join(missing)}, which {verb} not installed"
        raise GpuwatchdError(why, hint=install(extra), page=page)


def _packaged(environment: Path) -> bool:
    """Say whether a package of the distribution has brought this environment: it notes itself."""
    try:
        lines = (environment / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return any(line.partition("=")[0].strip() == "gpuwatchd" for line in lines)
