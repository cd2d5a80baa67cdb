"""For code that runs on a GPU: callbacks of training libraries, and a magic of Jupyter.

All of it runs inside the user's own process: nothing here raises into it, and at most one file is
read every few seconds.
"""

from __future__ import annotations

import sys


def missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return what to raise where the library that a callback is for cannot be imported.

    One sentence with the command that installs it; the error itself where the library is there and
    lacks something of its own.
    """
    if (error.name or "").partition(".")[0] not in {package, "pytorch_lightning"}:
        return error
    command = f"{sys.executable} -m pip install {package}"
    return ModuleNotFoundError(
        f"{package} is not installed for this Python: {command}", name=package
    )
