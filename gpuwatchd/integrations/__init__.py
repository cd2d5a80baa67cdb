"""For code that runs on a GPU: callbacks of training libraries, and a magic of Jupyter.

All of it runs in the user's process: nothing raises into it, and one file is read now and then.
"""

from __future__ import annotations

import sys


def missing(package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return what to raise where a library cannot be imported: with the command to install it.

    The error itself where the library is there and lacks something of its own.
    """
    if (error.name or "").partition(".")[0] != package:
        return error
    command = f"{sys.executable} -m pip install {package}"
    return ModuleNotFoundError(f"{package} is not installed: {command}", name=package)
