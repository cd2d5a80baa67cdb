"""From the configuration to policy's rules, and from the clock to local time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.core.config import validation
from gpuwatchd.core.model import Matcher

if TYPE_CHECKING:
    from gpuwatchd.core.config import Config, OverrideSection

_CONDITIONS = (
    *("gpu", "user", "process", "framework", "command", "job", "container"),
    *("kind", "pattern"),
)


def rules_of(config: Config) -> alerts.Rules:
    """Return policy's rules from the configuration."""
    section = config.policy
    return alerts.Rules(
        channels=section.channels,
        confirm=section.confirm,
        cooldown_s=section.cooldown,
        flap_hold_s=section.flap_hold,
        clear_after=section.clear_after,
        repeat_s=tuple(float(step) for step in section.repeat),
        recovered=section.recovered,
        max_per_hour=section.max_per_hour,
        group_interval_s=section.group_interval,
        flaps=section.flaps,
        severity=dict(section.severity),
        quiet={
            name: tuple(validation.parse(text) for text in ranges)
            for name, ranges in section.quiet_hours.items()
        },
        overrides=tuple(
            override_of(override_section, number)
            for number, override_section in enumerate(config.override, start=1)
        ),
    )


def override_of(section: OverrideSection, number: int) -> alerts.Override:
    """Return one override; ``number`` counts them from 1."""
    return alerts.Override(
        matcher=Matcher(**{name: getattr(section, name) for name in _CONDITIONS}),
        name=f"override {number}",
        mute=section.mute,
        grows=section.grows,
        grows_to_bytes=section.grows_to,
        severity=section.severity,
        channels=section.channels,
        repeat_s=None if section.repeat is None else tuple(float(step) for step in section.repeat),
        why=section.why,
    )


def local(now_s: float) -> alerts.Local:
    """Return what time it is where people are; of what clocks show twice, the first."""
    here = time.localtime(now_s)

    def epoch(day: int, minute: int) -> float:
        # Hours that clocks skip, and days beyond the end of a month, are for mktime to sort out.
        return time.mktime((here.tm_year, here.tm_mon, here.tm_mday + day, 0, minute, 0, 0, 0, -1))

    return alerts.Local(
        now_s=now_s,
        weekday=here.tm_wday,
        minute=60 * here.tm_hour + here.tm_min,
        epoch=epoch,
    )
