"""What policy takes and returns: rules, overrides, routes, outcomes. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from gpuwatchd.core.model import ActMode, Alert, Matcher, Severity, Value

if TYPE_CHECKING:
    from gpuwatchd.core.codes import Facts, Hold
    from gpuwatchd.core.config.validation import Hours

RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}
HOUR_S = 3600.0


class Override(Value, frozen=True, kw_only=True):
    """Other rules for some alerts: one ``[[override]]``."""

    matcher: Matcher
    name: str = ""
    """How it is called where it is applied: "override 2"."""
    mute: bool = False
    grows: bool = False
    grows_to_bytes: float | None = None
    severity: Severity | None = None
    channels: tuple[str, ...] | None = None
    repeat_s: tuple[float, ...] | None = None
    act: ActMode | None = None
    detection: dict[str, float] = msgspec.field(default_factory=dict)
    """Field of ``[detection]`` -> its value for these."""
    why: str = ""


class Rules(Value, frozen=True, kw_only=True):
    """What ``[policy]`` and ``[[override]]`` say, in seconds."""

    channels: tuple[str, ...] = ("desktop",)
    confirm: int = 3
    alert_confidence: float = 0.68
    """Mean confidence at which an alert fires."""
    cooldown_s: float = 1800.0
    flap_hold_s: float = 30.0
    clear_after: int = 3
    repeat_s: tuple[float, ...] = (3600.0, 7200.0, 14400.0, 28800.0, 86400.0)
    recovered: bool = True
    max_per_hour: int = 20
    group_interval_s: float = 300.0
    flaps: int = 3
    severity: dict[str, Severity] = msgspec.field(default_factory=dict)
    """Channel -> the least severity that it is used for."""
    quiet: dict[str, tuple[Hours, ...]] = msgspec.field(default_factory=dict)
    """Channel, or "all" -> its quiet hours."""
    overrides: tuple[Override, ...] = ()


class Effective(Value, frozen=True, kw_only=True):
    """The rules for one alert, with every override that fits it applied."""

    channels: tuple[str, ...]
    repeat_s: tuple[float, ...]
    severity: Severity | None = None
    """Told with this severity at most; None: with its own."""
    mute: str = ""
    """Name of the override that mutes it, with its reason; "" where none does."""
    grows: str = ""
    """The same for one that lets it grow."""
    grows_to_bytes: float | None = None
    """It may grow up to this."""
    act: ActMode | None = None
    """Mode of [act] for it; None: the one that holds for all."""
    applied: tuple[tuple[str, str], ...] = ()
    """(key that is set, name of the override that sets it), the last one of each key."""


class Route(Value, frozen=True, kw_only=True):
    """What becomes of one notice on one channel."""

    channel: str
    kind: Literal["send", "wait", "hold"]
    """send: now; wait: booked, and leaves at ``until_at_s``; hold: not by this channel now."""
    reason: str
    """For people."""
    until_at_s: float | None = None
    """Epoch seconds on the clock of people, where the end is known."""
    code: Hold | None = None
    """Why it waits or is held; None: it is sent."""
    facts: Facts = msgspec.field(default_factory=dict)


class Outcome(Value, frozen=True, kw_only=True):
    """What one evaluation did to one alert."""

    alert: Alert | None
    """None when there is nothing to remember."""
    changed: bool
    """Whether its state changed (not merely its numbers)."""
