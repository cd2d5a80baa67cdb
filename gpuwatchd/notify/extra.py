"""Which command brings the parts that are not installed with the rest."""

from __future__ import annotations

import shlex
import sys


def install(extra: str) -> str:
    """Return the command that installs an extra beside this program, wherever it is.

    A plain ``pip`` would be that of another Python: ours is in an environment of its own.

    Examples
    --------
    >>> install("chat").endswith(" -m pip install 'gpuwatchd[chat]'")
    True
    """
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install 'gpuwatchd[{extra}]'"
