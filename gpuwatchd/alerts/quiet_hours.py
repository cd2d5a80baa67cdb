"""Quiet hours: until when a channel is not to be used, on the local clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core.config.validation import DAYS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.alerts.policy_types import Local
    from gpuwatchd.core.config.validation import Hours

_AHEAD_DAYS = 9


class Until(NamedTuple):
    """The end of quiet hours."""

    at_s: float
    """Epoch seconds."""
    clock: str
    """"07:00", or "mon 07:00" where that is further away."""


def quiet_until(ranges: Iterable[Hours], local: Local) -> Until | None:
    """Return when the quiet hours end that it is now; None when it is not.

    Ranges that touch are one. Those of a whole week never end: then an end in nine days is named.

    Examples
    --------
    >>> from gpuwatchd.core.config.validation import parse
    >>> from gpuwatchd.alerts.policy_types import Local
    >>> night = Local(now_s=84_600.0, weekday=3, minute=1410,
    ...               epoch=lambda day, minute: 86_400.0 * day + 60.0 * minute)
    >>> quiet_until([parse("22:00-07:00")], night)
    Until(at_s=111600.0, clock='07:00')
    """
    spans = sorted(
        (local.epoch(day, hours.begin), local.epoch(day + over, hours.end), day + over, hours.end)
        for hours in ranges
        for day in range(-1, _AHEAD_DAYS)
        if (local.weekday + day) % 7 in hours.days
        for over in (int(hours.end <= hours.begin),)
    )
    end_s, pair = local.now_s, None
    for begin_s, until_s, day, minute in spans:
        if begin_s <= end_s < until_s:
            end_s, pair = until_s, (day, minute)
    if pair is None:
        return None
    day, minute = pair[0] + pair[1] // 1440, pair[1] % 1440
    named = "" if day <= 1 else f"{DAYS[(local.weekday + day) % 7]} "
    return Until(end_s, f"{named}{minute // 60:02d}:{minute % 60:02d}")
