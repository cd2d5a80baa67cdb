"""Which alerts a rule or a silence is about, and which rules hold for an alert."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gpuwatchd.alerts.policy_types import Effective
from gpuwatchd.core.model import AlertSubject

if TYPE_CHECKING:
    from gpuwatchd.alerts.policy_types import Override, Rules
    from gpuwatchd.core.model import Alert, Matcher

_NOBODY = AlertSubject()
_LONGEST = 500
"""Making sense of a longer glob takes seconds; who wrote one by hand meant none."""
_OF_ABOUT = ("user", "process", "framework", "command", "job", "container")


def fits(pattern: str, *values: str) -> bool:
    """Say whether a glob fits one of some values, whatever their case; an empty one fits all.

    Examples
    --------
    >>> fits("A100*", "", "NVIDIA A100"), fits("*a100*", "NVIDIA A100"), fits("", "x")
    (False, True, True)
    """
    if not pattern:
        return True
    pattern = pattern.lower()
    # What is meant word for word may have brackets in it.
    return any(
        value
        and (
            value.lower() == pattern
            or (len(pattern) <= _LONGEST and fnmatchcase(value.lower(), pattern))
        )
        for value in values
    )


def matches(matcher: Matcher, alert: Alert) -> bool:
    """Say whether an alert is one of those that a matcher is about."""
    return (
        fits(matcher.key, alert.key)
        and fits(matcher.kind, alert.kind)
        and fits(matcher.pattern, alert.finding.pattern)
        and fits(matcher.severity, alert.severity)
        and is_about(matcher, alert.about or _NOBODY, alert.subject.device_uid)
    )


def is_about(matcher: Matcher, about: AlertSubject, device_uid: str) -> bool:
    """Say whether the device and the process are those that a matcher is about."""
    short = about.gpu_name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return fits(matcher.gpu, about.gpu, device_uid, about.gpu_name, short) and all(
        fits(getattr(matcher, name), getattr(about, name)) for name in _OF_ABOUT
    )


def rules_for(alert: Alert, rules: Rules) -> Effective:
    """Return the rules for one alert: of the overrides that fit, the last to set a key wins."""
    values: dict[str, Any] = {"channels": rules.channels, "repeat_s": rules.repeat_s}
    applied: dict[str, str] = {}
    for override in rules.overrides:
        if not matches(override.matcher, alert):
            continue
        for key, value in _set_by(override).items():
            values[key], applied[key] = value, override.name
    return Effective(**values, applied=tuple(applied.items()))


def _set_by(override: Override) -> dict[str, Any]:
    """Return what an override sets."""
    text = f"{override.name}: {override.why}" if override.why else override.name
    found: dict[str, Any] = {
        "severity": override.severity,
        "channels": override.channels,
        "repeat_s": override.repeat_s,
        "grows_to_bytes": override.grows_to_bytes,
        "act": override.act,
        "mute": text if override.mute else None,
        "grows": text if override.grows or override.grows_to_bytes is not None else None,
    }
    return {key: value for key, value in found.items() if value is not None}
