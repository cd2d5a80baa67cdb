"""What an alert costs at this moment: prices, who has how much, and when it last saved its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.config import Config
    from gpuwatchd.model import Alert, Cost
    from gpuwatchd.pipeline.intake import Intake
    from gpuwatchd.store.writer import History


class Costing:
    """Knows prices and checkpoints.

    Parameters
    ----------
    config
        Prices and file patterns.
    intake
        Who holds what.
    history
        Where checkpoints are kept; None keeps none.
    """

    def __init__(self, config: Config, intake: Intake, history: History | None) -> None:
        self.config = config
        self._intake = intake
        self._history = history

    def step(self, now_s: float) -> None:
        """Look for checkpoints, where that is due."""

    def of(self, alert: Alert, now_s: float) -> Cost | None:  # noqa: ARG002
        """Return what an alert costs so far and until memory is full; None where that is off."""
        return None
