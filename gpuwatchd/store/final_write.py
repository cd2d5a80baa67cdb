"""The last write of the history: tried a little longer, and said where it could not be done."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.store.alert_buffer import Ledger
    from gpuwatchd.store.write_problems import WriteProblems

LAST_TRY_S: Final = 1.2
"""The daemon has 4.5 s to leave, with what its messages and its drivers take."""
_PAUSE_S: Final = 0.05

log = logging.getLogger("gpuwatchd")


def write(flush: Callable[[], bool], health: WriteProblems) -> None:
    """Write what waits; while another program holds the lock, try again for a moment.

    Parameters
    ----------
    flush
        Writes everything and says whether nothing waits now.
    health
        Says whether it is the lock that keeps it from that.
    """
    until_s = time.monotonic() + LAST_TRY_S
    while not flush() and health.is_locked and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)


def log_lost(ledger: Ledger, samples: int, health: WriteProblems) -> None:
    """Log in one line what is lost now that the history is let go; nothing when nothing is."""
    waits = [(samples, "sample row", ""), *ledger.left()]
    lost = [
        f"{count} {name}{'s' if count > 1 else ''}{f' ({newest})' if newest else ''}"
        for count, name, newest in waits
        if count
    ]
    if lost:
        why = "it is locked by another program" if health.is_locked else "; ".join(health.problems)
        log.warning("the history lacks %s: %s", ", ".join(lost), why or "it cannot be written")
