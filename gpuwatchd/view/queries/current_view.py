"""What one look at the GPUs gave: their state, alerts, and the daemon behind them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.codes import ProblemCode
    from gpuwatchd.core.model import (
        Alert,
        ChannelHealth,
        Holding,
        IdleJob,
        ServerReading,
        Silence,
    )
    from gpuwatchd.store.live import LiveDevice, UndeliveredAlert


class OtherUsers(msgspec.Struct, frozen=True):
    """What all other users hold on one GPU."""

    count: int
    """Processes."""
    held_bytes: int
    whole: bool
    """Whether it is known of each of them."""
    named: str
    """The users that ``--user`` names."""


class Daemon(msgspec.Struct, eq=False):
    """What is known about the daemon."""

    running: bool = False
    scope: state_location.Scope = msgspec.field(
        default_factory=lambda: state_location.chosen().scope
    )
    pid: int | None = None
    version: str | None = None
    started_at_s: float | None = None
    last_sample_at_s: float | None = None
    problems: tuple[str, ...] = ()
    problem_codes: tuple[ProblemCode, ...] = ()


class View(msgspec.Struct, eq=False):
    """What one look gave; alerts are the open ones."""

    source: str
    """state-file, database or direct."""
    taken_at_s: float
    devices: tuple[LiveDevice, ...] = ()
    stale_s: float = 0.0
    """Age of the readings."""
    interval_s: float = 0.0
    """At which the daemon looks; 0 where none did."""
    alerts: tuple[Alert, ...] = ()
    holdings: tuple[Holding, ...] = ()
    jobs: tuple[IdleJob, ...] | None = None
    """Of Slurm, without a process on their GPUs; None where nobody has asked."""
    servers: tuple[ServerReading, ...] = ()
    channels: tuple[ChannelHealth, ...] = ()
    untold: tuple[str, ...] = ()
    lost: tuple[UndeliveredAlert, ...] = ()
    deaths: tuple[Alert, ...] = ()
    """Of jobs that ran out of memory within the last day, newest first."""
    silences: tuple[Silence, ...] = ()
    daemon: Daemon = msgspec.field(default_factory=Daemon)
    released_until_s: float | None = None
    """Until when (epoch seconds) the GPUs are let go on request; None where they are not."""
    warnings: list[tuple[str, str]] = []
    """(code, sentence) of what is missing or doubtful."""
    trend: bool = True
    """Whether there is a history behind the readings, so that verdicts can exist."""
    others: dict[str, OtherUsers] = {}
    """UUID of a device -> what other users hold there, where ``--user`` has left them out."""

    def __post_init__(self) -> None:
        """Note the age of the readings."""
        self.stale_s = max(0.0, time.time() - self.taken_at_s)

    def keep_alerts(self, wanted: Callable[[Alert], bool]) -> None:
        """Leave those alerts, open and past, that are wanted."""
        self.alerts = tuple(filter(wanted, self.alerts))
        self.deaths = tuple(filter(wanted, self.deaths))

    @property
    def now_s(self) -> float:
        """When it was looked: the newest sample where a simulation runs ahead of the clock."""
        return self.taken_at_s + self.stale_s

    @property
    def since_s(self) -> float | None:
        """Since when somebody has been looking."""
        return self.taken_at_s if self.source == "direct" else self.daemon.started_at_s
