"""Parts of a tick that may fail without stopping it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("gpuwatchd")

T = TypeVar("T")
_LOG_AGAIN_S = 60.0


class Guard:
    """Runs parts; what they raise is logged once a minute and remembered while it lasts.

    Parameters
    ----------
    mono
        Monotonic clock, seconds.
    """

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._failed: dict[str, tuple[str, float]] = {}

    @property
    def whys(self) -> list[str]:
        """What fails now, one sentence each."""
        return [why for why, _ in self._failed.values()]

    def __call__(self, where: str, work: Callable[[], T]) -> T | None:
        """Run one part and return what it returns; None when it fails."""
        try:
            result = work()
        except Exception as error:
            why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
            at_s = self._mono()
            if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
                known = isinstance(error, GpuwatchdError)
                log.log(
                    logging.ERROR, "failed part=%s error=%r", where, str(error), exc_info=not known
                )
                self._failed[where] = (why, at_s)
            return None
        if self._failed:
            self._failed.pop(where, None)
        return result
