"""Memory that is held without work, as far as it was seen tick after tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.config import Config
    from gpuwatchd.model import Holding
    from gpuwatchd.pipeline.intake import Intake
    from gpuwatchd.pipeline.serving import Serving


class Holdings:
    """What ``gpuwatchctl zombies`` lists.

    Parameters
    ----------
    config
        All settings.
    intake
        Who holds what.
    serving
        What serving engines say.
    """

    def __init__(self, config: Config, intake: Intake, serving: Serving) -> None:
        self.config = config
        self.found: tuple[Holding, ...] = ()
        self._intake = intake
        self._serving = serving

    def look(self, now_s: float) -> None:
        """Look once at what is held now."""
