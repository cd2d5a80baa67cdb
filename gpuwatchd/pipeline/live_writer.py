"""The live state of each tick: what other programs show of now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd import __version__
from gpuwatchd.pipeline.live_state import LiveDevices, UndeliveredAlerts
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import Alert
    from gpuwatchd.notify.outbox.outbox import Dispatcher, Outbox
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.source_workers import Problem
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.writer import History

_RSS_EVERY_TICKS = 12


class Outputs(NamedTuple):
    """Where a pipeline writes to."""

    history: History | None = None
    """Keeps samples and alerts; None keeps nothing."""
    runtime_dir: Path | None = None
    """Where the live state is written each tick; None writes none."""
    message_dispatcher: Dispatcher | None = None
    """Carries messages; None tells nobody."""


class LiveWriter:
    """Makes the live state, and writes it where there is a directory for it."""

    def __init__(
        self, state: State, outputs: Outputs, *, outbox: Outbox, host: Host | None, clocks: Clocks
    ) -> None:
        self._state = state
        self._directory = outputs.runtime_dir
        self._outbox = outbox
        self._host = host
        self._clocks = clocks
        self.boot_id = "" if outputs.history is None else outputs.history.boot_id
        self._undelivered = UndeliveredAlerts(outputs.history, outbox.reach)
        self._started_at_s = clocks.wall()
        self._ticks = 0
        self._rss_bytes: int | None = None
        self._devices = LiveDevices()
        self._pieces = live.Pieces()

    def before(self) -> LiveState | None:
        """Read what an earlier run has left."""
        return None if self._directory is None else live.read(self._directory)

    def count(self) -> None:
        """Count a tick."""
        self._ticks += 1

    def write(self, state: LiveState) -> None:
        """Write a live state; only what has changed of it is made anew."""
        if self._directory is not None:
            live.write(self._directory, state, self._pieces)

    def write_last(self, state: LiveState) -> None:
        """Write the live state of one that has stopped."""
        if self._directory is not None:
            live.write(self._directory, state)

    def snapshot(
        self, now_s: float, problems: Sequence[Problem], deaths: tuple[Alert, ...]
    ) -> LiveState:
        """Return how all stands; ``deaths`` are those of jobs that people have not seen yet."""
        state = self._state
        if self._host is not None and self._ticks % _RSS_EVERY_TICKS == 1:
            self._rss_bytes = self._host.own_rss_bytes()
        infos = state.engines.with_models(state.infos)
        known = (state.infos.changes, state.engines.named)
        devices = [
            self._devices.device(
                device,
                spark=self._devices.spark(uid, position, self._ticks, state.tracks),
                infos=infos,
                known=known,
                events=state.events.recent(uid),
            )
            for position, (uid, device) in enumerate(state.devices.items())
        ]
        return LiveState(
            pid=os.getpid(),
            version=__version__,
            coded=True,
            started_at_s=self._started_at_s,
            taken_at_s=now_s,
            interval_s=float(state.settings.config.daemon.interval),
            ticks=self._ticks,
            devices=tuple(devices),
            boot_id=self.boot_id,
            clock_ahead_s=self._clocks.wall() - self._clocks.mono(),
            alerts=(*state.open_alerts(), *state.restored.alerts.values()),
            pending=tuple(state.pending_alerts()),
            problems=tuple([text for text, _ in problems]),
            problem_codes=tuple([code for _, code in problems]),
            rss_bytes=self._rss_bytes,
            holdings=state.holdings,
            silences=state.silences.active,
            channels=self._outbox.channel_health(),
            untold=self._outbox.reach.untold(),
            lost=self._undelivered.lost(now_s),
            deaths=deaths,
            servers=state.engines.readings,
        )
