"""What every stage of the tick reads: the settings in force, and the rules made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.core.config import validation
from gpuwatchd.core.model import Matcher

if TYPE_CHECKING:
    from gpuwatchd.core.config import Config

_CONDITIONS = (
    *("gpu", "user", "process", "framework", "command", "job", "container"),
    *("kind", "pattern"),
)


def rules_of(config: Config) -> alerts.Rules:
    """Return policy's rules from the configuration, their spans as JSON can write them."""
    section = config.policy
    return alerts.Rules(
        channels=section.channels,
        confirm=section.confirm,
        alert_confidence=config.detection.confidence_threshold,
        cooldown_s=float(section.cooldown),
        flap_hold_s=float(section.flap_hold),
        clear_after=section.clear_after,
        repeat_s=tuple(float(step) for step in section.repeat),
        recovered=section.recovered,
        max_per_hour=section.max_per_hour,
        group_interval_s=float(section.group_interval),
        flaps=section.flaps,
        severity=dict(section.severity),
        quiet={
            name: tuple(validation.parse(text) for text in ranges)
            for name, ranges in section.quiet_hours.items()
        },
        overrides=tuple(
            alerts.Override(
                matcher=Matcher(**{name: getattr(one, name) for name in _CONDITIONS}),
                name=f"override {number}",
                mute=one.mute,
                grows=one.grows,
                grows_to_bytes=one.grows_to,
                severity=one.severity,
                channels=one.channels,
                repeat_s=None if one.repeat is None else tuple(map(float, one.repeat)),
                act=one.act,
                why=one.why,
            )
            for number, one in enumerate(config.override, start=1)
        ),
    )


class Settings:
    """The settings in force; a reload replaces them, and a stage reads them where it needs them."""

    def __init__(self, config: Config, rules: alerts.Rules | None = None) -> None:
        self.config, self.rules = config, rules or rules_of(config)

    def replace(self, config: Config) -> None:
        """Put others into force."""
        self.config, self.rules = config, rules_of(config)
