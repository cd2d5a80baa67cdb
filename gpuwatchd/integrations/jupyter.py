"""A magic of Jupyter and IPython: ``%load_ext gpuwatchd.integrations.jupyter``, then ``%gpuwatch``.

It prints what the daemon knows of this kernel: what ``gpuwatchctl status --pid PID`` prints.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query
from gpuwatchd.view.text import status

_WIDTH: Final = 100


def load_ipython_extension(shell: Any) -> None:
    """Add ``%gpuwatch`` to a shell; IPython calls it for ``%load_ext``."""
    shell.register_magic_function(gpuwatch, "line", "gpuwatch")


def unload_ipython_extension(shell: Any) -> None:
    """Take it away; IPython calls it for ``%unload_ext``."""
    shell.magics_manager.magics["line"].pop("gpuwatch", None)


def gpuwatch(line: str = "") -> None:
    """Print what this kernel holds on each GPU, how it grows, until when, and its open alerts."""
    if line.strip():
        print("%gpuwatch takes no arguments; gpuwatchctl explain and status show more")
        return
    try:
        print("\n".join(_lines()))
    except GpuwatchdError as error:
        print(f"gpuwatchd: {error.message}")
        if error.hint:
            print(f"hint: {error.hint}")


def _lines() -> list[str]:
    """Return the lines to print.

    Raises
    ------
    GpuwatchdError
        There is nothing to print them from.
    """
    pid = os.getpid()
    if not current_state.running():  # the driver is not opened in somebody's kernel
        raise GpuwatchdError("the daemon is not running", hint="gpuwatchctl service install")
    view = current_state.load_view(Query())
    current_state.narrow(view, [pid])
    page = Page(_WIDTH)
    status.show(page, view, whole=False)
    return ["".join(words for words, _ in row).rstrip() for row in page.rows()]
