"""A magic of Jupyter and IPython: ``%load_ext gpuwatchd.integrations.jupyter``, then ``%gpuwatch``.

It prints what ``gpuwatchctl status --pid`` prints of this kernel.
"""

from __future__ import annotations

import os
from typing import Any

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query
from gpuwatchd.view.text import status


def load_ipython_extension(shell: Any) -> None:
    """Add ``%gpuwatch`` to a shell; IPython calls it for ``%load_ext``."""
    shell.register_magic_function(gpuwatch, "line")


def gpuwatch(_: str = "") -> None:
    """Print what this kernel holds on each GPU, how it grows, until when, and its open alerts."""
    page = Page(100)
    if not current_state.running():  # status would open the driver, and here in this kernel
        print("gpuwatchd: the daemon is not running\nhint: gpuwatchctl service install")
        return
    try:
        view = current_state.load_view(Query())
        current_state.narrow(view, [os.getpid()])
        status.show(page, view, whole=False)
    except GpuwatchdError as error:
        page.line(f"gpuwatchd: {error.message}")
    print(*("".join(words for words, _ in row).rstrip() for row in page.rows()), sep="\n")
