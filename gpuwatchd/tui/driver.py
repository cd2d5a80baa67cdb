"""The terminal, through stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App


class Terminal(LinuxDriver):
    """Draws on stdout, as every other verb writes there: ``2> errors.log`` leaves a screen."""

    def __init__(self, app: App[Any], **settings: Any) -> None:
        super().__init__(app, **settings)
        if sys.__stdout__ is not None:
            self._file = sys.__stdout__

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return columns and rows as the terminal has them, whatever COLUMNS was once exported."""
        with contextlib.suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(self.fileno)
            if columns > 0 and rows > 0:
                return columns, rows
        return super()._get_terminal_size()
