"""What happens to cards, told once: lost, hung, to be reset, back.

Nothing here imports pynvml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.core.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.collect.nvml.card import Card
    from gpuwatchd.core.model import DeviceState, EventKind

BACK_AFTER_S: Final = 10.0
"""A card is back when it has answered for so long: one that comes and goes is one incident."""

_KINDS: Final[Mapping[DeviceState, EventKind]] = {
    "lost": "gpu-lost",
    "no-permission": "gpu-lost",
    "hung": "gpu-hung",
    "reset-required": "reset-required",
}
_TEXTS: Final[Mapping[DeviceState, str]] = {
    "lost": "the GPU answered before and does not any more",
    "no-permission": "the GPU answered before and may not be read any more",
    "hung": "a call to the driver does not return; the other GPUs are read on",
    "reset-required": "the driver says that the GPU has to be reset",
}


class _LoggedState:
    """What is known and told of one card."""

    __slots__ = ("answered", "back_since_s", "since_s", "state")

    def __init__(self) -> None:
        self.answered = False
        self.state: DeviceState = "ok"
        self.since_s = 0.0
        self.back_since_s: float | None = None


class StateChanges:
    """Turns the states of cards into events, each told once."""

    def __init__(self) -> None:
        self._told: dict[str, _LoggedState] = {}
        self._waiting: list[Event] = []

    def add(self, event: Event) -> None:
        """Add an event that is not about a card's state."""
        self._waiting.append(event)

    def take(self, cards: Iterable[Card], at_s: float, mono_s: float) -> tuple[Event, ...]:
        """Return what has happened since the last call.

        Parameters
        ----------
        cards
            With the state of this read.
        at_s, mono_s
            When they were read.
        """
        for card in cards:
            state = self._told.get(card.uid)
            if state is None:
                if card.is_placeholder:
                    continue
                state = self._told[card.uid] = _LoggedState()
            if card.state == "ok":
                if state.state != "ok":
                    self._back(card, state, at_s, mono_s)
                state.answered = True
            elif card.state != state.state:
                self._gone(card, state, at_s, mono_s)
            else:
                state.back_since_s = None
        if not self._waiting:
            return ()
        waiting, self._waiting = tuple(self._waiting), []
        return waiting

    def _gone(self, card: Card, state: _LoggedState, at_s: float, mono_s: float) -> None:
        kind = _KINDS.get(card.state)
        if kind is None:
            return
        state.back_since_s = None
        # What never answered has not been lost; that it needs a reset is worth saying at once.
        if not state.answered and kind != "reset-required":
            return
        if state.state == "ok":
            state.since_s = mono_s
        state.state = card.state
        self._waiting.append(
            Event(
                at_s=at_s,
                kind=kind,
                device_uid=card.uid,
                text=_TEXTS[card.state] + (f": {card.said}" if card.said else ""),
                code=card.code,
                hardware=None if card.state == "no-permission" else True,
            )
        )

    def _back(self, card: Card, state: _LoggedState, at_s: float, mono_s: float) -> None:
        if state.back_since_s is None:
            state.back_since_s = mono_s
        if mono_s - state.back_since_s < BACK_AFTER_S:
            return
        away = units.duration(state.back_since_s - state.since_s)
        state.state, state.back_since_s = "ok", None
        self._waiting.append(
            Event(
                at_s=at_s,
                kind="gpu-back",
                device_uid=card.uid,
                text=f"the GPU answers again after {away}",
            )
        )
