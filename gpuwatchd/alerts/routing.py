"""Which rules and silences an alert is under: by which channels a notice goes, when, why not."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.alerts.policy_types import HOUR_S, RANK, Effective, Route, Rules
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.config.validation import DAYS
from gpuwatchd.core.model import AlertSubject

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.alerts.policy_types import Override
    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.config.validation import Hours
    from gpuwatchd.core.model import Alert, Matcher, NoticeKind, ProcessKey, Severity, Silence
    from gpuwatchd.core.units import Local


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


class InhibitingAlerts:
    """Open alerts that may inhibit others.

    Looking at each of hundreds for each of hundreds would take a tick longer than its interval.
    """

    def __init__(self, alerts: Iterable[Alert]) -> None:
        self.lost: list[Alert] = []
        """Those on GPUs and drivers."""
        self._near: dict[ProcessKey | str, list[Alert]] = {}
        for alert in alerts:
            if alert.state != "firing":
                continue
            if alert.kind == "gpu":
                self.lost.append(alert)
            elif alert.subject.process is not None and alert.held_code is not Hold.NO_DATA:
                self._near.setdefault(alert.subject.process, []).append(alert)
                self._near.setdefault(alert.subject.device_uid, []).append(alert)

    def near(self, alert: Alert) -> list[Alert]:
        """Return those among which is any that inhibits an alert."""
        subject = alert.subject
        same = subject.device_uid if subject.process is None else subject.process
        return [*self.lost, *self._near.get(same, ())]


def inhibitor(alert: Alert, others: Iterable[Alert]) -> Alert | None:
    """Return the open alert that inhibits this one (makes it no news); None without any.

    A GPU that is lost or hangs, its card, or a driver that is down says all that can be said of its
    memory; on one that should be reset jobs go on, and leak. A process that is about to run out of
    memory is told of once, by its worst alert. A device as a whole only echoes what one of its
    processes does.
    """
    return next(
        (other for other in others if other.key != alert.key and _inhibits(other, alert)), None
    )


def _inhibits(one: Alert, alert: Alert) -> bool:
    """Say whether ``one`` inhibits ``alert``; never both of each other."""
    if one.state != "firing" or alert.kind == "gpu":
        return False
    mine, its = alert.subject, one.subject
    same = mine.device_uid == its.device_uid
    if one.kind == "gpu":
        card = alert.about.card_uid if alert.about is not None else ""
        here = one.severity == "critical" and its.device_uid in {mine.device_uid, card}
        return not mine.host and (here or not its.device_uid)
    if one.kind != "leak" or its.process is None or one.inhibited_by:
        return False
    if mine.process is not None:
        worse = one.severity == "critical" and RANK[alert.severity] < RANK[one.severity]
        return mine.process == its.process and worse
    echo = same and not its.host and not mine.unattributed and alert.kind == "leak"
    return echo and RANK[alert.severity] <= RANK[one.severity]


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
    >>> from gpuwatchd.core.units import Local
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


ALL_CHANNELS = "all"
_ENDLESS_S = 7.5 * 86_400.0
"""Quiet hours that last longer than a week are those of every day."""


def capped_severity(alert: Alert, effective: Effective) -> Severity:
    """Return the severity of its notices: its own, at most that of the override."""
    cap = effective.severity
    return alert.severity if cap is None or RANK[alert.severity] <= RANK[cap] else cap


def may_grow(alert: Alert, effective: Effective, level_bytes: float | None = None) -> Facts | None:
    """Return by which rule nobody is told of a growth that is meant to be; None where it is told.

    ``level_bytes``: what the subject holds now; by default what follows from its judgement.
    """
    if not effective.grows:
        return None
    bound = effective.grows_to_bytes
    if bound is not None:
        level = _level(alert) if level_bytes is None else level_bytes
        below = level is not None and level < bound
        return {"rule": effective.grows, "bound_bytes": bound} if below else None
    eta = alert.finding.eta
    if eta is not None and eta.mid_s < HOUR_S:
        return None  # However it is meant, memory is about to be full.
    return {"rule": effective.grows}


def _level(alert: Alert) -> float | None:
    """Return what a subject holds, by its judgement: the limit less what grows until then."""
    finding = alert.finding
    if finding.limit_bytes is None or finding.eta is None or finding.rate_bytes_per_s is None:
        return None
    return finding.limit_bytes - finding.rate_bytes_per_s * finding.eta.mid_s


def silenced(
    alert: Alert,
    silences: Iterable[Silence],
    now_s: float | None,
    severity: Severity | None = None,
) -> Silence | None:
    """Return the silence in force that lasts longest; None without one.

    What is critical is told all the same, unless a silence says that it is meant, too.

    ``severity``: with which people are told; by default its own.
    """
    urgent = (severity or alert.severity) == "critical"
    found = [
        silence
        for silence in silences
        if silence.cleared_at_s is None
        and (now_s is None or now_s < silence.until_at_s)
        and (silence.even_critical or not urgent)
        and not (silence.until_resolved and alert.state == "resolved")
        and matches(silence.matcher, alert)
    ]
    return max(found, key=lambda silence: silence.until_at_s, default=None)


def routes(
    alert: Alert,
    notice: NoticeKind,
    rules: Rules,
    *,
    local: Local | None = None,
    silences: Sequence[Silence] = (),
    others: Iterable[Alert] = (),
    level_bytes: float | None = None,
) -> tuple[Route, ...]:
    """Return what becomes of a notice on each channel that its alert has.

    Cool-down, grouping and the limit per hour are about when a notice is due at all; here it is.

    Without ``local`` it is never quiet, and every silence counts. ``others`` are open beside it:
    one of them may say it all. ``level_bytes`` is what its subject holds now, where that is known
    better than by its judgement.
    """
    effective = rules_for(alert, rules)
    case = RoutingCase(alert, notice, effective, capped_severity(alert, effective), local)
    return routes_of(case, rules, silences=silences, others=others, level_bytes=level_bytes)


class RoutingCase(NamedTuple):
    """One notice, and what holds for it."""

    alert: Alert
    notice: NoticeKind
    effective: Effective
    severity: Severity
    local: Local | None


def routes_of(
    case: RoutingCase,
    rules: Rules,
    *,
    silences: Sequence[Silence],
    others: Iterable[Alert],
    level_bytes: float | None,
) -> tuple[Route, ...]:
    """Return what :func:`routes` does, where it is known already what holds for the notice."""
    channels = case.effective.channels
    held = _held(case, silences, others, level_bytes)
    if held is not None:
        return tuple([msgspec.structs.replace(held, channel=name) for name in channels])
    # That a job has died is news of its own, and cannot wait.
    over = case.notice == "resolved" and not case.alert.ran_out
    return tuple([_route(name, case, rules, over=over) for name in channels])


def held_route(name: str, code: Hold, /, **facts: float | str) -> Route:
    """Return the route of a notice that does not leave by a channel."""
    return msgspec.structs.replace(_of(code, facts), channel=name)


def _of(code: Hold, facts: Facts, now_s: float | None = None) -> Route:
    text = wording.hold(code, facts, now_s=now_s)
    return Route(channel="", kind="hold", reason=text, code=code, facts=facts)


def _held(
    case: RoutingCase,
    silences: Sequence[Silence],
    others: Iterable[Alert],
    level_bytes: float | None,
) -> Route | None:
    """Return why no channel is used at all, and until when where that is known."""
    alert, now_s = case.alert, None if case.local is None else case.local.now_s
    if case.effective.mute:
        return held_route("", Hold.MUTED, rule=case.effective.mute)
    if case.notice != "resolved":
        grows = may_grow(alert, case.effective, level_bytes)
        if grows is not None:
            return _of(Hold.MAY_GROW, grows)
        above = inhibitor(alert, others)
        if above is not None:
            who, parts = above.title or above.key, above.finding.parts
            why = parts[0].whole if parts and above.kind == "gpu" else ""
            return held_route("", Hold.INHIBITED, alert=who, why=why)
    silence = silenced(alert, silences, now_s, case.severity)
    if silence is None:
        return None
    facts: Facts = {"who": silence.who, "why": silence.why}
    if not silence.until_resolved:
        facts["until_at_s"] = silence.until_at_s
    route = _of(Hold.SILENCED, facts, now_s)
    return msgspec.structs.replace(route, until_at_s=silence.until_at_s)


def _route(channel: str, case: RoutingCase, rules: Rules, *, over: bool) -> Route:
    if over and case.alert.told_on and channel not in case.alert.told_on:
        return held_route(channel, Hold.BEGINNING_NOT_SENT)
    least = rules.severity.get(channel, "info")
    # Who was told that it began is told that it is over, whatever it was worth at its end.
    if not over and RANK[case.severity] < RANK[least]:
        return held_route(channel, Hold.BELOW_SEVERITY, channel=channel, least=least)
    ranges = (*rules.quiet.get(channel, ()), *rules.quiet.get(ALL_CHANNELS, ()))
    urgent = case.severity == "critical" and not over
    if ranges and case.local is not None and not urgent:
        until = quiet_until(ranges, case.local)
        endless = until is not None and until.at_s - case.local.now_s > _ENDLESS_S
        if endless and not over:
            return held_route(channel, Hold.QUIET_ALWAYS)
        if until is not None and not endless:
            route = held_route(channel, Hold.QUIET_HOURS, clock=until.clock)
            return msgspec.structs.replace(route, kind="wait", until_at_s=until.at_s)
    return Route(channel=channel, kind="send", reason=case.notice)
