"""When a card that was lost is looked for again, and when NVML is started anew for it.

A handle by UUID costs the other cards nothing, so it is tried soon and often. Starting NVML anew
takes every card out of view for as long as it lasts: that waits, and is rare. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import DeviceState

FIRST_S: Final = 1.0
"""First pause before a handle is asked for by UUID; each further one is twice as long."""
LONGEST_S: Final = 60.0
"""Longest of these pauses."""
RESTART_AFTER_S: Final = 30.0
"""A card has to be lost for so long before NVML is started anew for it."""
RESTART_EVERY_S: Final = 600.0
"""Shortest time between two such starts while another card answers."""


class RetryTimer:
    """Keeps the pauses; told what was seen, asked what is due. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._tries: dict[str, tuple[float, float]] = {}
        """UUID -> (time of the next try, the pause before it)."""
        self._lost_since_s: float | None = None
        self._restarted_at_s = -math.inf
        self._pause_s = RESTART_AFTER_S
        self._others_answer = False

    def is_due(self, uid: str, mono_s: float) -> bool:
        """Say whether a card without a handle is to be asked for now."""
        return self._tries.get(uid, (-math.inf, 0.0))[0] <= mono_s

    def failed(self, uid: str, mono_s: float) -> None:
        """Note that a card was lost, or was asked for in vain."""
        pause_s = min(LONGEST_S, max(FIRST_S, 2 * self._tries.get(uid, (0.0, 0.0))[1]))
        self._tries[uid] = (mono_s + pause_s, pause_s)

    def answered(self, uid: str) -> None:
        """Note that a card was read."""
        self._tries.pop(uid, None)

    def saw(self, states: Iterable[DeviceState], mono_s: float) -> None:
        """Note in which states the cards are after a read."""
        seen = set(states)
        self._others_answer = "ok" in seen
        if "lost" not in seen:
            self._lost_since_s, self._pause_s = None, RESTART_AFTER_S
        elif self._lost_since_s is None:
            self._lost_since_s = mono_s

    def restart_is_due(self, mono_s: float) -> bool:
        """Say whether NVML is to be started anew."""
        if self._lost_since_s is None:
            return False
        pause_s = RESTART_EVERY_S if self._others_answer else self._pause_s
        return mono_s >= max(self._lost_since_s + RESTART_AFTER_S, self._restarted_at_s + pause_s)

    def restarted(self, mono_s: float) -> None:
        """Note that NVML is being started anew."""
        self._restarted_at_s = mono_s
        self._pause_s = min(RESTART_EVERY_S, 2 * self._pause_s)
