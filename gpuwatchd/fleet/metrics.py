"""``[metrics]`` of a worker: a page about its rounds, on this machine alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuwatchd.core import extras, registry
from gpuwatchd.fleet.alertmanager import member_name
from gpuwatchd.service import metrics_server
from gpuwatchd.service.sockets import Server
from gpuwatchd.view.queries.fleet_state import FleetRoundState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.fleet.config import Fleet

_RENDER: Final = {"metrics": "gpuwatchd.view.fleet_metrics:render"}
_REASONS: Final = (
    "above-total",
    "blank",
    "duplicate",
    "no-uuid",
    "not-a-number",
    "out-of-order",
    "uuid-on-two-hosts",
)
"""Why something is left out."""
_STATUSES: Final = ("no answer", "401", "403", "429", "503")
"""How a question fails, for the most part."""
_SERVER: Final = Server("gpuwatchd fleet", "[metrics] listen names another")


class Metrics:
    """The page of one worker."""

    def __init__(self, fleet: Fleet) -> None:
        self._address, self._shard = fleet.listen, str(fleet.shard)
        members = map(member_name, fleet.section.alertmanagers)
        asked = ["round", "query_range"]
        asked += [f"{name} {what}" for name in members for what in ("read", "post")]
        # A counter that begins with its first failure has no rise that a rule could see.
        self._failures = {f"{what} {status}": 0 for what in asked for status in _STATUSES}
        self._rounds = self._judged = 0
        self._found = FleetRoundState()
        self._round_s: float | None = None
        self._page = b""

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Serve the page where the configuration asks for it, until the block is left.

        Raises
        ------
        GpuwatchdError
            When prometheus-client is missing, or the address cannot be had.
        """
        if self._address is None:
            yield
            return
        extras.need("metrics", "[metrics]", "prometheus_client", page="errors#metrics-extra")
        self._render()
        with metrics_server.serving(self._address, lambda: self._page, _SERVER):
            yield

    def after_round(self, found: FleetRoundState, round_s: float) -> None:
        """Take over what a round has come to."""
        self._rounds += 1
        self._judged += found.judged
        self._found, self._round_s = found, round_s
        self._render()

    def after_failure(self, found: FleetRoundState) -> None:
        """Take over what is open, and what failed since the last round."""
        self._found = found
        self._render()

    def _render(self) -> None:
        if self._address is not None:
            found = replace(
                self._found,
                dropped=dict.fromkeys(_REASONS, 0) | self._found.dropped,
                failures=self._failures | self._found.failures,
            )
            self._page = registry.load(_RENDER, "metrics")(
                found,
                shard=self._shard,
                rounds=self._rounds,
                judged=self._judged,
                round_s=self._round_s,
            )
