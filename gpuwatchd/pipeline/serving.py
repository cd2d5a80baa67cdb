"""What serving engines say of themselves, asked beside the tick and never waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.config import Config
    from gpuwatchd.model import ProcessInfo, ServerReading


class Serving:
    """The newest answers of the serving engines on this machine.

    Parameters
    ----------
    config
        All settings.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.readings: tuple[ServerReading, ...] = ()

    def step(self, processes: Iterable[ProcessInfo], now_s: float) -> None:
        """Take over what has been answered, and ask whoever is due. Never waits."""

    def close(self) -> None:
        """Ask nobody any more."""
